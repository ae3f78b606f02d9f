//! The runs of a periodic process: known by their command alone, also to an agent that has just started.

use crate::support::*;
use procfleet_core::process::{Cause, Found};
use procfleet_core::supervise::LookScope;

#[tokio::test]
async fn a_run_is_its_command_and_nothing_else() {
    let mut proc = Proc::with_pid_file("turn");
    // It leaves a daemon with a session and a pid file, and goes on itself.
    let run = proc.run("setsid sh -c 'echo $$ > web.pid; exec ./web 1000' & ./web 1000; true");
    let daemon = proc.pid_in("web.pid").await;
    let spec = proc.spec.clone();
    let seen = running(proc.executor.look(LookScope::Run(run), &spec));
    assert_eq!((comm(seen.pid).as_str(), seen.found), ("sh", Found::Foreground));
    assert_ne!(seen.pid, daemon);
    proc.executor.end_run(run);
    proc.end_of(run).await;
    assert_eq!(cause(proc.executor.look(LookScope::Run(run), &spec)), Cause::NoRun);
}

#[tokio::test]
async fn an_agent_that_has_just_started_distinguishes_a_run_from_older_leftovers() {
    let mut proc = Proc::new("turn-recovered");
    let spec = proc.spec.clone();
    proc.output_of("(setsid ./web 1000 </dev/null >/dev/null 2>&1 &)").await;
    until("the daemon of the first run is there", || proc_named_web(&proc)).await;
    // The kernel tells the start of a process in ticks of 10 ms, and so does the agent.
    let first = proc.context.now();
    until("the clock has gone on", || (proc.context.now().since(first).as_millis() > 20).then_some(())).await;
    let began = proc.context.now();
    let run = proc.run("sleep 1000; true");
    let seen = running(proc.executor.look(LookScope::Run(run), &spec));
    proc.forget();
    let known = LookScope::ScheduledRun { last: Some(seen), since: None };
    assert_eq!(running(proc.executor.look(known, &spec)).pid, seen.pid, "by what was known");
    let unseen = LookScope::ScheduledRun { last: None, since: Some(began) };
    assert_eq!(running(proc.executor.look(unseen, &spec)).pid, seen.pid, "by its mark and its age");
    let nothing = LookScope::ScheduledRun { last: None, since: None };
    assert_eq!(cause(proc.executor.look(nothing, &spec)), Cause::NoRun, "what was left is no run");
}

/// The daemon that a run has left: it leads a session and bears the mark, as a run does.
fn proc_named_web(proc: &Proc) -> Option<()> {
    let mark = proc.context.mark(&proc.key);
    let bears = |pid: u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| String::from_utf8_lossy(&environ).contains(&mark))
    };
    let pids = std::fs::read_dir("/proc").expect("a proc").flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.any(|pid| comm(pid) == "web" && bears(pid)).then_some(())
}
