//! Error messages of verbs.

use crate::server::{Reply, Server, denied, refused};
use crate::{run, run_with_input};
use procfleet_cli::VerbExit;

#[track_caller]
fn check(reply: Reply, exit: VerbExit, words: &str) {
    let server = Server::start([("GET /api/v1/procs", vec![reply])]);
    let ran = run(&server, "ps");
    assert_eq!((ran.exit, ran.out.as_str()), (exit, ""), "{}", ran.err);
    let wanted = format!("error: {}\n", words.replace("URL", &server.url()));
    assert!(ran.err == wanted, "wanted {wanted}got    {}", ran.err);
}

#[test]
fn refusals_of_the_server_are_shown() {
    check(refused(1_000_811, "bad host"), VerbExit::Failed, "the server refused: bad host (code 1000811)");
    check(
        refused(1_306_403, "the app is unknown or its secret is wrong"),
        VerbExit::Unreachable,
        "the server refuses the login: the app is unknown or its secret is wrong (code 1306403); the credentials \
         are from the flags",
    );
    check(
        denied(1_306_403, "app \"lim\" may not use procs"),
        VerbExit::Failed,
        "the server refused: app \"lim\" may not use procs (code 1306403)",
    );
    check(
        Reply::Raw(502, "<html>bad gateway</html>"),
        VerbExit::Unreachable,
        "URL answers (http status 502), but not as procfleet does: expected value at line 1 column 1; is the \
         address right?",
    );
    check(
        Reply::Json(serde_json::json!({"result": true, "code": 0, "message": "", "data": null})),
        VerbExit::Unreachable,
        "URL answers (http status 200), but not as procfleet does: a success without data; is the address right?",
    );
    check(Reply::HangUp, VerbExit::Unreachable, "lost URL while it was answering: peer disconnected");
}

#[test]
fn a_redirect_is_not_followed_with_the_secret() {
    check(
        Reply::Raw(302, "elsewhere"),
        VerbExit::Unreachable,
        "URL answers (http status 302), but not as procfleet does: expected value at line 1 column 1; is the \
         address right?",
    );
}

#[test]
fn a_closed_port_is_reported_as_unreachable() {
    // A port that was free may meanwhile be used by another test's server; this port never is.
    let url = "http://127.0.0.1:1";
    let ran = run_with_input(url, "ps", "");
    assert_eq!(ran.exit, VerbExit::Unreachable);
    assert_eq!(
        ran.err,
        format!("error: cannot reach {url}: connection refused; is the server running? (procfleet up)\n")
    );
}

/// Also for a changing request: nothing was sent.
#[test]
fn an_unknown_host_is_reported_as_unreachable() {
    // No name server is asked about a label of more than 63 letters.
    let url = format!("http://{}:52030", "x".repeat(64));
    for line in ["ps", "stop web --namespace x --host 0:10.0.0.1"] {
        let ran = run_with_input(&url, line, "");
        let expected = format!("error: cannot reach {url}: failed to lookup address information: ");
        assert!(ran.exit == VerbExit::Unreachable && ran.err.starts_with(&expected), "{}", ran.err);
    }
}

#[test]
fn an_unknown_task_id_is_refused() {
    let server = Server::start([(
        "GET /api/v1/tasks/GSETASK%3A20261115205400%3A9",
        vec![refused(1_000_806, "no such task")],
    )]);
    for verb in ["show", "watch"] {
        let ran = run(&server, &format!("task {verb} GSETASK:20261115205400:9"));
        assert_eq!(ran.exit, VerbExit::Failed);
        assert_eq!(ran.err, "error: the server refused: no such task (code 1000806)\n");
    }
}
