//! Agents and hosts selected by labels, addresses and globs. Nothing is sent before all hosts are known.

use crate::up;
use procfleet_testkit::{Joined, Op, PATIENCE, Signal, Up, programs, wait_until};
use serde_json::{Value, json};

#[track_caller]
fn cli(up: &Up, args: &[&str]) -> Value {
    let done = up.cli(&[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("--json prints JSON")
}

/// An `up` with two more agents, of which the last has gone.
fn fleet() -> (Up, Joined) {
    let up = up();
    let token = up.token(&["--uses", "2"]);
    let join = |ip: &str| {
        let mut agent = Joined::start(up.binary(), &up.link(), &up.folder(ip), ip, Some(&token));
        agent.wait_until_connected(&up, ip);
        agent
    };
    let (here, mut gone) = (join("127.0.0.2"), join("127.0.0.3"));
    gone.end(Signal::TERM);
    wait_until(PATIENCE, "the last one has gone", || {
        cli(&up, &["agents", "--state", "away"]).as_array().is_some_and(|rows| rows.len() == 1)
    });
    cli(
        &up,
        &["agents", "label", "0:127.0.0.1", "0:127.0.0.2", "--set", "role=web-front", "--set", "dc=east"],
    );
    cli(&up, &["agents", "label", "0:127.0.0.3", "--set", "role=db"]);
    (up, here)
}

fn ips(rows: &Value) -> Vec<&str> {
    let mut ips: Vec<&str> =
        rows.as_array().expect("a list").iter().filter_map(|row| row["ip"].as_str()).collect();
    ips.sort_unstable();
    ips
}

#[test]
fn agents_are_selected_by_address_id_and_label() {
    let (up, _here) = fleet();
    let version = cli(&up, &["agents"])[0]["version"].as_str().expect("a version").to_owned();
    for (filters, expected) in [
        (&[][..], &["127.0.0.1", "127.0.0.2", "127.0.0.3"][..]),
        (&["--cloud", "0"], &["127.0.0.1", "127.0.0.2", "127.0.0.3"]),
        (&["--cloud", "1"], &[]),
        (&["--business", "1", "--state", "connected"], &["127.0.0.1", "127.0.0.2"]),
        (&["--business", "2"], &[]),
        (&["--agent-version", &version, "--state", "away"], &["127.0.0.3"]),
        (&["--agent-version", "9.*"], &[]),
        (&["--offline-for", "1d"], &[]),
        (&["--label", "role=web*", "--label", "dc=*"], &["127.0.0.1", "127.0.0.2"]),
        (&["--label", "role=db"], &["127.0.0.3"]),
        (&["--select", "127.0.0.2-127.0.0.9"], &["127.0.0.2", "127.0.0.3"]),
        (&["--select", "127.0.0.2/31", "--label", "role=web*"], &["127.0.0.2"]),
    ] {
        let rows = cli(&up, &[&["agents"], filters].concat());
        assert_eq!(ips(&rows), expected, "{filters:?}");
    }
    // Away for a second or more, when that has passed.
    wait_until(PATIENCE, "it has been away for a second", || {
        ips(&cli(&up, &["agents", "--offline-for", "1s"])) == ["127.0.0.3"]
    });
    // Page by page.
    let mut seen = Vec::new();
    loop {
        let mut args = vec!["agents", "--sort", "id", "--limit", "2"];
        let last: Option<String> = seen.last().cloned();
        args.extend(last.iter().flat_map(|id| ["--after", id]));
        let page = cli(&up, &args);
        let ids = page.as_array().expect("a list").iter().filter_map(|row| row["bk_agent_id"].as_str());
        let before = seen.len();
        seen.extend(ids.map(str::to_owned));
        if seen.len() - before < 2 {
            break;
        }
    }
    assert_eq!((seen.len(), seen.is_sorted()), (3, true));
    assert!(up.cli(&["agents", "--label", "role=db"]).stdout.contains("role=db"));
    up.client.get("/api/v1/agents?state=gone&select=10.0.0.0/99&bk_cloud_id=x&lable=y").assert_refused(
        1_000_811,
        &[
            "state: \"gone\" is no state",
            "select: \"10.0.0.0/99\"",
            "bk_cloud_id: ",
            "lable: is not known here",
        ],
    );

    let changed = cli(&up, &["agents", "label", "0:127.0.0.3", "--set", "dc=west", "--remove", "role"]);
    assert_eq!(changed[0]["labels"], json!({"dc": "west"}));
    let refused = up.cli(&["agents", "label", "nobody", "--set", "a=*"]);
    assert!(refused.stderr.contains("set.a: has a value with '*'"), "{refused:?}");
    let audit = cli(&up, &["audit", "--action", "agents_label"]);
    assert_eq!(
        audit[0]["detail"].as_str().map(|detail| detail.starts_with("dc=west, without role: ")),
        Some(true)
    );
    // Labels are the host's: another agent for it bears them too.
    let token = up.token(&["--replace"]);
    let mut again = Joined::start(up.binary(), &up.link(), &up.folder("again"), "127.0.0.3", Some(&token));
    again.wait_until_connected(&up, "127.0.0.3");
    assert_eq!(ips(&cli(&up, &["agents", "--label", "dc=west", "--state", "connected"])), ["127.0.0.3"]);
}

#[test]
fn an_operation_reaches_the_selected_hosts_and_a_dry_run_none() {
    let (up, _here) = fleet();
    let proc = up.proc("chosen").starts(&programs::foreground());
    proc.op(Op::Start).assert_success();
    let tasks = |up: &Up| cli(up, &["task", "list"]).as_array().map(Vec::len);
    let before = tasks(&up);
    let status = |terms: &[&str]| {
        let mut args = vec!["status", "chosen", "--namespace", &up.namespace, "--dry-run"];
        args.extend(terms.iter().flat_map(|term| ["--select", term]));
        cli(&up, &args)
    };
    let shown = status(&["role=web*"]);
    let hosts = json!(["0:127.0.0.1", "0:127.0.0.2"]);
    let procs = json!([{"namespace": up.namespace, "name": "chosen", "hosts": hosts}]);
    assert_eq!(shown, json!({"task_id": "", "count": 2, "hosts": hosts, "procs": procs}));
    assert_eq!(status(&["127.0.0.0/24"])["hosts"], json!(["0:127.0.0.1", "0:127.0.0.2", "0:127.0.0.3"]));
    assert_eq!(status(&["127.0.0.?", "dc=east"])["count"], 2);
    let plain = up.cli(&["stop", "chosen", "--select", "role=db", "--dry-run"]);
    assert_eq!((plain.code, plain.stdout.as_str()), (Some(0), "0:127.0.0.3\n"), "{plain:?}");
    assert_eq!(tasks(&up), before, "nothing was stored");

    // For real: the hosts are written into the task.
    let args = ["unhost", "chosen", "--namespace", &up.namespace, "--select", "role=web*"];
    let done = cli(&up, &args);
    let targets: Vec<&str> =
        done["ops"].as_array().expect("ops").iter().filter_map(|op| op["target"].as_str()).collect();
    assert_eq!(targets, ["0:127.0.0.1", "0:127.0.0.2"]);
    assert_eq!(done["counts"]["succeeded"], 2, "{done}");

    // The ops of a task, by their hosts.
    let task = done["task_id"].as_str().expect("its id");
    let shown = |terms: &[&str]| {
        let mut args = vec!["task", "show", task];
        args.extend(terms.iter().flat_map(|term| ["--select", term]));
        let ops = cli(&up, &args)["ops"].as_array().expect("ops").clone();
        ops.iter().map(|op| op["target"].as_str().expect("a host").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(shown(&["127.0.0.2"]), ["0:127.0.0.2"]);
    assert_eq!(shown(&["127.0.0.2-127.0.0.9", "127.0.0.1", "dc=east"]), ["0:127.0.0.1", "0:127.0.0.2"]);
    assert_eq!(shown(&["role=db"]), [""; 0]);
    let none = up.cli(&["task", "show", task, "--select", "role=db"]);
    assert!(none.stderr.contains("no operations"), "{none:?}");
    let refused = up.cli(&["task", "show", task, "--select", "a b"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("select: \"a b\" is no address"), "{refused:?}");

    // A term that matches nothing is refused, each by itself.
    let body = |select: Value| json!({"meta": {"namespace": up.namespace, "name": "chosen"}, "op_type": 2, "select": select});
    let operate = |select: Value| up.client.post("/api/v1/operate", body(select));
    operate(json!(["10.9.0.0/16", "role=cache", "role=web*"])).assert_refused(
        1_000_811,
        &["select[0]: 10.9.0.0-10.9.255.255 means none of the 3 agents", "select[1]: role=cache means none"],
    );
    operate(json!(["127.0.0.3", "role=web*"]))
        .assert_refused(1_000_811, &["no agent is meant by all of them"]);
    operate(json!(["10.0.0.9-10.0.0.1", "a b"])).assert_refused(
        1_000_811,
        &["select[0]: \"10.0.0.9-10.0.0.1\" ends before it begins", "select[1]: \"a b\" is no address"],
    );
    // A list that came out empty is not everywhere.
    operate(json!([])).assert_refused(1_000_811, &["select: must not be empty"]);
    let mut odd = body(json!(["*"]));
    odd["hosts"] = json!([]);
    odd["selected"] = json!(["*"]);
    up.client.post("/api/v1/operate", odd).assert_refused(
        1_000_811,
        &["hosts: must not be empty", "select: cannot be combined with hosts", "selected: is not known here"],
    );

    // Selections need the same grants as any operation.
    let secret = cli(&up, &["app", "create", "other"])["secret"].as_str().expect("a secret").to_owned();
    let other = up.client.as_app("other", &secret);
    let denied = other.post("/api/v1/operate", body(json!(["*"])));
    denied.assert_refused(1_306_403, &["other", "may not use"]);
    proc.op(Op::Kill).assert_success();
}

#[test]
fn verbs_find_the_hosts_that_have_the_processes() {
    let (up, _here) = fleet();
    let ns = up.namespace.as_str();
    let procs = ["web1", "web2", "api"].map(|name| up.proc(name).starts(&programs::foreground()));
    procs.iter().for_each(|proc| _ = proc.start());
    let meant = |args: &[&str]| {
        let shown = cli(&up, &[args, &["--namespace", ns, "--dry-run"]].concat());
        let procs = shown["procs"].as_array().expect("a list").clone();
        assert!(procs.iter().all(|proc| proc["hosts"] == json!(["0:127.0.0.1"])), "{shown}");
        procs.iter().map(|proc| proc["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(meant(&["status", "web1"]), ["web1"], "three agents, and one that has it");
    assert_eq!(meant(&["restart", "web*", "api", "web1"]), ["api", "web1", "web2"]);
    assert_eq!(meant(&["stop", "--all"]), ["api", "web1", "web2"]);
    assert_eq!(meant(&["stop", "web?", "--select", "dc=east"]), ["web1", "web2"]);
    assert_eq!(meant(&["stop", "*", "--host", "127.0.0.1"]), ["api", "web1", "web2"]);
    // Hosts that are named are addressed, whether they know the process or not.
    let named = cli(&up, &["status", "web1", "--namespace", ns, "--host", "127.0.0.2", "--dry-run"]);
    assert_eq!(named["hosts"], json!(["0:127.0.0.2"]));

    let restarted = cli(&up, &["restart", "web*", "--namespace", ns]);
    assert_eq!((&restarted["counts"]["total"], &restarted["counts"]["succeeded"]), (&json!(2), &json!(2)));
    let text = up.cli(&["stop", "--all", "--namespace", ns]);
    assert_eq!(text.code, Some(0), "{text:?}");
    for name in ["web1", "web2", "api"] {
        assert!(text.stdout.contains(&format!("0:127.0.0.1 {ns}:{name} stop: ok")), "{text:?}");
    }
    assert_eq!(up.cli(&["is-running", "--all", "--namespace", ns]).code, Some(3));

    // A name that matches nothing is reported, each by itself, and nothing is sent.
    let refused = up.cli(&["stop", "nothing", "db*", "web1", "--namespace", ns]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for words in ["meta.name: none of the 3 agents", "names[0]: \"db*\" matches no known process"] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
}

#[test]
fn a_forgotten_process_is_forgotten_on_all_its_hosts() {
    let up = up();
    let proc = up.proc("forgotten").starts(&programs::foreground());
    let pid = proc.start();
    let done = up.cli(&["unregister", "forgotten", "--namespace", &up.namespace]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("unregister: ok"), "{done:?}");
    wait_until(PATIENCE, "the server has forgotten it", || proc.row().is_none());
    assert!(procfleet_testkit::is_running(pid), "its process goes on");
    proc.op(Op::Kill).assert_success();
}
