//! The database fails over to an asynchronous standby that lacks the last changes. Two servers, their agents
//! and the operations go on.

use crate::access::{OTHER, done};
use crate::events::events_of;
use crate::postgres::{RESULT, name};
use crate::questions::agent_at;
use crate::several_servers::{OtherServer, row};
use procfleet_testkit::{
    Client, Cluster, Joined, Op, PATIENCE, Proc, Signal, Up, is_running, kill, programs, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");
const OPERATE: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
const OPERATE_MULTI: &str = "/api/c/compapi/v2/gse/operate_proc_multi/";
const BAD_REQUEST: u64 = 1_000_811;
const NO_TASK: u64 = 1_000_806;

/// The servers and agents come first, so that they end before their database.
struct Installation {
    up: Up,
    other: OtherServer,
    /// The agent of another host, at the second server.
    agent: Joined,
    primary: Cluster,
    standby: Cluster,
    database: String,
}

impl Installation {
    fn start() -> Installation {
        let primary = Cluster::own(&[]);
        let standby = primary.standby(&[]);
        let database = name(&primary.database()).to_owned();
        let hosts = [&primary, &standby].map(|cluster| format!("127.0.0.1:{}", cluster.port())).join(",");
        let url = format!("postgres://procfleet@{hosts}/{database}?target_session_attrs=read-write");
        let up = Up::start_with(BINARY, &["--store", &url, "--name", "one"]);
        let other = OtherServer::start(&up, &url);
        let agent = agent_at(&up, &other.client, "two");
        Installation { up, other, agent, primary, standby, database }
    }

    fn clients(&self) -> [&Client; 2] {
        [&self.up.client, &self.other.client]
    }

    /// A proc that starts when its gate is opened.
    fn gated(&self, name: &str) -> Proc {
        let proc = self.up.proc(name).with_pid_file().starts(&programs::gated_daemon());
        proc.policy("op_timeout", 600)
    }

    /// Everything that has a number: tasks, events, audit records.
    fn numbers(&self, cluster: &Cluster) -> BTreeSet<String> {
        let sql = "SELECT 'task ' || number FROM tasks UNION SELECT 'event ' || number FROM events \
                   UNION SELECT 'audit ' || id FROM audit";
        let rows = cluster.psql(&self.database, sql).expect("the database answers");
        rows.lines().map(str::to_owned).collect()
    }

    fn last_event(&self) -> u64 {
        self.up.client.data("/api/v1/events?limit=1")["last"].as_u64().expect("a number")
    }

    fn fail_over(&self) {
        self.primary.kill_all();
        self.standby.promote();
        for client in self.clients() {
            wait_until(PATIENCE, "readiness says yes", || client.page("/readyz").status == 200);
        }
    }
}

/// Kills a hosted process, and waits for its successor and for the event of the restart.
fn replace(up: &Up, proc: &Proc, pid: u32) -> u32 {
    kill(pid, Signal::KILL);
    let successor = wait_for(PATIENCE, "there is a replacement", || {
        proc.program_pid().filter(|other| *other != pid && is_running(*other))
    });
    wait_until(PATIENCE, "death and restart are events", || {
        let events = events_of(up, proc);
        let of_pid = |event: &Value| event["details"]["exited"]["pid"] == pid;
        let at = events.iter().position(of_pid);
        at.is_some_and(|at| events[at..].iter().any(|event| event["kind"] == "restart_succeeded"))
    });
    successor
}

/// The epochs of the sessions in an agent's log.
fn epochs(log: &str) -> Vec<u64> {
    let digits = |text: &str| text.split(|char: char| !char.is_ascii_digit()).next().map(str::to_owned);
    let epochs = log.split("connected epoch=").skip(1);
    epochs.map(|rest| digits(rest).and_then(|epoch| epoch.parse().ok()).expect("a number")).collect()
}

#[test]
fn servers_go_on_after_a_failover_that_loses_the_last_changes() {
    let all = Installation::start();
    let (up, other) = (&all.up, &all.other);
    let web = up.proc("web").starts(&programs::foreground());
    web.start();
    // One task with an op on each host, so that the task is open until both have ended.
    let (quick, slow) = (all.gated("quick"), all.gated("slow").on_host(OTHER));
    let requests = json!({"proc_operate_req": [quick.body(Op::Start), slow.body(Op::Start)]});
    let both = up.client.post(OPERATE_MULTI, requests).task();
    [&quick, &slow].iter().for_each(|proc| proc.wait_for_runs(1));
    wait_until(PATIENCE, "the start is an event", || !events_of(up, &web).is_empty());
    let kept_cursor = all.last_event();
    all.primary.wait_for_standby(&all.standby);
    all.primary.stop_sending();

    // All of this is lost. The op of the first host ends, and the agent of the other host changes its server.
    let key = [("Idempotency-Key", "restart")];
    let restart = |client: &Client| client.post_with_headers(OPERATE, &key, &web.body(Op::Restart)).task();
    let restarted = restart(&up.client);
    up.client.outcome(&restarted).assert_success();
    quick.open_gate(programs::GATE);
    wait_until(PATIENCE, "one of two ops has ended", || {
        up.client.results_now(&both)[&quick.key()]["error_code"] == 0
    });
    let fresh = up.proc("fresh").starts(&programs::foreground());
    let fresh_pid = fresh.start();
    let under_way = all.gated("under-way");
    let lost_task = under_way.submit(Op::Start).id;
    under_way.wait_for_runs(1);
    done(up.cli(&["servers", "drain", "two"]));
    wait_until(PATIENCE, "both agents are at the first server", || row(&up.client, "one")["agents"] == 2);
    let web_pid = replace(up, &web, web.wait_for_program());
    web.row_with_pid(web_pid);
    let lost_cursor = all.last_event();
    let kept = all.numbers(&all.standby);
    let lost: BTreeSet<String> = all.numbers(&all.primary).difference(&kept).cloned().collect();
    for what in ["task", "event", "audit"] {
        assert!(lost.iter().any(|number| number.starts_with(what)), "{what}: {lost:?}");
    }
    all.fail_over();

    // Tasks of the lost time are unknown at every server.
    for (client, task) in all.clients().into_iter().zip([&restarted, &lost_task]) {
        client.post(RESULT, json!({"task_id": task})).assert_refused(NO_TASK, &["no such task"]);
    }
    // The agent reports again the outcome that was lost.
    wait_until(PATIENCE, "the lost outcome is there", || {
        other.client.results_now(&both)[&quick.key()]["error_code"] == 0
    });
    slow.open_gate(programs::GATE);
    for (_, outcome) in up.client.results(&both) {
        outcome.assert_success();
    }
    // Both servers show the present states, also of processes that were started in the lost time.
    for client in all.clients() {
        for (proc, pid) in [(&web, web_pid), (&fresh, fresh_pid)] {
            Proc { client: client.clone(), ..proc.clone() }.row_with_pid(pid);
            assert!(is_running(pid), "{}", proc.name);
        }
    }
    // A command that a lost task has started goes on.
    under_way.open_gate(programs::GATE);
    under_way.row_when(PATIENCE, "running");
    // A start, a restart by the lost task, and one after a death; everything else once.
    let runs = [&web, &quick, &slow, &fresh, &under_way].map(Proc::runs);
    assert_eq!(runs, [3, 1, 1, 1, 1], "nothing was run twice");

    // Readers of events go on, or learn that events are lost.
    for client in all.clients() {
        let refused = client.get(&format!("/api/v1/events?after={lost_cursor}"));
        refused.assert_refused(BAD_REQUEST, &["after", "was lost", "failed over"]);
    }
    replace(up, &web, web_pid);
    let after = other.client.data(&format!("/api/v1/events?after={kept_cursor}"));
    let exited = |event: &Value| event["details"]["exited"]["pid"] == web_pid;
    assert!(after["events"].as_array().is_some_and(|events| events.iter().any(exited)), "{after}");

    // Every op that is accepted now ends, whichever server takes it and whichever has its agent.
    let restarted_again = restart(&other.client);
    assert_ne!(restarted_again, restarted, "its key was lost, too");
    other.client.outcome(&restarted_again).assert_success();
    for (number, client) in all.clients().into_iter().enumerate() {
        for host in ["127.0.0.1", OTHER] {
            let proc = up.proc(&format!("later-{number}-{host}")).on_host(host);
            let proc = Proc { client: client.clone(), ..proc.starts(&programs::foreground()) };
            proc.start();
            assert_eq!(proc.runs(), 1);
            proc.op(Op::Stop).assert_success();
        }
    }
    let again: Vec<String> = all.numbers(&all.standby).intersection(&lost).cloned().collect();
    assert!(again.is_empty(), "numbers of the lost time were assigned again: {again:?}");
    let logs = [up.stderr(), other.program.stderr()];
    let began = "the database failed over or was restored: changes may be lost";
    assert_eq!(logs.concat().matches(began).count(), 1, "one server says it: {logs:?}");
    for log in &logs {
        assert!(!log.contains("it goes on as a new server"), "{log}");
    }
    for log in [all.agent.stderr(), up.stderr()] {
        let epochs = epochs(&log);
        assert!(epochs.len() > 1 && epochs.is_sorted_by(|one, next| one < next), "{epochs:?} in {log}");
    }
    all.standby.assert_invariants(&all.database);
}
