//! The verbs for apps and businesses.

use crate::run;
use crate::server::{Server, ok};
use procfleet_cli::VerbExit;
use serde_json::{Value, json};

fn app(code: &str, namespaces: &[&str]) -> Value {
    json!({"code": code, "trusted": false, "administrator": false, "disabled": false, "created_at": 1,
           "grants": {"businesses": ["1"], "namespaces": namespaces, "ops": [], "accounts": ["*"]}})
}

#[test]
fn a_secret_stands_alone_on_stdout() {
    let made = json!({"code": "web", "secret": "hush", "trusted": true});
    let server = Server::start([
        ("POST /api/v1/apps", vec![ok(made.clone())]),
        ("POST /api/v1/apps/web/rotate", vec![ok(made.clone())]),
    ]);
    for line in ["app create web --trusted", "app rotate web"] {
        let ran = run(&server, line);
        assert_eq!((ran.exit, ran.out.as_str()), (VerbExit::Done, "hush\n"), "{line}");
        assert!(ran.err.contains("shown only this once") && !ran.err.contains("hush"), "{ran:?}");
        let json = run(&server, &format!("{line} --json"));
        assert_eq!(serde_json::from_str::<Value>(&json.out).expect("one document"), made);
        assert_eq!(json.err, "");
    }
    assert_eq!(server.seen()[0].body, json!({"code": "web", "trusted": true}));
}

#[test]
fn grants_are_sent_as_they_were_written() {
    let answer = || vec![ok(app("web", &["web*", "db"]))];
    let server = Server::start([
        ("POST /api/v1/apps/web/grant", answer()),
        ("POST /api/v1/apps/web/revoke", answer()),
        ("POST /api/v1/apps/web/disable", answer()),
        ("POST /api/v1/apps/web/enable", answer()),
        ("GET /api/v1/apps/web", answer()),
    ]);
    let table = "APP  STATE    MAY NAME USERS  BUSINESSES  NAMESPACES  OPS  ACCOUNTS\n\
                 web  enabled  no              1           web*, db    -    *\n";
    let ran =
        run(&server, "app grant web --business 1 --business 2 --namespace web* --op start --account app");
    assert_eq!((ran.exit, ran.out.as_str()), (VerbExit::Done, table));
    for line in ["app revoke web --all", "app disable web", "app enable web", "app show web"] {
        assert_eq!(run(&server, line).out, table, "{line}");
    }
    let seen = server.seen();
    assert_eq!(
        seen[0].body,
        json!({"businesses": ["1", "2"], "namespaces": ["web*"], "ops": ["start"], "accounts": ["app"]})
    );
    assert_eq!(seen[1].body, json!({"all": true}));
}

#[test]
fn apps_are_listed() {
    let server = Server::start([("GET /api/v1/apps", vec![ok(json!([app("a", &[]), app("b", &["*"])]))])]);
    let ran = run(&server, "app list");
    assert_eq!(ran.out.lines().count(), 3, "{ran:?}");
}

#[test]
fn businesses_and_sets() {
    let business = json!({"bk_biz_id": 7, "bk_biz_name": "shop"});
    let set = json!({"bk_biz_set_id": 2, "bk_biz_set_name": "all", "bk_biz_ids": [1, 7]});
    let server = Server::start([
        ("POST /api/v1/businesses", vec![ok(business.clone())]),
        ("GET /api/v1/businesses", vec![ok(json!([business]))]),
        ("POST /api/v1/business_sets", vec![ok(set.clone())]),
        ("GET /api/v1/business_sets", vec![ok(json!([set]))]),
    ]);
    for line in ["business create 7 shop", "business list"] {
        assert_eq!(run(&server, line).out, "BUSINESS  NAME\n7         shop\n", "{line}");
    }
    for line in ["business set-create 2 all --business 1 --business 7", "business set-list"] {
        assert_eq!(run(&server, line).out, "SET  NAME  BUSINESSES\n2    all   1, 7\n", "{line}");
    }
    assert_eq!((&server.seen()[0].body, &server.seen()[2].body), (&business, &set));
}

#[test]
fn agents_are_assigned() {
    let row = json!({"bk_agent_id": "a1", "bk_cloud_id": 2, "ip": "10.0.0.1", "version": "0.1.0", "connected": true,
                     "since": 0, "enrolled_at": 1, "bk_biz_id": 7, "bk_biz_name": "shop"});
    let server = Server::start([("POST /api/v1/agents/assign", vec![ok(json!([row]))])]);
    let ran = run(&server, "agents assign a1 2:10.0.0.2 --business 7");
    assert_eq!(ran.exit, VerbExit::Done);
    assert!(ran.out.contains("7 shop"), "{ran:?}");
    assert_eq!(server.seen()[0].body, json!({"agents": ["a1", "2:10.0.0.2"], "bk_biz_id": 7}));
}

#[test]
fn users_and_their_tokens() {
    let user = json!({"name": "ann@shop", "disabled": true, "created_at": 0, "tokens": 2});
    let made = json!({"name": "ann@shop", "token": "hush", "expires_at": 0});
    let changed = || vec![ok(user.clone())];
    let server = Server::start([
        ("POST /api/v1/users", changed()),
        ("GET /api/v1/users", vec![ok(json!([user.clone()]))]),
        ("POST /api/v1/users/ann%40shop/token", vec![ok(made.clone())]),
        ("POST /api/v1/users/ann%40shop/disable", changed()),
        ("POST /api/v1/users/ann%40shop/enable", changed()),
        ("POST /api/v1/users/ann%40shop/revoke", changed()),
    ]);
    let token = run(&server, "user token ann@shop --ttl 2h");
    assert_eq!((token.exit, token.out.as_str()), (VerbExit::Done, "hush\n"));
    assert!(token.err.contains("shown only this once") && !token.err.contains("hush"), "{token:?}");
    assert_eq!(server.seen()[0].body, json!({"ttl_secs": 7_200}));
    run(&server, "user token ann@shop");
    assert_eq!(server.seen()[1].body, json!({"ttl_secs": 43_200}));
    let lines =
        ["create ann@shop", "list", "disable ann@shop", "enable ann@shop", "revoke ann@shop"].map(|line| {
            let ran = run(&server, &format!("user {line}"));
            assert_eq!(ran.exit, VerbExit::Done, "{ran:?}");
            ran.out
        });
    for out in lines {
        assert!(
            out.starts_with("USER      STATE     TOKENS  CREATED\nann@shop  disabled  2       "),
            "{out}"
        );
    }
}
