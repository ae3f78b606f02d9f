//! Stops and kills that overtake a start whose command takes seconds until the daemon is there.
//!
//! One more caller of the workload has procs of its own, which no other caller starts: when a stop has ended
//! with 0 or 829, nothing of its proc runs until the caller's next start. The command of each start appends
//! its word to the log, as all others do.

use crate::any_server::AnyServer;
use crate::history::{self, Sent, Verdict};
use crate::table::Row;
use crate::world::{AGENT, SERVER, World};
use procfleet_testkit::{Op, Proc, ask_again, pids_marked, programs};
use std::collections::BTreeMap;
use std::time::Duration;

const PROCS: usize = 4;
/// How long a start command takes until it starts the daemon, in seconds.
const TAKES: u32 = 3;
/// The caller goes on after this time, whether the op has ended or not.
const IMPATIENCE: Duration = Duration::from_secs(6);
/// An op on a host that is connected has ended by then.
const LAST_OUTCOME: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// How often the last stop of a proc is sent. More than the commits that a game lets fail.
const ATTEMPTS: usize = 10;

/// A proc on one of the hosts, and what overtakes its starts.
#[derive(Clone, Debug)]
pub(crate) struct SlowProc {
    proc: Proc,
    host: [String; 1],
    by: Op,
}

/// Stop and kill, each with and without a `stop_cmd`.
pub(crate) fn procs(world: &World, addresses: &[String]) -> Vec<SlowProc> {
    let slow = |(number, ip): (usize, &String)| {
        let mut proc = world.own_proc(&format!("slow-{number}")).with_pid_file();
        if number % 2 == 1 {
            proc = proc.control("stop_cmd", "kill $(cat web.pid)");
        }
        SlowProc { proc, host: [ip.clone()], by: if number < PROCS / 2 { Op::Stop } else { Op::Kill } }
    };
    addresses.iter().cycle().take(PROCS).enumerate().map(slow).collect()
}

impl SlowProc {
    /// A start, and what overtakes it: while the command runs, at once, or when the start has ended.
    /// `between` is called between the two.
    pub(crate) fn play(&self, any: &AnyServer, round: usize, between: impl FnOnce()) -> [Sent; 2] {
        let (first, second) = (format!("slow.{round}.start"), format!("slow.{round}.stop"));
        // Without the old pid file, stop_cmd cannot meet the pid of a stranger.
        let command = format!(
            "echo '{first}' $PROCFLEET_PROC >> ../procs/log; rm -f web.pid; {}",
            programs::slow_daemon(TAKES)
        );
        let proc = self.proc.clone().starts(&command);
        let runs = proc.runs();
        let start = history::send_op(any, &proc, &self.host, Op::Start, &first);
        match round % 3 {
            0 => _ = ask_again(LOOK, IMPATIENCE, || (proc.runs() > runs).then_some(())),
            1 => {}
            _ => _ = ask_again(LOOK, IMPATIENCE, || start.has_ended(any).then_some(())),
        }
        between();
        let mut stop = history::send_op(any, &proc, &self.host, self.by, &second);
        ask_again(LOOK, IMPATIENCE, || stop.has_ended(any).then_some(()));
        if stop.code(any).is_some_and(history::says_gone) {
            stop.left = proc.pids();
        }
        [start, stop]
    }
}

/// The server, the agent and both are killed while the start command runs, and then the stop or kill comes.
pub(crate) fn game(name: &str) -> Row {
    let mut world = World::start();
    let (mut sent, mut trouble) = (Vec::new(), Vec::new());
    let any = world.any.clone();
    let procs = procs(&world, &world.addresses());
    let killed = [&[SERVER][..], &[AGENT], &[SERVER, AGENT]];
    for (round, (sides, proc)) in
        killed.iter().flat_map(|sides| procs.iter().map(move |proc| (sides, proc))).enumerate()
    {
        // Each third one waits until the command runs.
        let [start, stop] = proc.play(&any, 3 * round, || {
            sides.iter().for_each(|side| world.kill(*side));
            sides.iter().for_each(|side| world.start_side(*side, ""));
            world.wait_until_connected();
        });
        ask_again(LOOK, LAST_OUTCOME, || stop.has_ended(&any).then_some(()));
        if stop.code(&any) != Some(0) {
            trouble.push(format!("{} after a kill of {sides:?}: {:?}", stop.word, stop.code(&any)));
        }
        sent.extend([start, stop]);
    }
    let rounds = sent.len() as u64 / 2;
    let verdict = world.judge(&sent);
    Row::played(name, rounds, verdict, trouble)
}

/// With all outcomes there: nothing runs where the last stop said so, and another one ends the rest. Returns
/// the number of tasks that were sent for it.
///
/// The fault may still be there, as commits that fail by number: an agent that cannot write its journal
/// refuses a stop and says that nothing was done. That is true and says nothing about the process, so the
/// caller asks again.
pub(crate) fn check(verdict: &mut Verdict, any: &AnyServer, namespace: &str, sent: &[Sent]) -> usize {
    let stops = sent.iter().filter(|one| one.op != Op::Start);
    let last: BTreeMap<String, &Sent> = stops.map(|one| (one.name(), one)).collect();
    let mut asked = 0;
    for (name, one) in &last {
        let left = || pids_marked(&format!("{namespace}:{name}"));
        let (code, pids) = (one.code(any), left());
        if code.is_some_and(history::says_gone) && !pids.is_empty() {
            verdict.untrue(format!("{}: {code:?}, and {pids:?} of {name} run in the end", one.word));
        }
        for attempt in 1..=ATTEMPTS {
            let end = one.send_again(any, &format!("{}.end.{attempt}", one.word));
            asked += 1;
            ask_again(LOOK, LAST_OUTCOME, || end.has_ended(any).then_some(()));
            if attempt < ATTEMPTS && end.was_refused(any) {
                continue;
            }
            let (code, pids) = (end.code(any), left());
            if !code.is_some_and(history::says_gone) || !pids.is_empty() {
                verdict.untrue(format!("{}: {code:?}, and {pids:?} of {name} are left", end.word));
            }
            break;
        }
    }
    asked
}
