//! What a process uses with all that belongs to it.

use crate::support::*;
use procfleet_agent::exec::{Meter, UsageScan};
use procfleet_core::Process;
use procfleet_core::supervise::{LookScope, Usage};
use std::time::{Duration, Instant};

async fn sampled_until(
    what: &str,
    proc: &Proc,
    process: &Process,
    meter: &mut Meter,
    fits: impl Fn(Option<Usage>) -> bool,
) -> Option<Usage> {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let usage = UsageScan::look(&proc.context).await.usage(&proc.context, process, meter);
        if fits(usage) {
            return usage;
        }
        assert!(Instant::now() < deadline, "{what}: {usage:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn children_and_those_that_have_ended_count() {
    let mut proc = Proc::new("usage");
    let spec = proc.spec.clone();
    // A child that waits with open files, one that works, and many that come and go.
    let run = proc.run(
        "./web 1000 3</dev/null 4<&3 5<&3 & (while :; do :; done) & while :; do sh -c 'i=0; while [ $i -lt 9000 ]; do i=$((i+1)); done'; done",
    );
    let process = running(proc.executor.look(LookScope::Run(run), &spec));
    let mut meter = Meter::default();
    let usage = sampled_until("all of them are counted", &proc, &process, &mut meter, |usage| {
        usage.is_some_and(|usage| usage.fd >= 15 && usage.cpu > 1.0)
    })
    .await
    .expect("it runs");
    assert!(usage.cpu <= 100.0 && usage.mem > 0.0 && usage.mem < 50.0, "{usage:?}");
    let alone = proc.executor.inspect(&process).expect("it runs");
    assert!(alone.memory_percent < usage.mem, "{alone:?} and {usage:?}");
    proc.executor.end_run(run);
    proc.end_of(run).await;
    sampled_until("it is gone for all", &proc, &process, &mut meter, |usage| usage.is_none()).await;
}
