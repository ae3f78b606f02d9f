//! Each of the eight operations against real processes of each kind: code, message, output, hosted or not.

use crate::{at_once, up, with_longer_checks};
use procfleet_testkit::{
    Op, PATIENCE, Proc, Signal, Stranger, account, dead_pid, is_running, kill, let_pass, programs, wait_for,
    wait_until,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// All eight operations on a well-behaved process.
#[track_caller]
fn check_well_behaved(proc: Proc) {
    let proc = proc.control("reload_cmd", "echo reloaded >> reloaded");

    // Nothing runs yet.
    assert_eq!(proc.pid(), None);
    proc.op(Op::Unhost).assert_success().assert_hosted(false);
    proc.op(Op::Reload).assert(829, "no need to reload the process(web) that is not running");
    proc.op(Op::Kill)
        .assert(829, "no need to kill the process(web) that is not running")
        .assert_hosted(false);

    proc.op(Op::Start).assert_success().assert_hosted(true);
    let first = proc.pid().expect("what was started runs");
    proc.op(Op::Start).assert(828, "no need to start the process web(").assert_hosted(true);
    assert_eq!(proc.runs(), 1, "what runs is not started again");
    proc.op(Op::Reload).assert_success().assert_hosted(true);
    assert_eq!((proc.read("reloaded").as_str(), proc.pid()), ("reloaded\n", Some(first)));

    proc.op(Op::Unhost).assert_success().assert_hosted(false);
    proc.op(Op::Unhost).assert_success().assert_hosted(false);
    assert_eq!(proc.pid(), Some(first), "unhosting leaves the process alone");
    proc.op(Op::Host).assert_success().assert_hosted(true);
    proc.op(Op::Host).assert_success().assert_hosted(true);
    assert_eq!((proc.pid(), proc.runs()), (Some(first), 1), "hosting what runs starts nothing");

    proc.op(Op::Restart).assert_success().assert_hosted(true);
    let second = proc.pid().expect("what was restarted runs");
    assert_ne!(first, second);
    assert!(!is_running(first), "a restart leaves no second copy");
    assert_eq!(proc.runs(), 2);

    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(second));
    assert_nothing_left(&proc);
    proc.op(Op::Query).assert_success().assert_hosted(false);
    assert_eq!(proc.pid(), None);
    proc.op(Op::Stop)
        .assert(829, "no need to stop the process(web) that is not running")
        .assert_hosted(false);

    // Hosting a stopped proc starts it.
    proc.op(Op::Host).assert_success().assert_hosted(true);
    let third = proc.pid().expect("what is hosted runs");
    proc.op(Op::Kill).assert_success().assert_hosted(false);
    assert!(!is_running(third));
    assert_eq!((proc.pid(), proc.runs()), (None, 3));
    assert_nothing_left(&proc);
}

#[test]
fn a_daemon_with_a_pid_file() {
    let up = up();
    check_well_behaved(up.proc("daemon").with_pid_file().starts(&programs::daemon()));
}

/// As nginx does, which writes over its environment.
#[test]
fn a_daemon_that_clears_its_environment() {
    let up = up();
    let proc = up.proc("bare").with_pid_file().starts(&programs::daemon_without_environment());
    proc.op(Op::Start).assert_success().assert_hosted(true);
    let pid = proc.pid_in_file();
    let asked = || proc.op(Op::Query).pid();
    assert_eq!(asked(), Some(pid));
    proc.op(Op::Start).assert(828, "no need to start");
    up.kill_agent();
    assert_eq!((asked(), proc.runs()), (Some(pid), 1), "it is taken up again");
    proc.op(Op::Restart).assert_success().assert_hosted(true);
    let second = proc.pid_in_file();
    assert_eq!((asked(), proc.runs(), is_running(pid)), (Some(second), 2, false));
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(second));
    assert_eq!(asked(), None);
}

#[test]
fn a_daemon_without_a_pid_file() {
    let up = up();
    check_well_behaved(up.proc("silent").starts(&programs::silent_daemon()));
}

#[test]
fn a_foreground_process() {
    let up = up();
    check_well_behaved(up.proc("foreground").starts(&programs::foreground()));
}

#[test]
fn a_foreground_process_below_its_shell() {
    let up = up();
    check_well_behaved(up.proc("below").starts(&programs::foreground_below_shell()));
}

#[test]
fn a_script_that_launches_a_child_and_ends() {
    let up = up();
    let proc = up.proc("launcher").script("start.sh", &programs::launcher("exit 0")).starts("./start.sh");
    check_well_behaved(proc.with_pid_file());
}

#[test]
fn a_script_that_launches_a_child_and_waits_for_it() {
    let up = up();
    let proc = up.proc("waiter").script("start.sh", &programs::launcher("wait")).starts("exec ./start.sh");
    check_well_behaved(proc.with_pid_file());
}

/// A stop or kill ends all of it, also the shell that waited for the process.
#[track_caller]
fn assert_nothing_left(proc: &Proc) {
    wait_until(PATIENCE, "nothing of the proc is left", || proc.pids().is_empty());
}

#[test]
fn a_process_that_ignores_sigterm() {
    let up = up();
    let procs = [
        up.proc("deaf").starts(&programs::deaf_to_term()),
        up.proc("deaf-daemon").with_pid_file().starts(&programs::daemon_deaf_to_term()),
    ];
    at_once(procs.map(|proc| proc.policy("stop_check_secs", 1).control("reload_cmd", "true")), |proc| {
        let pid = proc.start();
        let (stopped, took) = proc.timed(Op::Stop);
        stopped
            .assert(836, "stop process (web) failed")
            .assert_says(&format!("pid {pid}"))
            .assert_hosted(true);
        assert!(took >= Duration::from_secs(1), "stop_check_secs is waited for: {took:?}");
        let seen = proc.op(Op::Query);
        seen.assert_success().assert_hosted(true);
        assert_eq!(seen.pid(), Some(pid));

        // Unhosted, it stays so.
        proc.op(Op::Unhost).assert_success();
        proc.op(Op::Stop).assert(836, "stop").assert_hosted(false);
        proc.op(Op::Host).assert_success().assert_hosted(true);
        proc.op(Op::Reload).assert_success();
        // A restart is a stop and a start, so it cannot succeed either.
        proc.op(Op::Restart).assert(836, "restart process (web) failed").assert_hosted(true);
        assert_eq!((proc.pid(), proc.runs()), (Some(pid), 1));

        proc.op(Op::Kill).assert_success().assert_hosted(false);
        assert!(!is_running(pid));
        assert_eq!(proc.pid(), None);
    });
}

/// With a `kill_after` a stop or restart ends it by force, and the outcome says so. Specs of our own client
/// have one.
#[test]
fn a_stop_or_restart_kills_after_kill_after() {
    let up = up();
    let procs = [
        up.proc("deaf").starts(&programs::deaf_to_term()),
        up.proc("deaf-daemon").with_pid_file().starts(&programs::daemon_deaf_to_term()),
        up.proc("deaf-command")
            .with_pid_file()
            .starts(&programs::daemon_deaf_to_term())
            .control("stop_cmd", "true"),
    ];
    at_once(procs.map(|proc| proc.policy("stop_check_secs", 60).policy("kill_after", 1)), |proc| {
        let told =
            |pid| format!("success: pid {pid} was still running 1 s (kill_after) after it was told to end");
        let first = proc.start();
        let (restarted, took) = proc.timed(Op::Restart);
        restarted.assert(0, &told(first)).assert_says("had to be killed").assert_hosted(true);
        assert!(took >= Duration::from_secs(1), "kill_after is waited for: {took:?}");
        assert!(!is_running(first));
        let second = proc.pid().expect("it was restarted");
        let (stopped, took) = proc.timed(Op::Stop);
        stopped.assert(0, &told(second)).assert_hosted(false);
        assert!(took >= Duration::from_secs(1), "kill_after is waited for: {took:?}");
        assert!(!is_running(second));
        assert_nothing_left(proc);
    });
    // The client's own specs.
    let proc = up.proc("by-client").script("deaf.sh", "#!/bin/sh\ntrap '' TERM\nexec ./web 1000\n");
    let folder = proc.folder.to_str().expect("a plain path").to_owned();
    let (namespace, user) = (proc.namespace.clone(), account());
    let flags =
        ["--namespace", &namespace, "--cmd", "./deaf.sh", "--setup-path", &folder, "--proc-name", "web"];
    let flags =
        [&flags[..], &["--user", &user, "--stop-check-secs", "1", "--start-check-secs", "1"]].concat();
    let started = up.cli(&[&["start", "by-client"], &flags[..]].concat());
    assert_eq!(started.code, Some(0), "{started:?}");
    let pid = proc.wait_for_program();
    let stopped = up.cli(&["stop", "by-client", "--namespace", &namespace]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_running(pid));
}

/// Each signal goes where it belongs: the stop signal to all of it, the reload signal to the process alone.
#[test]
fn stop_and_reload_by_a_signal_of_the_spec() {
    let up = up();
    let text = "#!/bin/sh
trap 'echo reload >> signals' HUP
trap 'echo stop >> signals; exit 0' USR1
trap '' TERM
sh -c 'trap \"echo worker reload >> signals\" HUP; echo ready > ready; while :; do sleep 0.05; done' &
while :; do sleep 0.05; done
";
    let proc = up
        .proc("signalled")
        .script("web.sh", text)
        .starts("exec ./web.sh")
        .control("stop_signal", "SIGUSR1")
        .control("reload_signal", "HUP");
    let pid = proc.start();
    wait_until(PATIENCE, "the worker is ready", || proc.read("ready") == "ready\n");
    proc.op(Op::Reload).assert_success().assert_hosted(true);
    wait_until(PATIENCE, "it has reloaded", || proc.read("signals") == "reload\n");
    assert_eq!(proc.pid(), Some(pid));
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert_eq!(proc.read("signals"), "reload\nstop\n");
    assert_nothing_left(&proc);
    // A process that does not handle the signal dies of it.
    let proc = up.proc("surprised").starts(&programs::foreground()).control("reload_signal", "USR2");
    proc.start();
    proc.op(Op::Reload).assert(836, "reload process (web) failed");
    proc.op(Op::Kill);
}

/// The process is judged a second after its reload_cmd, and has ended by then.
#[test]
fn a_reload_after_which_the_process_is_gone() {
    let up = up();
    let daemon = |name: &str| up.proc(name).with_pid_file().starts(&programs::daemon());
    let procs = [
        daemon("at-once").control("reload_cmd", "kill $(cat web.pid)"),
        daemon("before-its-end").control("reload_cmd", "kill -9 $(cat web.pid); sleep 0.5"),
        up.proc("foreground").starts(&programs::foreground()),
    ];
    at_once(procs, |proc| {
        let pid = proc.start();
        proc.op(Op::Unhost).assert_success();
        let proc = match proc.name.as_str() {
            "foreground" => proc.clone().control("reload_cmd", &format!("kill {pid}")),
            _ => proc.clone(),
        };
        proc.op(Op::Reload).assert(836, "reload process (web) failed, for post-check status not alive");
        assert_eq!((proc.pid(), proc.runs()), (None, 1), "{}", proc.name);
        proc.op(Op::Reload).assert(829, "no need to reload the process(web) that is not running");
    });
    // The process dies after its reload_cmd. On a loaded machine it may die after the check, too.
    let proc =
        daemon("after-its-end").control("reload_cmd", "(sleep 0.4; kill $(cat web.pid)) >/dev/null 2>&1 &");
    wait_until(PATIENCE, "a reload fails because the process dies within its check", || {
        let pid = proc.start();
        proc.op(Op::Unhost).assert_success();
        let reloaded = proc.op(Op::Reload);
        wait_until(PATIENCE, "the process was killed", || !is_running(pid));
        reloaded.code == 836
    });
    assert_eq!(proc.pid(), None);
    // A hosted process comes back.
    let proc = daemon("hosted").control("reload_cmd", "kill $(cat web.pid)");
    proc.start();
    proc.op(Op::Reload).assert(836, "reload process (web) failed").assert_hosted(true);
    proc.wait_for_runs(2);
    proc.op(Op::Kill).assert_success();
}

#[test]
fn a_process_that_exits_at_once_with_0() {
    let up = up();
    for proc in [up.proc("gone").with_pid_file(), up.proc("gone-without-pid-file")] {
        let proc = proc.starts(&programs::exits(0)).control("reload_cmd", "true");
        let started = proc.op(Op::Start);
        started
            .assert(836, "start process (web) failed, for post-check status not alive")
            .assert_hosted(false);
        started.assert_says("said on stdout").assert_says("said on stderr");
        assert_eq!((proc.pid(), proc.runs()), (None, 1));
        proc.op(Op::Restart).assert(836, "restart process (web) failed").assert_says("said on stdout");
        proc.op(Op::Reload).assert(829, "no need to reload");
        proc.op(Op::Stop).assert(829, "no need to stop").assert_hosted(false);
        proc.op(Op::Kill).assert(829, "no need to kill").assert_hosted(false);
        proc.op(Op::Unhost).assert_success().assert_hosted(false);
        assert_eq!(proc.runs(), 2);
    }
}

#[test]
fn a_process_that_exits_at_once_with_3() {
    let up = up();
    for proc in [up.proc("failed").with_pid_file(), up.proc("failed-without-pid-file")] {
        let proc =
            proc.starts(&programs::exits(3)).policy("start_check_secs", 600).control("reload_cmd", "true");
        let started = proc.op(Op::Start);
        started.assert(65535, "Script exit code non-zero").assert_hosted(false);
        started
            .assert_says("said on stdout")
            .assert_says("said on stderr")
            .assert_says("exited with status 3");
        assert_eq!((proc.pid(), proc.runs()), (None, 1));
        proc.op(Op::Restart).assert(65535, "Script exit code non-zero").assert_says("said on stderr");
        proc.op(Op::Reload).assert(829, "no need to reload");
        proc.op(Op::Stop).assert(829, "no need to stop").assert_hosted(false);
        proc.op(Op::Kill).assert(829, "no need to kill").assert_hosted(false);
    }
}

#[test]
fn a_daemon_that_dies_in_its_check_window() {
    let up = up();
    with_longer_checks(|secs| {
        let proc = up.proc(&format!("short-{secs}")).with_pid_file().starts(&programs::daemon());
        let task = proc.clone().policy("start_check_secs", secs).submit(Op::Start);
        kill(proc.pid_in_file(), Signal::KILL);
        let outcome = task.outcome();
        if outcome.code == 0 {
            proc.op(Op::Kill);
            return None;
        }
        outcome.assert(836, "start process (web) failed").assert_hosted(false);
        assert_eq!((proc.pid(), proc.runs()), (None, 1));
        Some(())
    });
}

#[test]
fn a_pid_file_that_comes_late() {
    let up = up();
    let proc = with_longer_checks(|secs| {
        let proc = up.proc(&format!("late-{secs}")).with_pid_file();
        let proc = proc.starts(&programs::daemon_with_late_pid_file(1)).policy("start_check_secs", secs);
        (proc.op(Op::Start).code == 0).then(|| proc.control("reload_cmd", "true"))
    });
    let pid = proc.pid().expect("it runs");
    assert_eq!(pid, proc.pid_in_file());
    proc.op(Op::Start).assert(828, "no need to start the process web(late-");
    proc.op(Op::Reload).assert_success().assert_hosted(true);
    proc.op(Op::Unhost).assert_success().assert_hosted(false);
    proc.op(Op::Host).assert_success().assert_hosted(true);
    assert_eq!(proc.pid(), Some(pid));
    proc.op(Op::Restart).assert_success().assert_hosted(true);
    let second = proc.pid().expect("it runs");
    assert_ne!(second, pid);
    assert!(!is_running(pid));
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(second));
    proc.op(Op::Kill).assert(829, "no need to kill");
    assert_eq!(proc.runs(), 2);
}

/// The pid file of the last run names a dead process.
#[test]
fn a_pid_file_that_names_a_dead_pid() {
    let up = up();
    let proc = up.proc("stale").with_pid_file().starts(&programs::daemon()).control("reload_cmd", "true");
    let dead = dead_pid();
    fs::write(proc.folder.join(programs::PID_FILE), format!("{dead}\n")).expect("our own folder");

    assert_eq!(proc.pid(), None);
    for (op, verb) in [(Op::Stop, "stop"), (Op::Kill, "kill"), (Op::Reload, "reload")] {
        let outcome = proc.op(op);
        outcome.assert(829, "").assert_hosted(false);
        assert_eq!(outcome.message, format!("no need to {verb} the process(web) that is not running"));
    }
    let pid = proc.start();
    assert_ne!(pid, dead);
    assert_eq!(pid, proc.pid_in_file());
    proc.op(Op::Stop).assert_success();
}

/// A command that does not write the pid file, so that it goes on naming a dead process.
#[test]
fn a_start_that_leaves_a_dead_pid_in_its_pid_file() {
    let up = up();
    let proc = up.proc("stale").with_pid_file().starts(&programs::exits(0));
    let dead = dead_pid();
    fs::write(proc.folder.join(programs::PID_FILE), format!("{dead}\n")).expect("our own folder");
    let started = proc.op(Op::Start);
    started.assert(836, "start process (web) failed").assert_hosted(false);
    started.assert_says(&format!("names pid {dead}, which is not running")).assert_says("said on stdout");
}

/// Never signalled, never called running.
#[test]
fn a_pid_file_that_names_a_stranger() {
    let up = up();
    let proc = up
        .proc("strange")
        .with_pid_file()
        .starts(&programs::exits(0))
        .control("reload_cmd", "touch reloaded");
    let mut stranger = Stranger::start(&up.folder("elsewhere"));
    let pid_file = proc.folder.join(programs::PID_FILE);
    fs::write(&pid_file, format!("{}\n", stranger.pid())).expect("our own folder");
    let says = format!("names pid {}, which is another program (tail)", stranger.pid());

    assert_eq!(proc.pid(), None);
    proc.op(Op::Stop).assert(829, "no need to stop the process(web) that is not running").assert_says(&says);
    proc.op(Op::Kill).assert(829, "no need to kill").assert_says(&says);
    proc.op(Op::Reload).assert(829, "no need to reload").assert_says(&says);
    assert_eq!(fs::exists(proc.folder.join("reloaded")).ok(), Some(false));
    proc.op(Op::Start).assert(836, "start process (web) failed").assert_says(&says).assert_hosted(false);
    proc.op(Op::Restart).assert(836, "restart process (web) failed").assert_says(&says);
    proc.op(Op::Unhost).assert_success().assert_hosted(false);
    stranger.assert_unharmed();

    // Nor when the real process runs: the stranger is not taken for it.
    let daemon = proc.clone().starts(&programs::daemon());
    let pid = daemon.start();
    assert_ne!(pid, stranger.pid());
    fs::write(&pid_file, format!("{}\n", stranger.pid())).expect("our own folder");
    let stopped = daemon.op(Op::Stop);
    stranger.assert_unharmed();
    stopped.assert_success();
    assert!(!is_running(pid), "it was known, so the pid file cannot hide it");
    stranger.assert_unharmed();
}

/// Hosting something whose pid file names a stranger must not bring the stranger into it.
#[test]
fn hosting_with_a_strangers_pid_file_starts_the_process() {
    let up = up();
    let proc = up.proc("strange").with_pid_file().starts(&programs::daemon());
    let mut stranger = Stranger::start(&up.folder("elsewhere"));
    fs::write(proc.folder.join(programs::PID_FILE), format!("{}\n", stranger.pid())).expect("our own folder");
    proc.op(Op::Host).assert_success().assert_hosted(true);
    let pid = proc.pid().expect("what is hosted runs");
    assert_ne!(pid, stranger.pid());
    proc.op(Op::Kill).assert_success().assert_hosted(false);
    stranger.assert_unharmed();
}

#[test]
fn a_command_that_runs_too_long_is_ended_with_all_it_started() {
    let up = up();
    let proc = up.proc("slow").with_pid_file().policy("op_timeout", 4);
    let proc = proc.starts("echo run >> runs; echo waiting for godot; sleep 900 & sleep 900");
    let started = proc.op(Op::Start);
    started
        .assert(822, "start_cmd did not end within 4 s")
        .assert_says("waiting for godot")
        .assert_hosted(false);
    assert_nothing_left(&proc);
}

/// The commands of the spec are used where there are any.
#[test]
fn the_specs_own_commands_are_run() {
    let up = up();
    let proc = up.proc("own").with_pid_file().starts(&programs::daemon());
    let end = "echo stop_cmd >> commands; kill $(cat web.pid)";
    let proc = proc
        .control("stop_cmd", end)
        .control("kill_cmd", "echo kill_cmd >> commands; kill -9 $(cat web.pid)")
        .control("reload_cmd", "echo no config; exit 4")
        .control(
            "restart_cmd",
            &format!("echo restart_cmd >> commands; kill $(cat web.pid); {}", programs::daemon()),
        );
    let first = proc.start();
    proc.op(Op::Reload)
        .assert(65535, "Script exit code non-zero")
        .assert_says("no config")
        .assert_hosted(true);
    assert_eq!(proc.pid(), Some(first));
    proc.op(Op::Restart).assert_success().assert_hosted(true);
    let second = proc.pid().expect("it runs");
    assert_ne!(first, second);
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    let third = proc.start();
    proc.op(Op::Kill).assert_success().assert_hosted(false);
    assert!(![first, second, third].into_iter().any(is_running));
    assert_eq!(proc.read("commands"), "restart_cmd\nstop_cmd\nkill_cmd\n");
}

/// Without a command there is a way for each operation but reload and start.
#[test]
fn operations_without_a_command_say_so() {
    let up = up();
    let proc = up.proc("bare").with_pid_file();
    proc.op(Op::Start).assert(827, "start is not possible: the spec has no start_cmd");
    proc.op(Op::Reload).assert(827, "reload is not possible: the spec has no reload_cmd");
    proc.op(Op::Restart).assert(827, "restart is not possible");
}

/// `auto_type` 2 runs to its end: success is exit 0, and there is no liveness check.
#[test]
fn a_process_that_runs_once() {
    let up = up();
    let proc = up.proc("once").policy("auto_type", 2);
    proc.clone().starts(&programs::exits(0)).op(Op::Start).assert_success();
    proc.clone().starts(&programs::exits(3)).op(Op::Start).assert(65535, "Script exit code non-zero");
    wait_until(PATIENCE, "it is not started again", || {
        proc.runs() == 2 && proc.row().is_some_and(|row| row["state"] == "stopped")
    });
}

/// `isAuto` of `auto_type` 2 is true while its command runs, for start and host alike, and false afterwards.
#[test]
fn a_run_once_proc_counts_as_hosted_while_it_runs() {
    let up = up();
    for op in [Op::Start, Op::Host] {
        let proc = up.proc(&format!("once-{op:?}")).policy("auto_type", 2);
        let proc = proc.starts(&format!("echo run >> runs; {}", programs::gate(programs::GATE)));
        let task = proc.submit(op);
        proc.wait_for_runs(1);
        proc.op(Op::Query).assert_success().assert_hosted(true);
        wait_until(PATIENCE, "the status says so too", || {
            proc.row().is_some_and(|row| row["hosted"] == true)
        });
        proc.open_gate(programs::GATE);
        task.outcome().assert_success().assert_hosted(false);
        proc.op(Op::Query).assert_success().assert_hosted(false);
        wait_until(PATIENCE, "the status says so too", || {
            proc.row().is_some_and(|row| row["hosted"] == false)
        });
    }
}

/// `auto_type` 2 with a command that goes into the background: its leftovers are tracked, and end with a stop
/// or kill.
#[test]
fn a_run_once_command_that_goes_into_the_background_is_tracked() {
    let up = up();
    let left = |proc: &Proc| -> u32 {
        let pid = wait_for(PATIENCE, "something is left", || proc.read("left").trim().parse().ok());
        fs::remove_file(proc.folder.join("left")).expect("our own file");
        pid
    };
    // Another program than the spec's, in a session of its own.
    let leaves = "(setsid sh -c 'echo $$ > left.new; mv left.new left; exec sleep 1000' </dev/null >/dev/null 2>&1 &); \
                  until test -s left; do sleep 0.01; done";
    let proc = |name: &str| up.proc(name).policy("auto_type", 2).starts(leaves);
    at_once([proc("stopped"), proc("killed")], |proc| {
        proc.op(Op::Start).assert_success();
        let first = left(proc);
        proc.row_with_pid(first);
        assert_eq!(proc.pid(), Some(first));
        proc.op(Op::Start).assert(828, "no need to start");
        let op = if proc.name == "stopped" { Op::Stop } else { Op::Kill };
        proc.op(op).assert_success().assert_hosted(false);
        assert!(!is_running(first), "{op:?}");
        assert_nothing_left(proc);
        // Also a leftover from an earlier run of the agent.
        proc.op(Op::Start).assert_success();
        let second = left(proc);
        proc.row_with_pid(second);
        // A process that ends by itself is not started again.
        kill(second, Signal::KILL);
        proc.row_when(PATIENCE, "stopped");
        proc.op(op).assert(829, "no need to");
    });
    // A command that fails leaves something, too.
    let failing = up.proc("failing").policy("auto_type", 2).starts(&format!("{leaves}; exit 3"));
    failing.op(Op::Start).assert(65535, "Script exit code non-zero");
    let pid = left(&failing);
    failing.row_with_pid(pid);
    up.kill_agent();
    assert_eq!(failing.op(Op::Query).pid(), Some(pid), "the agent that comes back knows it");
    failing.op(Op::Stop).assert_success();
    assert!(!is_running(pid));
    // With `detached: keep`, leftovers are not tracked.
    let kept = proc("kept").policy("detached", "keep");
    kept.op(Op::Start).assert_success();
    let first = left(&kept);
    kept.row_when(PATIENCE, "stopped");
    kept.op(Op::Start).assert_success();
    let second = left(&kept);
    kept.op(Op::Stop).assert(829, "no need to stop");
    assert!(is_running(first) && is_running(second));
}

/// Commands run as their user, in their folder, in a session of their own, with nothing of the agent's
/// environment.
#[test]
fn commands_run_with_a_clean_environment() {
    let up = up();
    let proc = up.proc("clean").starts("env > environment; pwd > folder; id -un > user; exec ./web 1000");
    // Only root can change its account.
    let user = if account() == "root" { "nobody".to_owned() } else { account() };
    fs::set_permissions(&proc.folder, fs::Permissions::from_mode(0o777)).expect("our own folder");
    let proc = proc.identity("user", user.as_str());
    let pid = proc.start();
    assert_eq!(proc.wait_for_program(), pid);
    assert_eq!(proc.read("user").trim(), user);
    assert_eq!(proc.read("folder").trim(), proc.folder.to_str().expect("a plain path"));
    let environment = proc.read("environment");
    let mut names: Vec<&str> = environment.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.retain(|name| !matches!(*name, "PWD" | "OLDPWD" | "SHLVL" | "_"));
    names.sort_unstable();
    let facts =
        ["COMMAND_PID", "INSTANCE", "NAME", "NAMESPACE", "PROC", "PROC_NAME", "PROOF", "RUN", "SETUP_PATH"];
    let facts = facts.map(|name| format!("PROCFLEET_{name}"));
    let mut expected = ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"].map(str::to_owned).to_vec();
    expected.extend(facts);
    expected.sort_unstable();
    assert_eq!(names, expected);
    let fields = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = fields.rsplit_once(") ").expect("a stat line").1.split(' ').collect();
    assert_eq!(fields[3], pid.to_string(), "it leads a session of its own");
    let open: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").flatten().collect();
    assert_eq!(open.len(), 3, "nothing but its standard files is open");
}

/// The end of a long output is in the message, and not all of it.
#[test]
fn an_outcome_has_the_end_of_a_long_output() {
    let up = up();
    let proc = up
        .proc("talkative")
        .starts("i=0; while [ $i -lt 3000 ]; do echo line $i of many; i=$((i+1)); done; exit 9");
    let outcome = proc.op(Op::Start);
    outcome
        .assert(65535, "Script exit code non-zero")
        .assert_says("line 2999 of many")
        .assert_says("status 9");
    assert!(!outcome.message.contains("line 100 of many"));
    assert!(outcome.message.len() > 3_000 && outcome.message.len() < 6_000, "{}", outcome.message.len());
}

/// A stop while a restart is due: it is off.
#[test]
fn a_stop_ends_the_waiting_for_a_restart() {
    let up = up();
    at_once([up.proc("stopped"), up.proc("unhosted")], |proc| {
        let proc = proc.clone().starts(&programs::exits(3)).policy("start_interval", 8);
        proc.op(Op::Host).assert(65535, "").assert_hosted(true);
        match proc.name.as_str() {
            "stopped" => proc.op(Op::Stop).assert(829, "").assert_hosted(false),
            _ => proc.op(Op::Unhost).assert_success().assert_hosted(false),
        };
        let runs = proc.runs();
        // A restart would have been due by then.
        let_pass(Duration::from_secs(9));
        assert_eq!(proc.runs(), runs, "{}", proc.name);
    });
}

#[test]
fn many_processes_at_once() {
    let up = up();
    let procs: Vec<Proc> =
        (0..40).map(|n| up.proc(&format!("many-{n}")).with_pid_file().starts(&programs::daemon())).collect();
    for op in [Op::Start, Op::Query, Op::Stop] {
        let body = serde_json::json!({"proc_operate_req": procs.iter().map(|proc| proc.body(op)).collect::<Vec<_>>()});
        let began = std::time::Instant::now();
        let task = up.client.post("/api/v2/proc/operate_proc_multi", body).task();
        let results = up.client.results(&task);
        eprintln!("{op:?} of {}: {:?}", procs.len(), began.elapsed());
        assert_eq!(results.len(), procs.len());
        results.iter().for_each(|(_, outcome)| _ = outcome.assert_success());
    }
    assert!(procs.iter().all(|proc| proc.runs() == 1));
}
