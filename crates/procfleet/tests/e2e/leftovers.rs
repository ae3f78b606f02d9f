//! After a stop, a kill and a crash no descendant of a process is left, with cgroups and without.

use procfleet_testkit::{
    Need, Op, PATIENCE, Proc, Signal, Up, is_running, kill, need, programs, remember, wait_for, wait_until,
};
use std::fs;
use std::path::Path;

/// Each gets away from the process in another way, and writes its pid into a file.
const SCATTER: &str = "#!/bin/sh
(sh -c 'echo $$ >> escaped; exec sleep 1000' &)
setsid sh -c 'echo $$ >> escaped; exec sleep 1000' &
(setsid sh -c 'trap \"\" TERM HUP; echo $$ >> escaped; exec sleep 1000' &)
(setsid sh -c '(sh -c \"echo \\$\\$ >> escaped; exec sleep 1000\" &)' &)
[ -z \"$1\" ] || (setsid env -i sh -c 'echo $$ >> escaped; exec sleep 1000' &)
exec ./web 1000
";

/// The pids of the processes that the present process has detached.
fn escaped(proc: &Proc, count: usize) -> Vec<u32> {
    let path = proc.folder.join("escaped");
    let pids = wait_for(PATIENCE, "all have got away", || {
        let text = fs::read_to_string(&path).ok()?;
        let pids: Vec<u32> = text.lines().filter_map(|line| line.parse().ok().map(remember)).collect();
        (pids.len() == count).then_some(pids)
    });
    fs::remove_file(path).expect("our own file");
    pids
}

/// The folder that holds the groups of the agent's procs, if it makes any.
fn cgroup_dir(up: &Up) -> Option<String> {
    let places = fs::read_to_string(up.data().join("agent/output/.cgroup")).unwrap_or_default();
    places.lines().next().map(str::to_owned)
}

fn check(up: &Up) {
    // Without cgroups, a process without environment and parent cannot be distinguished from a stranger.
    let (argument, count) = if cgroup_dir(up).is_some() { ("all", 5) } else { ("", 4) };
    let proc = up.proc("scatter").script("scatter", SCATTER).starts(&format!("./scatter {argument}"));
    for op in [Op::Stop, Op::Kill] {
        let main = proc.start();
        let others = escaped(&proc, count);
        proc.op(op).assert_success().assert_hosted(false);
        let left: Vec<&u32> = others.iter().filter(|pid| is_running(**pid)).collect();
        assert!(left.is_empty() && !is_running(main), "{op:?} left {left:?}");
    }
    let main = proc.start();
    let others = escaped(&proc, count);
    kill(main, Signal::KILL);
    let next = escaped(&proc, count);
    wait_until(PATIENCE, "the leftovers of the dead process are gone", || {
        !others.iter().any(|pid| is_running(*pid))
    });
    assert!(next.iter().all(|pid| is_running(*pid)), "and what the new one has started is not");
    // An agent that was killed ends what its last life has started.
    up.kill_agent();
    assert!(next.iter().all(|pid| is_running(*pid)));
    proc.op(Op::Stop).assert_success();
    assert!(!next.iter().any(|pid| is_running(*pid)));
}

/// As `su -` does it where each session has a cgroup: it enters the scope of a new session and clears
/// the environment, and what it starts becomes the agent's child.
const MOVE_OUT: &str = "#!/bin/sh
echo $$ > \"$1/cgroup.procs\"
(env -i /usr/bin/setsid /bin/sh -c 'sleep 1000 > /dev/null 2>&1 & echo $! >> escaped' &)
sleep 1
";

#[test]
fn what_a_command_moved_to_another_cgroup_is_ended() {
    let up = crate::up();
    let Some(cgroup_dir) = need(Need::Cgroups, cgroup_dir(&up).ok_or("the agent makes none")) else { return };
    let elsewhere = Path::new(&cgroup_dir).with_file_name(format!("session-{}.scope", up.namespace));
    fs::create_dir(&elsewhere).expect("root may make groups");
    let command = format!(
        "./move-out {} && (setsid ./web 1000 > /dev/null 2>&1 & echo $! > {})",
        elsewhere.display(),
        programs::PID_FILE
    );
    let proc = up.proc("moved").with_pid_file().script("move-out", MOVE_OUT).starts(&command);
    for op in [Op::Stop, Op::Kill] {
        let main = proc.start();
        let moved = escaped(&proc, 1);
        assert!(is_running(main) && is_running(moved[0]), "it belongs to a process that runs");
        proc.op(op).assert_success();
        assert!(!is_running(main) && !is_running(moved[0]), "{op:?}");
    }
    wait_until(PATIENCE, "the group can be removed", || fs::remove_dir(&elsewhere).is_ok());
}

#[test]
fn a_stop_a_kill_and_a_restart_leave_nothing() {
    let up = crate::up();
    let Some(cgroup_dir) = need(Need::Cgroups, cgroup_dir(&up).ok_or("the agent makes none")) else { return };
    check(&up);
    // Empty folders are removed now and then.
    wait_until(2 * PATIENCE, "no group is left", || {
        fs::read_dir(Path::new(&cgroup_dir))
            .into_iter()
            .flatten()
            .flatten()
            .all(|entry| !entry.path().is_dir())
    });
}

#[test]
fn a_stop_a_kill_and_a_restart_leave_nothing_without_cgroups() {
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--containment", "tree"]);
    assert_eq!(cgroup_dir(&up), None);
    check(&up);
}

/// Only its session shows whose the child is: it has no environment, loses its parent and ignores SIGTERM.
const CLEARED: &str = "#!/bin/sh
env -i sh -c 'trap \"\" TERM; echo $$ >> escaped; exec sleep 1000' &
exec ./web 1000
";

#[test]
fn a_child_without_environment_in_the_session_is_ended_without_cgroups() {
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--containment", "tree"]);
    assert_eq!(cgroup_dir(&up), None);
    let starts = |name: &str, start: &str| up.proc(name).script("cleared", CLEARED).starts(start);
    let other = starts("other", "./cleared");
    other.start();
    let others = escaped(&other, 1);
    for (name, start) in
        [("foreground", "./cleared"), ("daemon", "(setsid ./cleared </dev/null >/dev/null 2>&1 &)")]
    {
        let proc = starts(name, start);
        for op in [Op::Stop, Op::Kill] {
            let main = proc.start();
            let child = escaped(&proc, 1);
            proc.op(op).assert_success().assert_hosted(false);
            assert!(!is_running(main) && !is_running(child[0]), "{name}: {op:?}");
        }
        let main = proc.start();
        let child = escaped(&proc, 1);
        kill(main, Signal::KILL);
        let next = escaped(&proc, 1);
        wait_until(PATIENCE, "the child of the dead process is gone", || !is_running(child[0]));
        assert!(is_running(next[0]), "{name}: the child of the next process stays");
        proc.op(Op::Stop).assert_success();
    }
    assert!(is_running(others[0]), "the child of another proc stays");
    other.op(Op::Stop).assert_success();
    assert!(!is_running(others[0]));
}

/// A worker has its master's name. While the dead master waits for its restart, the agent must not take the
/// worker for the master, because then no master would be started.
#[test]
fn a_worker_does_not_take_the_place_of_its_dead_master() {
    let up = crate::up();
    let proc = up
        .proc("master")
        .starts("./web 1001 & echo $! > worker; exec ./web 1000")
        .policy("start_interval", 15)
        .policy("start_retries", 1);
    let mut master = proc.start();
    let worker = || proc.read("worker").trim().parse::<u32>().expect("a pid");
    for state in ["stopped", "gave_up"] {
        let orphan = worker();
        kill(master, Signal::KILL);
        proc.row_when(PATIENCE, state);
        wait_until(PATIENCE, "the worker has lost its master", || !is_running(orphan));
        assert_eq!(proc.op(Op::Query).pid(), None, "{state}");
        if state == "stopped" {
            master = proc.row_when(PATIENCE, "running")["pid"]
                .as_u64()
                .and_then(|pid| pid.try_into().ok())
                .expect("a pid");
            assert_ne!(master, worker());
        }
    }
    // Nor does it when the master died while the agent was away.
    let master = proc.start();
    let orphan = worker();
    // The agent first, and the master before there is another agent.
    up.take_agent_away();
    kill(master, Signal::KILL);
    up.wait_for_agent();
    wait_until(PATIENCE, "there is another master", || {
        proc.row()
            .is_some_and(|row| row["state"] == "running" && row["pid"] != master && row["pid"] != orphan)
    });
    assert!(!is_running(orphan));
}

/// The master of a worker that bears its name. The worker throws its environment away, and the mark with it,
/// as nginx does.
const MASTER: &str = "#!/bin/sh
$1 env -i ./web 1001 &
echo $! > worker.new
mv worker.new worker
wait
";

/// Foreground programs and daemons, with workers in their session and in sessions of their own. None has a
/// pid file.
fn masters(up: &Up) -> Vec<Proc> {
    let rows = [
        ("foreground", "./web.sh"),
        ("foreground-session", "./web.sh setsid"),
        ("daemon", "(setsid ./web.sh </dev/null >/dev/null 2>&1 &)"),
        ("daemon-session", "(setsid ./web.sh setsid </dev/null >/dev/null 2>&1 &)"),
    ];
    rows.map(|(name, start)| up.proc(name).script("web.sh", MASTER).starts(start)).into()
}

/// The worker of the present master, once it runs its program.
fn worker_of(proc: &Proc) -> u32 {
    let worker = wait_for(PATIENCE, "there is a worker", || proc.read("worker").trim().parse().ok());
    wait_until(PATIENCE, "the worker is a program", || {
        fs::read(format!("/proc/{worker}/cmdline")).is_ok_and(|line| line.starts_with(b"./web"))
    });
    fs::remove_file(proc.folder.join("worker")).expect("our own file");
    worker
}

/// The answers of all, each asked in a thread of its own.
fn each<T: Sync, R: Send>(items: &[T], ask: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(move || ask(item))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|answer| answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn check_workers(up: &Up) {
    let procs = masters(up);
    let mut pairs: Vec<(u32, u32)> = each(&procs, |proc| (proc.start(), worker_of(proc)));
    let dies_alone = |pairs: &[(u32, u32)]| {
        // The masters before there is another agent.
        kill(up.agent_pid(), Signal::KILL);
        pairs.iter().for_each(|(master, _)| kill(*master, Signal::KILL));
        up.wait_for_agent();
    };
    // Hosted: the agent that comes back starts another master.
    dies_alone(&pairs);
    for (proc, pair) in procs.iter().zip(&mut pairs) {
        let (master, worker) = *pair;
        let row = wait_for(PATIENCE, "there is another master", || {
            let row = proc.row().filter(|row| row["state"] == "running" && row["pid"] != master)?;
            assert_ne!(row["pid"], worker, "{}", proc.name);
            Some(row)
        });
        let next = row["pid"].as_u64().and_then(|pid| pid.try_into().ok()).expect("a pid");
        *pair = (next, worker_of(proc));
    }
    // Unhosted, no process is started, and the worker does not keep a start op from starting one. First the
    // master dies while the agent is away, then while the agent watches it.
    for away in [true, false] {
        procs.iter().for_each(|proc| {
            proc.op(Op::Unhost).assert_success();
        });
        match away {
            true => dies_alone(&pairs),
            false => pairs.iter().for_each(|(master, _)| kill(*master, Signal::KILL)),
        }
        let rows: Vec<(&Proc, (u32, u32))> = procs.iter().zip(pairs).collect();
        pairs = each(&rows, |(proc, (master, worker))| {
            wait_until(PATIENCE, "the master is dead", || !is_running(*master));
            proc.row_when(PATIENCE, "stopped");
            assert_eq!(proc.op(Op::Query).pid(), None, "{}: away {away}", proc.name);
            assert!(is_running(*worker), "{}: nobody was to end the worker", proc.name);
            let next = proc.start();
            assert!(next != *master && next != *worker, "{}: away {away}", proc.name);
            (next, worker_of(proc))
        });
    }
}

#[test]
fn a_worker_without_environment_does_not_pass_for_its_dead_master() {
    let up = crate::up();
    if need(Need::Cgroups, cgroup_dir(&up).ok_or("the agent makes none")).is_some() {
        check_workers(&up);
    }
}

#[test]
fn a_worker_without_environment_does_not_pass_for_its_dead_master_without_cgroups() {
    check_workers(&Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--containment", "tree"]));
}

/// The process forks as quickly as it can, up to a limit; the agent answers meanwhile, and one kill ends all
/// of it.
#[test]
fn a_fork_bomb_does_not_stop_the_agent() {
    const BOMB: &str = "#!/bin/sh
trap '' TERM
[ $1 = 0 ] || { setsid ./bomb $(($1 - 1)) & setsid ./bomb $(($1 - 1)) & }
while :; do setsid sleep 0.1; done
";
    let up = crate::up();
    let bomb = up.proc("bomb").script("bomb", BOMB).starts("exec ./bomb 4");
    let other = up.proc("other").starts("exec ./web 1000");
    bomb.start();
    other.start();
    other.op(Op::Stop).assert_success();
    bomb.op(Op::Kill).assert_success().assert_hosted(false);
    wait_until(PATIENCE, "nothing of it is left", || bomb.pids().is_empty());
}

/// `detached: keep`: detached processes stay when the process or the agent ends.
#[test]
fn detached_keep_leaves_detached_processes_alone() {
    let up = crate::up();
    let proc = up
        .proc("manager")
        .script(
            "manager",
            "#!/bin/sh\n(setsid sh -c 'echo $$ >> escaped; exec sleep 1000' &)\nexec ./web 1000\n",
        )
        .starts("./manager")
        .policy("detached", "keep");
    let main = proc.start();
    let mut jobs = escaped(&proc, 1);
    kill(main, Signal::KILL);
    jobs.extend(escaped(&proc, 1));
    up.kill_agent();
    proc.op(Op::Restart).assert_success();
    jobs.extend(escaped(&proc, 1));
    for op in [Op::Stop, Op::Kill] {
        let main = proc.pid().expect("it runs");
        proc.op(op).assert_success();
        assert!(!is_running(main));
        assert!(jobs.iter().all(|pid| is_running(*pid)), "{op:?}");
        proc.start();
        jobs.extend(escaped(&proc, 1));
    }
    assert_eq!(proc.program_pids().len(), 1);
}

/// The agent is killed in the middle of a start whose daemon says late who it is, and a restart waits: where
/// nothing is swept, the first daemon must not stay beside the second.
#[test]
fn a_start_that_was_cut_off_does_not_come_up_beside_the_next() {
    let up = crate::up();
    let text = format!(
        "#!/bin/sh
echo x >> begun
(setsid sh -c '{}; echo $$ > web.pid; exec ./web 1000' &)
sleep 1
",
        programs::gate(programs::GATE)
    );
    let proc = up
        .proc("late")
        .with_pid_file()
        .script("late", &text)
        .starts("./late")
        .policy("detached", "keep")
        .policy("start_check_secs", 10);
    let start = proc.submit(Op::Start);
    wait_until(PATIENCE, "it has begun", || proc.read("begun").lines().count() == 1);
    let restart = proc.submit(Op::Restart);
    up.kill_agent();
    assert_eq!(start.outcome().code, 805);
    wait_until(PATIENCE, "the next has begun", || proc.read("begun").lines().count() == 2);
    // Every daemon that waits continues now. The gate is not a pipe: a daemon that was killed and has not
    // exited yet still counts as its reader, and takes what is written.
    proc.open_gate(programs::GATE);
    let outcome = restart.outcome();
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(proc.program_pids().len(), 1, "{:?}", proc.pids());
}

/// As nginx does it on USR2: it starts its successor, which writes the pid file, and goes on itself.
const HANDS_OVER: &str = "#!/bin/sh
trap './hands-over &' USR2
echo $$ > web.pid.new
mv web.pid.new web.pid
while :; do sleep 0.05; done
";

/// Stop, kill and restart end both generations, and the status tells of the old one while it lives.
fn check_generations(up: &Up) {
    let restart = "kill $(cat web.pid); rm web.pid; (setsid ./hands-over &); until test -s web.pid; do sleep 0.01; done";
    let rows = [
        ("stop", Op::Stop, "", ""),
        ("stop-command", Op::Stop, "stop_cmd", "kill $(cat web.pid)"),
        ("kill", Op::Kill, "", ""),
        ("kill-command", Op::Kill, "kill_cmd", "kill -9 $(cat web.pid)"),
        ("restart", Op::Restart, "", ""),
        ("restart-command", Op::Restart, "restart_cmd", restart),
    ];
    for foreground in [false, true] {
        for (name, op, field, command) in rows {
            let name = if foreground { format!("{name}-foreground") } else { name.to_owned() };
            let start = "rm -f web.pid; (setsid ./hands-over &); until test -s web.pid; do sleep 0.01; done";
            let proc = up
                .proc(&name)
                .with_pid_file()
                .script("hands-over", HANDS_OVER)
                .starts(if foreground { "exec ./hands-over" } else { start })
                .policy("stop_check_secs", 5);
            let proc = if field.is_empty() { proc } else { proc.control(field, command) };
            let old = proc.start();
            kill(old, Signal::USR2);
            wait_until(PATIENCE, "the successor has written its pid", || proc.pid_in_file() != old);
            let new = proc.pid_in_file();
            // The last row is ended at once, before anybody has looked.
            if op != Op::Kill {
                assert_eq!(proc.pid(), Some(new), "{name}");
                let note = format!("pid {old}, whose place it took, is still running");
                wait_until(PATIENCE, "the old generation is noted", || {
                    proc.row().is_some_and(|row| row["note"] == note.as_str() && row["pid"] == new)
                });
            }
            proc.op(op).assert_success();
            wait_until(PATIENCE, "both are gone", || !is_running(old) && !is_running(new));
            match op {
                Op::Restart => {
                    let third = proc.pid().expect("what was restarted runs");
                    assert_eq!(proc.row_with_pid(third)["note"], "", "{name}");
                    proc.op(Op::Kill).assert_success();
                }
                _ => assert!(proc.pids().is_empty(), "{name}: at the time of the answer: {:?}", proc.pids()),
            }
        }
    }
}

#[test]
fn both_generations_of_a_program_that_handed_over_are_ended() {
    check_generations(&crate::up());
}

#[test]
fn both_generations_are_ended_without_cgroups() {
    check_generations(&Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--containment", "tree"]));
}
