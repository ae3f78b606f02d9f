//! The client's exit status, standard output and standard error, as scripts use them.

use crate::up;
use procfleet_testkit::{Finished, programs};
use serde_json::Value;

#[track_caller]
fn check(finished: &Finished, code: i32, stdout: &str) {
    assert_eq!(finished.code, Some(code), "{finished:?}");
    assert!(finished.stdout.contains(stdout), "{stdout:?} is not in {finished:?}");
}

#[test]
fn an_op_without_effect_exits_with_0() {
    let up = up();
    let proc = up.proc("scripted").starts(&programs::foreground());
    proc.start();
    let run = |verb: &str, more: &[&str]| {
        up.cli(&[&[verb, "scripted", "--namespace", &up.namespace], more].concat())
    };
    let again = run("start", &[]);
    check(&again, 0, "start: already running (828)");
    assert!(again.stderr.starts_with("task GSETASK:") && !again.stderr.contains("828"), "{again:?}");
    check(&run("start", &["--strict"]), 1, "already running (828)");
    check(&run("status", &[]), 0, "running");
    check(&run("is-running", &[]), 0, "running\n");

    let stopped = run("stop", &[]);
    check(&stopped, 0, &format!("0:127.0.0.1 {}:scripted stop: ok\n", up.namespace));
    check(&run("stop", &[]), 0, "stop: not running (829)");
    check(&run("kill", &[]), 0, "kill: not running (829)");
    check(&run("stop", &["--strict"]), 1, "not running (829)");
    check(&run("reload", &[]), 1, "failed");
    check(&run("status", &[]), 3, "stopped");
    check(&run("is-running", &[]), 3, "stopped\n");
    let quiet = run("is-running", &["--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (Some(3), "", ""), "{quiet:?}");

    // One JSON document on standard output, and the code of the outcome in it.
    let json = run("stop", &["--json"]);
    let document: Value = serde_json::from_str(&json.stdout).expect("one document");
    assert_eq!((json.code, &document["ops"][0]["error_code"]), (Some(0), &829.into()));
}

#[test]
fn the_status_of_an_unknown_proc_exits_with_4() {
    let up = up();
    for target in [&[][..], &["--host", "127.0.0.1"], &["--host", "9:10.9.9.9"]] {
        for verb in ["status", "is-running"] {
            let asked = up.cli(&[&[verb, "nothing", "--namespace", &up.namespace], target].concat());
            check(&asked, 4, "unknown");
        }
    }
    let help = up.cli(&["status", "--help"]);
    check(&help, 0, "3  it is stopped on one of them");
    check(&up.cli(&["stop", "--help"]), 0, "Exit status:");
}
