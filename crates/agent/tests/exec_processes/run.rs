//! Commands: their folder, account and environment, and what is reported about their end.

use crate::support::*;
use procfleet_core::spec::{Detached, Shell};
use procfleet_core::supervise::CommandEnd;
use procfleet_core::{Code, Exit};
use procfleet_testkit::{Need, has};
use std::collections::BTreeMap;
use std::fs;

#[tokio::test]
async fn the_end_of_a_command_reports_its_status_and_output() {
    let mut proc = Proc::new("status");
    assert_eq!(
        proc.output_of("echo one; echo two >&2; exit 3").await,
        (Exit::Code(3), "one\ntwo\n".to_owned())
    );
    assert_eq!(proc.output_of("true").await, (Exit::Code(0), String::new()));
    assert_eq!(proc.output_of("echo last; kill -9 $$").await, (Exit::Signal(9), "last\n".to_owned()));
    assert_eq!(proc.output_of("no-such-command 2>/dev/null").await.0, Exit::Code(127));
    proc.assert_silent();
}

#[tokio::test]
async fn the_last_of_a_long_output_is_kept() {
    let mut proc = Proc::new("tail");
    let (_, output) = proc.output_of("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done").await;
    assert_eq!(output.len(), 4096);
    assert!(output.ends_with("line 2998\nline 2999\n"), "{output}");
    let (_, output) = proc.output_of("printf 'a\\377b'").await;
    assert_eq!(output, "a\u{fffd}b");
}

#[tokio::test]
async fn a_child_in_the_background_does_not_hold_up_the_end() {
    let mut proc = Proc::new("background");
    let (exit, output) = proc.output_of("sleep 1000 & echo $! > child; echo done").await;
    assert_eq!((exit, output.as_str()), (Exit::Code(0), "done\n"));
    assert!(is_running(proc.pid_in("child").await));
}

#[tokio::test]
async fn the_environment_is_clean() {
    let mut proc = Proc::new("environment");
    let (_, output) = proc.output_of("tr '\\0' '\\n' < /proc/$$/environ").await;
    let environment: BTreeMap<&str, &str> = output.lines().filter_map(|line| line.split_once('=')).collect();
    let names: Vec<&str> = environment.keys().copied().collect();
    let (ours, others): (Vec<&str>, Vec<&str>) =
        names.into_iter().partition(|name| name.starts_with("PROCFLEET_"));
    assert_eq!(others, ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"]);
    let facts =
        ["COMMAND_PID", "INSTANCE", "NAME", "NAMESPACE", "PROC", "PROC_NAME", "PROOF", "RUN", "SETUP_PATH"];
    assert_eq!(ours, facts.map(|name| format!("PROCFLEET_{name}")));
    assert_eq!(
        ["INSTANCE", "NAME", "NAMESPACE"].map(|name| environment[&*format!("PROCFLEET_{name}")]),
        ["1", "environment", "exec-test"]
    );
    assert_eq!(environment["PROCFLEET_PROC"], proc.context.mark(&proc.key));
    assert_eq!(environment["PATH"], "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    assert_eq!((environment["USER"], environment["LANG"]), (me().as_str(), "C.UTF-8"));
}

#[tokio::test]
async fn a_command_has_its_folder_its_session_and_nothing_to_read() {
    let mut proc = Proc::new("surroundings");
    let command = "pwd -P; umask; readlink /proc/self/fd/0; echo $(($(cut -d' ' -f6 /proc/$$/stat) - $$)); ls /proc/$$/fd; true";
    let (_, output) = proc.output_of(command).await;
    let folder = fs::canonicalize(proc.folder.path()).expect("our folder");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..4], [folder.to_str().expect("a plain path"), "0022", "/dev/null", "0"]);
    assert_eq!(lines[4..], ["0", "1", "2"], "nothing of the agent's is open in it");
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_why() {
    let mut proc = Proc::new("refusals");
    proc.write("file", "");
    let good = proc.spec.identity.setup_path.clone();
    let missing = format!("{good}/missing");
    let file = format!("{good}/file");
    let rows: &[(&str, &str, &str, Code, &str)] = &[
        ("", &me(), "true", Code::ArgsInvalid, "setup_path \"\" is not an absolute path"),
        ("opt/web", &me(), "true", Code::ArgsInvalid, "setup_path \"opt/web\" is not an absolute path"),
        (&missing, &me(), "true", Code::FileInvalid, &format!("setup_path {missing:?} does not exist")),
        (&file, &me(), "true", Code::FileInvalid, &format!("setup_path {file:?} is not a directory")),
        (&good, "", "true", Code::ArgsInvalid, "user is empty"),
        (
            &good,
            "no-such-user",
            "true",
            Code::InvalidUser,
            "user \"no-such-user\" does not exist on this host",
        ),
        (&good, &me(), "a\0b", Code::ArgsInvalid, "the command contains a NUL byte"),
    ];
    for (setup_path, user, command, code, reason) in rows {
        proc.spec.identity.setup_path = (*setup_path).to_owned();
        proc.spec.identity.user = (*user).to_owned();
        let run = proc.run(command);
        let expected = CommandEnd::NotStarted { code: *code, reason: (*reason).to_owned() };
        assert_eq!(proc.end_of(run).await, expected);
    }
    proc.spec.identity.setup_path = good;
    proc.spec.identity.user = me();
    proc.spec.control.shell = Shell::Bat;
    let run = proc.run("start.bat");
    let end = proc.end_of(run).await;
    let CommandEnd::NotStarted { code: Code::ArgsInvalid, reason } = end else { panic!("{end:?}") };
    assert!(reason.starts_with("this host cannot run bat scripts (cmd_shell_ext): "), "{reason}");
}

#[tokio::test]
async fn a_command_runs_as_its_user() {
    let mut proc = Proc::new("user");
    proc.spec.identity.user = "nobody".to_owned();
    let nobody = nix::unistd::User::from_name("nobody").expect("passwd").expect("there is a nobody");
    let run = proc.run("id -u; id -g; id -G; echo $HOME $USER; echo written again > /dev/stdout");
    let end = proc.end_of(run).await;
    if !nix::unistd::geteuid().is_root() {
        assert!(matches!(end, CommandEnd::NotStarted { code: Code::InvalidUser, .. }), "{end:?}");
    }
    if !has(Need::Root, nix::unistd::geteuid().is_root()) {
        return;
    }
    let CommandEnd::Exited { exit: Exit::Code(0), output } = end else { panic!("{end:?}") };
    let expected = format!(
        "{}\n{}\n{}\n{} nobody\nwritten again\n",
        nobody.uid,
        nobody.gid,
        nobody.gid,
        nobody.dir.display()
    );
    // Opening /dev/stdout anew without O_APPEND would start from the top: dash truncates the file here.
    assert!(expected.ends_with(&output) && output.ends_with("written again\n"), "{output}");

    fs::create_dir(proc.path("closed")).expect("a folder");
    fs::set_permissions(proc.path("closed"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .expect("ours");
    proc.spec.identity.setup_path = proc.path("closed").to_str().expect("a plain path").to_owned();
    let run = proc.run("true");
    let end = proc.end_of(run).await;
    let CommandEnd::NotStarted { code: Code::SystemError, reason } = end else { panic!("{end:?}") };
    assert!(reason.contains("setup_path") && reason.contains("Permission denied"), "{reason}");
}

#[tokio::test]
async fn any_name_has_its_output_inside_the_folder() {
    let mut proc = Proc::new("../a/b%c d\u{957f}");
    assert_eq!(proc.output_of("echo hi").await.1, "hi\n");
    for _ in 0..6 {
        proc.output_of("true").await;
    }
    let folder = proc.path("output/exec-test+..%2Fa%2Fb%25c%20d%E9%95%BF");
    let names: Vec<String> = fs::read_dir(folder)
        .expect("the proc's folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("plain text"))
        .filter(|name| name.ends_with(".out"))
        .collect();
    assert_eq!(names.len(), 4, "only the newest stay: {names:?}");
}

#[tokio::test]
async fn a_process_outlives_its_executor() {
    let mut proc = Proc::new("outlive");
    let run = proc.run("while :; do echo tick; sleep 0.01; done");
    let pid = running(proc.launched(run, procfleet_core::supervise::Leader::Accept)).pid;
    proc.forget();
    let process = running(proc.recovered(None));
    assert!(is_running(pid) || is_running(process.pid));
    proc.executor.signal(process, procfleet_core::supervise::Signal::Kill, Detached::End);
    until("it is reaped although nobody watched it", || {
        proc.executor.watch(process);
        state_of(process.pid).is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_command_of_plain_words_has_no_shell_around_it() {
    let mut proc = Proc::new("plain");
    proc.script("arguments", "printf '%s|' \"$0\" \"$@\"\n");
    let (exit, output) = proc.output_of("./arguments --port=80 a:b").await;
    assert_eq!((exit, output.as_str()), (Exit::Code(0), "./arguments|--port=80|a:b|"));
    // It is there when the call is done, and not only a shell that will become it.
    for (command, name) in [("./web 1000", "web"), ("exec sleep 1000", "sleep"), ("sleep  1000", "sleep")] {
        let run = proc.run(command);
        let process = running(proc.launched(run, procfleet_core::supervise::Leader::Accept));
        assert_eq!(comm(process.pid), name, "{command}");
    }
}

/// Each of these can be executed by nobody, or only by a shell.
#[tokio::test]
async fn a_file_that_cannot_be_executed_fails_as_in_a_shell() {
    let mut proc = Proc::new("plain-failures");
    proc.write("text", "echo read as a script\n");
    fs::set_permissions(proc.path("text"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("ours");
    proc.write("closed", "");
    let rows = [
        ("./text", 0, "read as a script\n"),
        ("no-such-command 1", 127, "not found"),
        ("./missing", 127, "not found"),
        ("./closed", 126, "ermission denied"),
        ("exec ./missing", 127, "not found"),
    ];
    for (command, code, words) in rows {
        let (exit, output) = proc.output_of(command).await;
        assert_eq!(exit, Exit::Code(code), "{command}: {output}");
        assert!(output.contains(words), "{command}: {output}");
    }
}

#[tokio::test]
async fn a_command_begins_with_no_signal_blocked_or_ignored() {
    let mut proc = Proc::new("signals");
    let (_, output) = proc.output_of("grep Sig /proc/self/status").await;
    for line in output.lines().filter(|line| line.starts_with("SigBlk") || line.starts_with("SigIgn")) {
        assert!(line.ends_with("\t0000000000000000"), "{output}");
    }
    assert!(output.contains("SigIgn"), "{output}");
}

#[tokio::test]
async fn a_command_may_open_as_many_files_as_the_agent_was_allowed() {
    use rustix::process::{Resource, getrlimit};
    let given = getrlimit(Resource::Nofile);
    procfleet_agent::exec::raise_nofile_limit();
    assert_eq!(getrlimit(Resource::Nofile).current, given.maximum);
    let (_, output) = Proc::new("files").output_of("ulimit -n").await;
    let given = given.current.map_or("unlimited".to_owned(), |files| files.to_string());
    assert_eq!(output.trim(), given);
}
