//! The proc's own log: where it is, what it holds, and that nobody is led astray by it.

use crate::support::*;
use procfleet_core::Exit;
use procfleet_testkit::{Need, has};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

#[tokio::test]
async fn a_start_writes_behind_what_is_in_the_log() {
    let mut proc = Proc::new("logged");
    proc.spec.identity.log_path = proc.path("logs/").to_str().expect("a plain path").to_owned();
    proc.spec.control.start_cmd = "echo one; echo two >&2".to_owned();
    proc.spec.control.restart_cmd = "echo again; exit 3".to_owned();
    let log = proc.path("logs/logged.log");
    assert_eq!(proc.output_of("echo one; echo two >&2").await, (Exit::Code(0), "one\ntwo\n".to_owned()));
    assert_eq!(fs::read_to_string(&log).expect("it was made"), "one\ntwo\n");
    // The outcome has only what this command wrote.
    assert_eq!(proc.output_of("echo again; exit 3").await, (Exit::Code(3), "again\n".to_owned()));
    assert_eq!(proc.output_of("echo stopping").await, (Exit::Code(0), "stopping\n".to_owned()));
    assert_eq!(fs::read_to_string(&log).expect("it is there"), "one\ntwo\nagain\n");
    assert_eq!(proc.executor.note(), "");
    // Others may rotate it.
    fs::rename(&log, proc.path("logs/old")).expect("ours");
    proc.output_of("echo one; echo two >&2").await;
    assert_eq!(fs::read_to_string(&log).expect("it was made anew"), "one\ntwo\n");
}

#[tokio::test]
async fn a_log_path_that_is_not_a_folder_is_refused() {
    let mut proc = Proc::new("unlogged");
    proc.spec.control.start_cmd = "echo hi".to_owned();
    proc.write("file", "");
    let path = |file: &str| proc.path(file).to_str().expect("a plain path").to_owned();
    let rows = [
        (String::new(), ""),
        (path("file"), "is no folder"),
        (path("missing"), "is no folder"),
        ("relative".to_owned(), "is not an absolute path"),
        (path("file/"), "cannot be used by user"),
        (path("no/such/"), "cannot be used by user"),
        ("relative/".to_owned(), "is not an absolute path"),
    ];
    for (log_path, note) in rows {
        proc.spec.identity.log_path = log_path.clone();
        assert_eq!(proc.output_of("echo hi").await.1, "hi\n", "{log_path}: it is started all the same");
        let said = proc.executor.note();
        assert!(said.contains(note) && said.is_empty() == note.is_empty(), "{log_path}: {said}");
    }
}

/// The folder is the account's, and the agent may be root.
#[tokio::test]
async fn a_link_in_the_folder_leads_nowhere() {
    let mut proc = Proc::new("astray");
    proc.spec.control.start_cmd = "echo hi".to_owned();
    fs::create_dir(proc.path("logs")).expect("ours");
    proc.spec.identity.log_path = proc.path("logs").to_str().expect("a plain path").to_owned();
    proc.write("secret", "mine\n");
    symlink(proc.path("secret"), proc.path("logs/astray.log")).expect("ours");
    assert_eq!(proc.output_of("echo hi").await.1, "hi\n");
    assert!(proc.executor.note().contains("cannot be used"), "{}", proc.executor.note());
    assert_eq!(fs::read_to_string(proc.path("secret")).expect("ours"), "mine\n");
    fs::remove_file(proc.path("logs/astray.log")).expect("ours");
    proc.fifo("logs/astray.log");
    assert_eq!(proc.output_of("echo hi").await.1, "hi\n", "nobody waits for a reader");
    assert!(proc.executor.note().contains("is not a regular file"), "{}", proc.executor.note());

    if !has(Need::Root, nix::unistd::geteuid().is_root()) {
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").expect("passwd").expect("there is a nobody");
    proc.spec.identity.user = "nobody".to_owned();
    fs::remove_file(proc.path("logs/astray.log")).expect("ours");
    proc.write("logs/astray.log", "root's\n");
    proc.output_of("echo hi").await;
    assert!(proc.executor.note().contains("Permission denied"), "{}", proc.executor.note());
    let owner = |file: &str| fs::metadata(proc.path(file)).expect("it is there").uid();
    assert_eq!(owner("logs/astray.log"), 0, "it is given to nobody");
    fs::set_permissions(proc.folder.path(), fs::Permissions::from_mode(0o1777)).expect("ours");
    proc.spec.identity.log_path = proc.path("theirs/").to_str().expect("a plain path").to_owned();
    proc.output_of("echo hi").await;
    let owner = |file: &str| fs::metadata(proc.path(file)).expect("it is there").uid();
    assert_eq!((owner("theirs"), owner("theirs/astray.log")), (nobody.uid.as_raw(), nobody.uid.as_raw()));
}

/// A third party that could lead the way to the folder elsewhere does not get root to write there.
#[tokio::test]
async fn a_log_path_that_other_accounts_control_is_not_used() {
    if !has(Need::Root, nix::unistd::geteuid().is_root()) {
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").expect("passwd").expect("there is a nobody").uid;
    let mut proc = Proc::new("detour");
    proc.spec.control.start_cmd = "echo hi".to_owned();
    for (folder, mode) in [("secret", 0o700), ("theirs", 0o755), ("shared", 0o1777), ("open", 0o777)] {
        fs::create_dir(proc.path(folder)).expect("ours");
        fs::set_permissions(proc.path(folder), fs::Permissions::from_mode(mode)).expect("ours");
    }
    chown(proc.path("theirs"), Some(nobody.as_raw()), None).expect("root may");
    for (folder, owner) in [("theirs", nobody.as_raw()), ("shared", nobody.as_raw()), ("open", 0)] {
        let link = proc.path(folder).join("logs");
        symlink(proc.path("secret"), &link).expect("ours");
        lchown(&link, Some(owner), None).expect("root may");
    }
    let path = |file: &str| proc.path(file).to_str().expect("a plain path").to_owned();
    let rows = [
        (path("theirs/logs"), "belongs to account \"nobody\""),
        (path("theirs/logs/new/"), "belongs to account \"nobody\""),
        (path("shared/logs"), "/shared/logs belongs to account \"nobody\""),
        (path("open/logs"), "anybody may write the folder"),
    ];
    for (log_path, note) in rows {
        proc.spec.identity.log_path = log_path.clone();
        assert_eq!(proc.output_of("echo hi").await.1, "hi\n", "{log_path}: it is started all the same");
        assert!(proc.executor.note().contains(note), "{log_path}: {}", proc.executor.note());
    }
    assert_eq!(fs::read_dir(proc.path("secret")).expect("ours").count(), 0);
    // A folder of theirs at the end is harmless: nothing in it is followed, and no other name of a file is
    // used.
    proc.spec.identity.log_path = proc.path("theirs").to_str().expect("a plain path").to_owned();
    proc.output_of("echo hi").await;
    assert_eq!(proc.executor.note(), "");
    fs::remove_file(proc.path("theirs/detour.log")).expect("it was made");
    proc.write("mine", "mine\n");
    fs::hard_link(proc.path("mine"), proc.path("theirs/detour.log")).expect("ours");
    proc.output_of("echo hi").await;
    assert!(proc.executor.note().contains("has another name"), "{}", proc.executor.note());
    assert_eq!(fs::read_to_string(proc.path("mine")).expect("ours"), "mine\n");
    // A link of root's own is as good as the folder.
    symlink("secret", proc.path("link")).expect("ours");
    proc.spec.identity.log_path = proc.path("link").to_str().expect("a plain path").to_owned();
    proc.output_of("echo hi").await;
    assert_eq!(proc.executor.note(), "");
    assert_eq!(fs::read_to_string(proc.path("secret/detour.log")).expect("it was made"), "hi\n");
}
