//! `start` and its siblings: the request, the target, the waiting, the report.

use crate::server::{Reply, Server, ok, page, refused};
use crate::{Ran, run, run_as, run_with_input};
use procfleet_cli::{Prompts, VerbExit};
use serde_json::{Value, json};

const TASK: &str = "GSETASK:20261115205400:7";
const OPERATE: &str = "POST /api/v1/operate";
const POLL: &str = "GET /api/v1/tasks/GSETASK%3A20261115205400%3A7";

fn operated(task: &str, hosts: usize) -> Value {
    let hosts: Vec<String> = (0..hosts).map(|number| format!("0:10.0.0.{number}")).collect();
    let procs = json!([{"namespace": "web", "name": "nginx", "hosts": hosts}]);
    json!({"task_id": task, "count": hosts.len(), "hosts": hosts, "procs": procs})
}

fn accepted() -> Vec<Reply> {
    vec![ok(operated(TASK, 1))]
}

/// A task with one op for each code.
fn view(kind: &str, codes: &[(u32, &str)]) -> Value {
    let count = |wanted: fn(u32) -> bool| codes.iter().filter(|(code, _)| wanted(*code)).count();
    let ops: Vec<Value> = codes
        .iter()
        .enumerate()
        .map(|(index, (code, message))| {
            json!({
                "op_id": format!("20261115205400-7-{index}"), "key": "k", "kind": kind,
                "target": format!("0:10.0.0.{index}"), "namespace": "web", "name": "nginx",
                "error_code": code, "error_msg": message, "content": "",
            })
        })
        .collect();
    json!({
        "task_id": TASK, "created_at": 1, "bk_app_code": "ops", "bk_username": "ann",
        "summary": format!("{kind} web:nginx"),
        "counts": {
            "total": codes.len(), "open": count(|code| code == 115), "succeeded": count(|code| code == 0),
            "failed": count(|code| code != 0 && code != 115),
        },
        "ops": ops, "later_field": 1,
    })
}

fn open(kind: &str) -> Value {
    view(kind, &[(115, "handling"), (115, "handling")])
}

#[test]
fn a_start_waits_prints_each_op_once_and_succeeds() {
    let half = view("start", &[(0, "success"), (115, "handling")]);
    let done = view("start", &[(0, "success"), (0, "success")]);
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(open("start")), ok(half), ok(done)])]);
    let ran = run(&server, "start nginx --namespace web --host 0:10.0.0.0 --host 0:10.0.0.1");
    assert_eq!(ran.exit, VerbExit::Done);
    assert_eq!(
        ran.out,
        "0:10.0.0.0 web:nginx start: ok\n0:10.0.0.1 web:nginx start: ok\nstart web:nginx: 2 ok\n"
    );
    assert_eq!(ran.err, format!("task {TASK}\n"));

    let seen = server.seen();
    assert_eq!(seen.len(), 4);
    assert_eq!(seen[0].body["op_type"], 0);
    assert_eq!(seen[0].body["meta"], json!({"namespace": "web", "name": "nginx", "labels": {}}));
    assert_eq!(seen[0].body.get("spec"), None);
    assert_eq!(seen[1].line, format!("{POLL}?wait_ms=1000"));
}

#[test]
fn each_verb_has_its_number() {
    for (verb, number) in [
        ("start", 0),
        ("stop", 1),
        ("status", 2),
        ("host", 3),
        ("unhost", 4),
        ("restart", 7),
        ("reload", 8),
        ("kill", 9),
        ("unregister", 102),
    ] {
        let server = Server::start([(OPERATE, accepted())]);
        let ran = run(&server, &format!("{verb} nginx --agent a1 --no-wait"));
        assert_eq!((ran.exit, ran.out), (VerbExit::Done, format!("{TASK}\n")));
        assert_eq!(server.seen()[0].body["op_type"], number, "{verb}");
    }
}

#[test]
fn one_failed_op_fails_the_verb_with_its_reason() {
    let done = view("start", &[(0, "success"), (836, "died after 0.2 s\noutput:\u{1b}[2J boom\n")]);
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(done)])]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, VerbExit::Failed);
    let wanted = "0:10.0.0.0 web:nginx start: ok\n\
                  0:10.0.0.1 web:nginx start: failed (836): died after 0.2 s\n    output: [2J boom\n\
                  start web:nginx: 1 ok, 1 failed\n";
    assert_eq!(ran.out, wanted);
}

/// Scripts say how things should be, and need not know how they are.
#[test]
fn an_operation_with_nothing_to_do_succeeds_unless_strict() {
    for (verb, code, word) in
        [("start", 828, "already running"), ("stop", 829, "not running"), ("kill", 829, "not running")]
    {
        let server =
            Server::start([(OPERATE, accepted()), (POLL, vec![ok(view(verb, &[(code, "it was so")]))])]);
        let ran = run(&server, &format!("{verb} nginx --agent a1"));
        assert_eq!(ran.exit, VerbExit::Done, "{verb}");
        let line =
            format!("0:10.0.0.0 web:nginx {verb}: {word} ({code}): it was so\n{verb} web:nginx: 1 {word}\n");
        assert_eq!(ran.out, line);
        assert_eq!(
            run(&server, &format!("{verb} nginx --agent a1 --strict")).exit,
            VerbExit::Failed,
            "{verb}"
        );
    }
    // With --strict it is a failure.
    for (verb, code) in [("reload", 829), ("restart", 828), ("start", 829)] {
        let server = Server::start([
            (OPERATE, accepted()),
            (POLL, vec![ok(view(verb, &[(code, "no"), (0, "success")]))]),
        ]);
        assert_eq!(run(&server, &format!("{verb} nginx --agent a1")).exit, VerbExit::Failed, "{verb}");
    }
}

#[test]
fn json_prints_the_final_task_and_nothing_else() {
    for (codes, exit) in [([(0, "success")], VerbExit::Done), ([(836, "still there")], VerbExit::Failed)] {
        let done = view("stop", &codes);
        let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(open("stop")), ok(done.clone())])]);
        let ran = run(&server, "stop nginx --agent a1 --json");
        assert_eq!(ran.exit, exit);
        assert_eq!(serde_json::from_str::<Value>(&ran.out).expect("one document"), done);
    }
    let server = Server::start([(OPERATE, accepted())]);
    let ran = run(&server, "stop nginx --agent a1 --json --no-wait");
    assert_eq!(serde_json::from_str::<Value>(&ran.out).expect("one document"), operated(TASK, 1));
}

/// The server knows which hosts have the process.
#[test]
fn an_order_without_a_target_leaves_the_hosts_to_the_server() {
    let server = Server::start([(OPERATE, accepted())]);
    let ran = run(&server, "restart web* api --namespace web --no-wait");
    assert_eq!(ran.exit, VerbExit::Done);
    let meta = json!({"namespace": "web", "name": "web*", "labels": {}});
    assert_eq!(server.seen()[0].body, json!({"meta": meta, "names": ["api"], "op_type": 7}));
}

#[test]
fn a_person_is_asked_when_many_hosts_are_meant() {
    for (hosts, prompts, flags, input, exit, calls) in [
        (21, Prompts::Allowed, "", "y\n", VerbExit::Done, 2),
        (21, Prompts::Allowed, "", "n\n", VerbExit::Failed, 1),
        (21, Prompts::Allowed, "", "", VerbExit::Failed, 1),
        (20, Prompts::Allowed, "", "", VerbExit::Done, 2),
        (21, Prompts::Allowed, "--yes", "", VerbExit::Done, 1),
        (21, Prompts::Forbidden, "", "", VerbExit::Done, 1),
    ] {
        let server = Server::start([(OPERATE, vec![ok(operated(TASK, hosts))])]);
        let ran = run_as(prompts, &server.url(), &format!("stop nginx --no-wait {flags}"), input);
        assert_eq!((ran.exit, server.seen().len()), (exit, calls), "{hosts} {prompts:?} {flags} {input:?}");
        let sent: Vec<bool> = server.seen().iter().map(|seen| seen.body["dry_run"] != true).collect();
        assert_eq!(sent.contains(&true), exit == VerbExit::Done, "{hosts} {prompts:?} {flags} {input:?}");
        let asked = ran.err.contains("21 hosts match; stop them? [y/N] ");
        assert_eq!(asked, hosts > 20 && prompts == Prompts::Allowed && flags.is_empty(), "{}", ran.err);
    }
}

#[test]
fn a_person_is_asked_before_many_hosts_are_tried_again() {
    const RETRY: &str = "POST /api/v1/tasks/GSETASK%3A20261115205400%3A7/retry";
    for (hosts, prompts, flags, input, exit) in [
        (21, Prompts::Allowed, "", "y\n", VerbExit::Done),
        (21, Prompts::Allowed, "", "n\n", VerbExit::Failed),
        (20, Prompts::Allowed, "", "", VerbExit::Done),
        (21, Prompts::Allowed, "--yes", "", VerbExit::Done),
        (21, Prompts::Forbidden, "", "", VerbExit::Done),
    ] {
        let failed = view("start", &vec![(836, "died"); hosts]);
        let server = Server::start([
            (POLL, vec![page(failed, Value::Null, hosts as u64)]),
            (RETRY, vec![ok(json!({"task_id": TASK}))]),
        ]);
        let ran = run_as(prompts, &server.url(), &format!("task retry {TASK} --no-wait {flags}"), input);
        assert_eq!(ran.exit, exit, "{hosts} {prompts:?} {flags} {input:?}: {}", ran.err);
        let sent = server.lines().iter().any(|line| line.starts_with("POST"));
        assert_eq!(sent, exit == VerbExit::Done, "{hosts} {prompts:?} {flags} {input:?}");
        let asked = ran.err.contains("21 operations failed; try them again? [y/N] ");
        assert_eq!(asked, hosts > 20 && prompts == Prompts::Allowed && flags.is_empty(), "{}", ran.err);
    }
}

/// A large task is waited for to the last of its ops, page by page.
#[test]
fn a_task_of_many_pages_is_read_to_its_end() {
    let whole = view("start", &[(0, "success"), (0, "success"), (836, "died")]);
    let part = |ops: std::ops::Range<usize>| {
        let mut part = whole.clone();
        part["ops"] = json!(whole["ops"].as_array().expect("ops")[ops]);
        part
    };
    let server = Server::start([(
        POLL,
        vec![
            page(part(0..2), json!("1"), 3),
            page(part(2..3), Value::Null, 3),
            page(part(0..2), json!("1"), 3),
        ],
    )]);
    let ran = run(&server, &format!("task watch {TASK}"));
    assert_eq!(ran.exit, VerbExit::Failed, "the failed op is on the second page: {}", ran.out);
    assert!(ran.out.ends_with("\nstart web:nginx: 2 ok, 1 failed\n"), "{}", ran.out);
    let shown = run(&server, &format!("task show {TASK} --state ended"));
    assert_eq!(shown.out.lines().count(), 4, "{}", shown.out);
    assert!(shown.out.starts_with("start web:nginx: 2 ok, 1 failed\n"), "{}", shown.out);
    assert!(shown.err.ends_with("showing 2 of 3; for more: --limit N, or --after 1\n"), "{}", shown.err);
    let lines = server.lines();
    assert!(lines[1].ends_with("?limit=10000&after=1"), "{lines:?}");
    assert!(lines[2].ends_with("?state=ended"), "{lines:?}");
}

#[test]
fn a_request_from_stdin_brings_its_own_target() {
    let file = json!({
        "meta": {"namespace": "gse", "name": "x"},
        "hosts": [{"ip": "10.0.0.9", "bk_cloud_id": 3}],
        "spec": {"identity": {"proc_name": "nginx"}},
    });
    let server = Server::start([(OPERATE, accepted())]);
    let ran = run_with_input(&server.url(), "start nginx -f - --no-wait", &file.to_string());
    assert_eq!(ran.exit, VerbExit::Done);
    let mut wanted = file;
    wanted["meta"] = json!({"namespace": "gse", "name": "nginx", "labels": {}});
    wanted["op_type"] = json!(0);
    assert_eq!(server.seen()[0].body, wanted);
}

#[test]
fn an_unusable_file_is_reported_before_the_server_is_asked() {
    let server = Server::start([]);
    let ran = run_with_input(&server.url(), "start nginx -f -", "{}");
    assert_eq!(ran.exit, VerbExit::Usage);
    // Unknown fields in a file are mistakes, and all of them are named.
    let spec = json!({"identity": {"proc_nam": "nginx"}, "control": {"strat_cmd": "x", "owner": "me"}});
    let ran = run_with_input(&server.url(), "start nginx -f -", &spec.to_string());
    assert_eq!(ran.exit, VerbExit::Usage);
    for words in [
        "spec.identity.proc_nam is not known; did you mean proc_name?",
        "spec.control.strat_cmd is not known; did you mean start_cmd?",
        "spec.control.owner is not known",
    ] {
        assert!(ran.err.contains(words), "{words:?} is not in {:?}", ran.err);
    }
    assert_eq!(server.lines().len(), 0);
}

/// Named hosts get nothing either.
#[test]
fn a_dry_run_sends_nothing_whatever_its_targets() {
    let mut two = operated("", 1);
    two["procs"] = json!([
        {"namespace": "web", "name": "api", "hosts": ["0:10.0.0.0"]},
        {"namespace": "web", "name": "nginx", "hosts": ["0:10.0.0.0"]},
    ]);
    let server = Server::start([(
        OPERATE,
        vec![ok(operated("", 1)), ok(operated("", 1)), ok(operated("", 1)), ok(two)],
    )]);
    for (target, place, sent) in [
        ("--select role=web", "select", json!(["role=web"])),
        ("--host 10.0.0.0", "hosts", json!([{"ip": "10.0.0.0", "bk_cloud_id": 0}])),
        ("", "select", Value::Null),
    ] {
        let ran = run(&server, &format!("stop nginx {target} --dry-run"));
        assert_eq!((ran.exit, ran.out.as_str()), (VerbExit::Done, "0:10.0.0.0\n"), "{target}");
        let body = server.seen().pop().expect("a request").body;
        assert_eq!((&body[place], &body["dry_run"]), (&sent, &json!(true)), "{target}");
    }
    let ran = run(&server, "stop --all --namespace web --dry-run");
    assert_eq!(ran.out, "0:10.0.0.0 web:api\n0:10.0.0.0 web:nginx\n");
}

#[test]
fn status_is_a_table() {
    let mut done = view("query", &[(0, "success"), (0, "success"), (117, "no agent")]);
    for (index, pid) in [(0, 42), (1, -1)] {
        let content = json!({"ip": "10.0.0.1", "process": [{"procname": "nginx", "instance": [{
            "pid": pid, "isAuto": true, "cpuUsage": 1.5, "phyMemUsage": 0.13, "usePhyMem": 2048, "elapsedTime": 30,
            "version": "1.2", "health": "unhealthy: no answer",
        }]}]});
        done["ops"][index]["content"] = json!(content.to_string());
    }
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(done)])]);
    let ran = run(&server, "status nginx --agent a1");
    assert_eq!(ran.exit, VerbExit::Unknown);
    assert_eq!(
        ran.out,
        "HOST        NAMESPACE  NAME   STATE          HOSTED  PID  CPU%  MEM%  MEMORY   UP   VERSION  HEALTH\n\
         0:10.0.0.0  web        nginx  running        yes     42   1.5   0.1   2.0 MiB  30s  1.2      unhealthy: no answer\n\
         0:10.0.0.1  web        nginx  stopped        yes     -    -     -     -        -    1.2      -\n\
         0:10.0.0.2  web        nginx  unknown (117)  -       -    -     -     -        -    -        -\n"
    );
    assert_eq!(ran.err, format!("task {TASK}\n0:10.0.0.2 web:nginx query: failed (117): no agent\n"));
}

/// As `systemctl is-active` does it.
#[test]
fn is_running_is_a_word_and_an_exit() {
    let query = |pid: i64| {
        let mut done = view("query", &[(0, "success")]);
        let content = json!({"process": [{"procname": "nginx", "instance": [{"pid": pid}]}]});
        done["ops"][0]["content"] = json!(content.to_string());
        done
    };
    for (done, exit, word) in [
        (query(42), VerbExit::Done, "running\n"),
        (query(-1), VerbExit::Stopped, "stopped\n"),
        (view("query", &[(801, "no spec")]), VerbExit::Unknown, "unknown\n"),
        (view("query", &[(117, "no agent")]), VerbExit::Unknown, "unknown\n"),
    ] {
        let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(done)])]);
        let ran = run(&server, "is-running nginx --namespace web");
        assert_eq!((ran.exit, ran.out.as_str(), ran.err.as_str()), (exit, word, ""));
        assert_eq!(run(&server, "is-running nginx --namespace web --quiet").out, "");
    }
    let nowhere = refused(1_000_811, "meta.name: none of the 2 agents is known to have web:nginx");
    let server = Server::start([(OPERATE, vec![nowhere])]);
    for line in ["is-running nginx", "status nginx"] {
        let ran = run(&server, line);
        assert_eq!(ran.exit, VerbExit::Unknown, "{line}");
        assert!(ran.err.contains("is known to have"), "{}", ran.err);
    }
    assert_eq!(run(&server, "status nginx --select role=x").exit, VerbExit::Failed, "the selection is wrong");
}

#[test]
fn a_stored_spec_is_shown_as_a_file_takes_it() {
    let spec = |ip: &str, cmd: &str| {
        json!({"bk_agent_id": "a", "bk_cloud_id": 0, "ip": ip, "meta": {"namespace": "web", "name": "nginx", "labels": {}},
               "spec": {"control": {"start_cmd": cmd}}})
    };
    let meant = ok(operated("", 2));
    let specs = vec![
        ok(spec("10.0.0.0", "a")),
        ok(spec("10.0.0.1", "a")),
        ok(spec("10.0.0.0", "a")),
        ok(spec("10.0.0.1", "b")),
    ];
    let server = Server::start([(OPERATE, vec![meant]), ("GET /api/v1/specs", specs)]);
    let ran = run(&server, "show nginx --namespace web");
    assert_eq!((ran.exit, ran.err.as_str()), (VerbExit::Done, "the same on 2 hosts\n"));
    let file: Value = serde_json::from_str(&ran.out).expect("one document");
    assert_eq!(file["spec"], json!({"control": {"start_cmd": "a"}}));
    assert_eq!(file["meta"]["name"], "nginx");
    assert!(
        server.lines()[1].ends_with("?namespace=web&name=nginx&host=0%3A10.0.0.0"),
        "{:?}",
        server.lines()
    );
    let ran = run(&server, "show nginx --namespace web");
    assert_eq!(ran.err, "on 0:10.0.0.0:\non 0:10.0.0.1:\n");
}

#[test]
fn a_server_that_comes_back_is_waited_for() {
    let done = view("start", &[(0, "success")]);
    let server = Server::start([
        (OPERATE, accepted()),
        (POLL, vec![ok(open("start")), Reply::HangUp, Reply::HangUp, ok(done)]),
    ]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, VerbExit::Done);
    assert_eq!(ran.err.matches("; trying again").count(), 1, "{}", ran.err);
}

#[test]
fn a_server_that_stays_away_is_given_up_and_the_task_named() {
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![Reply::HangUp])]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, VerbExit::Unreachable);
    assert!(ran.err.contains(&format!("procfleet task watch {TASK}")), "{}", ran.err);
}

#[test]
fn the_timeout_ends_the_waiting_and_not_the_task() {
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(open("start"))])]);
    let ran = run(&server, "start nginx --agent a1 --timeout 0");
    assert_eq!((ran.exit, ran.out.as_str()), (VerbExit::Failed, "start web:nginx: 2 open\n"));
    assert!(ran.err.contains("not finished after 0 s; the task goes on"), "{}", ran.err);
}

#[test]
fn an_order_whose_answer_was_lost_is_not_repeated() {
    let server = Server::start([(OPERATE, vec![Reply::HangUp])]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, VerbExit::Unreachable);
    assert!(ran.err.contains("the request may have been accepted"), "{}", ran.err);
    assert_eq!(server.lines(), [OPERATE]);
}

#[test]
fn a_refused_order_shows_the_message_of_the_server() {
    let server = Server::start([(OPERATE, vec![refused(1_000_811, "spec.identity.user: is empty")])]);
    let Ran { exit, out, err } = run(&server, "start nginx --agent a1");
    assert_eq!((exit, out.as_str()), (VerbExit::Failed, ""));
    assert_eq!(err, "error: the server refused: spec.identity.user: is empty (code 1000811)\n");
}

#[test]
fn watching_a_task_exits_as_its_ops_ended() {
    for (codes, exit, told) in
        [([(0, "success")], VerbExit::Done, "1 ok"), ([(836, "x")], VerbExit::Failed, "1 failed")]
    {
        let server = Server::start([(POLL, vec![ok(open("start")), ok(view("start", &codes))])]);
        let ran = run(&server, &format!("task watch {TASK}"));
        assert_eq!(ran.exit, exit);
        assert!(ran.out.ends_with(&format!("\nstart web:nginx: {told}\n")), "{}", ran.out);
    }
}

#[test]
fn showing_a_task_lists_its_ops() {
    let seen = view("start", &[(0, "success"), (115, "handling"), (836, "died")]);
    let server = Server::start([(POLL, vec![ok(seen.clone())])]);
    let ran = run(&server, &format!("task show {TASK}"));
    assert_eq!(ran.exit, VerbExit::Done);
    assert_eq!(
        ran.out,
        "start web:nginx: 1 ok, 1 failed, 1 open\n\
         TARGET      NAMESPACE  NAME   OP     STATE   CODE  MESSAGE\n\
         0:10.0.0.0  web        nginx  start  ok      0     success\n\
         0:10.0.0.1  web        nginx  start  open    115   handling\n\
         0:10.0.0.2  web        nginx  start  failed  836   died\n"
    );
    let json = run(&server, &format!("task show {TASK} --json"));
    assert_eq!(serde_json::from_str::<Value>(&json.out).expect("one document"), seen);
}
