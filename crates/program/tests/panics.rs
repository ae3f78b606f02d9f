//! What a panic costs. One test: the hook and what it counts belong to the whole process.

use procfleet_program::panics::{self, Caught, block_for_request, catch, catch_in, contain, fatal};
use procfleet_program::{LogArgs, LogFormat};

async fn ends_the_program() -> bool {
    tokio::select! {
        biased;
        _ = fatal() => true,
        () = std::future::ready(()) => false,
    }
}

#[tokio::test]
async fn a_contained_panic_is_counted_and_any_other_one_ends_the_program() {
    let log = LogArgs { log_format: LogFormat::Text, log_level: "off".to_owned() };
    let _log = log.init_tracing();
    let in_task = tokio::spawn(contain(async { panic!("in a session") })).await;
    let in_task: Result<(), _> = in_task;
    assert!(in_task.is_err_and(|error| error.is_panic()));
    let in_request: Result<(), Caught> = catch(async { panic!("in a request") }).await;
    assert!(in_request.is_err());
    let in_job: Result<(), Caught> = catch_in(|| panic!("in a job"));
    assert!(in_job.is_err());
    let in_read: Result<(), _> = block_for_request(|| panic!("in a read")).await;
    assert!(in_read.is_err());
    assert_eq!((panics::total(), ends_the_program().await), (4, false));

    // Nobody holds its handle.
    tokio::spawn(async { panic!("of a part, {}", 1) });
    let panicked = fatal().await;
    assert_eq!((panics::total(), panicked.message.as_str()), (5, "of a part, 1"));
    assert!(panicked.location.contains("panics.rs"), "{}", panicked.location);
    let thread = std::thread::spawn(|| panic!("of another"));
    let joined: Result<(), _> = thread.join();
    assert!(joined.is_err());
    assert_eq!((panics::total(), fatal().await), (6, panicked), "the first one is the cause");
}
