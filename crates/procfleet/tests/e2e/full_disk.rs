//! Server and agent on a full disk.

use crate::events::events_of;
use crate::up;
use procfleet_testkit::{
    Disk, Finished, Joined, Op, PATIENCE, Proc, Program, Signal, Up, is_running, kill, programs, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::io::Write;

const IP: &str = "127.0.0.2";
const STORE_FAILED: u64 = 1_000_101;

#[track_caller]
fn assert_names_disk(said: &Finished, folder: &str) {
    let words = format!("the disk of {folder} is full; free some space there");
    assert!(said.stderr.contains(&words), "{said:?}");
    // systemd does not restart a program that exits with 78.
    assert_ne!(said.code, Some(78), "{said:?}");
}

/// An orderly end must not give up the disk blocks that the next start needs.
#[test]
fn server_and_agent_start_again_on_a_full_disk_and_stop_processes() {
    let Some((mut up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "32m") else { return };
    let procs =
        |up: &Up| ["queried", "stopped", "killed"].map(|name| up.proc(name).starts(&programs::foreground()));
    let pids = procs(&up).each_ref().map(Proc::start);
    // The first end is on a disk with free space, the second one on a full disk.
    for _ in 0..2 {
        up.end(Signal::TERM);
        disk.fill();
        up.again();
        up.wait_for_agent();
        let [queried, ..] = procs(&up);
        assert_eq!(queried.op(Op::Query).assert_success().pid(), Some(pids[0]));
    }
    let [_, stopped, killed] = procs(&up);
    stopped.op(Op::Stop).assert_success().assert_hosted(false);
    killed.op(Op::Kill).assert_success().assert_hosted(false);
    assert_eq!(pids.map(is_running), [true, false, false]);
    let refused = up.client.post("/api/v2/proc/operate_proc_v2", up.proc("new").body(Op::Start));
    refused.assert_refused(STORE_FAILED, &["the disk of the server's data folder is full"]);
    disk.free();
    stopped.start();
}

#[test]
fn an_agent_of_its_own_starts_again_on_a_full_disk_and_stops_a_process() {
    let up = up();
    let Some(disk) = Disk::mount(&up.folder("disk"), "32m") else { return };
    let data = disk.path().join("agent");
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("filler").on_host(IP).starts(&programs::foreground());
    let pid = proc.start();
    agent.end(Signal::TERM);
    disk.fill();
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, None);
    agent.wait_until_connected(&up, IP);
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(pid));
}

/// Queries must not use up the reserve, and SQLite's checkpoints must not give its blocks back to the disk,
/// where another process takes them at once.
#[test]
fn queries_on_a_full_disk_leave_the_reserve_to_a_stop() {
    let Some((up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "48m") else { return };
    let data = disk.path().join("second");
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("filler").on_host(IP).starts(&programs::foreground());
    let pid = proc.start();
    disk.fill();
    // Together more than a write-ahead log holds.
    let query =
        proc.clone().identity("index_key", "x".repeat(500)).starts(&"x".repeat(20_000)).body(Op::Query);
    let mut refused = 0;
    for _ in 0..400 {
        let answer = up.client.post("/api/v2/proc/operate_proc_v2", query.clone());
        refused += u32::from(answer.body["code"] != 0);
        // As a process does that writes without a pause.
        let more = fs::OpenOptions::new().create(true).append(true).open(disk.path().join("more"));
        let mut more = more.expect("an inode is free");
        while more.write_all(&[0; 4096]).is_ok() {}
    }
    assert!(refused > 0, "the last of the server's reserve is for stops");
    proc.policy("stop_check_secs", 60).op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(pid));
    assert!(agent.is_running());
}

/// Without the log that holds the reserved blocks, a start fails. So does a backup, which is a new file.
#[test]
fn a_start_without_its_log_and_a_backup_on_a_full_disk_name_the_disk() {
    let up = up();
    let Some(disk) = Disk::mount(&up.folder("disk"), "32m") else { return };
    let (agents, servers) = (disk.path().join("agent"), disk.path().join("server"));
    let mut agent = Joined::start(up.binary(), &up.link(), &agents, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    agent.end(Signal::TERM);
    let server = || {
        let args = ["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--data"];
        let mut server = Program::new(up.binary()).args(args).args([&servers]);
        server.start();
        server
    };
    let mut first = server();
    wait_until(PATIENCE, "the server is ready", || first.stdout().contains("ready"));
    first.end(Signal::TERM, PATIENCE);

    for database in [agents.join("agent.db"), servers.join("server.db")] {
        for ending in ["-wal", "-shm"] {
            let log = format!("{}{ending}", database.display());
            fs::remove_file(&log).expect("an orderly end keeps it");
        }
    }
    disk.fill();
    let mut agent = Joined::start(up.binary(), &up.link(), &agents, IP, None);
    assert_names_disk(&agent.finish(), &agents.display().to_string());
    assert_names_disk(&server().finish(PATIENCE), &servers.display().to_string());
    let file = disk.path().join("backup.db");
    let backup = up.cli(&["store", "backup", &file.display().to_string()]);
    assert_names_disk(&backup, &disk.path().display().to_string());
    assert!(!file.exists(), "no partial backup is left");
}

/// Otherwise events of the whole fleet would use up the reserve that stops and kills need.
#[test]
fn events_wait_on_their_hosts_while_the_disk_of_the_server_is_full() {
    check_that_events_wait(Disk::fill);
}

/// The session sees enough space, and the writer of the store does not.
#[test]
fn events_wait_in_their_session_while_the_store_has_no_space_for_them() {
    // Counts as not full. The log of the store has more than the rest.
    check_that_events_wait(|disk| disk.fill_except((1 << 20) + (128 << 10)));
}

#[track_caller]
fn check_that_events_wait(fill: fn(&Disk)) {
    let Some((up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "32m") else { return };
    let mut agent = Joined::start(up.binary(), &up.link(), &up.folder("agent"), IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("web").on_host(IP).starts(&programs::foreground());
    let first = proc.start();
    wait_until(PATIENCE, "the event of the start", || events_of(&up, &proc).len() == 1);
    fill(&disk);
    kill(first, Signal::KILL);
    wait_until(PATIENCE, "it is started again", || proc.program_pid().is_some_and(|pid| pid != first));
    let delayed = "procfleet_agent_delayed_total{what=\"events\"}";
    wait_until(PATIENCE, "the events wait", || up.client.page("/metrics").text.contains(delayed));
    assert_eq!(events_of(&up, &proc).len(), 1);
    proc.op(Op::Stop).assert_success().assert_hosted(false);
    disk.free();
    let has_exited = || events_of(&up, &proc).iter().any(|event| event["kind"] == "exited");
    wait_until(PATIENCE, "the event of the exit", has_exited);
    assert!(!up.stderr().contains("storing a message failed"), "the session ended");
}

#[test]
fn a_refused_call_is_not_logged_as_lost() {
    let Some((up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "32m") else { return };
    disk.fill();
    // The store holds some space in advance; large requests use it up.
    let mut element = up.proc("large").on_host("127.9.9.9").starts(&"x".repeat(30_000)).body(Op::Stop);
    let elements: Vec<Value> = (0..20)
        .map(|number| {
            element["meta"]["name"] = json!(format!("large-{number}"));
            element.clone()
        })
        .collect();
    wait_until(PATIENCE, "a call is refused", || {
        let body = json!({"proc_operate_req": elements});
        up.client.post("/api/v2/proc/operate_proc_multi", body).body["code"] == STORE_FAILED
    });
    let log = up.stderr();
    assert!(log.contains("these changes are refused, and nothing of them is stored"), "{log}");
    assert!(!log.contains("changes lost"), "{log}");
    disk.free();
}
