//! The `content` text, in the shape that GSE's callers parse.

use procfleet_core::code::Code;
use procfleet_core::id::ProcKey;
use procfleet_core::op::{Content, Instance, OpKind, Outcome, ProcStatus};
use procfleet_core::request::Target;
use procfleet_core::spec::{Identity, JobFacts, Spec};
use procfleet_proto::http::content::OpContext;
use procfleet_proto::http::result::OpResult;
use serde_json::{Value, json};

fn result(kind: OpKind, outcome: Option<&Outcome>, spec: Option<&Spec>) -> OpResult {
    let proc = ProcKey { namespace: "web".to_owned(), name: "nginx_1".to_owned() };
    let target = Target::Host("0:10.0.0.1".parse().expect("a host"));
    let agent = "0200000007525400f355781710390005465c".parse().expect("an agent");
    OpResult::new(OpContext { proc: &proc, kind, spec, target: &target, agent: Some(&agent) }, outcome)
}

#[test]
fn an_open_op_says_handling_and_nothing_else() {
    let open = result(OpKind::Start, None, None);
    assert_eq!((open.error_code, open.error_msg.as_str(), open.content.as_str()), (115, "handling", ""));
}

#[test]
fn a_control_op_has_exactly_one_value_also_on_failure() {
    let identity =
        Identity { proc_name: "nginx".to_owned(), setup_path: "/usr/sbin".to_owned(), ..Identity::default() };
    let spec = Spec { identity, ..Spec::default() };
    let content =
        Content::Control { hosted: true, proc_name: "stored".to_owned(), setup_path: "/stored".to_owned() };
    let message = "no need to stop the process(nginx) that is not running";
    let outcome = Outcome::new(Code::NotRunning, message, content);
    let said = result(OpKind::Stop, Some(&outcome), Some(&spec));
    assert_eq!((said.error_code, said.error_msg.as_str()), (829, message));
    let expected = format!(
        r#"{{"value":[{{"procName":"nginx","setupPath":"/usr/sbin","funcID":"","instanceID":"","result":"{message}","isAuto":true}}]}}"#
    );
    assert_eq!(said.content, expected, "to the letter, order included");
    let job = JobFacts { func_id: "f".to_owned(), instance_id: "i".to_owned(), ..JobFacts::default() };
    let with_job = Spec { job, ..spec.clone() };
    let said: Value =
        serde_json::from_str(&result(OpKind::Stop, Some(&outcome), Some(&with_job)).content).expect("JSON");
    assert_eq!((&said["value"][0]["funcID"], &said["value"][0]["instanceID"]), (&json!("f"), &json!("i")));
    let without: Value =
        serde_json::from_str(&result(OpKind::Stop, Some(&outcome), None).content).expect("JSON");
    assert_eq!(without["value"][0]["procName"], "stored");
}

#[test]
fn a_query_has_exactly_one_instance_running_or_not() {
    let instance = Instance {
        pid: 5868,
        state: "S".to_owned(),
        began_at: 1_495_610_748,
        memory_kib: 10_412,
        ..Instance::default()
    };
    let status = ProcStatus {
        hosted: true,
        instance: Some(instance),
        reported_at: 1_522_806_980,
        utc_offset_secs: 8 * 3600,
        ..ProcStatus::default()
    };
    let running = Outcome::new(Code::Success, "success", Content::Status(Box::new(status)));
    let content: Value =
        serde_json::from_str(&result(OpKind::Query, Some(&running), None).content).expect("JSON");
    assert_eq!(content["utctime"], "2018-04-04 09:56:20");
    assert_eq!(content["utctime2"], "2018-04-04 01:56:20");
    assert_eq!(content["timezone"], 8);
    assert_eq!(content["ip"], "10.0.0.1");
    assert_eq!(content["process"].as_array().map(Vec::len), Some(1));
    assert_eq!(content["process"][0]["procname"], "nginx_1");
    let seen = &content["process"][0]["instance"][0];
    assert_eq!(
        (&seen["pid"], &seen["isAuto"], &seen["processName"]),
        (&json!(5868), &json!(true), &json!("nginx_1"))
    );
    assert_eq!(seen["startTime"], "Wed May 24 15:25:48 2017");

    let stopped = Outcome::without_status(Code::NoAgent, "away", OpKind::Query);
    let content: Value =
        serde_json::from_str(&result(OpKind::Query, Some(&stopped), None).content).expect("JSON");
    let gone = &content["process"][0]["instance"][0];
    assert_eq!((&gone["pid"], &gone["stat"], &gone["startTime"]), (&json!(-1), &json!(""), &json!("")));
}

#[test]
fn a_query_lists_all_instances_with_version_and_health() {
    let instance = |pid| Some(Instance { pid, ..Instance::default() });
    let status = ProcStatus {
        instance: instance(5),
        more: vec![None, instance(7)],
        version: "1.2.3".to_owned(),
        health: "healthy".to_owned().into(),
        ..ProcStatus::default()
    };
    let outcome = Outcome::new(Code::Success, "success", Content::Status(Box::new(status)));
    let content: Value =
        serde_json::from_str(&result(OpKind::Query, Some(&outcome), None).content).expect("JSON");
    let listed = content["process"][0]["instance"].as_array().expect("a list");
    let pids: Vec<&Value> = listed.iter().map(|one| &one["pid"]).collect();
    assert_eq!(pids, [&json!(5), &json!(-1), &json!(7)]);
    for one in listed {
        assert_eq!((&one["version"], &one["health"]), (&json!("1.2.3"), &json!("healthy")));
    }
}
