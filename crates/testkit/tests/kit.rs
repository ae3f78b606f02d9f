//! The kit itself: it ends all that it starts, and waiting ends at the deadline.

use procfleet_testkit::{Program, Stranger, dead_pid, is_running, wait_for};
use std::time::Duration;

#[test]
fn a_program_ends_when_its_owner_is_dropped() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let mut stranger = Stranger::start(folder.path());
    let pid = stranger.pid();
    stranger.assert_unharmed();
    drop(stranger);
    assert!(!is_running(pid));
}

#[test]
fn a_program_ends_when_its_test_fails() {
    let failed = std::thread::spawn(|| {
        let folder = tempfile::tempdir().expect("a temp dir");
        let stranger = Stranger::start(folder.path());
        std::panic::panic_any(stranger.pid());
    });
    let pid = failed.join().expect_err("it failed");
    assert!(!is_running(*pid.downcast_ref::<u32>().expect("it told the pid")));
}

#[test]
fn a_finished_program_has_its_code_and_output() {
    let finished = Program::new("/bin/sh").args(["-c", "echo out; echo err >&2; exit 5"]).run();
    let told = (finished.code, finished.stdout.as_str(), finished.stderr.as_str());
    assert_eq!(told, (Some(5), "out\n", "err\n"));
    assert!(!is_running(dead_pid()));
}

#[test]
#[should_panic(expected = "in vain for this: the impossible")]
fn waiting_ends_at_the_deadline() {
    wait_for(Duration::from_millis(30), "the impossible", || None::<()>);
}
