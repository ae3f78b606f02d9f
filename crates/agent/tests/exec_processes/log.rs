//! The proc's own log: where it is, what it holds, and that nobody is led astray by it.

use crate::support::*;
use procfleet_core::Exit;
use procfleet_testkit::{Need, has};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

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
    assert_eq!(proc.hands.note(), "");
    // Others may rotate it.
    fs::rename(&log, proc.path("logs/old")).expect("ours");
    proc.output_of("echo one; echo two >&2").await;
    assert_eq!(fs::read_to_string(&log).expect("it was made anew"), "one\ntwo\n");
}

#[tokio::test]
async fn what_is_no_folder_is_no_log() {
    let mut proc = Proc::new("unlogged");
    proc.spec.control.start_cmd = "echo hi".to_owned();
    proc.write("file", "");
    let path = |file: &str| proc.path(file).to_str().expect("a plain path").to_owned();
    let rows = [
        (path("file"), ""),
        (path("missing"), ""),
        (path("file/"), "cannot be used by user"),
        (path("no/such/"), "cannot be used by user"),
        ("relative/".to_owned(), "is not an absolute path"),
    ];
    for (log_path, note) in rows {
        proc.spec.identity.log_path = log_path.clone();
        assert_eq!(proc.output_of("echo hi").await.1, "hi\n", "{log_path}: it is started all the same");
        let said = proc.hands.note();
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
    assert!(proc.hands.note().contains("cannot be used"), "{}", proc.hands.note());
    assert_eq!(fs::read_to_string(proc.path("secret")).expect("ours"), "mine\n");
    fs::remove_file(proc.path("logs/astray.log")).expect("ours");
    proc.fifo("logs/astray.log");
    assert_eq!(proc.output_of("echo hi").await.1, "hi\n", "nobody waits for a reader");
    assert!(proc.hands.note().contains("is not a regular file"), "{}", proc.hands.note());

    if !has(Need::Root, nix::unistd::geteuid().is_root()) {
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").expect("passwd").expect("there is a nobody");
    proc.spec.identity.user = "nobody".to_owned();
    fs::remove_file(proc.path("logs/astray.log")).expect("ours");
    proc.write("logs/astray.log", "root's\n");
    proc.output_of("echo hi").await;
    assert!(proc.hands.note().contains("Permission denied"), "{}", proc.hands.note());
    let owner = |file: &str| fs::metadata(proc.path(file)).expect("it is there").uid();
    assert_eq!(owner("logs/astray.log"), 0, "it is given to nobody");
    fs::set_permissions(proc.folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    proc.spec.identity.log_path = proc.path("theirs/").to_str().expect("a plain path").to_owned();
    proc.output_of("echo hi").await;
    let owner = |file: &str| fs::metadata(proc.path(file)).expect("it is there").uid();
    assert_eq!((owner("theirs"), owner("theirs/astray.log")), (nobody.uid.as_raw(), nobody.uid.as_raw()));
}
