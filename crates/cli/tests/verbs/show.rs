//! The verbs that only ask, and `token create`.

use crate::server::{Server, ok, page};
use crate::{NOW, run, run_at};
use procfleet_cli::{Colors, Prompts, VerbExit};
use procfleet_proto::http::cursor::{AgentCursor, AgentKey, AgentOrder};
use serde_json::{Value, json};

#[test]
fn ps_is_a_table_and_marks_stale_rows() {
    let row = |name: &str, state: &str, pid: Value, fresh: bool, note: &str| {
        json!({
            "bk_agent_id": "a", "bk_cloud_id": 0, "ip": "10.0.0.1", "namespace": "web", "name": name,
            "labels": {}, "state": state, "hosted": true, "pid": pid, "note": note,
            "started_at": NOW - 300, "reported_at": NOW - 90, "fresh": fresh,
        })
    };
    let mut ill = row("ill", "running", json!(44), true, "");
    ill["health"] = json!("unhealthy: no answer");
    let data = json!([
        row("cron", "running", json!(43), false, "over limit"),
        ill,
        row("nginx", "running", json!(42), true, ""),
        row("redis", "gave_up", Value::Null, true, "exit 1, 4 times"),
    ]);
    let server = Server::start([("GET /api/v1/procs", vec![ok(data.clone())])]);
    let ran = run(&server, "ps --namespace web --host 0:10.0.0.1");
    assert_eq!(ran.exit, VerbExit::Done);
    assert_eq!(
        ran.out,
        "HOST        NAMESPACE  NAME   STATE     HOSTED  PID  SINCE  NOTE\n\
         0:10.0.0.1  web        cron   running?  yes     43   5m     agent away, last heard 90s ago; over limit\n\
         0:10.0.0.1  web        ill    running   yes     44   5m     unhealthy: no answer\n\
         0:10.0.0.1  web        nginx  running   yes     42   5m     -\n\
         0:10.0.0.1  web        redis  gave up   yes     -    -      exit 1, 4 times\n"
    );
    assert_eq!(server.lines(), ["GET /api/v1/procs?namespace=web&host=0%3A10.0.0.1"]);

    let json = run(&server, "ps --json --name a&b");
    assert_eq!(serde_json::from_str::<Value>(&json.out).expect("one document"), data);
    assert_eq!(server.lines()[1], "GET /api/v1/procs?name=a%26b");
}

#[test]
fn an_empty_list_prints_no_header() {
    let routes = ["GET /api/v1/procs", "GET /api/v1/agents", "GET /api/v1/audit", "GET /api/v1/tasks"];
    let server = Server::start(routes.map(|route| (route, vec![ok(json!([]))])));
    for line in ["ps", "agents", "audit", "task list"] {
        let ran = run(&server, line);
        assert_eq!((ran.exit, ran.out.as_str()), (VerbExit::Done, ""), "{line}");
        assert!(!ran.err.is_empty(), "{line}");
        assert_eq!(run(&server, &format!("{line} --json")).out, "[]\n");
    }
}

#[test]
fn agents() {
    let row = |id: &str, connected: bool, containment: &str| {
        json!({"bk_agent_id": id, "bk_cloud_id": 2, "ip": "10.0.0.1", "version": "0.1.0", "connected": connected,
               "containment": containment, "since": NOW - 7200, "heard_at": NOW - 9, "enrolled_at": 1, "bk_biz_id": 7, "bk_biz_name": "shop"})
    };
    let rows = json!([row("a1", true, "cgroup"), row("a2", false, "")]);
    let server = Server::start([("GET /api/v1/agents", vec![ok(rows)])]);
    assert_eq!(
        run(&server, "agents").out,
        "AGENT  HOST        BUSINESS  VERSION  CONTAINMENT  STATE      SINCE  LAST HEARD  LABELS\n\
         a1     2:10.0.0.1  7 shop    0.1.0    cgroup       connected  2h     9s          -\n\
         a2     2:10.0.0.1  7 shop    0.1.0    -            away       2h     9s          -\n"
    );
}

/// The server orders before it cuts, so every page is asked for in the order that is shown.
#[test]
fn pages_of_agents_are_in_the_order_of_hosts_unless_another_is_asked_for() {
    // The `next` of the server's answer in the order of hosts.
    let key = AgentKey {
        order: AgentOrder::Host,
        agent: "a1".parse().expect("an id"),
        host: "0:10.0.0.1".parse().expect("a host"),
        version: String::new(),
        state: String::new(),
        heard_at: 0,
    };
    let cursor = AgentCursor::of(key).text();
    for (line, query) in [
        ("agents".to_owned(), "?sort=host".to_owned()),
        ("agents --limit 2".to_owned(), "?sort=host&limit=2".to_owned()),
        (format!("agents --limit 2 --after {cursor}"), format!("?sort=host&limit=2&after={cursor}")),
        ("agents --limit 2 --sort id --after a1".to_owned(), "?limit=2&after=a1".to_owned()),
        ("agents --limit 2 --sort id".to_owned(), "?limit=2".to_owned()),
        ("agents --sort heard --after x".to_owned(), "?sort=heard&after=x".to_owned()),
    ] {
        let server = Server::start([("GET /api/v1/agents", vec![ok(json!([]))])]);
        run(&server, &line);
        assert_eq!(server.lines(), [format!("GET /api/v1/agents{query}")], "{line}");
    }
    // An id does not continue the order of hosts.
    let server = Server::start([("GET /api/v1/agents", vec![ok(json!([]))])]);
    let done = run(&server, "agents --limit 2 --after a1");
    assert!(done.err.contains("add --sort id"), "{done:?}");
    assert_eq!((done.exit, server.lines()), (VerbExit::Usage, Vec::new()));
}

/// Escape sequences around the rows that need attention: on a terminal, or where they are asked for.
#[test]
fn rows_that_need_attention_are_coloured() {
    let row = |name: &str, state: &str| {
        json!({
            "bk_agent_id": "a", "bk_cloud_id": 0, "ip": "10.0.0.1", "namespace": "web", "name": name, "labels": {},
            "state": state, "hosted": true, "pid": null, "note": "", "started_at": 0, "reported_at": NOW, "fresh": true,
        })
    };
    let data = json!([row("good", "running"), row("bad", "gave_up")]);
    let server = Server::start([("GET /api/v1/procs", vec![ok(data)])]);
    let red = "\u{1b}[31m0:10.0.0.1  web        bad   gave up  yes     -    -      -\u{1b}[0m\n";
    for (line, colors, is_coloured) in [
        ("ps", Colors::Shown, true),
        ("ps", Colors::Plain, false),
        ("ps --color never", Colors::Shown, false),
        ("ps --color always", Colors::Plain, true),
        // The value of NO_COLOR, if it is set.
        ("ps --no-color 1", Colors::Shown, false),
        ("ps --no-color=", Colors::Shown, true),
        ("ps --no-color 1 --color always", Colors::Plain, true),
        ("ps --json --color always", Colors::Shown, false),
    ] {
        let ran = run_at(Prompts::Forbidden, colors, &server.url(), line, "");
        assert_eq!(ran.out.contains('\u{1b}'), is_coloured, "{line}: {ran:?}");
        assert!(!is_coloured || ran.out.ends_with(red), "{line}: only the last row: {ran:?}");
    }
}

#[test]
fn task_list() {
    let row = json!({
        "task_id": "GSETASK:20261115205400:7", "created_at": NOW - 10, "bk_app_code": "ops", "bk_username": "ann",
        "summary": "start web:nginx", "counts": {"total": 4, "open": 1, "succeeded": 2, "failed": 1},
    });
    let server = Server::start([("GET /api/v1/tasks", vec![ok(json!([row]))])]);
    assert_eq!(
        run(&server, "task list").out,
        "TASK                      AGE  USER  APP  WHAT             TOTAL  OPEN  OK  FAILED\n\
         GSETASK:20261115205400:7  10s  ann   ops  start web:nginx  4      1     2   1\n"
    );
    assert_eq!(server.lines(), ["GET /api/v1/tasks?limit=20"]);
    run(&server, "task list --failed --state ended --since 10s --after GSETASK:20261115205400:9");
    let since = NOW - 10;
    assert_eq!(
        server.lines()[1],
        format!(
            "GET /api/v1/tasks?failed=true&state=ended&since={since}&limit=20&after=GSETASK%3A20261115205400%3A9"
        )
    );
}

/// The server filters, orders and cuts; a list that is longer is not shown as if it were complete.
#[test]
fn a_long_list_is_read_page_by_page_and_says_that_there_is_more() {
    let row = |number: usize| {
        json!({
            "bk_agent_id": "a", "bk_cloud_id": 0, "ip": "10.0.0.1", "namespace": "web", "name": format!("p{number}"),
            "labels": {}, "state": "stopped", "hosted": true, "pid": null, "note": "", "started_at": 0,
            "reported_at": NOW, "fresh": true,
        })
    };
    let page = |rows: std::ops::Range<usize>, next: Value| {
        let rows: Vec<Value> = rows.map(row).collect();
        page(json!(rows), next, 100_000)
    };
    let server = Server::start([(
        "GET /api/v1/procs",
        vec![
            page(0..2, json!("c1")),
            page(0..10_000, json!("c1")),
            page(0..2, json!("c2")),
            page(0..1, json!(null)),
        ],
    )]);
    let ran = run(&server, "ps");
    assert_eq!(ran.err, "showing 2 of 100,000; for more: --limit N, or --after c1\n");
    let ran =
        run(&server, "ps --sort since --failed --state gave-up --select a,b --name p* --limit 10002 --json");
    let rows: Vec<Value> = serde_json::from_str(&ran.out).expect("one document");
    assert_eq!((rows.len(), ran.exit), (10_002, VerbExit::Done));
    assert_eq!(ran.err, "showing 10,002 of 100,000; for more: --limit N, or --after c2\n");
    let ran = run(&server, "ps --after c2");
    assert_eq!(ran.err, "", "the last page is complete");
    let filters = "name=p*&select=a%2Cb&state=gave_up&failed=true&sort=since";
    assert_eq!(
        server.lines(),
        [
            "GET /api/v1/procs".to_owned(),
            format!("GET /api/v1/procs?{filters}&limit=10000"),
            format!("GET /api/v1/procs?{filters}&limit=2&after=c1"),
            "GET /api/v1/procs?after=c2".to_owned(),
        ]
    );
}

#[test]
fn audit() {
    let row = json!({"at": NOW, "bk_app_code": "ops", "bk_username": "ann", "from": "127.0.0.1", "action":
        "token_create", "subject": "t1", "code": 0, "detail": ""});
    let server = Server::start([("GET /api/v1/audit", vec![ok(json!([row]))])]);
    assert_eq!(
        run(&server, "audit --limit 3").out,
        "AT                    USER  APP  FROM       ACTION        SUBJECT  CODE  DETAIL\n\
         1970-01-12T13:46:40Z  ann   ops  127.0.0.1  token_create  t1       0     -\n"
    );
    run(&server, "audit --app ops --action token_create");
    assert_eq!(
        server.lines(),
        ["GET /api/v1/audit?limit=3", "GET /api/v1/audit?limit=50&app=ops&action=token_create"]
    );
    let empty = Server::start([("GET /api/v1/audit", vec![ok(json!([]))])]);
    for (line, note) in [("audit", "nothing has been done yet"), ("audit --failed", "no audit records match")]
    {
        let ran = run(&empty, line);
        assert!(ran.err.contains(note), "{line}: {ran:?}");
    }
}

#[test]
fn token_create_prints_only_the_token_on_stdout() {
    let made = json!({"token": "join-abc", "bk_cloud_id": 3, "bk_biz_id": 7, "uses": 2, "expires_at": NOW + 600,
                      "link_port": 4711});
    let server = Server::start([("POST /api/v1/tokens", vec![ok(made.clone())])]);
    let ran = run(&server, "token create --cloud-id 3 --business 7 --ttl 10m --uses 2");
    assert_eq!((ran.exit, ran.out.as_str()), (VerbExit::Done, "join-abc\n"));
    assert!(
        ran.err.contains("for 2 agents of cloud area 3 and business 7, until 1970-01-12T13:56:40Z"),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("procfleet agent --server https://SERVER:4711 --token-file FILE"),
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("join-abc"), "{}", ran.err);
    assert_eq!(server.seen()[0].body, json!({"bk_cloud_id": 3, "bk_biz_id": 7, "ttl_secs": 600, "uses": 2}));

    let json = run(&server, "token create --json");
    assert_eq!(serde_json::from_str::<Value>(&json.out).expect("one document"), made);
    assert_eq!(server.seen()[1].body, json!({"bk_cloud_id": 0, "bk_biz_id": 1, "ttl_secs": 3600, "uses": 1}));
    run(&server, "token create --replace");
    assert_eq!(server.seen()[2].body["replace"], true);
}

#[test]
fn tokens_are_listed_and_revoked_by_their_ids() {
    let row = |state: &str| {
        json!({"id": "3e75e0c70ab9", "bk_cloud_id": 0, "bk_biz_id": 1, "created_at": NOW, "expires_at": NOW + 600,
            "uses_left": 2, "replace": true, "state": state})
    };
    let server = Server::start([
        ("GET /api/v1/tokens", vec![ok(json!([row("used_up")]))]),
        ("POST /api/v1/tokens/3e75e0c70ab9/revoke", vec![ok(row("revoked"))]),
    ]);
    let ran = run(&server, "token list");
    assert!(ran.out.contains("3e75e0c70ab9") && ran.out.contains("used up"), "{}", ran.out);
    assert!(ran.out.contains("any agent"), "{}", ran.out);
    // A whole token does as well, and its secret stays here.
    let ran = run(&server, "token revoke pf1-3e75e0c70ab9-5ec4e7-00");
    assert!(ran.out.contains("revoked"), "{}", ran.out);
    assert_eq!(server.seen()[1].body, json!({}));
}
