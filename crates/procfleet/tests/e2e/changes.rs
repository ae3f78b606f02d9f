//! Spec flags of the client: they change fields of the stored spec, and the rest of it stays.

use crate::up;
use procfleet_testkit::{
    Finished, Op, PATIENCE, Signal, Up, account, is_running, kill, programs, wait_until,
};
use serde_json::{Value, json};
use std::fs;

#[track_caller]
fn done(finished: &Finished) -> &Finished {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    finished
}

/// The file that `procfleet show` prints.
#[track_caller]
fn shown(up: &Up, name: &str) -> Value {
    let shown = up.cli(&["show", name, "--namespace", &up.namespace]);
    serde_json::from_str(&done(&shown).stdout).unwrap_or_else(|error| panic!("{error}: {shown:?}"))
}

#[test]
fn spec_flags_change_fields_of_the_stored_spec() {
    let up = up();
    let ns = up.namespace.as_str();
    let one = up.proc("one").starts(&programs::foreground()).control("health_cmd", "true");
    let two = up.proc("two").starts(&programs::foreground_below_shell()).policy("op_timeout", 17);
    let pid = one.start();
    two.start();

    // Two procs with different specs, one call.
    done(&up.cli(&["host", "one", "two", "--namespace", ns, "--start-retries", "10", "--label", "tier=1"]));
    let (first, second) = (shown(&up, "one"), shown(&up, "two"));
    for (file, proc) in [(&first, &one), (&second, &two)] {
        let policy = &file["spec"]["alive_monitor_policy"];
        assert_eq!(policy["start_retries"], 10, "{file}");
        assert_eq!(file["spec"]["control"]["start_cmd"], proc.request["spec"]["control"]["start_cmd"]);
        assert_eq!(file["spec"]["identity"]["user"], account());
        assert_eq!(policy["start_check_secs"], 1, "{file}");
        assert_eq!(file["meta"]["labels"], json!({"proc_name": programs::NAME, "tier": "1"}));
    }
    assert_eq!(first["spec"]["control"]["health_cmd"], "true");
    assert_eq!(second["spec"]["alive_monitor_policy"]["op_timeout"], 17);
    assert!(is_running(pid), "host does not touch what runs");

    // It is hosted with the command that it had.
    kill(pid, Signal::KILL);
    wait_until(PATIENCE, "it was started again", || {
        one.row().is_some_and(|row| row["pid"].as_u64().is_some_and(|now| now != u64::from(pid)))
    });

    // A restart keeps all but the named field, too.
    done(&up.cli(&["restart", "one", "--namespace", ns, "--op-timeout", "23"]));
    let file = shown(&up, "one");
    assert_eq!(file["spec"]["alive_monitor_policy"]["op_timeout"], 23);
    assert_eq!(file["spec"]["alive_monitor_policy"]["start_retries"], 10);
    assert_eq!(file["spec"]["control"], first["spec"]["control"]);

    // And a stop uses the stored stop_cmd beside a field that it changes. This one ends nothing.
    let file_name = one.folder.join("stopped");
    let stop = format!("touch {}", file_name.display());
    done(&up.cli(&["host", "one", "--namespace", ns, "--stop-cmd", &stop]));
    let stopping = up.cli(&["stop", "one", "--namespace", ns, "--stop-check-secs", "1"]);
    assert!(file_name.exists(), "{stopping:?}");
    up.cli(&["kill", "one", "two", "--namespace", ns]);
}

#[test]
fn a_shown_spec_can_be_edited_and_sent_again() {
    let up = up();
    let proc = up.proc("edited").starts(&programs::foreground());
    proc.start();
    let mut file = shown(&up, "edited");
    file["spec"]["alive_monitor_policy"]["start_retries"] = json!(7);
    file["spec"]["control"].as_object_mut().expect("commands").remove("health_cmd");
    let path = up.folder("cli").join("edited.json");
    fs::write(&path, file.to_string()).expect("our own folder");
    // A file is a whole spec, and a flag beside it is a part of that spec.
    done(&up.cli(&["host", "edited", "-f", "edited.json", "--op-timeout", "31"]));
    file["spec"]["alive_monitor_policy"]["op_timeout"] = json!(31);
    assert_eq!(shown(&up, "edited"), file);
    proc.op(Op::Kill).assert_success();

    let unknown = up.cli(&["show", "nothing", "--namespace", &up.namespace]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("no spec of") && unknown.stderr.contains("1000801"), "{unknown:?}");
}

#[test]
fn a_process_without_a_start_command_is_not_hosted() {
    let up = up();
    let proc = up.proc("bare").starts(&programs::foreground());
    let pid = proc.start();
    proc.op(Op::Unhost).assert_success().assert_hosted(false);
    let bare = proc.clone().starts("");
    bare.op(Op::Host).assert(827, "host is not possible: the spec has no start_cmd").assert_hosted(false);
    proc.op(Op::Host).assert_success().assert_hosted(true);
    bare.op(Op::Host).assert(827, "host is not possible").assert_hosted(true);
    let stored = shown(&up, "bare");
    assert_eq!(stored["spec"]["control"]["start_cmd"], proc.request["spec"]["control"]["start_cmd"]);
    assert!(is_running(pid));
    let refused = up.cli(&["host", "bare", "--namespace", &up.namespace, "--cmd", ""]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stdout.contains("failed (827)"), "{refused:?}");
    proc.op(Op::Kill).assert_success();
}

#[test]
fn a_stored_spec_is_shown_to_those_who_may_use_its_account() {
    let up = up();
    let proc = up.proc("secretive").starts(&programs::foreground());
    proc.start();
    let create = up.cli(&["app", "create", "reader", "--json"]);
    let secret: Value = serde_json::from_str(&done(&create).stdout).expect("JSON");
    let reader = up.client.as_app("reader", secret["secret"].as_str().expect("a secret"));
    let path = format!("/api/v1/specs?namespace={}&name=secretive", up.namespace);
    reader.get(&path).assert_refused(1_306_403, &["namespace", "op query"]);
    let grant = |flags: &[&str]| {
        done(&up.cli(&[&["app", "grant", "reader"], flags].concat()));
    };
    grant(&["--namespace", &up.namespace, "--op", "query", "--account", "nobody"]);
    reader.get(&path).assert_refused(1_000_811, &["no host is known to have"]);
    grant(&["--business", "1"]);
    reader.get(&path).assert_refused(1_000_837, &["the app may not use that account"]);
    grant(&["--account", &account()]);
    assert_eq!(reader.data(&path)["spec"]["identity"]["user"], account());

    // A change that does not name the account is made for the account that the host has stored.
    let change = |fields: Value| {
        let mut body = proc.body(Op::Host);
        body["change"] = fields;
        reader.post("/api/v1/operate", body)
    };
    grant(&["--op", "host"]);
    change(json!(["op_timeout"])).assert_refused(1_306_403, &["the account that the host has stored"]);
    change(json!(["user", "colour"]))
        .assert_refused(1_000_811, &["change[1]: \"colour\" is no field of a spec"]);
    proc.op(Op::Kill).assert_success();
}
