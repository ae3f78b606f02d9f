//! `start` and its siblings: the request, the target, the waiting, the report.

use crate::server::{Reply, Server, ok, refused};
use crate::{Ran, run, run_with_input};
use procfleet_cli::Exit;
use serde_json::{Value, json};

const TASK: &str = "GSETASK:20261115205400:7";
const OPERATE: &str = "POST /api/c/compapi/v2/gse/operate_proc_v2/";
const AGENTS: &str = "GET /api/v1/agents";
const POLL: &str = "GET /api/v1/tasks/GSETASK%3A20261115205400%3A7";

fn accepted() -> Vec<Reply> {
    vec![ok(json!({"task_id": TASK}))]
}

fn agent(number: u32) -> Value {
    json!({
        "bk_agent_id": format!("agent-{number}"), "bk_cloud_id": 0, "ip": format!("10.0.0.{number}"),
        "version": "0.1.0", "connected": true, "since": 1, "enrolled_at": 1, "bk_biz_id": 1,
        "bk_biz_name": "default",
    })
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
fn a_start_waits_tells_each_op_once_and_succeeds() {
    let half = view("start", &[(0, "success"), (115, "handling")]);
    let done = view("start", &[(0, "success"), (0, "success")]);
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(open("start")), ok(half), ok(done)])]);
    let ran = run(&server, "start nginx --namespace web --host 0:10.0.0.0 --host 0:10.0.0.1");
    assert_eq!(ran.exit, Exit::Done);
    assert_eq!(ran.out, "start web:nginx: 2 ok\n");
    assert_eq!(
        ran.err,
        format!("task {TASK}\n0:10.0.0.0 web:nginx start: ok\n0:10.0.0.1 web:nginx start: ok\n")
    );

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
    ] {
        let server = Server::start([(OPERATE, accepted())]);
        let ran = run(&server, &format!("{verb} nginx --agent a1 --no-wait"));
        assert_eq!((ran.exit, ran.out), (Exit::Done, format!("{TASK}\n")));
        assert_eq!(server.seen()[0].body["op_type"], number, "{verb}");
    }
}

#[test]
fn one_failed_op_fails_the_verb_with_its_reason() {
    let done = view("start", &[(0, "success"), (836, "died after 0.2 s\noutput:\u{1b}[2J boom\n")]);
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(done)])]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, Exit::Failed);
    assert_eq!(ran.out, "start web:nginx: 1 ok, 1 failed\n");
    let wanted = "0:10.0.0.1 web:nginx start: failed (836): died after 0.2 s\n    output: [2J boom\n";
    assert!(ran.err.ends_with(wanted), "{}", ran.err);
}

#[test]
fn json_prints_the_final_task_and_nothing_else() {
    for (codes, exit) in [([(0, "success")], Exit::Done), ([(829, "not running")], Exit::Failed)] {
        let done = view("stop", &codes);
        let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(open("stop")), ok(done.clone())])]);
        let ran = run(&server, "stop nginx --agent a1 --json");
        assert_eq!(ran.exit, exit);
        assert_eq!(serde_json::from_str::<Value>(&ran.out).expect("one document"), done);
    }
    let server = Server::start([(OPERATE, accepted())]);
    let ran = run(&server, "stop nginx --agent a1 --json --no-wait");
    assert_eq!(serde_json::from_str::<Value>(&ran.out).expect("one document"), json!({"task_id": TASK}));
}

#[test]
fn the_only_agent_is_the_target_of_an_order_without_one() {
    let mut unplaced = agent(5);
    unplaced["ip"] = json!("");
    for (only, key, target) in [
        (agent(5), "hosts", json!([{"ip": "10.0.0.5", "bk_cloud_id": 0}])),
        (unplaced, "agent_id_list", json!(["agent-5"])),
    ] {
        let server = Server::start([(AGENTS, vec![ok(json!([only]))]), (OPERATE, accepted())]);
        let ran = run(&server, "restart nginx --no-wait");
        assert_eq!(ran.exit, Exit::Done);
        assert_eq!(server.seen()[1].body[key], target);
    }
}

#[test]
fn without_a_target_several_agents_are_listed_and_nothing_is_done() {
    for (count, wanted) in [
        (0, "error: no agent has joined yet, so there is no host to do it on: procfleet token create makes a token for one\n".to_owned()),
        (
            2,
            "error: there are 2 agents: choose with --host CLOUD:IP or --agent ID\n  --host 0:10.0.0.1  (--agent \
             agent-1)\n  --host 0:10.0.0.2  (--agent agent-2)\n"
                .to_owned(),
        ),
    ] {
        let agents: Vec<Value> = (1..=count).map(agent).collect();
        let server = Server::start([(AGENTS, vec![ok(json!(agents))])]);
        let ran = run(&server, "start nginx");
        assert_eq!((ran.exit, ran.out.as_str(), ran.err), (Exit::Usage, "", wanted));
        assert_eq!(server.lines(), [AGENTS]);
    }
    let agents: Vec<Value> = (1..=13).map(agent).collect();
    let server = Server::start([(AGENTS, vec![ok(json!(agents))])]);
    let ran = run(&server, "start nginx");
    assert_eq!(ran.err.matches("--agent agent-").count(), 10);
    assert!(ran.err.ends_with("\n  and 3 more: procfleet agents\n"), "{}", ran.err);
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
    assert_eq!(ran.exit, Exit::Done);
    let mut wanted = file;
    wanted["meta"] = json!({"namespace": "gse", "name": "nginx", "labels": {}});
    wanted["op_type"] = json!(0);
    assert_eq!(server.seen()[0].body, wanted);
}

#[test]
fn a_file_that_cannot_be_used_is_told_before_the_server_is_asked() {
    let server = Server::start([]);
    let ran = run_with_input(&server.url(), "start nginx -f -", "{}");
    assert_eq!(ran.exit, Exit::Usage);
    // Fields that nobody reads are mistakes in what a person wrote, and all of them are named.
    let spec = json!({"identity": {"proc_nam": "nginx"}, "control": {"strat_cmd": "x", "owner": "me"}});
    let ran = run_with_input(&server.url(), "start nginx -f -", &spec.to_string());
    assert_eq!(ran.exit, Exit::Usage);
    for words in [
        "spec.identity.proc_nam is not known; did you mean proc_name?",
        "spec.control.strat_cmd is not known; did you mean start_cmd?",
        "spec.control.owner is not known",
    ] {
        assert!(ran.err.contains(words), "{words:?} is not in {:?}", ran.err);
    }
    assert_eq!(server.lines().len(), 0);
}

/// Whoever names the hosts wants them left alone all the same.
#[test]
fn a_dry_run_sends_nothing_whatever_its_targets() {
    let meant = ok(json!({"task_id": "", "count": 1, "hosts": ["0:10.0.0.1"]}));
    let server = Server::start([("POST /api/v1/operate", vec![meant])]);
    for (target, term) in
        [("--select role=web", "role=web"), ("--host 0:10.0.0.1", "0:10.0.0.1"), ("--agent a1", "a1")]
    {
        let ran = run(&server, &format!("stop nginx {target} --dry-run"));
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Done, "0:10.0.0.1\n"), "{target}");
        let sent = server.seen().pop().expect("a request").body;
        assert_eq!((&sent["select"], &sent["dry_run"]), (&json!([term]), &json!(true)), "{target}");
    }
    let asked = server.lines().len();
    let ran = run(&server, "stop nginx --dry-run");
    assert_eq!((ran.exit, server.lines().len()), (Exit::Usage, asked));
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
    assert_eq!(ran.exit, Exit::Failed);
    assert_eq!(
        ran.out,
        "HOST        NAMESPACE  NAME   STATE          HOSTED  PID  CPU%  MEM%  MEMORY   UP   VERSION  HEALTH\n\
         0:10.0.0.0  web        nginx  running        yes     42   1.5   0.1   2.0 MiB  30s  1.2      unhealthy: no answer\n\
         0:10.0.0.1  web        nginx  stopped        yes     -    -     -     -        -    1.2      -\n\
         0:10.0.0.2  web        nginx  unknown (117)  -       -    -     -     -        -    -        -\n"
    );
    assert_eq!(ran.err, format!("task {TASK}\n0:10.0.0.2 web:nginx query: failed (117): no agent\n"));
}

#[test]
fn a_server_that_comes_back_is_waited_for() {
    let done = view("start", &[(0, "success")]);
    let server = Server::start([
        (OPERATE, accepted()),
        (POLL, vec![ok(open("start")), Reply::HangUp, Reply::HangUp, ok(done)]),
    ]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, Exit::Done);
    assert_eq!(ran.err.matches("; trying again").count(), 1, "{}", ran.err);
}

#[test]
fn a_server_that_stays_away_is_given_up_and_the_task_named() {
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![Reply::HangUp])]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.contains(&format!("procfleet task watch {TASK}")), "{}", ran.err);
}

#[test]
fn the_timeout_ends_the_waiting_and_not_the_task() {
    let server = Server::start([(OPERATE, accepted()), (POLL, vec![ok(open("start"))])]);
    let ran = run(&server, "start nginx --agent a1 --timeout 0");
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Failed, "start web:nginx: 2 open\n"));
    assert!(ran.err.contains("not finished after 0 s; the task goes on"), "{}", ran.err);
}

#[test]
fn an_order_whose_answer_was_lost_is_not_repeated() {
    let server = Server::start([(OPERATE, vec![Reply::HangUp])]);
    let ran = run(&server, "start nginx --agent a1");
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.contains("the request may have been accepted"), "{}", ran.err);
    assert_eq!(server.lines(), [OPERATE]);
}

#[test]
fn a_refused_order_is_told_in_the_servers_words() {
    let server = Server::start([(OPERATE, vec![refused(1_000_811, "spec.identity.user: is empty")])]);
    let Ran { exit, out, err } = run(&server, "start nginx --agent a1");
    assert_eq!((exit, out.as_str()), (Exit::Failed, ""));
    assert_eq!(err, "error: the server refused: spec.identity.user: is empty (code 1000811)\n");
}

#[test]
fn watching_a_task_exits_as_its_ops_ended() {
    for (codes, exit, told) in
        [([(0, "success")], Exit::Done, "1 ok"), ([(836, "x")], Exit::Failed, "1 failed")]
    {
        let server = Server::start([(POLL, vec![ok(open("start")), ok(view("start", &codes))])]);
        let ran = run(&server, &format!("task watch {TASK}"));
        assert_eq!((ran.exit, ran.out), (exit, format!("start web:nginx: {told}\n")));
    }
}

#[test]
fn showing_a_task_lists_its_ops() {
    let seen = view("start", &[(0, "success"), (115, "handling"), (836, "died")]);
    let server = Server::start([(POLL, vec![ok(seen.clone())])]);
    let ran = run(&server, &format!("task show {TASK}"));
    assert_eq!(ran.exit, Exit::Done);
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
