//! One call for 200 hosts, of which two cannot be reached: these fail soon and alone.
//!
//! The other 198 are real agents, each a process of its own that has joined with a token; only the machine is
//! one and the same. Each of them runs a command that ends (auto_type 2), because all of them would see a
//! process that stays.

use crate::up;
use procfleet_testkit::{Joined, Op, Signal, Up, wait_for, wait_until};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// With the agent of `up`, and without the agent that is stopped.
const THERE: usize = 198;
/// All of them enrol, connect and take part in the work of a small machine at once.
const GATHERING: Duration = Duration::from_secs(600);
#[track_caller]
fn connected(up: &Up) -> usize {
    let agents = up.client.data("/api/v1/agents");
    agents.as_array().expect("a list").iter().filter(|agent| agent["connected"] == true).count()
}

#[test]
fn two_unreachable_hosts_of_200_do_not_affect_the_others() {
    let up = up();
    let token = up.token(&["--uses", "300"]);
    // One host is enrolled and then stopped, and the other is unknown.
    let (offline, unknown) = ("127.0.2.1".to_owned(), "127.0.2.2".to_owned());
    let others: Vec<String> = (1..THERE).map(|last| format!("127.0.1.{last}")).collect();
    let began = Instant::now();
    let join = |ip: &String| {
        Joined::start(up.binary(), &up.link(), &up.folder(&format!("agents/{ip}")), ip, Some(&token))
    };
    let mut stopped = join(&offline);
    let _agents: Vec<Joined> = others.iter().map(join).collect();
    wait_until(GATHERING, "all agents are connected", || connected(&up) == THERE + 1);
    eprintln!("{} agents joined within {:?}", THERE + 1, began.elapsed());
    stopped.end(Signal::TERM);
    wait_until(GATHERING, "the stopped one is away", || connected(&up) == THERE);

    let proc = up.proc("once").starts("echo run >> runs").policy("auto_type", 2);
    let mut body = proc.body(Op::Start);
    let here = "127.0.0.1".to_owned();
    let hosts: Vec<&String> = others.iter().chain([&offline, &unknown, &here]).collect();
    assert_eq!(hosts.len(), 200);
    body["hosts"] = hosts.iter().map(|ip| json!({"ip": ip, "bk_cloud_id": 0})).collect();
    let submitted = Instant::now();
    let task = up.client.operate(body);
    let code = |results: &serde_json::Map<String, Value>, ip: &str| {
        results[&format!("0:{ip}:{}:once", up.namespace)]["error_code"].as_u64().expect("a code")
    };
    let mut seen = [None, None, None];
    let results = wait_for(GATHERING, "the task has ended", || {
        let results = up.client.results_now(&task);
        assert_eq!(results.len(), 200, "every key is there from the first moment on");
        let ended = [
            code(&results, &unknown) != 115,
            code(&results, &offline) != 115,
            hosts.iter().all(|ip| **ip == offline || **ip == unknown || code(&results, ip) != 115),
        ];
        for (seen, _) in seen.iter_mut().zip(ended).filter(|(_, ended)| *ended) {
            seen.get_or_insert(submitted.elapsed());
        }
        ended.iter().all(|ended| *ended).then_some(results)
    });
    let [unknown_after, offline_after, others_after] = seen.map(|seen| seen.expect("all have ended"));
    eprintln!(
        "of 200 hosts the unknown one had its 117 after {unknown_after:?}, the offline one after {offline_after:?}, the other \
         {THERE} their outcomes after {others_after:?}"
    );
    for ip in hosts {
        let result = &results[&format!("0:{ip}:{}:once", up.namespace)];
        let expected = if *ip == offline || *ip == unknown { 117 } else { 0 };
        assert_eq!(result["error_code"], expected, "{ip}: {result}");
    }
    assert_eq!(proc.runs(), THERE, "each of the others has run it, and once");
}
