//! The status knows every process of a proc: those of failed starts, and those that were started by hand.

use crate::{at_once, up};
use procfleet_testkit::{
    Need, Op, PATIENCE, Proc, Program, account, has, is_running, need, programs, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use tempfile::TempDir;

/// Its entry in GSE's status.
fn status(proc: &Proc) -> Value {
    let query = json!({"meta": proc.request["meta"], "hosts": proc.request["hosts"]});
    let answer = proc.client.post("/api/v2/proc/get_proc_status_v2", query);
    answer.data()["proc_infos"][0].clone()
}

#[test]
fn a_failed_start_leaves_nothing_unknown() {
    let up = up();
    let unnamed = |name: &str| up.proc(name).with_pid_file().identity("proc_name", "nginx");
    let late = "(setsid sh -c './web 0.3; sleep 60; exec ./web 1000' </dev/null >/dev/null 2>&1 &)";
    let procs = [
        // A daemon that never writes its pid file and has another name.
        unnamed("unnamed").starts(&programs::silent_daemon()),
        unnamed("kept").starts(&programs::silent_daemon()).policy("detached", "keep"),
        unnamed("failed").starts(&format!("{}; exit 3", programs::silent_daemon())),
        unnamed("deaf").starts("(trap '' TERM; setsid ./web 1000 >/dev/null 2>&1 &)"),
        // It would come again after the end of the check.
        up.proc("late").starts(late).policy("start_check_secs", 5),
    ];
    at_once(procs, |proc| {
        let outcome = proc.op(Op::Start);
        let code = if proc.name == "failed" { 65535 } else { 836 };
        outcome.assert(code, "").assert_hosted(false).assert_says("was ended with all that was left of it");
        assert_eq!(proc.pids(), Vec::<u32>::new(), "{}: {}", proc.name, outcome.message);
        assert_eq!(proc.pid(), None, "{}", proc.name);
        proc.op(Op::Stop).assert(829, "no need to stop");
    });
}

/// The start command fails after it has started the process: the outcome names the pid and the status shows
/// it.
#[test]
fn a_start_that_fails_beside_its_process_names_it() {
    let up = up();
    let command = format!("{}; until test -e go; do sleep 0.05; done; exit 3", programs::daemon());
    let proc = up.proc("beside").with_pid_file().starts(&command).policy("start_check_secs", 600);
    let task = proc.submit(Op::Start);
    let pid = proc.pid_in_file();
    wait_until(PATIENCE, "the process was seen", || proc.row().is_some_and(|row| row["pid"] == pid));
    fs::write(proc.folder.join("go"), "").expect("our own folder");
    let outcome = task.outcome();
    outcome.assert(65535, "Script exit code non-zero").assert_hosted(false);
    outcome.assert_says(&format!("pid {pid} is running"));
    let row = proc.row_with_pid(pid);
    assert_eq!(row["hosted"], false, "{row}");
    let status = status(&proc);
    assert_eq!((&status["status"], &status["pid"]), (&json!(1), &json!(pid)), "{status}");
    proc.op(Op::Start).assert(828, "no need to start the process web(");
    proc.op(Op::Stop).assert_success();
    assert!(!is_running(pid));
}

/// Any user of the host can run a program of the proc's name in the proc's folder.
#[test]
fn a_namesake_of_another_account_is_not_taken_for_roots_process() {
    if !has(Need::Root, account() == "root") {
        return;
    }
    let up = up();
    let proc = up.proc("by-name").starts(&programs::foreground());
    proc.start();
    proc.op(Op::Stop).assert_success();
    let (mut stranger, _folder) = namesake(&proc, &[]);
    check_left_alone(&proc, &mut stranger);
}

/// The same with a pid file, in a folder where any user can leave one.
#[test]
fn a_namesake_with_a_pid_file_of_its_own_is_not_taken_for_roots_process() {
    if !has(Need::Root, account() == "root") {
        return;
    }
    let up = up();
    let proc = with_shared_pid_file(up.proc("by-file"));
    proc.start();
    proc.op(Op::Stop).assert_success();
    let (mut stranger, _folder) = namesake(&proc, &[]);
    let pid_path = leave_pid_file(&proc, stranger.pid());
    let expected = format!("pid file {pid_path} names pid {}", stranger.pid());
    assert_eq!(proc.op(Op::Query).pid(), None);
    for (op, words) in [(Op::Stop, "no need to stop"), (Op::Kill, "no need to kill")] {
        proc.op(op).assert(829, words).assert_says(&expected);
    }
    assert!(stranger.is_running(), "nobody's process is not ended for root's proc");
}

/// With a pid file in a folder that every user can write to, as in `/tmp`.
fn with_shared_pid_file(proc: Proc) -> Proc {
    let shared = proc.folder.join("shared");
    fs::create_dir(&shared).expect("our own folder");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("our own folder");
    let pid_path = shared.join(programs::PID_FILE);
    let pid_path = pid_path.to_str().expect("a plain path");
    proc.identity("pid_path", pid_path).starts(&format!("echo $$ > {pid_path}; {}", programs::foreground()))
}

/// The pid file names this process, and `nobody` has written it.
fn leave_pid_file(proc: &Proc, pid: u32) -> String {
    let path = proc.request["spec"]["identity"]["pid_path"].as_str().expect("it has one").to_owned();
    let _ = fs::remove_file(&path);
    fs::write(&path, pid.to_string()).expect("our own folder");
    std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
    path
}

/// The name of the agent and of the proc are no secret, so any user of the host can put them into an
/// environment.
#[test]
fn a_forged_mark_does_not_make_a_process_roots() {
    if !has(Need::Root, account() == "root") {
        return;
    }
    let up = up();
    let procs =
        [up.proc("by-mark").starts(&programs::foreground()), with_shared_pid_file(up.proc("by-pid-file"))];
    let strangers = procs.map(|proc| {
        let environment = fs::read(format!("/proc/{}/environ", proc.start())).expect("root may");
        let environment = String::from_utf8(environment).expect("plain text");
        let mark = environment.split('\0').find_map(|one| one.strip_prefix("PROCFLEET_PROC="));
        let forged =
            [("PROCFLEET_PROC", mark.expect("it bears a mark")), ("PROCFLEET_RUN", "99999999999999")];
        proc.op(Op::Stop).assert_success();
        let (mut stranger, folder) = namesake(&proc, &forged);
        if proc.name == "by-pid-file" {
            leave_pid_file(&proc, stranger.pid());
        }
        assert_eq!(proc.op(Op::Query).pid(), None, "{}", proc.name);
        assert!(stranger.is_running());
        (proc, stranger, folder)
    });
    up.kill_agent();
    for (proc, mut stranger, _folder) in strangers {
        assert_eq!(proc.op(Op::Query).pid(), None, "{}", proc.name);
        proc.op(Op::Kill).assert(829, "no need to kill");
        assert_eq!(proc.row().expect("it is known")["state"], "stopped", "{}", proc.name);
        if proc.name == "by-mark" {
            check_left_alone(&proc, &mut stranger);
        }
        assert!(stranger.is_running(), "{}: nobody's process is not ended for root's proc", proc.name);
    }
}

/// A `setup_path` that holds programs of everyone says nothing about a program of the proc's name there.
#[test]
fn a_namesake_in_a_common_folder_is_a_stranger() {
    let top = tempfile::Builder::new().prefix("procfleet-common-").tempdir_in("/");
    let Some(top) = need(Need::Root, top) else { return };
    let up = up();
    let procs = [("root", Path::new("/")), ("below-root", top.path())].map(|(name, folder)| {
        let proc_name = format!("common-{name}-{}", std::process::id());
        let proc = up.proc(name).identity("proc_name", &*proc_name);
        symlink("/bin/sleep", top.path().join(&proc_name)).expect("our own folder");
        symlink("/bin/sleep", proc.folder.join(&proc_name)).expect("our own folder");
        let program = top.path().join(&proc_name);
        let mut stranger = Program::new(&program).args(["1000"]).current_dir(folder);
        stranger.start();
        wait_until(PATIENCE, "the stranger runs its program", || {
            fs::read(format!("/proc/{}/cmdline", stranger.pid()))
                .is_ok_and(|line| line.starts_with(program.to_str().expect("a plain path").as_bytes()))
        });
        let command = format!("exec {} 1000", proc.folder.join(&proc_name).display());
        (proc.identity("setup_path", folder.to_str().expect("a plain path")).starts(&command), stranger)
    });
    for (proc, mut stranger) in procs {
        for (op, words) in [(Op::Stop, "no need to stop"), (Op::Kill, "no need to kill")] {
            proc.op(op).assert(829, words);
        }
        assert_eq!(proc.op(Op::Query).pid(), None, "{}", proc.name);
        proc.op(Op::Start).assert_success();
        let ours = proc.pid().expect("it runs");
        assert_ne!(ours, stranger.pid(), "{}", proc.name);
        assert_eq!(proc.op(Op::Query).pid(), Some(ours), "{}", proc.name);
        proc.op(Op::Stop).assert_success();
        assert!(!is_running(ours), "{}", proc.name);
        proc.op(Op::Kill).assert(829, "no need to kill");
        assert!(stranger.is_running(), "{}: the stranger was ended", proc.name);
    }
}

/// A program of the proc's name that `nobody` runs in the proc's folder, in a session of its own.
fn namesake(proc: &Proc, environment: &[(&str, &str)]) -> (Program, TempDir) {
    let elsewhere = tempfile::tempdir().expect("a temp dir");
    fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o755)).expect("our own folder");
    let namesake = elsewhere.path().join(programs::NAME);
    fs::copy("/bin/sleep", &namesake).expect("a copy");
    let namesake = namesake.to_str().expect("a plain path");
    let arguments = ["--reuid", "nobody", "--clear-groups", "setsid", namesake, "1000"];
    let mut stranger = Program::new("setpriv").args(arguments).current_dir(&proc.folder);
    for (name, value) in environment {
        stranger = stranger.env(name, value);
    }
    stranger.start();
    wait_until(PATIENCE, "the stranger runs its program", || {
        fs::read(format!("/proc/{}/cmdline", stranger.pid()))
            .is_ok_and(|line| line.starts_with(namesake.as_bytes()))
    });
    (stranger, elsewhere)
}

/// The stranger is neither shown nor ended, and root's process is started beside it.
fn check_left_alone(proc: &Proc, stranger: &mut Program) {
    assert_eq!(proc.op(Op::Query).pid(), None);
    let pid = proc.start();
    assert_ne!(pid, stranger.pid());
    proc.op(Op::Stop).assert_success();
    proc.op(Op::Kill).assert(829, "no need to kill");
    assert!(stranger.is_running(), "nobody's process is not ended for root's proc");
}

#[test]
fn a_process_that_was_started_by_hand_after_a_stop_is_in_the_status() {
    let up = up();
    let procs = [
        up.proc("with-pid-file").with_pid_file().starts(&programs::daemon()),
        up.proc("by-name").starts(&programs::foreground()),
        // A relative path is not used.
        up.proc("relative").identity("pid_path", programs::PID_FILE).starts(&programs::foreground()),
    ];
    at_once(procs, |proc| {
        proc.start();
        proc.op(Op::Stop).assert_success();
        assert_eq!(status(proc)["status"], 2, "{}", proc.name);
        let mut web = Program::new(proc.folder.join(programs::NAME)).args(["1000"]).current_dir(&proc.folder);
        web.start();
        fs::write(proc.folder.join(programs::PID_FILE), format!("{}\n", web.pid())).expect("our own folder");
        // No op is sent to the agent.
        let seen = wait_for(PATIENCE, "the status shows what was started by hand", || {
            Some(status(proc)).filter(|seen| seen["status"] == 1)
        });
        assert_eq!((&seen["pid"], &seen["isauto"]), (&json!(web.pid()), &json!(false)), "{seen}");
        let row = proc.row_with_pid(web.pid());
        assert_eq!(row["hosted"], false, "{row}");
        proc.op(Op::Stop).assert_success();
        wait_until(PATIENCE, "it was ended", || !is_running(web.pid()));
        assert_eq!(proc.op(Op::Query).pid(), None, "{}", proc.name);
    });
}
