//! Ending processes: all that belong to the proc, and nobody else.

use crate::support::*;
use procfleet_core::Exit;
use procfleet_core::process::Found;
use procfleet_core::spec::Detached;
use procfleet_core::supervise::{CommandEnd, Leader, Signal};

#[tokio::test]
async fn a_term_reaches_the_process_and_its_descendants() {
    let mut proc = Proc::with_pid_file("term");
    proc.script("web.sh", "sleep 1000 & echo $! > child\necho $$ > web.pid\nwait\n");
    let run = proc.run("(setsid ./web.sh &)");
    proc.end_of(run).await;
    proc.pid_in("web.pid").await;
    let child = proc.pid_in("child").await;
    let process = running(proc.settled());
    proc.executor.signal(process, Signal::Term, Detached::End);
    until_gone(process.pid).await;
    until_gone(child).await;
}

#[tokio::test]
async fn a_foreground_process_goes_with_its_shell() {
    let mut proc = Proc::new("shell");
    let run = proc.run("./web 1000; sleep 1000");
    let process = until("web runs", || {
        let process = running(proc.launched(run, Leader::Refuse));
        (comm(process.pid) == "web").then_some(process)
    })
    .await;
    assert_eq!(process.found, Found::CommandChild);
    proc.executor.signal(process.child_as_foreground(), Signal::Term, Detached::End);
    let CommandEnd::Exited { exit, .. } = proc.end_of(run).await else { panic!("it did start") };
    assert_eq!(exit, Exit::Signal(15));
    until_gone(process.pid).await;
}

/// A grandchild that left its session and lost its parent.
const ESCAPE: &str = "(setsid sh -c 'sleep 1000 & echo $! > escaped' &); ";

#[tokio::test]
async fn a_kill_reaches_processes_that_left_the_session() {
    let mut proc = Proc::new("kill");
    let run = proc.run(&format!("{ESCAPE}exec ./web 1000"));
    let escaped = proc.pid_in("escaped").await;
    let process = running(proc.launched(run, Leader::Accept));
    proc.executor.signal(process, Signal::Kill, Detached::End);
    until_gone(process.pid).await;
    until_gone(escaped).await;
}

#[tokio::test]
async fn the_end_of_a_run_is_the_end_of_all_that_it_started() {
    let mut proc = Proc::new("end-run");
    // One that ignores what it can, and goes on forking.
    proc.script(
        "fork.sh",
        "trap '' TERM HUP INT\n[ $1 = 0 ] || setsid ./fork.sh $(($1 - 1)) &\nsleep 1000\n",
    );
    let run = proc.run(&format!("{ESCAPE}./fork.sh 20 & wait"));
    let escaped = proc.pid_in("escaped").await;
    proc.executor.end_run(run);
    let CommandEnd::Exited { exit, .. } = proc.end_of(run).await else { panic!("it did start") };
    assert_eq!(exit, Exit::Signal(9));
    until_gone(escaped).await;
    let mark = format!("PROCFLEET_PROC={}", proc.context.mark(&proc.key));
    until("nobody bears the mark", || {
        let marked = std::fs::read_dir("/proc").expect("proc").flatten().any(|entry| {
            let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
        });
        (!marked).then_some(())
    })
    .await;
}

#[tokio::test]
async fn ending_a_stop_command_spares_the_process_and_its_new_worker() {
    let mut proc = Proc::with_pid_file("stop-command");
    proc.fifo("fifo");
    proc.script("web.sh", "echo $$ > web.pid\nread x < fifo\nsleep 1000 & echo $! > worker\nwait\n");
    let start = proc.run("(setsid ./web.sh &)");
    proc.end_of(start).await;
    let main = proc.pid_in("web.pid").await;
    // The start time has ticks of 10 ms, and the stop command must be seen to be younger.
    until("a tick has passed", || {
        let young = Stranger::start("/bin/true", proc.folder.path());
        (process(young.pid()).start_ticks > process(main).start_ticks).then_some(())
    })
    .await;
    let stop = proc.run("echo go > fifo; sleep 1000");
    let worker = proc.pid_in("worker").await;
    proc.executor.end_run(stop);
    proc.end_of(stop).await;
    assert!(is_running(main) && is_running(worker));
}

#[tokio::test]
async fn a_sweep_ends_leftovers_and_nothing_else() {
    let mut proc = Proc::new("sweep");
    let mut stranger = Stranger::start(proc.path("web"), proc.folder.path());
    let first = proc.run(&format!("{ESCAPE}true"));
    proc.end_of(first).await;
    let escaped = proc.pid_in("escaped").await;
    let current = proc.run("exec ./web 1000");
    let process = running(proc.launched(current, Leader::Accept));
    proc.executor.watch(process);
    assert!(is_running(escaped));
    proc.executor.sweep(Signal::Kill);
    until_gone(escaped).await;
    assert!(is_running(process.pid));
    stranger.assert_unharmed();
}

/// A new agent is not an ancestor of processes that the previous agent left.
#[tokio::test]
async fn a_sweep_ends_leftovers_of_the_previous_agent() {
    let mut proc = Proc::new("sweep-inherited");
    let run = proc.run(&format!("{ESCAPE}true"));
    proc.end_of(run).await;
    let escaped = proc.pid_in("escaped").await;
    proc.forget_with_a_new_host();
    proc.executor.sweep(Signal::Kill);
    until_gone(escaped).await;
}

#[tokio::test]
async fn orphans_that_have_ended_do_not_stay_as_zombies() {
    // All children of this program that no host looks after are reaped: also those of other tests.
    if procfleet_testkit::played_apart(&[]) {
        return;
    }
    let mut proc = Proc::new("orphans");
    let run = proc.run(&format!("{ESCAPE}true"));
    proc.end_of(run).await;
    let escaped = proc.pid_in("escaped").await;
    kill(escaped);
    until("it is reaped", || {
        proc.context.reap_orphans();
        state_of(escaped).is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_shell_whose_process_died_is_swept_too() {
    let mut proc = Proc::new("sweep-shell");
    let run = proc.run("./web 1000; sleep 1000");
    let process = until("web runs", || {
        let process = running(proc.launched(run, Leader::Refuse));
        (comm(process.pid) == "web").then_some(process)
    })
    .await;
    proc.executor.watch(process);
    kill(process.pid);
    proc.exit_of(process).await;
    proc.executor.sweep(Signal::Kill);
    let CommandEnd::Exited { exit, .. } = proc.end_of(run).await else { panic!("it did start") };
    assert_eq!(exit, Exit::Signal(9));
}

#[tokio::test]
async fn a_recycled_pid_is_never_signalled() {
    let mut proc = Proc::new("recycled");
    let mut stranger = Stranger::start("/bin/sleep", proc.folder.path());
    let mut process = process(stranger.pid());
    process.start_ticks -= 1;
    for found in [Found::PidFile, Found::Foreground, Found::Name] {
        process.found = found;
        proc.executor.signal(process, Signal::Term, Detached::End);
        proc.executor.signal(process, Signal::Kill, Detached::End);
    }
    let agent = crate::support::process(std::process::id());
    proc.executor.signal(agent, Signal::Kill, Detached::End);
    stranger.assert_unharmed();
}
