//! The rule by which a process is ours, row by row: the table of docs/process/identity.md. Rows about marks,
//! names, folders and accounts are played with a pid file that is true, one whose process is gone, and one
//! whose number was given to the row's process after ours had died. Rows about cgroups, sessions, threads and
//! other agents have tests of their own below.

use crate::support::*;
use procfleet_agent::exec::{Containment, ExecContext, ProcExecutor};
use procfleet_agent::inbox::inbox;
use procfleet_core::process::Cause;
use procfleet_core::supervise::{RunId, Signal};
use procfleet_core::{ProcKey, Sighting};
use procfleet_testkit::{Need, has, need, played_apart};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ours,
    Stranger,
    AnotherProcs,
    AnotherAccounts,
}

/// What the process runs.
#[derive(Clone, Copy)]
enum Runs {
    /// This program of the proc's folder.
    Program(&'static str),
    /// A program of this name in another folder.
    Elsewhere(&'static str),
    /// `/bin/sh` with this script of the proc's folder.
    Script(&'static str),
    /// `/bin/sh` that waits for input.
    Shell,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WorksIn {
    Folder,
    Root,
}

#[derive(Clone, Copy)]
enum Marked {
    No,
    /// The name of this proc, which everybody can know.
    Ours,
    /// All that a command of this proc as the agent's account has in its environment.
    Inherited,
    AnotherProc,
    /// This proc, by an agent that is no more.
    LostAgent,
}

struct Row {
    what: &'static str,
    proc_name: &'static str,
    runs: Runs,
    works_in: WorksIn,
    marked: Marked,
    /// The accounts of the process and of the spec. `None`: both are the agent's.
    accounts: Option<(&'static str, &'static str)>,
    verdict: Verdict,
}

const fn row(what: &'static str, proc_name: &'static str, runs: Runs, verdict: Verdict) -> Row {
    Row { what, proc_name, runs, works_in: WorksIn::Root, marked: Marked::No, accounts: None, verdict }
}

fn table() -> Vec<Row> {
    use Verdict::{AnotherAccounts, AnotherProcs, Ours, Stranger};
    let works_in = |row| Row { works_in: WorksIn::Folder, ..row };
    let marked = |marked, row| Row { marked, ..row };
    let of = |process, spec, row| Row { accounts: Some((process, spec)), ..row };
    vec![
        row("the program of the folder", "web", Runs::Program("web"), Ours),
        row("the program, named by its path", "/srv/bin/web", Runs::Program("web"), Ours),
        row("a sibling", "web", Runs::Program("beat"), Stranger),
        works_in(row("a sibling that works in the folder", "web", Runs::Program("beat"), Stranger)),
        row("any program of the folder, without a proc_name", "", Runs::Program("beat"), Ours),
        row("a namesake from elsewhere", "web", Runs::Elsewhere("web"), Stranger),
        works_in(row("a namesake that works in the folder", "web", Runs::Elsewhere("web"), Ours)),
        works_in(row("another program that works in the folder", "web", Runs::Elsewhere("beat"), Stranger)),
        works_in(row("the same without a proc_name", "", Runs::Elsewhere("beat"), Stranger)),
        row("a script of the name", "web", Runs::Script("web.sh"), Ours),
        row("a sibling's script", "web", Runs::Script("beat.sh"), Stranger),
        row("a script, and no program of the name", "shop", Runs::Script("beat.sh"), Ours),
        row("a script, without a proc_name", "", Runs::Script("beat.sh"), Ours),
        works_in(row("somebody's shell in the folder", "web", Runs::Shell, Stranger)),
        works_in(row("the same without a proc_name", "", Runs::Shell, Stranger)),
        marked(Marked::Ours, row("whatever bears our mark", "web", Runs::Elsewhere("beat"), Ours)),
        marked(Marked::AnotherProc, row("another proc's mark", "web", Runs::Program("web"), AnotherProcs)),
        marked(Marked::LostAgent, row("a lost agent's mark", "web", Runs::Program("web"), Ours)),
        marked(
            Marked::LostAgent,
            row("a lost agent's, on a sibling", "web", Runs::Program("beat"), Stranger),
        ),
        of("nobody", "nobody", row("the spec's account", "web", Runs::Program("web"), Ours)),
        of("nobody", "root", row("one that root may signal", "web", Runs::Program("web"), Ours)),
        of("root", "nobody", row("root's process", "web", Runs::Program("web"), AnotherAccounts)),
        of("root", "nobody", row("root's script", "shop", Runs::Script("beat.sh"), AnotherAccounts)),
        of("daemon", "nobody", row("another's process", "web", Runs::Program("web"), AnotherAccounts)),
        of("daemon", "nobody", row("another's sibling", "web", Runs::Program("beat"), Stranger)),
        marked(
            Marked::Ours,
            of(
                "nobody",
                "nobody",
                row("our mark, on the spec's account", "web", Runs::Program("beat"), Ours),
            ),
        ),
        marked(
            Marked::Ours,
            of("daemon", "nobody", row("our mark, forged", "web", Runs::Program("beat"), Stranger)),
        ),
        marked(
            Marked::Ours,
            of("daemon", "root", row("root's mark, forged", "web", Runs::Program("beat"), Stranger)),
        ),
        marked(
            Marked::Inherited,
            of("daemon", "root", row("our mark with its proof", "web", Runs::Program("beat"), Ours)),
        ),
        marked(
            Marked::Inherited,
            of(
                "daemon",
                "nobody",
                row("that of another account's run", "web", Runs::Program("beat"), Stranger),
            ),
        ),
    ]
}

#[expect(clippy::disallowed_methods, reason = "strangers are made here, which exec must leave alone")]
fn command(row: &Row, proc: &Proc, elsewhere: &Path, inherited: &[(String, String)]) -> Command {
    let mut command = match row.runs {
        Runs::Program(name) => Command::new(proc.path(name)),
        Runs::Elsewhere(name) => Command::new(elsewhere.join(name)),
        Runs::Script(_) | Runs::Shell => Command::new("/bin/sh"),
    };
    match row.runs {
        Runs::Program(_) | Runs::Elsewhere(_) => command.arg("1000"),
        Runs::Script(name) => command.arg(proc.path(name)),
        Runs::Shell => &mut command,
    };
    command.env_clear();
    let mark = proc.context.mark(&proc.key);
    let key = mark.split_once('/').expect("an instance and a key").1;
    match row.marked {
        Marked::No => {}
        Marked::Ours => _ = command.env("PROCFLEET_PROC", &mark),
        Marked::Inherited => _ = command.envs(inherited.iter().map(|(name, value)| (name, value))),
        Marked::AnotherProc => _ = command.env("PROCFLEET_PROC", "an-agent/somebody:else"),
        Marked::LostAgent => _ = command.env("PROCFLEET_PROC", format!("a-lost-agent/{key}")),
    }
    if let Some((account, _)) = row.accounts {
        let user = nix::unistd::User::from_name(account).expect("accounts").expect("it is there");
        command.uid(user.uid.as_raw()).gid(user.gid.as_raw());
    }
    command.current_dir(if row.works_in == WorksIn::Folder { proc.folder.path() } else { Path::new("/") });
    command
}

fn seen(what: &str, sighting: &Sighting, pid: u32) -> Verdict {
    match sighting {
        Sighting::Running(process) => {
            assert_eq!(process.pid, pid, "{what}");
            Verdict::Ours
        }
        Sighting::Absent(absence) => match &absence.cause {
            Cause::Stranger { pid: named, .. } if *named == pid => Verdict::Stranger,
            Cause::AnotherProcs { pid: named, .. } if *named == pid => Verdict::AnotherProcs,
            Cause::AnotherAccounts { pid: named, .. } if *named == pid => Verdict::AnotherAccounts,
            other => panic!("{what}: {other}"),
        },
    }
}

/// Choosing the next pid moves the counter for all processes of the pid namespace, and tests beside
/// this one would see their dead processes' numbers in use again. So the table is played in a pid namespace
/// of its own, where that is allowed.
#[tokio::test]
async fn a_process_is_ours_by_this_table() {
    let (program, arguments) = NAMESPACE.split_first().expect("a program");
    #[expect(clippy::disallowed_methods, reason = "the namespace is the test's own")]
    let allowed = Command::new(program).args(arguments).arg("true").output();
    let wrapper = if allowed.is_ok_and(|tried| tried.status.success()) { NAMESPACE } else { &[] };
    if !played_apart(wrapper) {
        play_table().await;
    }
}

/// The first process of a namespace is deaf to most signals, so a shell is the first one.
const NAMESPACE: &[&str] =
    &["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", "\"$@\"; exit $?", "sh"];

async fn play_table() {
    let elsewhere = tempfile::tempdir().expect("a temp dir");
    fs::set_permissions(elsewhere.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("our folder");
    for (number, row) in table().iter().enumerate() {
        if row.accounts.is_some() && !has(Need::Root, me() == "root") {
            continue;
        }
        let mut proc = Proc::with_pid_file(&format!("table-{number}"));
        proc.program("beat");
        proc.program("web");
        for name in ["web", "beat"] {
            if !elsewhere.path().join(name).exists() {
                install("/bin/sleep", &elsewhere.path().join(name));
            }
        }
        for script in ["web.sh", "beat.sh"] {
            proc.script(script, "read nothing\n");
        }
        proc.spec.identity.proc_name = row.proc_name.to_owned();
        let inherited = match row.marked {
            Marked::Inherited => {
                let (_, environment) = proc.output_of("env").await;
                let variables = environment.lines().filter_map(|line| line.split_once('='));
                variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
            }
            Marked::No | Marked::Ours | Marked::AnotherProc | Marked::LostAgent => Vec::new(),
        };
        let mut command = command(row, &proc, elsewhere.path(), &inherited);

        // The file is true.
        let process = Stranger::spawn(&mut command);
        let pid = process.pid();
        proc.write("web.pid", pid.to_string());
        if let Some((_, account)) = row.accounts {
            proc.spec.identity.user = account.to_owned();
        }
        let what = format!("{}, in a file that is true", row.what);
        assert_eq!(seen(&what, &proc.settled(), pid), row.verdict, "{what}");
        assert_eq!(seen(&what, &proc.recovered(None), pid), row.verdict, "{what}");

        // The file is stale.
        drop(process);
        let stale = Cause::DeadPid { path: proc.spec.identity.pid_path.clone(), pid };
        assert_eq!(cause(proc.settled()), stale, "{}", row.what);
        assert_eq!(cause(proc.recovered(None)), stale, "{}", row.what);

        recycle(row, &mut proc, &mut command).await;
    }
}

/// The file names a process of ours that has died, and the row's process got its number.
async fn recycle(row: &Row, proc: &mut Proc, command: &mut Command) {
    let account = std::mem::replace(&mut proc.spec.identity.user, me());
    for _ in 0..5 {
        let run = proc.run("exec ./web 1000");
        let ours = running(proc.executor.look(procfleet_core::supervise::LookScope::Run(run), &proc.spec));
        proc.write("web.pid", ours.pid.to_string());
        kill(ours.pid);
        proc.end_of(run).await;
        until("its number is free", || (!Path::new(&format!("/proc/{}", ours.pid)).exists()).then_some(()))
            .await;
        let Some(stranger) = need(Need::ChosenPids, Stranger::with_pid(ours.pid, command)) else { return };
        let Some(mut stranger) = stranger else { continue };
        proc.spec.identity.user = account;
        proc.forget();
        let what = format!("{}, with a recycled pid", row.what);
        assert_eq!(seen(&what, &proc.settled(), ours.pid), row.verdict, "{what}");
        if row.accounts == Some(("nobody", "root")) {
            // Row 13: a file that was written long before cannot mean the process of another account.
            set_age(&proc.path("web.pid"), Duration::from_secs(60));
            let stale = Cause::DeadPid { path: proc.spec.identity.pid_path.clone(), pid: ours.pid };
            assert_eq!(cause(proc.settled()), stale, "{what} in an old file");
            assert_eq!(cause(proc.recovered(Some(ours))), stale, "{what} in an old file");
            set_age(&proc.path("web.pid"), Duration::ZERO);
        }
        let sighting = proc.recovered(Some(ours));
        assert_eq!(seen(&what, &sighting, ours.pid), row.verdict, "{what}");
        if let Sighting::Running(process) = sighting {
            assert!(!process.is(&ours), "{what}: it is taken for the dead one");
        }
        // A signal for the dead one reaches nobody.
        proc.executor.signal(ours, Signal::Kill, procfleet_core::spec::Detached::Keep);
        stranger.assert_unharmed();
        return;
    }
    panic!("{}: other processes always took the pid first", row.what);
}

fn set_age(file: &Path, age: Duration) {
    let file = fs::OpenOptions::new().write(true).open(file).expect("our own file");
    file.set_modified(SystemTime::now() - age).expect("our own file");
}

/// Any user can start a setuid program of root's, such as sudo, with the arguments, the environment and the
/// folder of a proc of root's. Some of these programs change their real uid, too.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "a stranger is made here, which exec must leave alone")]
async fn a_setuid_program_that_a_user_started_is_not_roots() {
    if !has(Need::Root, me() == "root") {
        return;
    }
    let mut proc = Proc::with_pid_file("table-setuid");
    let elsewhere = tempfile::tempdir().expect("a temp dir");
    fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o755)).expect("our folder");
    let (source, program) = (elsewhere.path().join("sudo.c"), elsewhere.path().join("sudo"));
    fs::write(&source, "#include <unistd.h>\nint main(void) { return setuid(0) || pause(); }\n")
        .expect("our folder");
    let compiled = Command::new("cc").arg("-o").args([&program, &source]).status().expect("a compiler");
    assert!(compiled.success());
    let nobody = nix::unistd::User::from_name("nobody").expect("accounts").expect("there is a nobody").uid;
    for (mode, is_ours) in [(0o4755, false), (0o755, true)] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("our own file");
        let mut command = Command::new(&program);
        command.arg0(proc.path("web")).current_dir(proc.folder.path()).env_clear();
        command.env("PROCFLEET_PROC", proc.context.mark(&proc.key)).env("PROCFLEET_RUN", "99999999999999");
        if !is_ours {
            command.uid(nobody.as_raw()).gid(nobody.as_raw());
        }
        let mut process = Stranger::spawn(&mut command);
        let pid = process.pid();
        until("it is root's by its real uid", || {
            let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
            status.contains("Uid:\t0\t0\t0\t0").then_some(())
        })
        .await;
        proc.write("web.pid", pid.to_string());
        let expected = if is_ours { Verdict::Ours } else { Verdict::Stranger };
        for sighting in [proc.settled(), proc.recovered(None)] {
            assert_eq!(seen("a setuid program", &sighting, pid), expected);
        }
        match proc.settled_without_file() {
            Sighting::Running(process) => assert!(is_ours && process.pid == pid),
            Sighting::Absent(absence) => {
                assert!(!is_ours && matches!(absence.cause, Cause::NoSuchName { .. }), "{}", absence.cause);
            }
        }
        if !is_ours {
            proc.executor.sweep(Signal::Kill);
            process.assert_unharmed();
        }
    }
}

/// Two agents on one machine with a proc of the same name: what one has started is its own while it lives.
#[tokio::test]
async fn a_process_of_a_living_agent_is_that_agents() {
    let mut first = Proc::with_pid_file("two-agents");
    let mut second = Proc::with_pid_file("two-agents");
    // The same proc in every way.
    second.spec = first.spec.clone();
    let plain = "echo $$ > pid.new; mv pid.new web.pid; exec ./web 1000";
    let cleared = format!("env -i /usr/bin/setsid /bin/sh -c '{plain}' &");
    let mut commands = vec![plain.to_owned()];
    let folder = tempfile::tempdir().expect("a temp dir");
    let host = ExecContext::open(folder.path().join("output"), Containment::Cgroup);
    if need(Need::Cgroups, host.map_err(|error| error.to_string())).is_some() {
        commands.push(cleared);
    }
    for command in commands {
        let _ = fs::remove_file(first.path("web.pid"));
        first.run(&command);
        let pid = first.pid_in("web.pid").await;
        until_called(pid, "web").await;
        assert_eq!(running(first.settled()).pid, pid, "{command}");
        for sighting in [second.settled(), second.recovered(None)] {
            let expected = Cause::AnotherAgents {
                path: second.spec.identity.pid_path.clone(),
                pid,
                proc: "exec-test:two-agents".to_owned(),
            };
            assert_eq!(cause(sighting), expected, "{command}");
        }
        assert!(matches!(cause(second.settled_without_file()), Cause::NoSuchName { .. }), "{command}");
        second.executor.sweep(Signal::Kill);
        assert!(is_running(pid), "{command}");
        kill(pid);
        until_gone(pid).await;
    }
}

/// A process that has thrown its mark away is in the cgroup of the run that started it.
#[tokio::test]
async fn a_process_without_a_mark_belongs_to_the_proc_whose_cgroup_holds_it() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let host = ExecContext::open(folder.path().join("output"), Containment::Cgroup);
    if need(Need::Cgroups, host.map_err(|error| error.to_string())).is_none() {
        return;
    }
    let mut proc = Proc::with_pid_file("table-cgroup");
    proc.program("beat");
    let daemon =
        "env -i /usr/bin/setsid /bin/sh -c 'echo $$ > pid.new; mv pid.new web.pid; exec ./beat 1000' &";
    proc.run(daemon);
    let ours = proc.pid_in("web.pid").await;
    until_called(ours, "beat").await;
    proc.forget();
    assert_eq!(running(proc.settled()).pid, ours, "it has another name, and is in our cgroup");
    assert_eq!(running(proc.recovered(None)).pid, ours);
    kill(ours);
    until_gone(ours).await;

    // A sibling that the same agent started, with the very name and in the very folder.
    fs::remove_file(proc.path("web.pid")).expect("it was written");
    let key = ProcKey { namespace: proc.key.namespace.clone(), name: "table-sibling".to_owned() };
    let (send, _inputs) = inbox(4);
    let mut sibling = ProcExecutor::new(proc.context.clone(), key, send);
    sibling.run(RunId(1), &daemon.replace("beat", "web"), &proc.spec);
    let theirs = proc.pid_in("web.pid").await;
    until_called(theirs, "web").await;
    for sighting in [proc.settled(), proc.recovered(None)] {
        let expected = "exec-test:table-sibling";
        assert!(
            matches!(&sighting, Sighting::Absent(absence) if matches!(&absence.cause,
                Cause::AnotherProcs { pid, proc, .. } if *pid == theirs && proc == expected)),
            "{sighting:?}"
        );
    }
    assert!(matches!(cause(proc.settled_without_file()), Cause::NoSuchName { .. }));
    kill(theirs);
    until_gone(theirs).await;
}

/// Row 1: the kernel shows a thread under its number as it shows a process.
#[tokio::test]
async fn a_pid_file_that_names_a_thread_names_nothing_that_runs() {
    let mut proc = Proc::with_pid_file("table-thread");
    // This test program has threads.
    let tasks = fs::read_dir("/proc/self/task").expect("our own threads").flatten();
    let threads = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
    let thread = { threads }.find(|thread| *thread != std::process::id()).expect("a second thread");
    assert!(Path::new(&format!("/proc/{thread}/stat")).exists());
    proc.write("web.pid", thread.to_string());
    let expected = Cause::DeadPid { path: proc.spec.identity.pid_path.clone(), pid: thread };
    assert_eq!(cause(proc.settled()), expected);
    assert_eq!(cause(proc.recovered(None)), expected);
}

/// Row 9: a process without a mark that has another name than the spec's. Without cgroups nothing but its
/// session says who started it.
#[tokio::test]
async fn a_process_in_the_session_of_a_command_is_ours() {
    for (name, prefix, is_ours) in [("table-session", "", true), ("table-no-session", "setsid ", false)] {
        let mut proc = Proc::contained(name, Containment::Tree);
        proc.spec.identity.pid_path = proc.path("web.pid").to_str().expect("a plain path").to_owned();
        proc.program("beat");
        proc.run(&format!(
            "env -i PATH=\"$PATH\" {prefix}./beat 1000 & echo $! > pid.new; mv pid.new web.pid; wait"
        ));
        let pid = proc.pid_in("web.pid").await;
        until_called(pid, "beat").await;
        let sighting = proc.settled();
        let expected = if is_ours { Verdict::Ours } else { Verdict::Stranger };
        assert_eq!(seen(name, &sighting, pid), expected, "{name}");
        kill(pid);
        until_gone(pid).await;
    }
}

/// A run's session has members as long as its daemon lives, but the number of the session is free again when
/// the daemon has left it. Whoever gets that number is not the agent's descendant.
#[tokio::test]
async fn a_process_with_the_recycled_session_number_of_a_command_is_a_stranger() {
    if !has(Need::Root, me() == "root") || played_apart(NAMESPACE) {
        return;
    }
    let as_nobody = "setpriv --reuid nobody --clear-groups setsid sh -c";
    for (what, stranger) in [
        ("the leader", "echo $$ > stranger.$$; exec ./beat 1000"),
        ("a member without its leader", "./beat 1000 & echo $! > stranger.$$"),
    ] {
        let mut proc = Proc::with_pid_file(&format!("session-{}", what.len()));
        proc.program("beat");
        proc.fifo("number");
        fs::set_permissions(proc.folder.path(), fs::Permissions::from_mode(0o777)).expect("our folder");
        // It picks the pid of its child and is no descendant of this process, nor is the child. Children that
        // get another pid end with the namespace.
        proc.script(
            "outsider",
            &format!(
                "read pid < number\nchild=0\nwhile [ $child != $pid ]; do\n\
                 echo $((pid - 1)) > /proc/sys/kernel/ns_last_pid || exit 1\n\
                 {as_nobody} '{stranger}' & child=$!\ndone\n\
                 until [ -s stranger.$pid ]; do sleep 0.01; done\nmv stranger.$pid stranger\n"
            ),
        );
        start_outside(&proc, "./outsider");
        let run = proc.run("(setsid ./web 1000 > /dev/null 2>&1 & echo $! > pid.new; mv pid.new web.pid)");
        let daemon = proc.pid_in("web.pid").await;
        until_called(daemon, "web").await;
        let daemon = running(proc.launched(run, procfleet_core::supervise::Leader::Refuse));
        proc.executor.watch(daemon);
        proc.end_of(run).await;
        let leader = command_pid(daemon.pid);
        until("its number is free", || (!Path::new(&format!("/proc/{leader}")).exists()).then_some(())).await;
        assert_eq!(running(proc.launched(run, procfleet_core::supervise::Leader::Refuse)).pid, daemon.pid);

        fs::write(proc.path("number"), format!("{leader}\n")).expect("the outsider reads");
        let stranger = proc.pid_in("stranger").await;
        until_called(stranger, "beat").await;
        assert_eq!(session_of(stranger), leader, "{what}");
        let path = proc.spec.identity.pid_path.clone();
        let spec = proc.spec.clone();
        proc.write("web.pid", stranger.to_string());
        for mode in [0o644, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("our own file");
            assert_eq!(seen(what, &proc.settled(), stranger), Verdict::Stranger, "{what}, {mode:o}");
            assert_eq!(proc.executor.successor(&daemon, &spec), None, "{what}, {mode:o}");
        }
        assert!(is_running(daemon.pid), "{what}");
        kill(stranger);
        until_gone(stranger).await;
        kill(daemon.pid);
        until_gone(daemon.pid).await;
    }
}

/// Starts a script of the proc's folder as a process that is not below this one.
#[expect(clippy::disallowed_methods, reason = "a stranger is made here")]
fn start_outside(proc: &Proc, script: &str) {
    // The shell that is left alone goes to the next subreaper above.
    rustix::process::set_child_subreaper(None).expect("this process may");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!("{script} &")]).current_dir(proc.folder.path());
    assert!(command.status().expect("a shell").success());
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).expect("this process may");
}

/// The pid of the command that has started a process.
fn command_pid(pid: u32) -> u32 {
    let environ = fs::read_to_string(format!("/proc/{pid}/environ")).expect("it runs");
    let value = environ.split('\0').find_map(|pair| pair.strip_prefix("PROCFLEET_COMMAND_PID="));
    value.expect("it has the mark").parse().expect("a pid")
}

fn session_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let rest = stat.rsplit_once(") ").expect("a stat line").1;
    rest.split(' ').nth(3).expect("a session").parse().expect("a pid")
}

/// Row 11: a process of the spec's name that does not run from `setup_path`.
#[tokio::test]
async fn a_namesake_from_elsewhere_is_ours_if_it_began_after_a_command() {
    let mut proc = Proc::with_pid_file("table-began");
    let elsewhere = tempfile::tempdir().expect("a temp dir");
    fs::set_permissions(elsewhere.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("our folder");
    let namesake = elsewhere.path().join("web");
    install("/bin/sleep", &namesake);
    let before = Stranger::start(&namesake, Path::new("/"));
    // Start times are ticks of 10 ms; the command must not begin in the same one.
    let began = process(before.pid()).start_ticks;
    until("a tick has passed", || {
        let uptime = fs::read_to_string("/proc/uptime").expect("the kernel's clock");
        let secs: f64 = uptime.split(' ').next()?.parse().ok()?;
        (secs * 100.0 > began as f64 + 2.0).then_some(())
    })
    .await;
    proc.run("exec sleep 1000");
    let after = Stranger::start(&namesake, Path::new("/"));
    for (process, verdict) in [(&before, Verdict::Stranger), (&after, Verdict::Ours)] {
        proc.write("web.pid", process.pid().to_string());
        assert_eq!(seen("a namesake", &proc.settled(), process.pid()), verdict);
    }
    // An agent that has just started knows no command that could have begun it.
    proc.forget();
    assert_eq!(seen("a namesake", &proc.settled(), after.pid()), Verdict::Stranger);
}

/// A user who has cgroups of one's own can call them as the agent's are called.
#[tokio::test]
async fn a_cgroup_of_another_account_makes_no_process_ours() {
    let mut proc = Proc::with_pid_file("table-forged-cgroup");
    proc.program("beat");
    proc.run("echo $$ > web.pid; exec ./beat 1000");
    let ours = proc.pid_in("web.pid").await;
    let group = fs::read_to_string(format!("/proc/{ours}/cgroup")).expect("it runs");
    let group = group.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned);
    let group = group.filter(|group| group.contains("/procfleet-")).ok_or("it is in no cgroup of ours");
    let Some(group) = need(Need::Cgroups, group.map_err(str::to_owned)) else { return };
    if !has(Need::Root, me() == "root") {
        return;
    }
    let own_name = &group[group.find("/procfleet-").expect("it was found") + 1..];
    let mounts = fs::read_to_string("/proc/self/mounts").expect("this is Linux");
    let mount = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
    let mount = mount.and_then(|line| line.split(' ').nth(1)).expect("there are groups");
    let top = Path::new(mount).join(format!("forged-{}", std::process::id()));
    let forged = top.join(own_name);
    fs::create_dir_all(&forged).expect("root may");
    let mut stranger = Stranger::start(proc.path("beat"), Path::new("/"));
    fs::write(forged.join("cgroup.procs"), stranger.pid().to_string()).expect("root may");
    proc.write("web.pid", stranger.pid().to_string());
    assert_eq!(running(proc.settled()).pid, stranger.pid(), "a cgroup of root's is believed");
    std::os::unix::fs::chown(&forged, Some(65534), None).expect("root may");
    assert!(matches!(cause(proc.settled()), Cause::Stranger { .. }));
    stranger.assert_unharmed();
    drop(stranger);
    let mut folder = forged;
    while folder.starts_with(&top) {
        until("the group is empty", || fs::remove_dir(&folder).ok()).await;
        folder.pop();
    }
}
