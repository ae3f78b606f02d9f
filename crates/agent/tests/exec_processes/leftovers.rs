//! What a process has started and what has left it: a sweep ends all of it, with cgroups and without.

use crate::support::*;
use procfleet_agent::exec::Containment;
use procfleet_core::Sighting;
use procfleet_core::spec::Detached;
use procfleet_core::supervise::{Leader, LookScope, RunId, Signal};
use procfleet_testkit::{Need, need};
use std::fs;
use std::path::{Path, PathBuf};

/// Ways to get away from the process: each writes the pid of one that did into the file of its name.
const ESCAPES: [(&str, &str); 4] = [
    ("double", "(sh -c 'echo $$ > double; exec sleep 1000' &)"),
    ("session", "setsid sh -c 'echo $$ > session; exec sleep 1000' &"),
    ("deaf", "(setsid sh -c 'trap \"\" TERM HUP INT; echo $$ > deaf; exec sleep 1000' &)"),
    ("leaderless", "(setsid sh -c '(sh -c \"echo \\$\\$ > leaderless; exec sleep 1000\" &)' &)"),
];
/// This one cannot be told from a stranger without cgroups.
const NAMELESS: (&str, &str) = ("nameless", "(setsid env -i sh -c 'echo $$ > nameless; exec sleep 1000' &)");

fn modes() -> Vec<(Containment, &'static str)> {
    let mut modes = vec![(Containment::Tree, "tree")];
    if has_cgroups() {
        modes.push((Containment::Cgroup, "cgroup"));
    }
    modes
}

/// Whether an agent may have cgroups where the tests run; `false`: they were told to do without.
#[track_caller]
fn has_cgroups() -> bool {
    let folder = tempfile::tempdir().expect("a temp dir");
    let host = procfleet_agent::exec::ExecContext::open(folder.path().join("output"), Containment::Cgroup);
    need(Need::Cgroups, host.map_err(|error| error.to_string())).is_some()
}

/// A proc that runs with all that it left beside it: the main process and the others.
async fn scattered(proc: &mut Proc, mode: Containment) -> (RunId, procfleet_core::Process, Vec<u32>) {
    let escapes: Vec<(&str, &str)> =
        ESCAPES.into_iter().chain((mode == Containment::Cgroup).then_some(NAMELESS)).collect();
    let scatter: String = escapes.iter().map(|(_, command)| format!("{command}\n")).collect();
    let run = proc.run(&format!("{scatter}exec ./web 1000"));
    let mut others = Vec::new();
    for (file, _) in escapes {
        let pid = proc.pid_in(file).await;
        until_called(pid, "sleep").await;
        others.push(pid);
    }
    let process = until("web runs", || match proc.launched(run, Leader::Accept) {
        Sighting::Running(process) if comm(process.pid) == "web" => Some(process),
        Sighting::Running(_) | Sighting::Absent(_) => None,
    })
    .await;
    proc.executor.watch(process);
    (run, process, others)
}

fn left(proc: &mut Proc) -> Option<u32> {
    let spec = proc.spec.clone();
    match proc.executor.look(LookScope::Leftovers, &spec) {
        Sighting::Running(process) => Some(process.pid),
        Sighting::Absent(_) => None,
    }
}

async fn until_nothing_is_left(proc: &mut Proc) {
    until("nothing is left", || left(proc).is_none().then_some(())).await;
}

#[tokio::test]
async fn leftovers_of_a_dead_process_are_swept() {
    for (mode, name) in modes() {
        let mut proc = Proc::contained(&format!("left-{name}"), mode);
        let mut stranger = Stranger::start(proc.path("web"), proc.folder.path());
        let (run, process, others) = scattered(&mut proc, mode).await;
        assert_eq!(left(&mut proc), None, "{name}: all of it belongs to a process that runs");
        proc.executor.sweep(Signal::Kill);
        assert!(others.iter().all(|pid| is_running(*pid)), "{name}");
        kill(process.pid);
        proc.exit_of(process).await;
        proc.end_of(run).await;
        assert!(left(&mut proc).is_some(), "{name}");
        proc.executor.sweep(Signal::Term);
        let deaf = proc.pid_in("deaf").await;
        for pid in others.iter().filter(|pid| **pid != deaf) {
            until_gone(*pid).await;
        }
        assert!(is_running(deaf), "{name}");
        assert_eq!(left(&mut proc), Some(deaf), "{name}");
        proc.executor.sweep(Signal::Kill);
        until_nothing_is_left(&mut proc).await;
        assert!(!is_running(deaf));
        stranger.assert_unharmed();
    }
}

/// The shell of the command stands for the process until the process is there, and is watched as the process.
#[tokio::test]
async fn a_command_that_was_watched_before_its_process_came_is_left_by_the_process() {
    for (mode, name) in modes() {
        let mut proc = Proc::contained(&format!("stand-in-{name}"), mode);
        let run = proc.run(
            "while ! test -e go; do sleep 0.01; done; (setsid ./web 1000 &); while :; do sleep 0.01; done",
        );
        let seen = |proc: &mut Proc, program: &str| match proc.launched(run, Leader::Refuse) {
            Sighting::Running(process) => (comm(process.pid) == program).then_some(process),
            Sighting::Absent(_) => None,
        };
        let shell = until("the shell is seen", || seen(&mut proc, "sh")).await;
        proc.executor.watch(shell);
        proc.write("go", "");
        let process = until("web is seen", || seen(&mut proc, "web")).await;
        proc.executor.watch(process);
        assert_eq!(left(&mut proc), None, "{name}: the process runs");

        kill(process.pid);
        proc.exit_of(process).await;
        assert!(left(&mut proc).is_some(), "{name}: the command has outlived its process");
        proc.executor.sweep(Signal::Kill);
        until_nothing_is_left(&mut proc).await;
        until("the shell is gone", || (!is_running(shell.pid)).then_some(())).await;
    }
}

#[tokio::test]
async fn a_kill_reaches_detached_processes_unless_the_spec_keeps_them() {
    for (mode, name) in modes() {
        let mut proc = Proc::contained(&format!("killed-{name}"), mode);
        let (_, process, others) = scattered(&mut proc, mode).await;
        proc.executor.signal(process, Signal::Kill, Detached::End);
        for pid in others.into_iter().chain([process.pid]) {
            until_gone(pid).await;
        }
        let mut proc = Proc::contained(&format!("kept-{name}"), mode);
        let (_, process, _) = scattered(&mut proc, mode).await;
        let sessions = [proc.pid_in("session").await, proc.pid_in("leaderless").await];
        proc.executor.signal(process, Signal::Term, Detached::Keep);
        proc.exit_of(process).await;
        let apart = proc.pid_in("deaf").await;
        proc.executor.signal(process, Signal::Kill, Detached::Keep);
        assert!(is_running(apart) && is_running(sessions[1]), "{name}");
        proc.executor.sweep(Signal::Kill);
        until_nothing_is_left(&mut proc).await;
    }
}

#[tokio::test]
async fn an_agent_that_comes_back_finds_leftovers() {
    for (mode, name) in modes() {
        let mut proc = Proc::contained(&format!("left-before-{name}"), mode);
        let (_, process, others) = scattered(&mut proc, mode).await;
        proc.forget_with_a_new_host();
        let again = running(proc.recovered(Some(process)));
        assert!(again.is(&process), "{name}");
        proc.executor.watch(again);
        if mode == Containment::Cgroup {
            assert_eq!(left(&mut proc), None, "it runs");
        }
        kill(process.pid);
        proc.exit_of(process).await;
        proc.executor.sweep(Signal::Kill);
        for pid in others {
            until_gone(pid).await;
        }
        until_nothing_is_left(&mut proc).await;
    }
}

/// What a dead process left is not the process, although it bears the mark and leads a session.
#[tokio::test]
async fn an_agent_that_comes_back_does_not_take_leftovers_for_the_process() {
    for (mode, name) in modes() {
        let mut proc = Proc::contained(&format!("not-it-{name}"), mode);
        let (_, process, others) = scattered(&mut proc, mode).await;
        kill(process.pid);
        proc.exit_of(process).await;
        proc.forget_with_a_new_host();
        for last in [Some(process), None] {
            assert!(matches!(proc.recovered(last), Sighting::Absent(_)), "{name}");
        }
        assert!(others.iter().all(|pid| is_running(*pid)), "{name}");
        proc.executor.sweep(Signal::Kill);
        for pid in others {
            until_gone(pid).await;
        }
    }
}

/// As `su` and `systemd-run` do it.
#[tokio::test]
async fn a_process_that_left_its_cgroup_is_swept() {
    if !has_cgroups() {
        return;
    }
    let mut proc = Proc::contained("moved-out", Containment::Cgroup);
    let (run, process, others) = scattered(&mut proc, Containment::Tree).await;
    let elsewhere = home(&proc).parent().expect("a place").join("elsewhere");
    fs::create_dir(&elsewhere).expect("root may make groups");
    for pid in others.iter().chain([&process.pid]) {
        fs::write(elsewhere.join("cgroup.procs"), pid.to_string()).expect("root may move it");
    }
    kill(process.pid);
    proc.exit_of(process).await;
    proc.end_of(run).await;
    // At once, as before a restart: nobody has looked what is left.
    proc.executor.sweep(Signal::Kill);
    for pid in others {
        until_gone(pid).await;
    }
    until("its group can be removed", || fs::remove_dir(&elsewhere).ok()).await;
}

/// Each of them lives for a moment, and the next one has another parent, session and environment.
#[tokio::test]
async fn a_process_that_keeps_forking_is_killed() {
    if !has_cgroups() {
        return;
    }
    let mut proc = Proc::contained("fleeing", Containment::Cgroup);
    proc.script("flee", "echo x >> steps\nsleep 0.005\nsetsid env -i PATH=/bin:/usr/bin ./flee &\n");
    let run = proc.run("./flee");
    proc.end_of(run).await;
    let steps = proc.path("steps");
    let count = || fs::read(&steps).map_or(0, |text| text.len());
    let before = count();
    until("it goes on", || (count() > before).then_some(())).await;
    proc.executor.sweep(Signal::Kill);
    until_nothing_is_left(&mut proc).await;
    let after = count();
    // Another command takes ten steps meanwhile.
    let run = proc.run("for step in 1 2 3 4 5 6 7 8 9 10; do sleep 0.005; done");
    proc.end_of(run).await;
    assert_eq!(count(), after);
}

#[tokio::test]
async fn many_processes_are_killed_at_once() {
    for (mode, name) in modes() {
        let mut proc = Proc::contained(&format!("crowd-{name}"), mode);
        // 127 shells, each but the last ones with two children in other sessions.
        proc.script(
            "crowd",
            "trap '' TERM\nif [ $1 -gt 1 ]; then\n  setsid ./crowd $(($1 - 1)) &\n  setsid ./crowd $(($1 - 1)) &\nelse\n  echo x >> last\nfi\nwhile :; do sleep 1000; done\n",
        );
        let run = proc.run("exec ./crowd 7");
        let last = proc.path("last");
        until("all are there", || fs::read(&last).ok().filter(|text| text.len() == 2 * 64).map(drop)).await;
        let process = running(proc.launched(run, Leader::Accept));
        proc.executor.watch(process);
        proc.executor.signal(process, Signal::Kill, Detached::End);
        proc.exit_of(process).await;
        proc.executor.sweep(Signal::Kill);
        until_nothing_is_left(&mut proc).await;
    }
}

/// Where the groups of this proc are.
fn home(proc: &Proc) -> PathBuf {
    let places = fs::read_to_string(proc.path("output").join(".cgroup")).expect("a place");
    Path::new(places.lines().next().expect("a place")).join(format!("exec-test+{}", proc.key.name))
}

fn groups_in(home: &Path) -> usize {
    let entries = fs::read_dir(home).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count()
}

#[tokio::test]
async fn groups_do_not_pile_up() {
    if !has_cgroups() {
        return;
    }
    let mut proc = Proc::contained("piles", Containment::Cgroup);
    for _ in 0..30 {
        proc.output_of("true").await;
    }
    until("only the present is there", || (groups_in(&home(&proc)) == 0).then_some(())).await;
    // Each is outlived by something for a while, as the runs of a periodic process may be.
    for _ in 0..10 {
        proc.output_of("(sh -c 'echo $$ > late; exec sleep 1000' > /dev/null 2>&1 &)").await;
        let late = proc.pid_in("late").await;
        kill(late);
        until_gone(late).await;
        fs::remove_file(proc.path("late")).expect("it is there");
    }
    proc.output_of("true").await;
    until("the last two are there at most", || (groups_in(&home(&proc)) <= 2).then_some(())).await;
    let run = proc.run("exec ./web 1000");
    let process = running(proc.launched(run, Leader::Accept));
    proc.executor.watch(process);
    assert_eq!(groups_in(&home(&proc)), 1);
    let place = home(&proc).parent().expect("a place").to_owned();
    // The proc is forgotten, its process goes on, and ends some day.
    proc.forget();
    proc.executor = procfleet_agent::exec::ProcExecutor::new(
        proc.context.clone(),
        procfleet_core::ProcKey { namespace: "exec-test".to_owned(), name: "another".to_owned() },
        procfleet_agent::inbox::inbox(1).0,
    );
    proc.context.trim_cgroups();
    assert_eq!(groups_in(&home(&proc)), 1, "it is in use");
    kill(process.pid);
    until_gone(process.pid).await;
    until("its group is removed", || {
        proc.context.trim_cgroups();
        (groups_in(&place) == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn every_process_in_a_cgroup_belongs_to_its_proc() {
    if !has_cgroups() {
        return;
    }
    let mut proc = Proc::contained("moved-in", Containment::Cgroup);
    let run = proc.run("exec ./web 1000");
    let process = running(proc.launched(run, Leader::Accept));
    let mut moved = Stranger::start(proc.path("web"), proc.folder.path());
    let mut groups = fs::read_dir(home(&proc)).expect("a home").flatten().map(|entry| entry.path());
    let group = groups.find(|path| path.is_dir()).expect("a group");
    fs::write(group.join("cgroup.procs"), moved.pid().to_string()).expect("root may move it");
    proc.executor.signal(process, Signal::Kill, Detached::End);
    until_gone(process.pid).await;
    moved.assert_ended();
}

/// As where the kernel does not accept a command in the group that was made for it.
#[tokio::test]
async fn a_command_outside_its_group_is_ended_all_the_same() {
    if !has_cgroups() {
        return;
    }
    let mut proc = Proc::contained("outside", Containment::Cgroup);
    let elsewhere = home(&proc).parent().expect("a place").join("outside-its-group");
    fs::create_dir(&elsewhere).expect("root may make groups");
    for by in ["term", "kill"] {
        let run = proc.run("sleep 1000; true");
        let shell = running(proc.executor.look(LookScope::Run(run), &proc.spec.clone())).pid;
        let sleep = until("it sleeps", || {
            let children = fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).ok()?;
            children.split(' ').next()?.parse::<u32>().ok().filter(|child| comm(*child) == "sleep")
        })
        .await;
        for pid in [shell, sleep] {
            fs::write(elsewhere.join("cgroup.procs"), pid.to_string()).expect("root may move it");
        }
        match by {
            "term" => proc.executor.term_run(run),
            _ => proc.executor.end_run(run),
        }
        proc.end_of(run).await;
        until_gone(sleep).await;
    }
    until("its group can be removed", || fs::remove_dir(&elsewhere).ok()).await;
}
