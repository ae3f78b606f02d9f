//! Peers that fall silent without closing their connection: a host that hangs, a server that is stopped.

use crate::up;
use procfleet_testkit::{Joined, Op, PATIENCE, Signal, Up, kill, wait_for, wait_until};
use serde_json::{Value, json};

const HOST: &str = "127.0.3.1";
/// Silence is noticed after 30 s, which unit tests of both sides check; the rest is for a busy machine.
const NOTICED: std::time::Duration = PATIENCE.saturating_mul(4);

/// Seconds after its sending in which a message may be read. Less than the server needs to notice the
/// silence.
const LATE: i64 = 20;

/// A process that is stopped goes on when the test is over, so that it can end.
pub(crate) struct Stopped(u32);

impl Stopped {
    pub(crate) fn stop(pid: u32) -> Stopped {
        kill(pid, Signal::STOP);
        Stopped(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.0, Signal::CONT);
    }
}

fn joined(up: &Up) -> Joined {
    let token = up.token(&["--uses", "1"]);
    let mut agent = Joined::start(up.binary(), &up.link(), &up.folder("second"), HOST, Some(&token));
    agent.wait_until_connected(up, HOST);
    agent
}

/// The agent's status for GSE's callers.
#[track_caller]
fn details(up: &Up) -> Value {
    let asked = json!({"agent_id_list": [format!("0:{HOST}")]});
    let details = up.client.post("/api/v2/cluster/list_agent_info", asked.clone()).data()[0].clone();
    let state = up.client.post("/api/v2/cluster/list_agent_state", asked).data()[0].clone();
    assert_eq!(details["status_code"], state["status_code"], "{details} {state}");
    details
}

#[track_caller]
fn row(up: &Up) -> Value {
    let agents = up.client.data("/api/v1/agents");
    agents
        .as_array()
        .expect("a list")
        .iter()
        .find(|agent| agent["ip"] == HOST)
        .expect("it has joined")
        .clone()
}

fn number(row: &Value, field: &str) -> i64 {
    row[field].as_i64().unwrap_or_else(|| panic!("{field} of {row}"))
}

#[test]
fn an_agent_that_hangs_is_shown_as_away() {
    let up = up();
    let agent = joined(&up);
    let proc = up.proc("quiet").on_host(HOST).policy("auto_type", 2).starts("true");
    proc.op(Op::Start).assert_success();
    let query = json!({"meta": proc.request["meta"], "hosts": proc.request["hosts"]});
    let info =
        || up.client.post("/api/v2/proc/get_proc_status_v2", query.clone()).data()["proc_infos"][0].clone();
    let connected = number(&row(&up), "since");
    // The agent has nothing to send but heartbeats.
    let heard = wait_for(NOTICED, "a heartbeat counts as heard", || {
        let seen = details(&up);
        (number(&seen, "report_time") > connected + 5).then_some(seen)
    });
    assert_eq!(heard["status_code"], 2);
    let told = info();
    assert!(
        number(&told, "report_time") >= number(&heard, "report_time"),
        "nothing has changed since: {told}"
    );
    assert_eq!(number(&row(&up), "since"), connected, "it has not connected again");

    let stopped = Stopped::stop(agent.pid());
    let at = now_secs();
    wait_until(NOTICED, "it shows as away", || row(&up)["connected"] == false);
    let away = details(&up);
    assert_eq!(away["status_code"], -1, "{away}");
    for field in ["report_time", "last_work_time"] {
        let last = number(&away, field);
        assert!(number(&heard, field) <= last && last <= at + LATE, "{field}: stopped at {at}: {away}");
    }
    assert!(number(&info(), "report_time") <= at + LATE, "{}", info());
    assert!(number(&row(&up), "since") > at, "it counts as away from when that was noticed");
    assert!(up.cli(&["agents"]).stdout.contains("LAST HEARD"));
    drop(stopped);
    wait_until(NOTICED, "it is back", || row(&up)["connected"] == true);
}

#[test]
fn an_agent_leaves_a_server_that_is_silent() {
    let up = up();
    let agent = joined(&up);
    let stopped = Stopped::stop(up.pid());
    wait_until(NOTICED, "the agent's log says so", || {
        agent.stderr().contains("the server has been silent for")
    });
    drop(stopped);
    wait_until(NOTICED, "it is back", || row(&up)["connected"] == true);
}

fn now_secs() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_secs()).expect("not that late")
}
