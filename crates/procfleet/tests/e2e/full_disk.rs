//! Messages on a full disk: they say that the disk is full, and which one.

use crate::up;
use procfleet_testkit::{Disk, Finished, Joined, Op, PATIENCE, Program, Signal, Up, wait_until};
use serde_json::{Value, json};

const IP: &str = "127.0.0.2";
const STORE_FAILED: u64 = 1_000_101;

#[track_caller]
fn assert_names_disk(said: &Finished, folder: &str) {
    let words = format!("the disk of {folder} is full; free some space there");
    assert!(said.stderr.contains(&words), "{said:?}");
}

#[test]
fn a_start_on_a_full_disk_names_the_disk() {
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

    disk.fill();
    let mut agent = Joined::start(up.binary(), &up.link(), &agents, IP, None);
    assert_names_disk(&agent.finish(), &agents.display().to_string());
    assert_names_disk(&server().finish(PATIENCE), &servers.display().to_string());
    let file = disk.path().join("backup.db");
    let backup = up.cli(&["store", "backup", &file.display().to_string()]);
    assert_names_disk(&backup, &disk.path().display().to_string());
    assert!(!file.exists(), "half a backup is none");
}

#[test]
fn a_refused_call_is_not_logged_as_lost() {
    let Some((up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "32m") else { return };
    disk.fill();
    // The store holds some blocks in advance; large requests use them up.
    let mut element = up.proc("large").on_host("127.9.9.9").starts(&"x".repeat(30_000)).body(Op::Query);
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
