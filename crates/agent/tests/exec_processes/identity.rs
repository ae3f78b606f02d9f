//! Who a process is: what a pid file may be and what it is answered with, numbers that are given out twice,
//! and programs that replace themselves. The table of pid files is that of docs/process/identity.md.

use crate::support::*;
use procfleet_core::process::{Cause, Evidence, Process, ProgramFile};
use procfleet_core::spec::Detached;
use procfleet_core::supervise::Signal;
use procfleet_testkit::{Need, has, need};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;

/// What is put where the pid file should be.
enum Put<'a> {
    Nothing,
    Bytes(Vec<u8>),
    Link(&'a str),
    Fifo,
    Folder,
}

#[tokio::test]
async fn every_kind_of_pid_file_is_answered() {
    let mut proc = Proc::with_pid_file("pid-file-table");
    let path = proc.spec.identity.pid_path.clone();
    let by_hand = Stranger::start(proc.path("web"), proc.folder.path());
    let own = by_hand.pid().to_string();
    proc.write("another.pid", &own);
    let kernel_thread = (2..100).find(|pid| fs::read_link(format!("/proc/{pid}/exe")).is_err());
    let kernel_thread = kernel_thread.filter(|pid| state_of(*pid).is_some()).unwrap_or(1).to_string();
    let us = std::process::id().to_string();
    let other = proc.path("another.pid");
    let (other, huge, word) = (other.to_str().expect("a plain path"), "9".repeat(20), "9".repeat(5_000));
    let filled = [own.as_bytes(), b"\n", &vec![b'x'; 4 << 20]].concat();
    let bad = |reason: &str| format!("pid file {path} cannot be used: {reason}");
    let ours = || "ours".to_owned();
    let dead = format!("pid file {path} names pid 4194304, which is not running");
    let strange = |pid: &str| format!("pid file {path} names pid {pid}, which is another program");
    let rows: Vec<(&str, Put<'_>, String)> = vec![
        ("late: not yet there", Put::Nothing, format!("pid file {path} does not exist")),
        ("empty", Put::Bytes(b"".to_vec()), bad("is empty")),
        ("white space", Put::Bytes(b" \n\t\n".to_vec()), bad("is empty")),
        ("a pid", Put::Bytes(own.clone().into()), ours()),
        ("a pid and a line end", Put::Bytes(format!("  {own}\r\n").into()), ours()),
        ("several numbers", Put::Bytes(format!("{own}\n5432\n").into()), ours()),
        ("text after the pid", Put::Bytes(format!("{own} web: master\n").into()), ours()),
        ("4 MiB after the pid", Put::Bytes(filled), ours()),
        (
            "text joined to the pid",
            Put::Bytes(format!("{own}x").into()),
            bad(&format!("its content \"{own}x\" is not a pid")),
        ),
        ("a name", Put::Bytes(b"web".to_vec()), bad("its content \"web\" is not a pid")),
        (
            "binary",
            Put::Bytes(b"\x7fELF\0\xff\xfe".to_vec()),
            bad("its content \"\\u{7f}ELF\\0\u{fffd}\u{fffd}\" is not a pid"),
        ),
        (
            "a huge number",
            Put::Bytes(huge.clone().into()),
            bad(&format!("its content {huge:?} is not a pid")),
        ),
        (
            "a huge word",
            Put::Bytes(word.clone().into()),
            bad(&format!("its content {:?} is not a pid", &word[..64])),
        ),
        ("zero", Put::Bytes(b"0".to_vec()), bad("its content \"0\" is not a pid")),
        ("a negative number", Put::Bytes(b"-1".to_vec()), bad("its content \"-1\" is not a pid")),
        ("stale: a dead pid", Put::Bytes(b"4194304\n".to_vec()), dead),
        ("the first process", Put::Bytes(b"1\n".to_vec()), strange("1")),
        ("the agent itself", Put::Bytes(us.clone().into()), strange(&us)),
        ("a kernel thread", Put::Bytes(kernel_thread.clone().into()), strange(&kernel_thread)),
        ("a link to a file", Put::Link(other), ours()),
        ("a link to nothing", Put::Link("/nowhere/at/all"), bad("is a link to a file that does not exist")),
        ("a link to itself", Put::Link("web.pid"), bad("Too many levels of symbolic links (os error 40)")),
        ("a link into /proc", Put::Link("/proc/self/stat"), bad("is one of the kernel's own files")),
        ("a link to a device", Put::Link("/dev/zero"), bad("is not a regular file")),
        ("a pipe", Put::Fifo, bad("is not a regular file")),
        ("a folder", Put::Folder, bad("is not a regular file")),
    ];
    for (what, put, expected) in rows {
        let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir(&path));
        match put {
            Put::Nothing => {}
            Put::Bytes(bytes) => proc.write("web.pid", bytes),
            Put::Link(to) => symlink(to, &path).expect("our own folder"),
            Put::Fifo => _ = proc.fifo("web.pid"),
            Put::Folder => fs::create_dir(&path).expect("our own folder"),
        }
        let seen = match proc.settled() {
            procfleet_core::Sighting::Running(process) => {
                assert_eq!(process.pid, by_hand.pid(), "{what}");
                ours()
            }
            procfleet_core::Sighting::Absent(absence) => absence.cause.to_string(),
        };
        assert!(seen.starts_with(&expected), "{what}: {seen:?} is not {expected:?}");
    }
}

/// What others may have written makes nobody ours; what we have started ourselves is ours whoever says so.
#[tokio::test]
async fn a_pid_file_that_others_may_write_is_believed_only_for_what_we_started() {
    let mut proc = Proc::with_pid_file("untrusted");
    let path = proc.spec.identity.pid_path.clone();
    let mut by_hand = Stranger::start(proc.path("web"), proc.folder.path());
    proc.write("web.pid", by_hand.pid().to_string());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("our own file");
    let untrusted =
        |pid: u32, reason: &str| Cause::Untrusted { path: path.clone(), pid, reason: reason.to_owned() };
    assert_eq!(cause(proc.settled()), untrusted(by_hand.pid(), "anybody may write it"));
    assert_eq!(cause(proc.recovered(None)), untrusted(by_hand.pid(), "anybody may write it"));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("our own file");
    if me() == "root" {
        let nobody =
            nix::unistd::User::from_name("nobody").expect("accounts").expect("there is a nobody").uid;
        chown(&path, Some(nobody.as_raw()), None).expect("root may");
        assert_eq!(cause(proc.settled()), untrusted(by_hand.pid(), "it belongs to account \"nobody\""));
        chown(&path, Some(0), None).expect("root may");
    }
    assert_eq!(running(proc.settled()).pid, by_hand.pid());
    by_hand.assert_unharmed();

    let run = proc.run("exec ./web 1000");
    let started = until("it runs", || match proc.launched(run, procfleet_core::supervise::Leader::Accept) {
        procfleet_core::Sighting::Running(process) if process.pid != by_hand.pid() => Some(process.pid),
        _ => {
            let _ = fs::remove_file(&path);
            None
        }
    })
    .await;
    until_called(started, "web").await;
    proc.write("web.pid", started.to_string());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("our own file");
    assert_eq!(running(proc.settled()).pid, started, "it bears our mark");
}

/// A link or a folder of a third party decides nothing: neither which pid file is read nor which folder is
/// meant.
#[tokio::test]
async fn a_path_that_a_third_account_controls_is_not_used() {
    if !has(Need::Root, me() == "root") {
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").expect("accounts").expect("there is a nobody").uid;
    let mut proc = Proc::new("led-astray");
    let mut victim = Stranger::start(proc.path("web"), proc.folder.path());
    proc.write("victim.pid", victim.pid().to_string());
    for (folder, mode) in [("theirs", 0o755), ("shared", 0o1777), ("open", 0o777)] {
        fs::create_dir(proc.path(folder)).expect("our own folder");
        fs::set_permissions(proc.path(folder), fs::Permissions::from_mode(mode)).expect("our own folder");
    }
    chown(proc.path("theirs"), Some(nobody.as_raw()), None).expect("root may");
    let link = |at: &str, to: &str, owner: u32| {
        symlink(proc.path(to), proc.path(at)).expect("our own folder");
        lchown(proc.path(at), Some(owner), None).expect("root may");
    };
    link("theirs/web.pid", "victim.pid", nobody.as_raw());
    link("shared/web.pid", "victim.pid", nobody.as_raw());
    link("shared/ours.pid", "victim.pid", 0);
    link("open/web.pid", "victim.pid", 0);
    link("ours.pid", "shared/ours.pid", 0);
    link("further.pid", "shared/web.pid", 0);
    fs::hard_link(proc.path("victim.pid"), proc.path("shared/hard.pid")).expect("our own folder");
    let rows = [
        ("theirs/web.pid", Some("/theirs belongs to account \"nobody\"")),
        ("shared/web.pid", Some("/shared/web.pid belongs to account \"nobody\"")),
        ("further.pid", Some("/shared/web.pid belongs to account \"nobody\"")),
        ("open/web.pid", Some("anybody may write the folder")),
        ("shared/hard.pid", Some("it has another name")),
        ("shared/ours.pid", None),
        ("ours.pid", None),
        ("victim.pid", None),
    ];
    for (file, doubt) in rows {
        proc.spec.identity.pid_path = proc.path(file).to_str().expect("a plain path").to_owned();
        for sighting in [proc.settled(), proc.recovered(None)] {
            match doubt {
                None => assert_eq!(running(sighting).pid, victim.pid(), "{file}"),
                Some(doubt) => {
                    let seen = cause(sighting);
                    let pid = victim.pid();
                    assert!(
                        matches!(&seen, Cause::Untrusted { pid: named, reason, .. }
                            if *named == pid && reason.contains(doubt)),
                        "{file}: {seen}"
                    );
                }
            }
        }
    }
    // Of the spec's own account, links are good; and then the process must be that account's.
    proc.spec.identity.user = "nobody".to_owned();
    proc.spec.identity.pid_path = proc.path("theirs/web.pid").to_str().expect("a plain path").to_owned();
    assert!(matches!(cause(proc.settled()), Cause::AnotherAccounts { .. }));

    // The folder: without a pid file, the process is known by its name and its folder.
    proc.spec.identity.user = me();
    proc.spec.identity.pid_path.clear();
    assert_eq!(running(proc.settled()).pid, victim.pid());
    let folder = proc.folder.path().to_owned();
    let given = |at: &str| proc.path(at).to_str().expect("a plain path").to_owned();
    let (astray, own) = (given("shared/folder"), given("shared/own"));
    symlink(&folder, &astray).expect("our own folder");
    lchown(&astray, Some(nobody.as_raw()), None).expect("root may");
    symlink(&folder, &own).expect("our own folder");
    proc.spec.identity.setup_path = astray;
    assert!(matches!(cause(proc.settled()), Cause::NoSuchName { .. }));
    let run = proc.run("true");
    let procfleet_core::supervise::CommandEnd::NotStarted { code, reason } = proc.end_of(run).await else {
        panic!("it was started")
    };
    assert_eq!(code, procfleet_core::Code::FileInvalid);
    assert!(reason.contains("/shared/folder belongs to account \"nobody\""), "{reason}");
    proc.spec.identity.setup_path = own;
    assert_eq!(running(proc.settled()).pid, victim.pid());
    assert_eq!(proc.output_of("pwd -P").await.1.trim(), folder.to_str().expect("a plain path"));
    victim.assert_unharmed();
}

/// A number that was given out twice within one tick: all that is written down is the same but the kernel's
/// own number.
#[tokio::test]
async fn a_recycled_pid_with_the_same_start_time_is_a_stranger() {
    let mut proc = Proc::with_pid_file("same-tick");
    let mut stranger = Stranger::start("/bin/sleep", Path::new("/"));
    let pid = stranger.pid();
    until_called(pid, "sleep").await;
    let data = fs::metadata(format!("/proc/{pid}/exe")).expect("it runs");
    let program = Some(ProgramFile::at(data.dev(), data.ino()));
    let alike = process(pid);
    let known = |evidence| Process { evidence, ..alike };
    assert_eq!(running(proc.recovered(Some(alike))).pid, pid, "an old record says no more");
    let same = known(Evidence { program, ..Evidence::default() });
    assert_eq!(running(proc.recovered(Some(same))).pid, pid, "what it runs agrees");
    let mut others = vec![known(Evidence { program: Some(ProgramFile::at(1, 2)), ..Evidence::default() })];
    if has_serials() {
        others.push(known(Evidence { serial: 1.try_into().ok(), program, run: None }));
    }
    for recycled in others {
        let seen = cause(proc.recovered(Some(recycled)));
        assert!(matches!(seen, Cause::NoPidFile { .. }), "{seen}");
    }
    if has_serials() {
        let recycled = known(Evidence { serial: 1.try_into().ok(), program, run: None });
        proc.executor.signal(recycled, Signal::Term, Detached::End);
        proc.executor.signal(recycled, Signal::Kill, Detached::End);
        proc.executor.watch(recycled);
        assert_eq!(
            proc.exit_of(recycled).await,
            procfleet_core::Exit::Unknown,
            "the one that was known is gone"
        );
    }
    stranger.assert_unharmed();
}

/// A program that becomes another by exec is the same process, and the agent that comes back knows it.
#[tokio::test]
async fn a_process_that_becomes_another_program_stays_itself() {
    if !has_serials() {
        return;
    }
    let mut proc = Proc::new("re-exec");
    proc.spec.identity.proc_name = "other".to_owned();
    let go = proc.fifo("go");
    let run = proc.run("read line < go; exec ./web 1000");
    let shell = running(proc.launched(run, procfleet_core::supervise::Leader::Accept));
    assert!(shell.evidence.serial.is_some() && shell.evidence.program.is_some(), "{shell:?}");
    fs::write(go, "now\n").expect("it reads");
    until_called(shell.pid, "web").await;
    proc.forget();
    assert_eq!(running(proc.recovered(Some(shell))).pid, shell.pid);
}

#[tokio::test]
async fn a_program_that_replaces_itself_is_followed_by_its_pid_file() {
    let mut proc = Proc::with_pid_file("successor");
    proc.run("exec ./web 1000");
    let old = until("it runs", || match proc.settled_without_file() {
        procfleet_core::Sighting::Running(process) if comm(process.pid) == "web" => Some(process),
        _ => None,
    })
    .await;
    let spec = proc.spec.clone();
    assert_eq!(proc.executor.successor(&old, &spec), None, "there is no file");
    proc.write("web.pid", old.pid.to_string());
    assert_eq!(proc.executor.successor(&old, &spec), None, "it is the one");
    let mut stranger = Stranger::start("/bin/sleep", Path::new("/"));
    proc.write("web.pid", stranger.pid().to_string());
    assert_eq!(proc.executor.successor(&old, &spec), None, "a stranger takes nobody's place");
    proc.run("echo $$ > web.pid; exec ./web 1000");
    let new = until("the new one says its pid", || proc.executor.successor(&old, &spec)).await;
    assert_eq!(new.pid, proc.pid_in("web.pid").await);
    assert!(is_running(old.pid), "the old one goes on for a while");
    stranger.assert_unharmed();
}

/// Whether this kernel gives every process a number of its own; `false`: the tests were told to do without.
#[track_caller]
fn has_serials() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("this is Linux");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let enough = (numbers.next(), numbers.next()) >= (Some(6), Some(9));
    need(Need::ProcessNumbers, enough.then_some(()).ok_or(format!("it runs {}", release.trim()))).is_some()
}
