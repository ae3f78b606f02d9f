//! Access control: apps, users, businesses, grants, and the audit trail.

use crate::up;
use procfleet_testkit::{Client, Finished, Joined, Op, PATIENCE, Up, account, programs, wait_until};
use serde_json::{Value, json};

const GSE: &str = "/api/c/compapi/v2/gse";
pub(crate) const OTHER: &str = "127.0.0.2";
pub(crate) const DENIED: u64 = 1_306_403;

#[track_caller]
pub(crate) fn done(finished: Finished) -> Finished {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    finished
}

#[track_caller]
fn json_of(finished: Finished) -> Value {
    let finished = done(finished);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

/// The command line is carried out by the server, which refuses it with these words.
#[track_caller]
fn refused(finished: Finished, words: &[&str]) {
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    words.iter().for_each(|word| assert!(finished.stderr.contains(word), "{word:?} is not in {finished:?}"));
}

/// A new app as `procfleet app create` makes it.
#[track_caller]
pub(crate) fn app(up: &Up, code: &str, flags: &[&str]) -> Client {
    let made = done(up.cli(&[&["app", "create", code], flags].concat()));
    let secret = made.stdout.trim_end();
    assert!(secret.len() >= 40 && !secret.contains(char::is_whitespace), "only the secret: {made:?}");
    assert!(made.stderr.contains("shown only this once") && !made.stderr.contains(secret), "{made:?}");
    up.client.as_app(code, secret)
}

#[track_caller]
pub(crate) fn grant(up: &Up, app: &Client, flags: &[&str]) -> Value {
    json_of(up.cli(&[&["app", "grant", &app.app_code, "--json"], flags].concat()))
}

/// An app that may do everything but for what the test takes away.
#[track_caller]
pub(crate) fn granted_app(up: &Up, code: &str) -> Client {
    let app = app(up, code, &[]);
    grant(up, &app, &["--all"]);
    app
}

#[track_caller]
fn tasks(client: &Client) -> Vec<Value> {
    client.data("/api/v1/tasks").as_array().expect("a list").clone()
}

#[track_caller]
fn operate(client: &Client, body: Value) -> procfleet_testkit::Answer {
    client.post(&format!("{GSE}/operate_proc_v2/"), body)
}

/// An agent of its own business on a second host.
#[track_caller]
pub(crate) fn shop_agent(up: &Up) -> Joined {
    done(up.cli(&["business", "create", "7", "shop"]));
    let token = up.token(&["--business", "7"]);
    let mut agent = Joined::start(up.binary(), &up.link(), &up.folder("second"), OTHER, Some(&token));
    agent.wait_until_connected(up, OTHER);
    agent
}

#[test]
fn apps_are_created_rotated_disabled_and_enabled() {
    let up = up();
    let first = app(&up, "web", &[]);
    assert_eq!(first.data("/api/v1/agents"), json!([]), "it is let in, and sees nothing");
    refused(up.cli(&["app", "create", "web"]), &["there is already an app web"]);
    refused(up.cli(&["app", "create", "procfleet-x"]), &["kept for procfleet itself"]);

    let rotated = done(up.cli(&["app", "rotate", "web"]));
    let second = up.client.as_app("web", rotated.stdout.trim_end());
    assert_ne!(first.app_secret, second.app_secret);
    first.get("/api/v1/agents").assert_refused(DENIED, &["bk_app_code or bk_app_secret is wrong"]);
    second.data("/api/v1/agents");

    done(up.cli(&["app", "disable", "web"]));
    second.get("/api/v1/agents").assert_refused(DENIED, &["bk_app_code or bk_app_secret is wrong"]);
    assert_eq!(json_of(up.cli(&["app", "show", "web", "--json"]))["disabled"], true);
    done(up.cli(&["app", "enable", "web"]));
    second.data("/api/v1/agents");

    let listed = json_of(up.cli(&["app", "list", "--json"]));
    let codes: Vec<&Value> = listed.as_array().expect("a list").iter().map(|app| &app["code"]).collect();
    assert_eq!(codes, ["procfleet-admin", "web"]);
    let table = done(up.cli(&["app", "list"])).stdout;
    assert!(table.contains("administrator") && table.contains("web"), "{table}");
    for line in [["app", "show"], ["app", "rotate"], ["app", "disable"], ["app", "enable"]] {
        refused(up.cli(&[&line[..], &["nobody"]].concat()), &["there is no app nobody"]);
    }
    let all = up.client.post("/api/v1/apps", json!({"code": "a b", "trusted": "yes", "secret": "mine"}));
    all.assert_refused(1_000_811, &["code: ", "trusted: ", "secret: "]);

    for secret in [&first.app_secret, &second.app_secret] {
        assert!(!up.stderr().contains(secret.as_str()), "a secret is in the log");
        assert!(!listed.to_string().contains(secret.as_str()));
    }
}

#[test]
fn the_administrator_cannot_be_restricted() {
    let up = up();
    for line in [
        vec!["app", "disable", "procfleet-admin"],
        vec!["app", "enable", "procfleet-admin"],
        vec!["app", "rotate", "procfleet-admin"],
        vec!["app", "revoke", "procfleet-admin", "--all"],
        vec!["app", "grant", "procfleet-admin", "--all"],
    ] {
        refused(up.cli(&line), &["procfleet-admin is built in"]);
    }
    let admin = json_of(up.cli(&["app", "show", "procfleet-admin", "--json"]));
    assert_eq!((&admin["administrator"], &admin["trusted"]), (&json!(true), &json!(true)));
    assert_eq!(admin["grants"]["accounts"], json!(["*"]));
}

#[test]
fn only_administrators_may_manage() {
    let up = up();
    let app = granted_app(&up, "web");
    for path in ["apps", "apps/web", "audit", "businesses", "business_sets"] {
        app.get(&format!("/api/v1/{path}")).assert_refused(DENIED, &["web", "administrators only"]);
    }
    for (path, body) in [
        ("apps", json!({"code": "more"})),
        ("apps/web/rotate", json!({})),
        ("apps/web/disable", json!({})),
        ("apps/web/enable", json!({})),
        ("apps/web/grant", json!({"all": true})),
        ("apps/web/revoke", json!({"all": true})),
        ("tokens", json!({"ttl_secs": 60, "uses": 1})),
        ("agents/assign", json!({"agents": ["0:127.0.0.1"], "bk_biz_id": 1})),
        ("agents/revoke", json!({"agents": ["0:127.0.0.1"]})),
        ("agents/label", json!({"agents": ["0:127.0.0.1"], "set": {"a": "b"}})),
        ("ca/rotate", json!({})),
        ("ca/retire", json!({"force": true})),
        ("businesses", json!({"bk_biz_id": 9, "bk_biz_name": "mine"})),
        ("business_sets", json!({"bk_biz_set_id": 9, "bk_biz_set_name": "mine", "bk_biz_ids": [1]})),
    ] {
        app.post(&format!("/api/v1/{path}"), body).assert_refused(DENIED, &["administrators only"]);
    }
    assert_eq!(json_of(up.cli(&["business", "list", "--json"])).as_array().map(Vec::len), Some(1));
    let denied = json_of(up.cli(&["audit", "--app", "web", "--action", "token_create", "--json"]));
    assert_eq!((denied.as_array().map(Vec::len), &denied[0]["code"]), (Some(1), &json!(DENIED)));
}

#[test]
fn only_a_trusted_app_may_name_a_user() {
    let up = up();
    let (plain, trusted) = (granted_app(&up, "plain"), app(&up, "trusted", &["--trusted"]));
    grant(&up, &trusted, &["--all"]);
    let body = up.proc("users").body(Op::Query);
    operate(&plain.naming("ann"), body.clone())
        .assert_refused(1_306_402, &["plain", "not trusted to name a user"]);
    plain.naming("ann").get("/api/v1/tasks").assert_refused(1_306_402, &["bk_username"]);
    assert!(tasks(&up.client).is_empty(), "nothing was stored");
    let audit = json_of(up.cli(&["audit", "--app", "plain", "--json"]));
    assert_eq!((&audit[0]["bk_username"], &audit[0]["code"]), (&json!("ann"), &json!(1_306_402)));

    // Without a user it acts as itself.
    operate(&plain, body.clone()).task();
    operate(&trusted.naming("bob"), body.clone()).task();
    operate(&trusted, body).task();
    let users: Vec<(Value, Value)> =
        tasks(&up.client).iter().map(|t| (t["bk_app_code"].clone(), t["bk_username"].clone())).collect();
    let expected = [("trusted", ""), ("trusted", "bob"), ("plain", "")];
    assert_eq!(users, expected.map(|(app, user)| (json!(app), json!(user))));

    // The CLI names no user either unless a flag says so.
    let (code, secret) = (plain.app_code.as_str(), plain.app_secret.as_str());
    let login = ["ps", "--url", &up.client.url, "--app-code", code, "--app-secret", secret];
    done(up.cli(&login));
    let named = up.cli(&[&login[..], &["--username", "ann"]].concat());
    assert_eq!(named.code, Some(5), "{named:?}");
}

#[test]
fn a_denied_call_names_all_missing_grants() {
    let up = up();
    let app = app(&up, "web", &[]);
    let proc = up.proc("mine").starts(&programs::foreground());
    let (ns, user) = (up.namespace.as_str(), account());
    let everything = [format!("namespace {ns:?}"), "op start".to_owned(), format!("account {user:?}")];
    let everything = everything.each_ref().map(String::as_str);
    operate(&app, proc.body(Op::Start)).assert_refused(DENIED, &everything);
    for api in ["register_proc_info", "update_proc_info"] {
        let mut body = proc.request.clone();
        body["hosts"][0]["bk_supplier_id"] = json!(0);
        body["spec"]["resource"] = json!({"cpu": 0.0, "mem": 0.0});
        let answer = app.post(&format!("{GSE}/{api}/"), body);
        answer.assert_refused(DENIED, &[everything[0], everything[2]]);
    }
    let status =
        json!({"meta": {"namespace": ns, "name": "mine"}, "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}]});
    app.post(&format!("{GSE}/get_proc_status_v2/"), status.clone()).assert_refused(DENIED, &[everything[0]]);
    let page = json!({"meta": {"namespace": ns}, "page": {"start": 0, "limit": 10}});
    app.post(&format!("{GSE}/sync_proc_status/"), page.clone()).assert_refused(DENIED, &[everything[0]]);
    assert!(tasks(&up.client).is_empty(), "nothing was stored");
    let audit = json_of(up.cli(&["audit", "--app", "web", "--action", "operate_proc_v2", "--json"]));
    assert_eq!(audit[0]["code"], DENIED);
    assert!(everything.iter().all(|word| audit[0]["detail"].as_str().is_some_and(|d| d.contains(word))));

    // One after the other; a pattern is enough for the namespace.
    grant(&up, &app, &["--business", "1", "--namespace", &format!("{}*", &ns[..ns.len() - 1])]);
    operate(&app, proc.body(Op::Start)).assert_refused(DENIED, &everything[1..]);
    grant(&up, &app, &["--op", "start", "--op", "query"]);
    operate(&app, proc.body(Op::Start)).assert_refused(DENIED, &everything[2..]);
    let now = grant(&up, &app, &["--account", &user]);
    assert_eq!(
        (&now["grants"]["ops"], &now["grants"]["accounts"]),
        (&json!(["start", "query"]), &json!([user]))
    );
    let mut mine = proc.clone();
    mine.client = app.clone();
    mine.start();
    app.post(&format!("{GSE}/get_proc_status_v2/"), status).data();
    wait_until(PATIENCE, "the process is in the list", || {
        app.post(&format!("{GSE}/sync_proc_status/"), page.clone()).data()["count"] == 1
    });

    // A whole request is denied for one of its parts.
    let before = tasks(&up.client).len();
    let mut others = up.proc("others").body(Op::Stop);
    others["meta"]["namespace"] = json!("elsewhere");
    others["spec"]["identity"]["user"] = json!("nobody");
    let multi = json!({"proc_operate_req": [mine.body(Op::Query), others]});
    let answer = app.post(&format!("{GSE}/operate_proc_multi/"), multi);
    answer.assert_refused(DENIED, &["namespace \"elsewhere\"", "op stop", "account \"nobody\""]);
    assert_eq!(tasks(&up.client).len(), before);

    // Which account the host has stored is not known here.
    let bare = mine.clone().without_spec();
    operate(&app, bare.body(Op::Query))
        .assert_refused(DENIED, &["without spec.identity.user", "all accounts"]);
    grant(&up, &app, &["--account", "*"]);
    bare.op(Op::Query).assert_success();

    // Taken back.
    refused(up.cli(&["app", "revoke", "web", "--account", &user]), &["still granted by \"*\""]);
    done(up.cli(&["app", "revoke", "web", "--op", "start"]));
    operate(&app, mine.body(Op::Start)).assert_refused(DENIED, &["op start"]);
    done(up.cli(&["app", "revoke", "web", "--all"]));
    operate(&app, mine.body(Op::Query)).assert_refused(DENIED, &["op query"]);
}

#[test]
fn every_fault_of_a_grant_is_named() {
    let up = up();
    app(&up, "web", &[]);
    let answer = up.cli(&["app", "grant", "web", "--business", "x", "--namespace", "a*b", "--op", "status"]);
    refused(answer, &["businesses[0]: ", "namespaces[0]: ", "ops[0]: ", "1000811"]);
    refused(up.cli(&["app", "grant", "web", "--business", "5"]), &["there is no business 5"]);
    refused(up.cli(&["app", "grant", "nobody", "--all"]), &["there is no app nobody"]);
    let nothing = up.cli(&["app", "grant", "web"]);
    assert_eq!(nothing.code, Some(2), "{nothing:?}");
    assert_eq!(json_of(up.cli(&["app", "show", "web", "--json"]))["grants"]["businesses"], json!([]));
}

#[test]
fn a_host_of_another_business_fails_alone() {
    let up = up();
    let mut agent = shop_agent(&up);
    let (web, shop) = (granted_app(&up, "web"), granted_app(&up, "shop"));
    done(up.cli(&["app", "revoke", "web", "--all"]));
    grant(&up, &web, &["--business", "1", "--namespace", "*", "--op", "*", "--account", "*"]);
    let proc = up.proc("apart").starts(&programs::foreground());
    let mut body = proc.body(Op::Start);
    body["hosts"] = json!([{"ip": OTHER, "bk_cloud_id": 0}, {"ip": "127.0.0.1", "bk_cloud_id": 0}]);
    let task = operate(&web, body.clone()).task();
    let now = web.results_now(&task);
    let outside = &now[&format!("0:{OTHER}:{}:apart", up.namespace)];
    assert_eq!(outside["error_code"], 837, "it is there at once: {now:?}");
    assert_eq!(outside["error_msg"], "0:127.0.0.2 is outside the businesses that the app may use");
    let results = web.results(&task);
    assert_eq!(results.iter().map(|(_, outcome)| outcome.code).collect::<Vec<_>>(), [837, 0]);
    assert_eq!(proc.runs(), 1, "it was never sent there");
    let counts = web.data(&format!("/api/v1/tasks/{task}"))["counts"].clone();
    assert_eq!(counts, json!({"total": 2, "open": 0, "succeeded": 1, "failed": 1}));
    // A call for that host alone is none the less a task, and ends at once.
    let alone = proc.clone().on_host(OTHER).body(Op::Query);
    web.outcome(&operate(&web, alone.clone()).task()).assert(837, "0:127.0.0.2 is outside");
    shop.outcome(&operate(&shop, alone).task());

    // Nor is it seen.
    let ips = |client: &Client| -> Vec<Value> {
        let agents = client.data("/api/v1/agents");
        agents.as_array().expect("a list").iter().map(|agent| agent["ip"].clone()).collect()
    };
    assert_eq!((ips(&web), ips(&shop).len()), (vec![json!("127.0.0.1")], 2));
    let hosts = json!({"hosts": [{"ip": OTHER, "bk_cloud_id": 0}, {"ip": "127.0.0.1", "bk_cloud_id": 0}]});
    let alive = |client: &Client| {
        let alive = client.post(&format!("{GSE}/get_agent_status/"), hosts.clone()).data();
        (alive["0:127.0.0.2"]["bk_agent_alive"].clone(), alive["0:127.0.0.1"]["bk_agent_alive"].clone())
    };
    assert_eq!((alive(&web), alive(&shop)), ((json!(0), json!(1)), (json!(1), json!(1))));
    let version = web.post(&format!("{GSE}/get_agent_info/"), hosts).data()["0:127.0.0.2"]["version"].clone();
    assert_eq!(version, "");
    let listed = up.client.data("/api/v1/agents");
    let second = listed.as_array().expect("a list").iter().find(|row| row["ip"] == OTHER).expect("it joined");
    assert_eq!((&second["bk_biz_id"], &second["bk_biz_name"]), (&json!(7), &json!("shop")));
    let ids = json!({"agent_id_list": [second["bk_agent_id"]]});
    web.post("/api/v2/cluster/list_agent_state", ids.clone()).assert_refused(1_011_003, &[]);
    shop.post("/api/v2/cluster/list_agent_state", ids).data();
    let there = up.proc("there").on_host(OTHER).starts(&programs::foreground());
    there.start();
    let query =
        json!({"meta": {"namespace": up.namespace, "name": "there"}, "hosts": there.request["hosts"]});
    let page = json!({"meta": {"namespace": up.namespace}, "page": {"start": 0, "limit": 10}});
    let seen = |client: &Client| {
        let status = client.post(&format!("{GSE}/get_proc_status_v2/"), query.clone()).data();
        let synced = client.post(&format!("{GSE}/sync_proc_status/"), page.clone()).data();
        let rows = client.data(&format!("/api/v1/procs?namespace={}", up.namespace));
        let count = |value: &Value| value.as_array().map_or(0, Vec::len);
        (count(&status["proc_infos"]), synced["count"].clone(), count(&synced["proc_infos"]), count(&rows))
    };
    wait_until(PATIENCE, "both processes are reported", || seen(&shop) == (1, json!(2), 2, 2));
    assert_eq!(seen(&web), (0, json!(1), 1, 1));

    // Until it is moved.
    let moved = json_of(up.cli(&["agents", "assign", "0:127.0.0.2", "--business", "1", "--json"]));
    assert_eq!((moved.as_array().map(Vec::len), &moved[0]["bk_biz_name"]), (Some(1), &json!("default")));
    assert_eq!((ips(&web).len(), seen(&web)), (2, (1, json!(2), 2, 2)));
    there.op(Op::Kill).assert_success();
    assert!(agent.is_running());
}

#[test]
fn results_are_shown_only_to_the_app_that_asked() {
    let up = up();
    let (mine, other) = (granted_app(&up, "mine"), granted_app(&up, "other"));
    let task = operate(&mine, up.proc("secret").body(Op::Query)).task();
    mine.outcome(&task);
    let unknown = "GSETASK:20190813145456:8";
    for result in ["get_proc_operate_result_v2", "get_proc_operate_result"] {
        let ask =
            |client: &Client, id: &str| client.post(&format!("{GSE}/{result}/"), json!({"task_id": id}));
        let (hidden, never) = (ask(&other, &task), ask(&other, unknown));
        hidden.assert_refused(1_000_806, &[&task]);
        let message =
            |answer: &procfleet_testkit::Answer| answer.body["message"].as_str().expect("text").to_owned();
        assert_eq!(message(&hidden).replace(&task, unknown), message(&never));
        ask(&up.client, &task).data();
        ask(&mine, &task).data();
    }
    other.get(&format!("/api/v1/tasks/{task}")).assert_refused(1_000_806, &[&task]);
    mine.get(&format!("/api/v1/tasks/{task}")).data();
    assert_eq!((tasks(&mine).len(), tasks(&other).len(), tasks(&up.client).len()), (1, 0, 1));
}

#[test]
fn hosts_belong_to_businesses_and_businesses_to_sets() {
    let up = up();
    let agents = json_of(up.cli(&["agents", "--json"]));
    assert_eq!((&agents[0]["bk_biz_id"], &agents[0]["bk_biz_name"]), (&json!(1), &json!("default")));
    assert!(done(up.cli(&["agents"])).stdout.contains("1 default"));
    done(up.cli(&["business", "create", "7", "shop"]));
    refused(up.cli(&["business", "create", "7", "again"]), &["there is already a business 7"]);
    refused(up.cli(&["business", "create", "8", "shop"]), &["one called \"shop\""]);
    let listed = json_of(up.cli(&["business", "list", "--json"]));
    assert_eq!(
        listed,
        json!([{"bk_biz_id": 1, "bk_biz_name": "default"}, {"bk_biz_id": 7, "bk_biz_name": "shop"}])
    );
    done(up.cli(&["business", "set-create", "2", "all", "--business", "7", "--business", "1"]));
    refused(
        up.cli(&["business", "set-create", "3", "none", "--business", "8", "--business", "9"]),
        &["bk_biz_ids[0]: there is no business 8", "bk_biz_ids[1]: there is no business 9"],
    );
    let sets = json_of(up.cli(&["business", "set-list", "--json"]));
    assert_eq!(sets, json!([{"bk_biz_set_id": 2, "bk_biz_set_name": "all", "bk_biz_ids": [1, 7]}]));
    refused(up.cli(&["token", "create", "--business", "9"]), &["bk_biz_id: there is no business 9"]);
    refused(
        up.cli(&["agents", "assign", "0:127.0.0.1", "0:10.9.9.9", "nobody", "--business", "9"]),
        &["there is no business 9", "agents[1]: there is no agent or host 0:10.9.9.9", "agents[2]: "],
    );
}

#[test]
fn every_change_is_in_the_audit_trail() {
    let up = up();
    let web = app(&up, "web", &["--trusted"]);
    grant(&up, &web, &["--all"]);
    for line in [
        vec!["app", "rotate", "web"],
        vec!["app", "disable", "web"],
        vec!["app", "enable", "web"],
        vec!["app", "revoke", "web", "--op", "*"],
        vec!["business", "create", "7", "shop"],
        vec!["business", "set-create", "2", "all", "--business", "7"],
        vec!["agents", "assign", "0:127.0.0.1", "--business", "7"],
        vec!["token", "create", "--username", "ann"],
    ] {
        done(up.cli(&line));
    }
    operate(&up.client, up.proc("noted").body(Op::Query)).task();
    let audit = json_of(up.cli(&["audit", "--app", "procfleet-admin", "--json"]));
    let rows: Vec<(&str, &str)> = audit
        .as_array()
        .expect("a list")
        .iter()
        .map(|row| (row["action"].as_str().expect("text"), row["subject"].as_str().expect("text")))
        .collect();
    let expected = [
        ("agents_assign", "business 7"),
        ("business_set_create", "2"),
        ("business_create", "7"),
        ("app_revoke", "web"),
        ("app_enable", "web"),
        ("app_disable", "web"),
        ("app_rotate", "web"),
        ("app_grant", "web"),
        ("app_create", "web"),
    ];
    assert_eq!((rows[0].0, rows[1].0), ("operate_proc_v2", "token_create"), "{rows:?}");
    assert_eq!(rows[2..], expected);
    for row in audit.as_array().expect("a list") {
        let user = if row["action"] == "token_create" { "ann" } else { "admin" };
        assert_eq!((&row["bk_username"], &row["code"]), (&json!(user), &json!(0)), "{row}");
        assert_eq!(row["from"], "127.0.0.1");
        assert!(row["at"].as_i64().is_some_and(|at| at > 1_700_000_000), "{row}");
    }
    assert!(audit[2]["detail"].as_str().is_some_and(|detail| detail.len() > 20), "which agents: {audit}");
    let only = json_of(up.cli(&["audit", "--action", "app_create", "--limit", "5", "--json"]));
    assert_eq!(only.as_array().map(Vec::len), Some(1));
}
