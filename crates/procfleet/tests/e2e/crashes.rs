//! Deaths of processes, of the agent and of the whole of `up`; and ops that overtake each other.

use crate::{at_once, up};
use procfleet_testkit::{
    Op, PATIENCE, Proc, Signal, Up, is_running, kill, let_pass, programs, start_time, wait_for, wait_until,
};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Waits until its restart would be due at once: `start_interval` is 1 s.
fn let_it_live() {
    let_pass(Duration::from_millis(1_200));
}

/// Kills the process and waits for another; says how long that took.
#[track_caller]
fn check_replaced(proc: &Proc, pid: u32) -> u32 {
    let began = Instant::now();
    kill(pid, Signal::KILL);
    let successor =
        wait_for(PATIENCE, "there is a replacement", || proc.program_pid().filter(|other| *other != pid));
    eprintln!("{}: a replacement was seen {} ms after the kill", proc.name, began.elapsed().as_millis());
    successor
}

#[test]
fn a_hosted_process_that_was_killed_is_replaced_at_once() {
    let up = up();
    let procs = [
        up.proc("daemon").with_pid_file().starts(&programs::daemon()),
        up.proc("foreground").starts(&programs::foreground()),
        up.proc("below").starts(&programs::foreground_below_shell()),
    ];
    at_once(procs, |proc| {
        let first = proc.start();
        let_it_live();
        let second = check_replaced(proc, first);
        assert_eq!(proc.row_with_pid(second)["hosted"], true);
        assert_eq!((proc.pid(), proc.runs()), (Some(second), 2));
        proc.op(Op::Kill).assert_success().assert_hosted(false);
        assert_eq!(proc.runs(), 2);
    });
}

#[test]
fn a_process_that_is_not_hosted_stays_dead() {
    let up = up();
    let proc = up.proc("left-alone").with_pid_file().starts(&programs::daemon());
    let pid = proc.start();
    proc.op(Op::Unhost).assert_success();
    let_it_live();
    kill(pid, Signal::KILL);
    proc.row_when(PATIENCE, "stopped");
    assert_eq!((proc.pid(), proc.runs()), (None, 1));
}

#[test]
fn short_lives_are_followed_by_a_pause_and_then_by_giving_up() {
    let up = up();
    let proc = up.proc("short").policy("start_interval", 5).policy("start_retries", 2);
    let crashing =
        proc.clone().starts(&format!("date +%s%N >> times; {}", programs::dies_again_after("2.5")));
    kill(crashing.start(), Signal::KILL);
    let row = wait_for(PATIENCE, "it is given up", || {
        let row = crashing.row()?;
        // Counted from when the note was made, so it can be less than the interval, and never more: pauses do
        // not grow.
        let waits = row["note"].as_str()?.strip_prefix("starts in ").and_then(|note| note.split_once(" s: "));
        if let Some((secs, why)) = waits {
            assert!(secs.parse::<u32>().expect("a number") <= 5, "{why} in {secs} s");
        }
        (row["state"] == "gave_up").then_some(row)
    });
    assert_eq!((&row["hosted"], &row["pid"]), (&true.into(), &().into()));
    let note = row["note"].as_str().expect("a note is a text");
    assert!(note.contains("gave up after 2 restarts"), "{note}");
    assert_eq!(crashing.runs(), 3, "one start and two restarts");
    let times: Vec<u64> = crashing.read("times").lines().map(|line| line.parse().expect("a time")).collect();
    // The agent counts from the start of the shell, and the shell may write down its time much later. Half of
    // the rest of each pause is left for that.
    for pair in times.windows(2) {
        let pause = Duration::from_nanos(pair[1] - pair[0]);
        assert!(pause > Duration::from_millis(3_750), "{pause:?}");
    }
    let shown = up.cli(&["ps", "--namespace", &proc.namespace]);
    assert!(shown.stdout.contains("gave up after 2 restarts"), "{shown:?}");

    // An op resets the count of restarts.
    let healthy = proc.starts(&programs::foreground());
    let pid = healthy.start();
    assert_eq!(healthy.row_with_pid(pid)["note"], "");
}

/// Each life is longer than `start_interval` and shorter than 10 s, so none is stable.
#[test]
fn a_crash_loop_that_is_slower_than_the_interval_is_given_up() {
    let up = up();
    let proc = up.proc("loop").policy("start_retries", 2).starts(&programs::dies_again_after("2"));
    kill(proc.start(), Signal::KILL);
    let row = proc.row_when(PATIENCE, "gave_up");
    assert!(row["note"].as_str().is_some_and(|note| note.contains("gave up after 2 restarts")), "{row}");
    assert_eq!(proc.runs(), 3, "one start and two restarts");
}

/// Hosting a process that cannot be started is retried too, and its end outlives the agent.
#[test]
fn giving_up_survives_the_agent() {
    let up = up();
    let proc = up.proc("hopeless").policy("start_retries", 2).starts(&programs::exits(3));
    proc.op(Op::Host).assert(65535, "Script exit code non-zero").assert_hosted(true);
    let row = proc.row_when(PATIENCE, "gave_up");
    assert!(row["note"].as_str().is_some_and(|note| note.contains("gave up after 2 restarts")), "{row}");
    assert_eq!(proc.runs(), 3);
    up.kill_agent();
    let seen = proc.op(Op::Query);
    seen.assert_success().assert_hosted(true);
    assert_eq!(seen.pid(), None);
    assert_eq!((proc.row_when(PATIENCE, "gave_up")["note"].clone(), proc.runs()), (row["note"].clone(), 3));
    let healthy = proc.starts(&programs::foreground());
    healthy.start();
}

/// All that is running when the agent dies is taken up again, and is looked after as before.
#[test]
fn a_killed_agent_comes_back_and_adopts_its_processes() {
    let up = up();
    let procs = [
        up.proc("daemon").with_pid_file().starts(&programs::daemon()),
        up.proc("silent").starts(&programs::silent_daemon()),
        up.proc("foreground").starts(&programs::foreground()),
        up.proc("below").starts(&programs::foreground_below_shell()),
    ];
    let tasks: Vec<_> = procs.iter().map(|proc| proc.submit(Op::Start)).collect();
    tasks.iter().for_each(|task| _ = task.outcome().assert_success());
    let pids: Vec<u32> = procs.iter().map(|proc| proc.pid().expect("it runs")).collect();
    let born: Vec<_> = pids.iter().map(|pid| start_time(*pid)).collect();
    let old = up.kill_agent();
    for (index, proc) in procs.iter().enumerate() {
        let seen = proc.op(Op::Query);
        seen.assert_success().assert_hosted(true);
        assert_eq!((seen.pid(), start_time(pids[index])), (Some(pids[index]), born[index]), "{}", proc.name);
        assert_eq!(proc.runs(), 1, "{}", proc.name);
        proc.op(Op::Start).assert(828, "no need to start the process web(");
    }
    assert_ne!(up.agent_pid(), old);
    at_once(procs, |proc| {
        let successor = check_replaced(proc, proc.pid().expect("it runs"));
        proc.row_with_pid(successor);
        assert_eq!((proc.pid(), proc.runs()), (Some(successor), 2), "{}", proc.name);
        proc.op(Op::Stop).assert_success().assert_hosted(false);
        assert!(!is_running(successor), "{}", proc.name);
    });
}

/// A process that dies while no agent runs is started again by the next agent.
#[test]
fn a_process_that_dies_while_the_agent_is_away_is_replaced() {
    let up = up();
    let proc = up.proc("orphan").with_pid_file().starts(&programs::daemon());
    let pid = proc.start();
    up.take_agent_away();
    kill(pid, Signal::KILL);
    let row = wait_for(PATIENCE, "it was replaced", || {
        proc.row().filter(|row| {
            row["state"] == "running" && row["pid"].as_u64().is_some_and(|now| now != u64::from(pid))
        })
    });
    assert_eq!((proc.pid().map(u64::from), proc.runs()), (row["pid"].as_u64(), 2));
}

#[track_caller]
fn check_interrupted_or_true(proc: &Proc, task: &procfleet_testkit::Task) {
    let ended = task.outcome();
    match ended.code {
        0 => _ = ended.assert_success(),
        _ => _ = ended.assert(805, "interrupted"),
    }
    eprintln!("{}: {} {}", proc.name, ended.code, ended.message);
}

#[test]
fn the_agent_dies_in_the_check_window_of_a_start() {
    let up = up();
    let procs = [
        up.proc("daemon").with_pid_file().starts(&programs::daemon()),
        up.proc("foreground").starts(&programs::foreground()),
    ];
    let begun = procs.each_ref().map(|proc| {
        let task = proc.clone().policy("start_check_secs", 60).submit(Op::Start);
        let pid = wait_for(PATIENCE, "the process runs", || proc.program_pid());
        assert!(!task.has_ended());
        (task, pid)
    });
    up.kill_agent();
    for (proc, (task, pid)) in procs.iter().zip(begun) {
        check_interrupted_or_true(proc, &task);
        assert!(is_running(pid), "the process goes on");
        assert_eq!((proc.pid(), proc.runs()), (Some(pid), 1), "{}", proc.name);
        proc.op(Op::Start).assert(828, "no need to start the process web(");
        proc.op(Op::Stop).assert_success().assert_hosted(false);
        assert!(!is_running(pid));
    }
    at_once(procs, |proc| {
        proc.start();
        proc.op(Op::Kill).assert_success();
        assert_eq!(proc.runs(), 2);
    });
}

#[test]
fn the_agent_dies_while_start_cmd_runs() {
    let up = up();
    let proc = up.proc("slow").with_pid_file().starts(&programs::slow_daemon(2));
    let task = proc.submit(Op::Start);
    proc.wait_for_runs(1);
    up.kill_agent();
    check_interrupted_or_true(&proc, &task);
    let pid = proc.pid_in_file();
    wait_until(PATIENCE, "the agent knows the process", || proc.pid() == Some(pid));
    assert_eq!(proc.runs(), 1, "the command is not repeated");
    proc.op(Op::Host).assert_success().assert_hosted(true);
    assert_eq!((proc.pid(), proc.runs()), (Some(pid), 1));
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(pid));
}

/// The shell of `start_cmd` is not the process: not for the outcome, nor for a query, nor in the status.
#[test]
fn a_start_command_that_outlives_the_agent_is_not_the_process() {
    let up = up();
    let wait = "echo run >> runs; until test -e go; do sleep 0.05; done";
    let procs = [
        up.proc("daemon").with_pid_file().starts(&format!("{wait}; {}", programs::daemon())),
        up.proc("foreground").starts(&format!("{wait}; exec ./web 1000")),
        up.proc("script").script("web.sh", &format!("#!/bin/sh\n{wait}\n{}\n", programs::daemon())),
        up.proc("by-name")
            .script("start.sh", &format!("#!/bin/sh\n{wait}\n{}\n", programs::daemon()))
            .starts("./start.sh"),
    ];
    let [daemon, foreground, script, by_name] = procs;
    let procs = [daemon, foreground, script.with_pid_file().starts("./web.sh start"), by_name]
        .map(|proc| proc.policy("start_check_secs", 60).policy("op_timeout", 120));
    let tasks = procs.each_ref().map(|proc| {
        let task = proc.submit(Op::Start);
        proc.wait_for_runs(1);
        task
    });
    up.kill_agent();
    for (proc, task) in procs.iter().zip(&tasks) {
        task.outcome()
            .assert(805, "interrupted")
            .assert_says("is not running yet: its start command is still at work");
        assert_eq!(proc.pid(), None, "{}", proc.name);
        let row = proc.row().expect("it has a row");
        assert_eq!(row["pid"], serde_json::Value::Null, "{row}");
        assert_ne!(row["state"], "running", "{row}");
    }
    for proc in &procs {
        std::fs::write(proc.folder.join("go"), "").expect("our own folder");
        let pid = wait_for(PATIENCE, "the process is known", || {
            let row = proc.row().filter(|row| row["state"] == "running")?;
            proc.program_pids().into_iter().find(|pid| row["pid"] == *pid)
        });
        assert_eq!((proc.pid(), proc.runs()), (Some(pid), if proc.name == "foreground" { 1 } else { 2 }));
        proc.op(Op::Stop).assert_success();
        assert!(proc.pids().is_empty(), "{}: {:?}", proc.name, proc.pids());
    }
}

/// Hosting ends first, and durably: if the agent dies in the middle of a stop, the process is not started
/// again.
#[test]
fn the_agent_dies_in_the_middle_of_a_stop() {
    let up = up();
    let proc = up.proc("stopping").with_pid_file().starts(&programs::daemon());
    let proc = proc.control("stop_cmd", "echo stop >> stops; sleep 1; kill $(cat web.pid)");
    let pid = proc.start();
    let task = proc.submit(Op::Stop);
    wait_until(PATIENCE, "stop_cmd runs", || proc.read("stops") == "stop\n");
    up.kill_agent();
    check_interrupted_or_true(&proc, &task);
    wait_until(PATIENCE, "stop_cmd goes on without the agent", || !is_running(pid));
    proc.row_when(PATIENCE, "stopped");
    let seen = proc.op(Op::Query);
    seen.assert_success().assert_hosted(false);
    assert_eq!((seen.pid(), proc.runs(), proc.read("stops").as_str()), (None, 1, "stop\n"));
}

/// The server ends right after it answered, and its agent with it: on return the op is carried out, once.
#[track_caller]
fn check_accepted_op_is_carried_out(signal: Signal) {
    let mut up = up();
    for round in 0..4 {
        let proc = up.proc(&format!("durable-{round}")).with_pid_file().starts(&programs::daemon());
        let id = up.client.operate(proc.body(Op::Start));
        up.end(signal);
        up.again();
        // The port is another one now.
        let proc = Proc { client: up.client.clone(), ..proc };
        let ended = up.client.outcome(&id);
        eprintln!("{}: {} {}", proc.name, ended.code, ended.message);
        assert!(matches!(ended.code, 0 | 805), "{ended:?}");
        // A command that was cut off goes on by itself.
        let pid = proc.pid_in_file();
        wait_until(PATIENCE, "the agent knows the process", || proc.pid() == Some(pid));
        assert_eq!(proc.runs(), 1, "{}: it is carried out once: {ended:?}", proc.name);
        proc.op(Op::Stop).assert_success();
    }
}

#[test]
fn an_accepted_op_survives_the_end_of_everything() {
    check_accepted_op_is_carried_out(Signal::KILL);
}

#[test]
fn an_accepted_op_survives_an_orderly_end() {
    check_accepted_op_is_carried_out(Signal::TERM);
}

/// As when the power fails: server and agent at the same moment.
#[test]
fn server_and_agent_die_together_right_after_the_answer() {
    let mut up = up();
    for round in 0..3 {
        let proc = up.proc(&format!("round-{round}")).with_pid_file().starts(&programs::daemon());
        let id = up.client.operate(proc.body(Op::Start));
        up.kill_all();
        up.again();
        let proc = Proc { client: up.client.clone(), ..proc };
        let ended = up.client.outcome(&id);
        eprintln!("{}: {} {} runs {}", proc.name, ended.code, ended.message, proc.runs());
        match ended.code {
            0 => assert_eq!(proc.runs(), 1),
            _ => assert!(ended.code == 805 && proc.runs() <= 1, "{ended:?} {}", proc.runs()),
        }
        // In any case, later ops work.
        let outcome = proc.op(Op::Start);
        assert!(matches!(outcome.code, 0 | 828), "{outcome:?}");
        assert_eq!(proc.runs(), 1);
        proc.op(Op::Kill).assert_success();
    }
}

#[test]
fn two_starts_at_once_start_one_process() {
    let up = up();
    let proc = up.proc("twice").with_pid_file().starts(&programs::daemon());
    let tasks: Vec<_> = std::thread::scope(|scope| {
        let both: Vec<_> = (0..2).map(|_| scope.spawn(|| proc.submit(Op::Start))).collect();
        both.into_iter().map(|thread| thread.join().expect("a start is accepted")).collect()
    });
    let mut codes: Vec<u64> = tasks.iter().map(|task| task.outcome().code).collect();
    codes.sort_unstable();
    assert_eq!((codes, proc.runs()), (vec![0, 828], 1));
    assert_eq!(proc.pid(), Some(proc.pid_in_file()));
}

#[track_caller]
fn check_stop_overtakes(proc: Proc, ready: impl Fn(&Proc)) {
    let proc = proc.policy("start_check_secs", 600);
    let start = proc.submit(Op::Start);
    ready(&proc);
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    start.outcome().assert(826, "start was cancelled").assert_hosted(false);
    wait_until(PATIENCE, "nothing of it is left", || proc.pids().is_empty());
    assert_eq!((proc.pid(), proc.runs()), (None, 1));
    proc.op(Op::Stop).assert(829, "no need to stop");
}

#[test]
fn a_stop_overtakes_a_start_in_its_check_window() {
    let up = up();
    let proc = up.proc("checked").with_pid_file().starts(&programs::daemon());
    check_stop_overtakes(proc, |proc| _ = proc.pid_in_file());
}

#[test]
fn a_stop_overtakes_a_foreground_start_in_its_check_window() {
    let up = up();
    check_stop_overtakes(up.proc("checked").starts(&programs::foreground()), |proc| proc.wait_for_runs(1));
}

#[test]
fn a_stop_overtakes_a_start_whose_command_runs() {
    let up = up();
    let proc = up.proc("slow").with_pid_file().starts(&programs::slow_daemon(600));
    check_stop_overtakes(proc, |proc| proc.wait_for_runs(1));
}

/// Control scripts often take one lock for start and stop: `stop_cmd` would wait for the start command.
#[test]
fn a_stop_ends_the_start_command_before_it_runs_stop_cmd() {
    let up = up();
    let locked = |start: &str| {
        format!("exec 9> lock; flock 9; (exec 9>&-; {start}); until test -e go; do sleep 0.05; done")
    };
    let stop = "exec 9> lock; flock 9; echo stop >> stops; kill $(cat web.pid)";
    let in_background = "./web 1000 </dev/null >/dev/null 2>&1 & echo $! > web.pid";
    let procs = [
        up.proc("with-pid-file").with_pid_file().starts(&locked(&programs::daemon())),
        // Found by their names, as children of a command that is still at work.
        up.proc("by-name").starts(&locked(&programs::daemon())),
        up.proc("in-its-session").starts(&locked(in_background)),
    ];
    at_once(procs, |proc| {
        let proc = proc.clone().control("stop_cmd", stop).control("kill_cmd", stop);
        let proc =
            proc.policy("start_check_secs", 600).policy("op_timeout", 3600).policy("stop_check_secs", 5);
        for (op, first) in [(Op::Stop, Op::Start), (Op::Kill, Op::Start), (Op::Stop, Op::Restart)] {
            let row = format!("{} {op:?} {first:?}", proc.name);
            let start = proc.submit(first);
            let pid = proc.pid_in_file();
            wait_until(PATIENCE, "the process was seen", || proc.row().is_some_and(|row| row["pid"] == pid));
            proc.op(op).assert_success().assert_hosted(false);
            start.outcome().assert(826, &format!("{first:?} was cancelled").to_lowercase());
            assert!(!is_running(pid), "{row}");
            assert!(proc.pids().is_empty(), "{row}: {:?}", proc.pids());
            assert_eq!(proc.read("stops"), "", "{row}: no process was left for the command");
            fs::remove_file(proc.folder.join(programs::PID_FILE)).expect("our own folder");
        }
    });
}

/// A process that outlives the overtaken command is stopped like any other process.
#[test]
fn stop_cmd_runs_if_a_process_is_there_after_an_overtaken_launch() {
    let up = up();
    let stop = "echo stop >> stops; kill $(cat web.pid)";
    let proc = |name: &str| up.proc(name).with_pid_file().control("stop_cmd", stop);
    // The command has ended, and its process is being checked.
    let checked = proc("checked").starts(&format!("echo $$ > shell.pid; {}", programs::daemon()));
    check_stop_overtakes(checked.clone(), |proc| {
        let pid = proc.pid_in_file();
        let shell = format!("/proc/{}", proc.read("shell.pid").trim());
        wait_until(PATIENCE, "the agent has reaped the command", || !Path::new(&shell).exists());
        assert_eq!(proc.pid(), Some(pid));
    });
    assert_eq!(checked.read("stops"), "stop\n");

    // A restart_cmd is at work, and has not ended the old process.
    let beside = proc("beside").starts(&programs::daemon());
    let old = beside.start();
    let beside = beside.control("restart_cmd", "echo run >> runs; sleep 1000");
    let restart = beside.submit(Op::Restart);
    beside.wait_for_runs(2);
    beside.op(Op::Stop).assert_success().assert_hosted(false);
    restart.outcome().assert(826, "restart was cancelled");
    wait_until(PATIENCE, "nothing of it is left", || beside.pids().is_empty());
    assert_eq!((beside.read("stops").as_str(), is_running(old)), ("stop\n", false));
}

/// The start command and all that it has started are ended. Because no process is known yet, `stop_cmd` and
/// `kill_cmd` are not run.
#[track_caller]
fn check_overtaken_start_does_not_go_on(up: &Up) {
    let commands = ["stop_cmd", "kill_cmd"].map(|field| (field, format!("echo {field} >> commands; exit 1")));
    for (op, first) in
        [(Op::Stop, Op::Start), (Op::Kill, Op::Start), (Op::Stop, Op::Host), (Op::Stop, Op::Restart)]
    {
        let mut proc = up.proc(&format!("{op:?}-{first:?}").to_lowercase());
        proc = proc.with_pid_file().starts(&programs::slow_daemon(600));
        for (field, command) in &commands {
            proc = proc.control(field, command);
        }
        let start = proc.submit(first);
        proc.wait_for_runs(1);
        proc.op(op).assert_success().assert_hosted(false);
        start
            .outcome()
            .assert(826, &format!("{first:?}").to_lowercase())
            .assert_says("was cancelled: a later");
        assert!(proc.pids().is_empty(), "{}: what is left could go on: {:?}", proc.name, proc.pids());
        assert_eq!((proc.read("commands").as_str(), proc.runs(), proc.pid()), ("", 1, None), "{}", proc.name);
        proc.op(op).assert(829, "no need to");
    }
    // A restart_cmd that has ended the old process.
    let proc =
        up.proc("restarting").with_pid_file().starts(&programs::daemon()).control("stop_cmd", "exit 1");
    let old = proc.start();
    let slow = programs::slow_daemon(600);
    let proc = proc.control("restart_cmd", &format!("kill $(cat web.pid); rm web.pid; {slow}"));
    let restart = proc.submit(Op::Restart);
    proc.wait_for_runs(2);
    wait_until(PATIENCE, "the old process is gone", || !is_running(old));
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    restart.outcome().assert(826, "restart was cancelled");
    assert_eq!((proc.pids(), proc.pid()), (Vec::<u32>::new(), None));
}

#[test]
fn a_start_that_was_overtaken_does_not_go_on() {
    check_overtaken_start_does_not_go_on(&up());
}

#[test]
fn a_start_that_was_overtaken_does_not_go_on_without_cgroups() {
    check_overtaken_start_does_not_go_on(&Up::start_with(
        env!("CARGO_BIN_EXE_procfleet"),
        &["--containment", "tree"],
    ));
}

/// Orders wait for each other, and each is answered.
#[test]
fn every_op_of_a_sequence_is_answered() {
    let up = up();
    let proc =
        up.proc("row").with_pid_file().starts(&programs::daemon()).control("reload_cmd", "echo r >> reloads");
    let first = proc.submit(Op::Start);
    first.outcome().assert_success();
    let ops = [Op::Reload, Op::Restart, Op::Reload, Op::Unhost, Op::Host, Op::Stop, Op::Stop];
    let tasks: Vec<_> = ops.iter().map(|op| proc.submit(*op)).collect();
    let codes: Vec<u64> = tasks.iter().map(|task| task.outcome().code).collect();
    // A stop overtakes the launch of the restart, and all that was sent before it.
    assert!(codes.iter().all(|code| matches!(code, 0 | 826 | 829)), "{codes:?}");
    assert_eq!(codes[5], 0, "{codes:?}");
    let seen = proc.op(Op::Query);
    seen.assert_hosted(false);
    assert_eq!(seen.pid(), None);
    assert!(proc.pids().is_empty(), "nothing of it is left");
}

/// The old process is gone and the new one is on its way: there is one in the end.
#[test]
fn the_agent_dies_in_the_middle_of_a_restart() {
    let up = up();
    let proc = up.proc("restarting").with_pid_file().starts(&programs::slow_daemon(1));
    let first = proc.start();
    std::fs::remove_file(proc.folder.join(programs::PID_FILE)).expect("it was written");
    let task = proc.submit(Op::Restart);
    proc.wait_for_runs(2);
    up.kill_agent();
    check_interrupted_or_true(&proc, &task);
    let second = proc.pid_in_file();
    wait_until(PATIENCE, "the agent knows the process", || proc.pid() == Some(second));
    assert!(!is_running(first));
    assert_eq!(proc.row_with_pid(second)["hosted"], true);
    assert_eq!((proc.runs(), proc.pids()), (2, vec![second]), "there is one copy");
}

/// When a stop has succeeded there is nothing left to stop, in whatever moment of a start it came.
#[test]
fn a_stop_that_overtakes_a_start_leaves_nothing_to_stop() {
    let up = up();
    for round in 0..12 {
        let proc = up.proc(&format!("round-{round}")).with_pid_file().starts(&programs::daemon());
        let start = proc.submit(Op::Start);
        if round % 2 == 1 {
            proc.wait_for_runs(1);
        }
        let stops = [proc.submit(Op::Stop), proc.submit(Op::Stop)];
        let codes = [start.outcome().code, stops[0].outcome().code, stops[1].outcome().code];
        // On a slow machine the start may be over before the stop arrives.
        assert!(matches!(codes, [826 | 0, 0, 829]), "round {round}: {codes:?}");
        assert!(proc.pids().is_empty(), "round {round}: something is left");
    }
}

/// The start that follows does not take a process that a stop is still ending for a running one.
#[test]
fn a_start_after_a_stop_that_overtook_a_start_runs() {
    let up = up();
    let procs: Vec<Proc> =
        (0..10).map(|n| up.proc(&format!("again-{n}")).with_pid_file().starts(&programs::daemon())).collect();
    let tasks: Vec<_> =
        procs.iter().map(|proc| [Op::Start, Op::Stop, Op::Start].map(|op| proc.submit(op))).collect();
    for (proc, tasks) in procs.iter().zip(tasks) {
        let codes = tasks.map(|task| task.outcome().code);
        assert!(matches!(codes, [826 | 0, 0, 0]), "{}: {codes:?}", proc.name);
        assert_eq!(proc.pid(), Some(proc.pid_in_file()), "{}", proc.name);
        assert_eq!(proc.pids().len(), 1, "{}", proc.name);
    }
}

/// Whenever the agent dies, every op ends and every process exists once.
#[test]
fn killing_the_agent_at_random_times_leaves_one_process_per_proc() {
    let up = up();
    let procs: Vec<Proc> = (0..6)
        .map(|n| match n % 3 {
            0 => up.proc(&format!("daemon-{n}")).with_pid_file().starts(&programs::daemon()),
            1 => up.proc(&format!("foreground-{n}")).starts(&programs::foreground()),
            _ => up.proc(&format!("below-{n}")).starts(&programs::foreground_below_shell()),
        })
        .map(|proc| proc.policy("start_retries", 100))
        .collect();
    at_once(procs.clone(), |proc| _ = proc.start());
    for round in 0..5 {
        let before: Vec<usize> = procs.iter().map(Proc::runs).collect();
        let tasks: Vec<_> = procs.iter().map(|proc| proc.submit(Op::Restart)).collect();
        let_pass(Duration::from_millis(round * 20));
        up.kill_agent();
        for ((proc, task), before) in procs.iter().zip(&tasks).zip(before) {
            check_interrupted_or_true(proc, task);
            let pid = wait_for(PATIENCE, &format!("{} runs", proc.name), || {
                let row = proc.row().filter(|row| row["state"] == "running" && row["hosted"] == true)?;
                proc.program_pids().into_iter().find(|pid| row["pid"] == *pid)
            });
            assert_eq!(proc.pid(), Some(pid), "round {round}: {}", proc.name);
            assert_eq!(proc.program_pids(), [pid], "round {round}: {}", proc.name);
            // The run of the op, or a restart by hosting.
            assert!(
                proc.runs() <= before + 1,
                "round {round}: {} was run {} times",
                proc.name,
                proc.runs() - before
            );
        }
    }
}
