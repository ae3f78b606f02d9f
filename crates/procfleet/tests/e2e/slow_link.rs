//! An agent behind a link of a few KB a second: logs come in small pages, and outcomes do not wait behind
//! them.

use crate::up;
use procfleet_testkit::{Joined, Op, PATIENCE, Proc, SlowProxy, Up, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};

const IP: &str = "127.0.0.2";
const LINE: &str = "0123456789 0123456789 0123456789 0123456789 0123456789 0123456789 0123456789";

fn join(up: &Up, proxy: &SlowProxy) -> Joined {
    let mut agent = Joined::start(up.binary(), &proxy.url(), &up.folder("far"), IP, Some(&up.token(&[])));
    agent.wait_until_connected(up, IP);
    agent
}

/// A proc that has written this many lines.
fn talker(up: &Up, lines: u32) -> Proc {
    let command =
        format!("awk 'BEGIN {{ for (i = 1; i <= {lines}; i++) print i, \"{LINE}\" }}'; exec ./web 1000");
    let proc = up.proc("talks").on_host(IP).starts(&command);
    proc.start();
    proc
}

#[test]
fn logs_are_read_over_a_slow_link() {
    let up = up();
    let proxy = SlowProxy::to(&up.link());
    let _agent = join(&up, &proxy);
    let proc = talker(&up, 600);
    // One page of the largest size takes longer than an agent has for its answer.
    proxy.slow_down(3 * 1024);
    let read = up.cli(&["logs", &proc.name, "--namespace", &proc.namespace, "--lines", "10000"]);
    let expected: String = (1..=600).map(|number| format!("{number} {LINE}\n")).collect();
    assert!(read.code == Some(0) && read.stdout == expected, "{read:?}");
}

#[test]
fn outcomes_go_before_logs_on_a_slow_link() {
    /// Allowance for data that is on its way already, and for the delay of the test. The readers ask for much
    /// more.
    const AHEAD: u64 = 120 * 1024;
    let up = up();
    let proxy = SlowProxy::to(&up.link());
    let _agent = join(&up, &proxy);
    let proc = talker(&up, 4_000);
    let question =
        format!("/api/v1/logs?namespace={}&name={}&host=0:{IP}&lines=10000", proc.namespace, proc.name);
    proxy.slow_down(8 * 1024);
    let begun = proxy.passed();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    // An answer that does not come in time is not what is tested here.
                    let _ = up.client.try_get(&question);
                }
            });
        }
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(PATIENCE, "the link is busy", || proxy.passed() > begun + 64 * 1024);
            for _ in 0..3 {
                let before = proxy.passed();
                proc.op(Op::Query).assert_success();
                let waited = proxy.passed() - before;
                assert!(waited < AHEAD, "{waited} bytes went before the outcome");
            }
        }));
        done.store(true, Ordering::SeqCst);
        proxy.slow_down(0);
        checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
