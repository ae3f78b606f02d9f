//! Starts of a daemon that dies right after a slow start command, before the end of its check. Such a start
//! must not answer 0, even if the agent or the server is killed meanwhile.
//!
//! One more caller of the workload has a proc of its own for them. `history` counts a success as untrue.

use crate::any_server::AnyServer;
use crate::history::{self, Sent};
use crate::world::World;
use procfleet_testkit::{Proc, ask_again, programs};
use std::time::Duration;

/// The first part of the words of these tasks.
const WORD: &str = "dies";
/// How long the start command takes until it starts the daemon, in seconds.
const TAKES: u32 = 1;
/// Much longer than the daemon lives, so that a loaded machine does not find it alive at the end of the
/// check.
const CHECK_SECS: u32 = 5;
/// The caller goes on after this time, whether the op has ended or not.
const IMPATIENCE: Duration = Duration::from_secs(8);
const LOOK: Duration = Duration::from_millis(50);

/// Whether a task with this word starts a daemon that dies.
pub(crate) fn must_fail(word: &str) -> bool {
    word.split('.').next() == Some(WORD)
}

pub(crate) fn proc(world: &World) -> Proc {
    world.own_proc("short-lived").with_pid_file().policy("start_check_secs", CHECK_SECS)
}

pub(crate) fn play(any: &AnyServer, proc: &Proc, host: &String, round: usize) -> Sent {
    let word = format!("{WORD}.{round}");
    let command =
        format!("echo '{word}' $PROCFLEET_PROC >> ../procs/log; {}", programs::slow_daemon_that_dies(TAKES));
    let proc = proc.clone().starts(&command);
    let host = std::slice::from_ref(host);
    let start = history::send_op(any, &proc, host, procfleet_testkit::Op::Start, &word);
    ask_again(LOOK, IMPATIENCE, || start.has_ended(any).then_some(()));
    start
}
