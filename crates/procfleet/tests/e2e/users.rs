//! The user of a call: users' own tokens, a login service, and names that an app may give without either.

use crate::up;
use procfleet_testkit::{Answer, Client, Finished, PATIENCE, Up, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const DENIED: u64 = 1_306_402;

#[track_caller]
fn done(finished: Finished) -> Finished {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    finished
}

#[track_caller]
fn json_of(finished: Finished) -> Value {
    let finished = done(finished);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"))
}

#[track_caller]
fn refused(finished: Finished, words: &str) {
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{finished:?}");
    assert!(finished.stderr.contains(words), "{words:?} is not in {finished:?}");
}

/// An app that may do everything, and is not trusted to name users.
#[track_caller]
fn plain_app(up: &Up) -> Client {
    let secret = done(up.cli(&["app", "create", "web"])).stdout;
    done(up.cli(&["app", "grant", "web", "--all"]));
    up.client.as_app("web", secret.trim_end())
}

#[track_caller]
fn token_of(up: &Up, name: &str, flags: &[&str]) -> String {
    let made = done(up.cli(&[&["user", "token", name], flags].concat()));
    let token = made.stdout.trim_end().to_owned();
    assert!(token.len() >= 40 && !token.contains(char::is_whitespace), "only the token: {made:?}");
    assert!(made.stderr.contains("shown only this once") && !made.stderr.contains(&token), "{made:?}");
    token
}

/// A call that leaves a task behind, which says whom it was made for.
#[track_caller]
fn operate(app: &Client, login: Value) -> Answer {
    let mut body = json!({
        "meta": {"namespace": "users", "name": "nothing"}, "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}], "op_type": 4,
        "bk_app_code": app.app_code, "bk_app_secret": app.app_secret,
    });
    body.as_object_mut().expect("an object").extend(login.as_object().cloned().expect("an object"));
    app.post_as_it_is("/api/c/compapi/v2/gse/operate_proc_v2/", &body)
}

#[track_caller]
fn made_for(up: &Up, answer: &Answer) -> String {
    let task = answer.task();
    let view = up.client.data(&format!("/api/v1/tasks/{task}"));
    view["bk_username"].as_str().expect("a name").to_owned()
}

#[test]
fn a_user_token_identifies_its_user() {
    let up = up();
    let app = plain_app(&up);
    done(up.cli(&["user", "create", "ann@shop"]));
    let token = token_of(&up, "ann@shop", &[]);

    let with_token = json!({"bk_token": token});
    assert_eq!(made_for(&up, &operate(&app, with_token.clone())), "ann@shop", "the app need not be trusted");
    assert_eq!(made_for(&up, &operate(&app, json!({}))), "", "without it the app acts as itself");
    let both = operate(&app, json!({"bk_token": token, "bk_username": "ann@shop"}));
    assert_eq!(made_for(&up, &both), "ann@shop");
    let contradiction = json!({"bk_token": token, "bk_username": "admin"});
    operate(&app, contradiction.clone()).assert_refused(DENIED, &["bk_username is not the user of bk_token"]);
    operate(&up.client, contradiction).assert_refused(DENIED, &["bk_username is not the user of bk_token"]);
    assert_eq!(made_for(&up, &operate(&up.client, with_token)), "ann@shop", "nor does trust matter");
    operate(&app, json!({"bk_username": "ann@shop"})).assert_refused(DENIED, &["not trusted", "bk_token"]);
    operate(&app, json!({"bk_token": "no such token"}))
        .assert_refused(DENIED, &["bk_token is not known here"]);

    let query = format!("bk_app_code={}&bk_app_secret={}&bk_token={token}", app.app_code, app.app_secret);
    let page = up.client.page(&format!("/api/v1/agents?{query}"));
    assert!(page.text.contains("\"result\":true"), "{page:?}");
    let header = json!({"bk_app_code": app.app_code, "bk_app_secret": app.app_secret, "bk_token": "wrong"});
    let body = json!({"task_id": "x"});
    let path = "/api/v2/proc/get_proc_operate_result_v2";
    let raw = app.raw(path, &[("X-Bkapi-Authorization", &header.to_string())], body.to_string().as_bytes());
    raw.answer().assert_refused(DENIED, &["bk_token is not known here"]);

    let denied = json_of(up.cli(&["audit", "--action", "operate_proc_v2", "--json"]));
    let denied: Vec<(&Value, &Value)> = denied
        .as_array()
        .expect("a list")
        .iter()
        .filter(|row| row["code"] == DENIED)
        .map(|row| (&row["bk_username"], &row["detail"]))
        .collect();
    let unknown = (&json!(""), &json!("bk_token is not known here"));
    assert!(denied.contains(&unknown) && denied.len() == 4, "{denied:?}");
    assert!(!up.stderr().contains(&token), "a token is in the log");
}

/// As with ESB, one of the two must be valid: a browser's token may have expired beside the name that a
/// trusted app sends.
#[test]
fn a_trusted_app_may_name_a_user_beside_a_stale_token() {
    let up = up();
    let plain = plain_app(&up);
    done(up.cli(&["user", "create", "ann"]));
    for stale in ["no such token", &token_of(&up, "ann", &["--ttl", "1s"])] {
        wait_until(PATIENCE, "the token is not valid", || {
            operate(&plain, json!({"bk_token": stale})).body["code"] == DENIED
        });
        // The administrator's app is trusted.
        let named = json!({"bk_token": stale, "bk_username": "ann"});
        assert_eq!(made_for(&up, &operate(&up.client, named.clone())), "ann");
        operate(&plain, named).assert_refused(DENIED, &["bk_token"]);
        operate(&up.client, json!({"bk_token": stale})).assert_refused(DENIED, &["bk_token"]);
    }
    let token = token_of(&up, "ann", &[]);
    done(up.cli(&["user", "disable", "ann"]));
    operate(&up.client, json!({"bk_token": token, "bk_username": "ann"}))
        .assert_refused(DENIED, &["disabled"]);
}

#[test]
fn users_are_created_disabled_and_enabled() {
    let up = up();
    let app = plain_app(&up);
    let made = json_of(up.cli(&["user", "create", "ann", "--json"]));
    assert_eq!(
        (&made["name"], &made["disabled"], &made["tokens"]),
        (&json!("ann"), &json!(false), &json!(0))
    );
    refused(up.cli(&["user", "create", "ann"]), "there is already a user ann");
    refused(up.cli(&["user", "create", "a b"]), "name: contains ' '");
    for verb in ["token", "disable", "enable", "revoke"] {
        refused(up.cli(&["user", verb, "nobody"]), "there is no user nobody");
    }
    app.get("/api/v1/users").assert_refused(1_306_403, &["administrators only"]);

    let (first, second) = (token_of(&up, "ann", &[]), token_of(&up, "ann", &["--ttl", "1d"]));
    let brief = token_of(&up, "ann", &["--ttl", "1s"]);
    let call = |token: &str| operate(&app, json!({"bk_token": token}));
    for token in [&first, &second] {
        assert_eq!(made_for(&up, &call(token)), "ann");
    }
    wait_until(PATIENCE, "a token of one second has expired", || {
        call(&brief).body["message"] == "bk_token has expired"
    });
    call(&brief).assert_refused(DENIED, &["bk_token has expired"]);

    let disabled = json_of(up.cli(&["user", "disable", "ann", "--json"]));
    assert_eq!((&disabled["disabled"], &disabled["tokens"]), (&json!(true), &json!(2)));
    call(&first).assert_refused(DENIED, &["the user of this bk_token is disabled"]);
    refused(up.cli(&["user", "token", "ann"]), "user ann is disabled");
    done(up.cli(&["user", "enable", "ann"]));
    assert_eq!(made_for(&up, &call(&first)), "ann");
    done(up.cli(&["user", "revoke", "ann"]));
    for token in [&first, &second] {
        call(token).assert_refused(DENIED, &["bk_token is not known here"]);
    }
    let table = done(up.cli(&["user", "list"])).stdout;
    assert!(table.contains("USER") && table.contains("ann") && table.contains("enabled"), "{table}");

    let actions: Vec<Value> = ["user_create", "user_token", "user_disable", "user_enable", "user_revoke"]
        .map(|action| json_of(up.cli(&["audit", "--action", action, "--json"])))
        .into();
    let counts: Vec<usize> = actions.iter().map(|rows| rows.as_array().map_or(0, Vec::len)).collect();
    assert_eq!(counts, [1, 3, 1, 1, 1], "what was refused left no record of its own");
    assert!(actions.iter().all(|rows| rows[0]["subject"] == "ann"), "{actions:?}");
    let everything = done(up.cli(&["audit", "--json"])).stdout + &up.stderr();
    assert!([&first, &second, &brief].iter().all(|token| !everything.contains(token.as_str())));
}

/// How the login service behaves.
#[derive(Clone, Copy)]
enum Manner {
    /// `{"result": true, "code": 0, "data": {"bk_username": ..}}`
    New,
    /// `{"ret": 0, "data": {"username": ..}}`
    Old,
    /// It takes the call and says nothing.
    Silent,
    /// A page for people.
    Page,
}

/// A login service of ours, which knows every token `of-NAME`. It ends with the test's process.
struct LoginSite {
    url: String,
    manner: Arc<Mutex<Manner>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl LoginSite {
    fn open() -> LoginSite {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/login/accounts/is_login/", listener.local_addr().expect("bound"));
        let (manner, asked) = (Arc::new(Mutex::new(Manner::New)), Arc::new(Mutex::new(Vec::new())));
        let (behave, seen) = (manner.clone(), asked.clone());
        std::thread::spawn(move || {
            let mut held = Vec::new();
            for stream in listener.incoming() {
                let stream = stream.expect("a connection");
                let manner = *behave.lock().expect("no panic");
                held.extend(answer(stream, manner, &seen));
            }
        });
        LoginSite { url, manner, asked }
    }

    fn is(&self, manner: Manner) {
        *self.manner.lock().expect("no panic") = manner;
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("no panic").clone()
    }
}

/// Returns the connection if it is not to be answered.
fn answer(mut stream: TcpStream, manner: Manner, seen: &Mutex<Vec<String>>) -> Option<TcpStream> {
    let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines().map_while(Result::ok);
    let line = lines.next()?;
    lines.take_while(|header| !header.is_empty()).for_each(drop);
    let target = line.strip_prefix("GET ")?.split(' ').next()?.to_owned();
    let token = target.strip_prefix("/login/accounts/is_login/?bk_token=")?.to_owned();
    seen.lock().expect("no panic").push(token.clone());
    let body = match (manner, token.strip_prefix("of-")) {
        (Manner::Silent, _) => return Some(stream),
        (Manner::Page, _) => "<html>please log in</html>".to_owned(),
        (Manner::New, Some(name)) => {
            json!({"result": true, "code": 0, "message": "", "data": {"bk_username": name}}).to_string()
        }
        (Manner::New, None) => json!({"result": false, "code": 1302100, "data": {}}).to_string(),
        (Manner::Old, Some(name)) => json!({"ret": 0, "msg": "", "data": {"username": name}}).to_string(),
        (Manner::Old, None) => json!({"ret": 1, "msg": "not logged in", "data": {}}).to_string(),
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
    let _ = stream.write_all((head + &body).as_bytes());
    None
}

#[test]
fn a_login_service_is_asked_about_other_tokens() {
    let site = LoginSite::open();
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--login-url", &site.url]);
    let app = plain_app(&up);
    let call = |token: &str| operate(&app, json!({"bk_token": token}));
    assert_eq!(made_for(&up, &call("of-ann")), "ann");
    site.is(Manner::Old);
    assert_eq!(made_for(&up, &call("of-bob")), "bob");
    call("stale").assert_refused(DENIED, &["nor does the login service know it"]);
    let known = site.asked();
    assert_eq!(known, ["of-ann", "of-bob", "stale"]);
    for _ in 0..3 {
        assert_eq!(made_for(&up, &call("of-ann")), "ann");
        call("stale").assert_refused(DENIED, &[]);
    }
    assert_eq!(site.asked(), known, "what it said holds for a while");
    operate(&app, json!({"bk_token": "of-ann", "bk_username": "bob"}))
        .assert_refused(DENIED, &["bk_username"]);

    // Our own come first, and whom we have disabled stays out.
    done(up.cli(&["user", "create", "carl"]));
    assert_eq!(made_for(&up, &call(&token_of(&up, "carl", &[]))), "carl");
    assert_eq!(site.asked(), known, "it need not know of our own tokens");
    done(up.cli(&["user", "disable", "carl"]));
    call("of-carl").assert_refused(DENIED, &["disabled"]);

    site.is(Manner::Page);
    call("of-dora").assert_refused(DENIED, &["the login service did not answer in a way"]);
    site.is(Manner::Silent);
    call("of-dora").assert_refused(DENIED, &["the login service did not answer"]);
    site.is(Manner::New);
    assert_eq!(made_for(&up, &call("of-dora")), "dora", "that it did not answer is not remembered");
    assert_eq!(made_for(&up, &call("of-eva%20x&y=z#1")), "eva%2520x%26y%3Dz%231", "a token stays one value");
    assert!(!up.stderr().contains("of-"), "a token is in the log");

    let records = json_of(up.cli(&["audit", "--action", "operate_proc_v2", "--json"]));
    let said = records.as_array().expect("a list").iter().filter(|row| row["code"] == DENIED);
    assert!(said.clone().any(|row| row["bk_username"] == "carl"), "{records}");
    assert!(
        said.clone()
            .any(|row| row["detail"].as_str().is_some_and(|detail| detail.ends_with("did not answer"))),
        "{records}"
    );
}

#[test]
fn an_unreachable_login_service_refuses_all_its_tokens() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", closed.local_addr().expect("bound"));
    drop(closed);
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--login-url", &url]);
    let app = plain_app(&up);
    operate(&app, json!({"bk_token": "of-ann"}))
        .assert_refused(DENIED, &["the login service did not answer"]);
    assert_eq!(made_for(&up, &operate(&app, json!({}))), "", "who shows no token needs no service");
}

#[test]
fn the_store_contains_only_hashes_of_secrets() {
    let up = up();
    let app = plain_app(&up);
    done(up.cli(&["user", "create", "ann"]));
    let token = token_of(&up, "ann", &[]);
    let join = done(up.cli(&["token", "create"])).stdout;
    let join_secret = join.split('-').nth(2).expect("PREFIX-ID-SECRET-PIN").to_owned();
    let admin_secret = up.admin()["bk_app_secret"].as_str().expect("a secret").to_owned();
    for name in ["server.db", "server.db-wal"] {
        let bytes = std::fs::read(up.data().join(name)).expect("a file of the store");
        for secret in [&app.app_secret, &token, &join_secret, &admin_secret] {
            let is_there = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!is_there, "{name} contains a secret");
        }
    }
}
