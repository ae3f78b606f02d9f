//! Finding the process: by pid file, by name, among what a command started, and after a restart of the agent.

use crate::support::*;
use procfleet_core::process::{Cause, Found};
use procfleet_core::spec::{Control, Detached};
use procfleet_core::supervise::{Leader, Signal};
use procfleet_core::{Absence, Sighting};
use procfleet_testkit::{Need, has};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What a daemon does: two forks, a session of its own, and a pid file.
const DAEMON: &str = "(setsid sh -c './web 1000 & echo $! > web.pid.new; mv web.pid.new web.pid' &)";

#[tokio::test]
async fn a_foreground_command_is_found_behind_its_shell() {
    for (command, found) in [
        ("exec ./web 1000", Found::Foreground),
        ("./web 1000", Found::Foreground),
        // a shell that may do more than wait
        ("./web 1000; true", Found::CommandChild),
        ("./start.sh", Found::CommandChild),
        ("true; ./start.sh; true", Found::CommandChild),
    ] {
        let mut proc = Proc::new(&format!("foreground-{command}"));
        proc.script("start.sh", "./web 1000\n");
        let run = proc.run(command);
        let process = until(command, || match proc.launched(run, Leader::Refuse) {
            Sighting::Running(process) if comm(process.pid) == "web" => Some(process),
            Sighting::Running(_) => None,
            Sighting::Absent(absence) => panic!("{command}: {}", absence.cause),
        })
        .await;
        assert_eq!(process.found, found, "{command}");
        assert_eq!(running(proc.settled()).pid, process.pid, "{command}: it is known by its name too");
    }
}

#[tokio::test]
async fn a_command_that_mentions_the_name_is_not_the_process() {
    let mut proc = Proc::with_pid_file("mention");
    let run = proc.run("sleep 1000; : /web");
    let sighting = proc.launched(run, Leader::Refuse);
    assert!(matches!(&sighting, Sighting::Absent(Absence { hopeless: false, .. })), "{sighting:?}");
    // `Leader::Accept`: the shell counts. It does not exec `sleep`, because another command follows.
    let shell = running(proc.launched(run, Leader::Accept));
    assert_eq!((comm(shell.pid).as_str(), shell.found), ("sh", Found::Shell));
}

#[tokio::test]
async fn a_daemon_is_found_by_its_pid_file() {
    let mut proc = Proc::with_pid_file("daemon");
    let run = proc.run(DAEMON);
    let pid = proc.pid_in("web.pid").await;
    // The shell writes the file before its child has become the program.
    until_called(pid, "web").await;
    let process = running(proc.launched(run, Leader::Refuse));
    assert_eq!((process.pid, process.found), (pid, Found::PidFile));
    assert_eq!(proc.settled(), Sighting::Running(process));
    // What the file says now counts, also against a process that goes on without it.
    std::fs::remove_file(proc.path("web.pid")).expect("it is there");
    assert!(matches!(cause(proc.settled()), Cause::NoPidFile { .. }));
}

#[tokio::test]
async fn a_daemon_without_a_pid_file_is_found_by_its_name() {
    let mut proc = Proc::new("nameless");
    let run = proc.run(DAEMON);
    proc.end_of(run).await;
    let pid = proc.pid_in("web.pid").await;
    let process = proc.found(run, pid).await;
    assert_eq!(process.found, Found::Name);
    assert_eq!(proc.settled(), Sighting::Running(process));
}

#[tokio::test]
async fn a_late_pid_file_is_waited_for_while_something_runs() {
    let mut proc = Proc::with_pid_file("late");
    proc.spec.identity.proc_name = "other".to_owned();
    let run = proc.run("(setsid ./web 1000 & echo $! > child)");
    proc.end_of(run).await;
    let child = proc.pid_in("child").await;
    let missing = Cause::NoPidFile { path: proc.spec.identity.pid_path.clone() };
    // While it becomes `web` it cannot be recognised for a moment; the caller looks more than once, too.
    let waiting = Sighting::Absent(Absence { cause: missing.clone(), hopeless: false });
    until("it is seen to run", || (proc.launched(run, Leader::Refuse) == waiting).then_some(())).await;
    until_called(child, "web").await;
    // A dead number in the file is no reason to give up either.
    proc.write("web.pid", "4194304\n");
    let sighting = proc.launched(run, Leader::Refuse);
    assert!(matches!(&sighting, Sighting::Absent(Absence { cause: Cause::DeadPid { .. }, hopeless: false })));
    proc.write("web.pid", format!("{child}\n"));
    assert_eq!(running(proc.launched(run, Leader::Refuse)).pid, child);
    std::fs::remove_file(proc.path("web.pid")).expect("it is there");
    // At the end of the wait whatever is left will do.
    assert_eq!(running(proc.launched(run, Leader::Accept)).pid, child);
    proc.executor.end_run(run);
    until_gone(child).await;
    assert_eq!(
        proc.launched(run, Leader::Accept),
        // The command was not the process, so another launcher may yet bring it.
        Sighting::Absent(Absence { cause: missing, hopeless: false })
    );
}

#[tokio::test]
async fn pid_files_that_cannot_be_used_say_why() {
    let mut proc = Proc::with_pid_file("bad-files");
    let path = proc.spec.identity.pid_path.clone();
    let bad = |reason: &str| Cause::BadPidFile { path: path.clone(), reason: reason.to_owned() };
    let long = "1".repeat(100);
    let rows: &[(&str, Cause)] = &[
        ("", bad("is empty")),
        (" \n", bad("is empty")),
        ("web", bad("its content \"web\" is not a pid")),
        ("-1", bad("its content \"-1\" is not a pid")),
        ("+5", bad("its content \"+5\" is not a pid")),
        ("0", bad("its content \"0\" is not a pid")),
        (&long, bad(&format!("its content {:?} is not a pid", &long[..64]))),
        ("4194304\nmore\n", Cause::DeadPid { path: path.clone(), pid: 4_194_304 }),
    ];
    for (content, expected) in rows {
        proc.write("web.pid", content);
        assert_eq!(&cause(proc.settled()), expected, "{content:?}");
    }
    std::fs::remove_file(&path).expect("it is there");
    std::fs::create_dir(&path).expect("a folder");
    assert_eq!(cause(proc.settled()), bad("is not a regular file"));
    std::fs::remove_dir(&path).expect("it is there");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("a fifo");
    assert_eq!(cause(proc.settled()), bad("is not a regular file"));
    proc.spec.identity.pid_path = "web.pid".to_owned();
    assert!(matches!(cause(proc.settled()), Cause::BadPidFile { reason, .. } if reason == "is not absolute"));
}

#[tokio::test]
async fn a_stranger_in_the_pid_file_is_left_alone() {
    let mut proc = Proc::with_pid_file("stranger");
    let mut stranger = Stranger::start("/bin/sleep", std::path::Path::new("/"));
    proc.write("web.pid", stranger.pid().to_string());
    let run = proc.run("true");
    proc.end_of(run).await;
    for sighting in [proc.settled(), proc.recovered(None), proc.launched(run, Leader::Accept)] {
        let expected = Cause::Stranger {
            path: proc.spec.identity.pid_path.clone(),
            pid: stranger.pid(),
            program: "sleep".to_owned(),
        };
        assert_eq!(cause(sighting), expected);
    }
    proc.executor.sweep(Signal::Kill);
    proc.executor.end_run(run);
    stranger.assert_unharmed();
}

/// A loop in the command itself: its child of the moment comes and goes, and the shell is the process.
#[tokio::test]
async fn a_shell_that_has_more_to_do_is_the_process() {
    let mut proc = Proc::new("loop");
    proc.spec.identity.proc_name = "other".to_owned();
    let run = proc.run("echo $$ > shell; while :; do ./web 0.01; done");
    let shell = proc.pid_in("shell").await;
    for _ in 0..20 {
        assert_eq!(running(proc.launched(run, Leader::Accept)).pid, shell);
    }
    proc.executor.end_run(run);
    until_gone(shell).await;
}

/// Many programs of a host may have one name, so a process is not the proc's by its name alone.
#[tokio::test]
async fn a_program_of_the_same_name_from_elsewhere_is_a_stranger() {
    let mut proc = Proc::with_pid_file("namesake");
    proc.spec.identity.proc_name = "sleep".to_owned();
    let mut stranger = Stranger::start("/bin/sleep", std::path::Path::new("/"));
    proc.write("web.pid", stranger.pid().to_string());
    assert!(matches!(cause(proc.settled()), Cause::Stranger { program, .. } if program == "sleep"));
    assert!(matches!(cause(proc.recovered(None)), Cause::Stranger { .. }));
    stranger.assert_unharmed();
    let by_hand = Stranger::start("/bin/sleep", proc.folder.path());
    proc.write("web.pid", by_hand.pid().to_string());
    assert_eq!(running(proc.settled()).pid, by_hand.pid(), "it runs from the folder");
}

#[tokio::test]
async fn the_parent_of_the_agent_is_a_stranger() {
    let mut proc = Proc::with_pid_file("above");
    let above = std::os::unix::process::parent_id();
    for pid in [above, std::process::id(), 1] {
        proc.spec.identity.proc_name = comm(pid);
        proc.write("web.pid", pid.to_string());
        let sighting = proc.settled();
        assert!(matches!(&sighting, Sighting::Absent(_)), "{pid}: {sighting:?}");
    }
}

#[tokio::test]
async fn another_procs_process_is_a_stranger_whatever_its_name() {
    let mut proc = Proc::with_pid_file("neighbour");
    let mark = [("PROCFLEET_PROC", "an-agent/somebody:else")];
    let mut stranger = Stranger::start_as(proc.path("web"), proc.folder.path(), &mark);
    proc.write("web.pid", stranger.pid().to_string());
    assert!(matches!(cause(proc.settled()), Cause::AnotherProcs { proc, .. } if proc == "somebody:else"));
    proc.spec.identity.pid_path.clear();
    assert!(matches!(cause(proc.settled()), Cause::NoSuchName { .. }));
    proc.executor.sweep(Signal::Kill);
    stranger.assert_unharmed();
}

#[tokio::test]
async fn a_process_of_a_lost_agent_is_known_by_its_program_and_never_by_its_mark() {
    let mut proc = Proc::with_pid_file("orphan");
    let mark = proc.context.mark(&proc.key);
    let key = mark.split_once('/').expect("an instance and a key").1;
    let lost = format!("another-instance/{key}");
    let mut left = Stranger::start_as(proc.path("web"), proc.folder.path(), &[("PROCFLEET_PROC", &lost)]);
    proc.write("web.pid", left.pid().to_string());
    assert_eq!(running(proc.settled()).pid, left.pid());
    proc.executor.sweep(Signal::Kill);
    left.assert_unharmed();
    let mut stranger = Stranger::start_as("/bin/sleep", proc.folder.path(), &[("PROCFLEET_PROC", &lost)]);
    proc.write("web.pid", stranger.pid().to_string());
    assert!(matches!(cause(proc.settled()), Cause::Stranger { .. }));
    stranger.assert_unharmed();
}

/// An operator may have a shell with the proc's working folder; that shell is not the proc.
#[tokio::test]
async fn an_operators_shell_in_the_folder_is_a_stranger() {
    let mut proc = Proc::new("looked-at");
    proc.spec.identity.proc_name = "sh".to_owned();
    let mut shell = Stranger::shell(proc.folder.path(), &[]);
    assert!(matches!(cause(proc.settled()), Cause::NoSuchName { .. }));
    assert!(matches!(cause(proc.recovered(None)), Cause::NoSuchName { .. }));
    proc.executor.sweep(Signal::Kill);
    shell.assert_unharmed();
    proc.write("service", "read nothing");
    let by_hand = Stranger::shell(proc.folder.path(), &["service"]);
    assert_eq!(running(proc.settled()).pid, by_hand.pid(), "its script is in the folder");
}

#[tokio::test]
async fn a_process_started_by_hand_is_ours_by_its_program() {
    let mut proc = Proc::with_pid_file("by-hand");
    let by_hand = Stranger::start(proc.path("web"), std::path::Path::new("/"));
    proc.write("web.pid", by_hand.pid().to_string());
    assert_eq!(running(proc.settled()).pid, by_hand.pid());
    proc.spec.identity.proc_name.clear();
    assert_eq!(running(proc.settled()).pid, by_hand.pid(), "its file is in the folder");
    proc.spec.identity.proc_name = "other".to_owned();
    assert!(matches!(cause(proc.settled()), Cause::Stranger { .. }), "it is a sibling");
    proc.spec.identity.pid_path.clear();
    assert!(matches!(cause(proc.settled()), Cause::NoSuchName { .. }));
    proc.spec.identity.proc_name = "web".to_owned();
    assert_eq!(running(proc.settled()).pid, by_hand.pid());
    proc.spec.identity.setup_path.clear();
    assert_eq!(cause(proc.settled()), Cause::NoIdentity);
}

/// The agent may signal everybody's processes; the account that a spec names may not.
#[tokio::test]
async fn a_process_of_another_account_is_not_ours() {
    let mut proc = Proc::with_pid_file("another-account");
    let mut stranger = Stranger::start(proc.path("web"), proc.folder.path());
    proc.write("web.pid", stranger.pid().to_string());
    assert_eq!(running(proc.settled()).pid, stranger.pid(), "it is ours while it is of our account");
    proc.spec.identity.user = if me() == "nobody" { "daemon" } else { "nobody" }.to_owned();
    for sighting in [proc.settled(), proc.recovered(None)] {
        let expected = Cause::AnotherAccounts {
            path: proc.spec.identity.pid_path.clone(),
            pid: stranger.pid(),
            user: proc.spec.identity.user.clone(),
        };
        assert_eq!(cause(sighting), expected);
    }
    proc.spec.identity.pid_path.clear();
    assert!(matches!(cause(proc.settled()), Cause::NoSuchName { .. }));
    stranger.assert_unharmed();
}

#[tokio::test]
async fn the_master_is_found_and_not_its_worker() {
    let mut proc = Proc::new("master");
    proc.script("web.sh", "[ \"$1\" = worker ] || { ./web.sh worker & echo $$ > master; }\nsleep 1000\n");
    let run = proc.run("(setsid ./web.sh &)");
    proc.end_of(run).await;
    let master = proc.pid_in("master").await;
    assert_eq!(running(proc.settled()).pid, master);
    assert_eq!(running(proc.launched(run, Leader::Refuse)).pid, master);
}

#[tokio::test]
async fn a_pid_file_that_the_account_may_not_read_is_not_disclosed() {
    let mut proc = Proc::with_pid_file("secret-file");
    let path = proc.spec.identity.pid_path.clone();
    proc.write("web.pid", "root:$6$hash:20000");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("our file");
    let bad =
        |path: &str, reason: &str| Cause::BadPidFile { path: path.to_owned(), reason: reason.to_owned() };
    let content = "its content \"root:$6$hash:20000\" is not a pid";
    assert_eq!(cause(proc.settled()), bad(&path, content));
    if !has(Need::Root, me() == "root") {
        return;
    }
    // The answer is the same whatever is there, also for a file in a folder that the account may not enter.
    let closed = proc.path("closed");
    std::fs::create_dir(&closed).expect("our folder");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("our folder");
    let hidden = closed.join("pin").to_str().expect("a plain path").to_owned();
    let by_hand = Stranger::start("/bin/sleep", Path::new("/"));
    let contents =
        ["4194304", "1", &by_hand.pid().to_string(), "root:$6$hash:20000", "0", ""].map(str::to_owned);
    for (user, reason) in [
        ("nobody", "Permission denied (os error 13)"),
        ("no-such-user", "user \"no-such-user\" does not exist on this host"),
        ("", "user is empty"),
    ] {
        proc.spec.identity.user = user.to_owned();
        for file in [&path, &hidden] {
            proc.spec.identity.pid_path.clone_from(file);
            for content in &contents {
                std::fs::write(file, content).expect("our file");
                std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).expect("our file");
                for sighting in [proc.settled(), proc.recovered(None)] {
                    assert_eq!(cause(sighting), bad(file, reason), "{content:?} for {user:?}");
                }
            }
        }
        std::fs::remove_file(&hidden).expect("it was written");
        assert_eq!(cause(proc.settled()), bad(&hidden, reason), "no file, for {user:?}");
    }
    // A file that the account can read is shown.
    proc.spec.identity.user = "nobody".to_owned();
    proc.spec.identity.pid_path.clone_from(&path);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("our file");
    proc.write("web.pid", "4194304");
    assert_eq!(cause(proc.settled()), Cause::DeadPid { path: path.clone(), pid: 4_194_304 });
    proc.write("web.pid", "root:$6$hash:20000");
    assert_eq!(cause(proc.settled()), bad(&path, content));
    std::fs::remove_file(&path).expect("our file");
    assert_eq!(cause(proc.settled()), Cause::NoPidFile { path });
}

#[tokio::test]
async fn a_restarted_agent_finds_its_processes_again() {
    let mut proc = Proc::with_pid_file("recovery");
    let run = proc.run(DAEMON);
    let pid = proc.pid_in("web.pid").await;
    until_called(pid, "web").await;
    let process = running(proc.launched(run, Leader::Refuse));
    proc.forget();
    std::fs::remove_file(proc.path("web.pid")).expect("it is there");
    assert_eq!(proc.recovered(Some(process)), Sighting::Running(process), "what was known");
    // The journal names the process of an earlier run, and this process was started since.
    let mut earlier = process;
    earlier.start_ticks -= 1;
    earlier.evidence.run = process.evidence.run.and_then(|run| (run.get() - 1).try_into().ok());
    for last in [Some(earlier), None] {
        let by_mark = running(proc.recovered(last));
        assert_eq!((by_mark.pid, by_mark.found), (pid, Found::Name), "the mark and the name");
    }
    proc.spec.identity.proc_name = "other".to_owned();
    proc.executor.signal(process, Signal::Kill, Detached::End);
    until_gone(pid).await;
    assert!(matches!(cause(proc.recovered(Some(process))), Cause::NoPidFile { .. }));
    proc.run("exec sleep 1000");
    proc.forget();
    let by_mark_alone = until("it is found by its mark", || match proc.recovered(None) {
        Sighting::Running(process) => Some(process.pid),
        Sighting::Absent(_) => None,
    })
    .await;
    until_called(by_mark_alone, "sleep").await;
}

#[tokio::test]
async fn a_restarted_agent_takes_no_command_that_ends_or_reloads_for_the_process() {
    let mut proc = Proc::with_pid_file("recovery-aside");
    let commands = ["stop", "kill", "reload"].map(|what| format!("echo $$ > {what}; sleep 1000; true"));
    let [stop, kill, reload] = commands.clone();
    let control = Control { stop_cmd: stop, kill_cmd: kill, reload_cmd: reload, ..Control::default() };
    proc.spec.control = control;
    for (what, command) in ["stop", "kill", "reload"].into_iter().zip(commands) {
        proc.run(&command);
        let shell = proc.pid_in(what).await;
        proc.forget();
        assert!(matches!(cause(proc.recovered(None)), Cause::NoPidFile { .. }), "{what}");
        assert!(is_running(shell), "it was only looked at");
        proc.executor.sweep(Signal::Kill);
        until_gone(shell).await;
    }
}

/// An agent that comes back in the first moments of a command finds its shell, and then what the shell has
/// begun.
#[tokio::test]
async fn a_shell_that_was_found_in_place_of_its_program_is_looked_behind() {
    let mut proc = Proc::new("early");
    let gate = proc.fifo("gate");
    let command = "echo $$ > shell; read line < gate; ./web 1000; true".to_owned();
    proc.spec.control = Control { start_cmd: command.clone(), ..Control::default() };
    proc.run(&command);
    let shell = proc.pid_in("shell").await;
    proc.forget();
    let found = running(proc.recovered(None));
    assert_eq!(found.pid, shell);
    let spec = proc.spec.clone();
    assert_eq!(proc.executor.successor(&found, &spec), None, "not yet");
    std::fs::write(gate, "go on\n").expect("it reads");
    let web = until("its program is found", || proc.executor.successor(&found, &spec)).await;
    until_called(web.pid, "web").await;
    assert_eq!(web.found, Found::Foreground);
    assert_eq!(proc.executor.successor(&found, &spec), None, "once");
}
