//! Faults around the agent: starts that end it, pid files that mislead, procs that were unregistered.

use crate::up;
use procfleet_testkit::{Op, PATIENCE, is_running, programs};
use serde_json::json;
use std::fs;

/// It would take the agent down for ever, and with it everything else on the host.
#[test]
fn a_process_whose_start_kills_the_agent_is_given_up() {
    let up = up();
    let bystander = up.proc("bystander").starts(&programs::foreground());
    let pid = bystander.start();
    let proc = up.proc("deadly").policy("start_retries", 2).starts("echo run >> runs; kill -9 $PPID; exit 1");
    proc.op(Op::Host).assert(805, "interrupted");
    let row = proc.row_when(PATIENCE, "gave_up");
    assert!(row["note"].as_str().is_some_and(|note| note.contains("gave up after 2 restarts")), "{row}");
    assert_eq!(proc.runs(), 3, "one by order and two restarts");
    assert_eq!((bystander.pid(), bystander.runs()), (Some(pid), 1), "nobody else notices");
}

/// Unregistering leaves the process running. A later start of the proc must not start a second one.
#[test]
fn an_unregistered_process_is_found_again() {
    let up = up();
    // Neither a pid file nor its name tells where it is.
    let proc = up.proc("forgotten").identity("proc_name", "other").starts(&programs::foreground());
    let pid = proc.start();
    let hosts = json!([{"ip": "127.0.0.1", "bk_cloud_id": 0, "bk_supplier_id": 0}]);
    let meta = proc.body(Op::Start)["meta"].clone();
    let unregister = json!({"meta": meta, "hosts": hosts});
    up.client.post("/api/c/compapi/v2/gse/unregister_proc_info/", unregister).data();
    proc.op(Op::Start).assert(828, "no need to start");
    assert_eq!((proc.pids(), proc.runs()), (vec![pid], 1));
    proc.op(Op::Stop).assert_success();
    assert!(proc.pids().is_empty() && !is_running(pid));
}

/// Neither the agent nor its parent is ever taken for a supervised process, in spite of a pid file and a
/// name.
#[test]
fn a_pid_file_that_names_procfleet_itself() {
    let up = up();
    let (server, agent) = (up.pid(), up.agent_pid());
    for (name, pid) in [("server", server), ("agent", agent), ("init", 1)] {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).expect("it runs");
        let proc = up.proc(name).identity("proc_name", comm.trim()).with_pid_file().starts("true");
        fs::write(proc.folder.join(programs::PID_FILE), format!("{pid}\n")).expect("our own folder");
        assert_eq!(proc.op(Op::Query).assert_success().pid(), None, "{name}");
        proc.op(Op::Stop).assert(829, "no need to");
        proc.op(Op::Kill).assert(829, "no need to");
        proc.op(Op::Start).assert(836, "start process");
    }
    assert_eq!((up.pid(), up.agent_pid()), (server, agent), "nobody was ended");
}
