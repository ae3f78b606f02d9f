//! How agents join, stay, and are refused. A refused agent gets the reason, and so does the server's log.

use crate::up;
use procfleet_sim::ManualPeer;
use procfleet_testkit::{Joined, Op, PATIENCE, Program, Signal, Up, is_running, programs, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const IP: &str = "127.0.0.2";

#[track_caller]
fn join(up: &Up, data: &Path, token: Option<&str>) -> Joined {
    Joined::start(up.binary(), &up.link(), data, IP, token)
}

#[track_caller]
fn wait_until_server_says(up: &Up, words: &str) {
    wait_until(PATIENCE, &format!("the server's log says {words:?}"), || up.stderr().contains(words));
}

/// The agent ends by itself with this reason, and the server knows nothing of it.
#[track_caller]
fn assert_refused(up: &Up, mut agent: Joined, reason: &str) {
    let ended = agent.finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && last.contains(reason), "{last:?}");
    assert_eq!(up.client.data("/api/v1/agents").as_array().map(Vec::len), Some(1));
}

#[test]
fn a_new_token_names_the_port_of_the_link() {
    let up = up();
    let link = up.link();
    let port = link.rsplit(':').next().expect("a port");
    let made = up.cli(&["token", "create"]);
    assert!(made.stderr.contains(&format!("--server https://SERVER:{port} --token-file")), "{made:?}");
}

#[test]
fn a_second_agent_joins_works_and_comes_back_without_its_token() {
    let up = up();
    let data = up.folder("second");
    let token = up.token(&["--uses", "1", "--ttl", "1h"]);
    let mut agent = join(&up, &data, Some(&token));
    agent.wait_until_connected(&up, IP);
    let hosts = json!({"hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}, {"ip": IP, "bk_cloud_id": 0}]});
    let alive = up.client.post("/api/c/compapi/v2/gse/get_agent_status/", hosts).data();
    assert_eq!(alive["0:127.0.0.2"]["bk_agent_alive"], 1);
    let id = |up: &Up| -> Value {
        let agents = up.client.data("/api/v1/agents");
        let agents = agents.as_array().expect("a list").clone();
        agents.into_iter().find(|agent| agent["ip"] == IP).expect("it has joined")["bk_agent_id"].clone()
    };
    let first_id = id(&up);
    assert!(!agent.stderr().contains(&token), "the token is not in the log");

    let proc = up.proc("remote").on_host(IP).with_pid_file().starts(&programs::daemon());
    assert_eq!(proc.key(), format!("0:127.0.0.2:{}:remote", up.namespace));
    let pid = proc.start();
    assert_eq!(proc.row().expect("it has a row")["ip"], IP);

    // The token is used up, and no longer needed.
    agent.end(Signal::TERM);
    assert!(is_running(pid), "the end of an agent is not the end of its processes");
    let mut agent = join(&up, &data, None);
    agent.wait_until_connected(&up, IP);
    assert_eq!(id(&up), first_id, "it is the same agent");
    assert_eq!((proc.pid(), proc.runs()), (Some(pid), 1));
    proc.op(Op::Kill).assert_success();
}

/// The key never leaves the host, and no other account there may read it.
#[test]
fn the_data_folder_of_an_agent_is_private() {
    use std::os::unix::fs::PermissionsExt;
    let up = up();
    let data = up.folder("second");
    let mut agent = join(&up, &data, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let mode = |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode(&data), 0o700);
    assert_eq!(mode(&data.join("agent.key.der")), 0o600);
    assert_eq!(mode(&up.data()), 0o700);
    // In PostgreSQL the CA's key is sealed under another one.
    let keys = ["ca.key.pem", "seal.key"].map(|file| up.data().join(file));
    let keys: Vec<u32> = keys.iter().filter(|file| file.exists()).map(|file| mode(file)).collect();
    assert_eq!(keys, [0o600]);
}

/// A proc on two agents is two procs, also when both agents are on one machine.
#[test]
fn two_agents_on_one_machine_do_not_touch_each_others_processes() {
    let up = up();
    let mut agent = join(&up, &up.folder("second"), Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let here = up.proc("same").starts(&programs::foreground());
    let there = up.proc("same").on_host(IP).starts(&programs::foreground());
    let mut there = there;
    let folder = up.folder("elsewhere");
    std::os::unix::fs::symlink("/bin/sleep", folder.join(programs::NAME)).expect("our own folder");
    there.request["spec"]["identity"]["setup_path"] = json!(folder);
    let one = here.op(Op::Start);
    one.assert_success();
    let pid = here.pid().expect("it runs");
    assert_eq!(there.op(Op::Query).pid(), None, "it does not run there");
    there.op(Op::Start).assert_success();
    let other = there.op(Op::Query).pid().expect("it runs there too");
    assert_ne!(pid, other);
    there.op(Op::Kill).assert_success();
    assert!(is_running(pid) && !is_running(other));
    assert_eq!(here.pid(), Some(pid));
}

#[test]
fn a_token_that_is_used_up_is_refused() {
    let up = up();
    let token = up.token(&["--uses", "1"]);
    let mut first = join(&up, &up.folder("second"), Some(&token));
    first.wait_until_connected(&up, IP);
    first.end(Signal::TERM);
    let mut late = Joined::start(up.binary(), &up.link(), &up.folder("third"), "127.0.0.3", Some(&token));
    let ended = late.finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the token has been used as often as it may"), "{ended:?}");
    wait_until_server_says(&up, "the token has been used as often as it may");
    assert_eq!(up.client.data("/api/v1/agents").as_array().map(Vec::len), Some(2));
}

#[test]
fn a_token_that_has_expired_is_refused() {
    let up = up();
    let made = up.cli(&["token", "create", "--ttl", "1s", "--json"]);
    let made: Value = serde_json::from_str(&made.stdout).expect("--json prints JSON");
    let expires = made["expires_at"].as_u64().expect("a time");
    wait_until(PATIENCE, "the token has expired", || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        // The answer has whole seconds only.
        now.as_secs() > expires
    });
    let agent = join(&up, &up.folder("second"), made["token"].as_str());
    assert_refused(&up, agent, "the token has expired");
    wait_until_server_says(&up, "the token has expired");
}

#[test]
fn an_unknown_token_is_refused() {
    let up = up();
    let token = up.token(&[]);
    let parts: Vec<&str> = token.split('-').collect();
    // The pin is right, and the rest is not.
    let forged = format!("pf1-{}-{}-{}", "0".repeat(12), parts[2], parts[3]);
    assert_refused(&up, join(&up, &up.folder("a"), Some(&forged)), "the token is not known here");
    let guessed = format!("pf1-{}-{}-{}", parts[1], "0".repeat(40), parts[3]);
    assert_refused(&up, join(&up, &up.folder("b"), Some(&guessed)), "the token is not known here");
    wait_until_server_says(&up, "the token is not known here");
    // A guess does not use it up.
    let mut agent = join(&up, &up.folder("c"), Some(&token));
    agent.wait_until_connected(&up, IP);
}

/// The signing request cannot be used, and only a peer whose token is valid learns that: all others are
/// refused before the CA's key is used for them.
#[test]
fn a_token_is_checked_before_anything_is_signed() {
    let up = up();
    let refusal = |token: &str| {
        let server = up.link().parse().expect("the link's address");
        let token = token.parse().expect("a token");
        let refused =
            ManualPeer::join_with_request(&server, &token, IP.parse().expect("an address"), vec![0; 64]);
        refused.expect_err("there is nothing to sign").to_string()
    };
    let (token, revoked) = (up.token(&[]), up.token(&[]));
    let done = up.cli(&["token", "revoke", revoked.split('-').nth(1).expect("its id")]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let parts: Vec<&str> = token.split('-').collect();
    let unknown = format!("pf1-{}-{}-{}", "0".repeat(12), parts[2], parts[3]);
    let guessed = format!("pf1-{}-{}-{}", parts[1], "0".repeat(40), parts[3]);
    for (token, reason) in [
        (&unknown, "the token is not known here"),
        (&guessed, "the token is not known here"),
        (&revoked, "the token was revoked"),
        (&token, "the certificate request cannot be used"),
    ] {
        let said = refusal(token);
        assert!(said.contains(reason), "{said:?} instead of {reason:?}");
    }
}

#[test]
fn a_garbled_token_is_refused_before_anything_is_sent() {
    let up = up();
    let token = up.token(&[]);
    for garbled in ["nonsense", "pf1-1-2-3", &token[..token.len() - 1]] {
        let mut agent = join(&up, &up.folder("second"), Some(garbled));
        let ended = agent.finish();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains("not a join token"), "{ended:?}");
        assert!(!ended.stderr.contains(&token[20..40]), "the secret is not repeated: {ended:?}");
    }
}

#[test]
fn an_agent_without_a_token_says_what_it_needs() {
    let up = up();
    assert_refused(&up, join(&up, &up.folder("second"), None), "give it a token");
}

/// The token pins the server's CA, so it opens no other server; and the other never sees its secret.
#[test]
fn a_token_of_another_server_is_refused() {
    let (up, other) = (up(), crate::up());
    let token = other.token(&[]);
    assert_refused(&up, join(&up, &up.folder("second"), Some(&token)), "TLS with");
    wait_until_server_says(&up, "TLS handshake on the link port failed");
    // It is as good as before where it belongs.
    let mut agent = join(&other, &up.folder("third"), Some(&token));
    agent.wait_until_connected(&other, IP);
}

/// An agent that joined one server is sent to another.
#[test]
fn an_agent_of_another_ca_is_refused() {
    let (up, other) = (up(), crate::up());
    let data = up.folder("second");
    let mut agent = join(&other, &data, Some(&other.token(&[])));
    agent.wait_until_connected(&other, IP);
    agent.end(Signal::TERM);

    // It does not trust this server.
    let mut lost = join(&up, &data, None);
    lost.wait_until_log_says("one side does not trust the other's certificate");
    wait_until_server_says(&up, "a TLS handshake on the link port failed");
    assert!(lost.is_running(), "it goes on trying, and its processes go on");
    lost.end(Signal::TERM);

    // It trusts this server, but the server does not trust it.
    fs::copy(up.data().join("ca.cert.der"), data.join("ca.cert.der")).expect("both folders are ours");
    let refused = up.stderr().matches("a TLS handshake on the link port failed").count();
    let lost = join(&up, &data, None);
    lost.wait_until_log_says("one side does not trust the other's certificate");
    wait_until(PATIENCE, "the server's log says so, too", || {
        up.stderr().matches("a TLS handshake on the link port failed").count() > refused
    });
    assert_eq!(up.client.data("/api/v1/agents").as_array().map(Vec::len), Some(1));
}

/// A certificate speaks for one agent only.
#[test]
fn a_certificate_of_another_agent_is_refused() {
    let up = up();
    let data = up.folder("second");
    let mut agent = join(&up, &data, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    agent.end(Signal::TERM);
    let local = fs::read(up.data().join("agent/agent.id")).expect("the local agent has joined");
    fs::write(data.join("agent.id"), local).expect("our own folder");
    let lost = join(&up, &data, None);
    lost.wait_until_log_says("the certificate is for agent");
    wait_until_server_says(&up, "the certificate is for agent");
    // The real agent is not disturbed.
    assert!(up.proc("mine").starts(&programs::foreground()).start() > 0);
}

/// Two agents cannot share a folder: they would share their processes.
#[test]
fn a_second_agent_on_the_same_folder_is_refused() {
    let up = up();
    let data = up.folder("second");
    let mut agent = join(&up, &data, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let ended = join(&up, &data, None).finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("another agent uses the data folder"), "{ended:?}");
}

/// The server is down for a while: a running op goes on, and its outcome is not lost.
#[test]
fn an_outcome_waits_for_the_server_to_come_back() {
    let mut up = up();
    let mut agent = join(&up, &up.folder("second"), Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("patient").on_host(IP).with_pid_file().starts(&programs::daemon());
    let task = proc.submit(Op::Start);
    proc.wait_for_runs(1);
    up.end(Signal::KILL);
    let pid = proc.pid_in_file();
    up.again_with_the_same_link();
    up.client.outcome(&task.id).assert_success().assert_hosted(true);
    assert!(is_running(pid) && agent.is_running());
    assert_eq!(proc.runs(), 1);
}

/// An agent that is away is 117 for its host, soon and for it alone.
#[test]
fn an_op_for_an_absent_agent_ends_with_117() {
    let up = up();
    let mut agent = join(&up, &up.folder("second"), Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    agent.end(Signal::TERM);
    let hosts = json!({"hosts": [{"ip": IP, "bk_cloud_id": 0}]});
    wait_until(PATIENCE, "the server knows that it is away", || {
        let alive = up.client.post("/api/c/compapi/v2/gse/get_agent_status/", hosts.clone()).data();
        alive["0:127.0.0.2"]["bk_agent_alive"] == 0
    });
    let mut body = up.proc("away").starts(&programs::foreground()).body(Op::Unhost);
    body["hosts"] = json!([{"ip": IP, "bk_cloud_id": 0}, {"ip": "127.0.0.1", "bk_cloud_id": 0}]);
    let task = up.client.operate(body);
    wait_until(PATIENCE, "the other host answers", || {
        up.client.results_now(&task).values().any(|result| result["error_code"] == 0)
    });
    let results = up.client.results(&task);
    results[0].1.assert(117, "Can not find Agent by ip 0:127.0.0.2: its agent is not connected");
}

/// A host that is set up again joins with a token for replacing, and its earlier agent is retired. Any other
/// token, such as a stolen one, does not take a host away.
#[test]
fn a_new_agent_replaces_an_old_one_only_with_a_token_that_allows_it() {
    let up = up();
    let (old, new) = (up.folder("old"), up.folder("new"));
    let mut agent = join(&up, &old, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let stolen = up.token(&["--uses", "10"]);
    let words = "host 0:127.0.0.2 has an agent that is connected, or was within the last day";
    assert_turned_away(join(&up, &new, Some(&stolen)), words);
    assert!(agent.is_running());
    agent.end(Signal::TERM);
    wait_until(PATIENCE, "the server knows that it is away", || {
        up.client
            .data("/api/v1/agents")
            .as_array()
            .is_some_and(|agents| agents.iter().any(|agent| agent["ip"] == IP && agent["connected"] == false))
    });
    assert_turned_away(join(&up, &new, Some(&stolen)), "--replace");
    // Whoever has the token can try as often as it likes: that is one row.
    let audit = up.cli(&["audit", "--action", "agent_join", "--json"]);
    let audit: Value = serde_json::from_str(&audit.stdout).expect("--json prints JSON");
    let mut refused = audit.as_array().expect("a list").clone();
    refused.retain(|row| row["code"] != 0);
    assert_eq!((refused.len(), &refused[0]["times"]), (1, &json!(2)), "{audit}");
    let mut agent = join(&up, &old, None);
    agent.wait_until_connected(&up, IP);
    agent.end(Signal::TERM);

    let mut agent = join(&up, &new, Some(&up.token(&["--replace"])));
    agent.wait_until_connected(&up, IP);
    let retired = join(&up, &old, None);
    retired.wait_until_log_says("was retired");
    wait_until_server_says(&up, "was retired");
    up.proc("here").on_host(IP).starts(&programs::foreground()).start();
    agent.end(Signal::TERM);
    // The takeover is an event and in the audit trail.
    let events = up.client.data("/api/v1/events?kind=agent_replaced");
    assert_eq!(
        (events["events"].as_array().map(Vec::len), &events["events"][0]["ip"]),
        (Some(1), &json!(IP))
    );
    let audit = up.cli(&["audit", "--action", "agent_replace", "--json"]);
    let audit: Value = serde_json::from_str(&audit.stdout).expect("--json prints JSON");
    assert_eq!((audit.as_array().map(Vec::len), &audit[0]["subject"]), (Some(1), &json!("0:127.0.0.2")));
    assert!(audit[0]["detail"].as_str().is_some_and(|said| said.contains("in place of")), "{audit}");
}

/// The agent ends by itself with this reason.
#[track_caller]
fn assert_turned_away(mut agent: Joined, reason: &str) {
    let ended = agent.finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains(reason), "{ended:?}");
}

/// Arguments can be read by every user of the host.
#[test]
fn a_token_does_not_stay_in_the_command_line() {
    let up = up();
    let token = up.token(&[]);
    let data = up.folder("second");
    let mut agent = Program::new(up.binary())
        .args(["agent", "--server", &up.link(), "--ip", IP, "--token", &token, "--data"])
        .args([&data]);
    agent.start();
    let wait_until_connected = |agent: &Program| {
        wait_until(PATIENCE, "it is connected", || {
            let agents = up.client.data("/api/v1/agents");
            let is_it = |row: &Value| row["ip"] == IP && row["connected"] == true;
            // For a while the server believes in the session of the agent before.
            agent.stderr().contains("connected epoch=")
                && agents.as_array().is_some_and(|all| all.iter().any(is_it))
        });
    };
    wait_until_connected(&agent);
    let line = fs::read(format!("/proc/{}/cmdline", agent.pid())).expect("it runs");
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    assert!(line.contains("agent --server") && line.contains("--data"), "{line}");
    assert!(!line.contains("pf1-") && !line.contains("--token"), "{line}");
    agent.end(Signal::TERM, PATIENCE);

    // From a file, which is needed once.
    let file = up.folder("secrets").join("token");
    fs::write(&file, format!("{}\n", up.token(&["--replace"]))).expect("our own folder");
    let start = |data: &Path, file: &Path| {
        let mut agent = Program::new(up.binary())
            .args(["agent", "--server", &up.link(), "--ip", IP, "--data"])
            .args([data])
            .args([Path::new("--token-file"), file]);
        agent.start();
        agent
    };
    let third = up.folder("third");
    let mut agent = start(&third, &file);
    wait_until_connected(&agent);
    agent.end(Signal::TERM, PATIENCE);
    fs::remove_file(&file).expect("our own file");
    let mut agent = start(&third, &file);
    wait_until_connected(&agent);
    agent.end(Signal::TERM, PATIENCE);
    fs::write(&file, "no token").expect("our own file");
    let refused = start(&up.folder("fourth"), &file).finish(PATIENCE);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("--token-file") && refused.stderr.contains("not a join token"),
        "{refused:?}"
    );
    let missing = start(&up.folder("fifth"), Path::new("/nowhere/token")).finish(PATIENCE);
    assert!(missing.stderr.contains("has not joined yet"), "{missing:?}");
}

#[test]
fn tokens_are_listed_revoked_and_bounded() {
    let up = up();
    let token = up.token(&["--uses", "2", "--ttl", "30d", "--replace"]);
    let id = token.split('-').nth(1).expect("an id").to_owned();
    let list = || -> Value {
        let listed = up.cli(&["token", "list", "--json"]);
        assert!(!listed.stdout.contains(&token[20..60]), "no secret: {listed:?}");
        serde_json::from_str(&listed.stdout).expect("--json prints JSON")
    };
    let row = |listed: &Value| -> Value {
        listed
            .as_array()
            .expect("a list")
            .iter()
            .find(|row| row["id"] == id.as_str())
            .expect("it is listed")
            .clone()
    };
    let first = row(&list());
    assert_eq!(
        (&first["state"], &first["uses_left"], &first["replace"]),
        (&json!("usable"), &json!(2), &json!(true))
    );
    let mut agent = join(&up, &up.folder("second"), Some(&token));
    agent.wait_until_connected(&up, IP);
    assert_eq!(row(&list())["uses_left"], 1);
    for _ in 0..2 {
        let revoked = up.cli(&["token", "revoke", &id]);
        assert_eq!(revoked.code, Some(0), "{revoked:?}");
    }
    assert_eq!(row(&list())["state"], "revoked");
    let late = Joined::start(up.binary(), &up.link(), &up.folder("third"), "127.0.0.3", Some(&token));
    assert_turned_away(late, "the token was revoked");
    assert!(agent.is_running(), "who has joined stays");
    let audit = up.cli(&["audit", "--action", "token_revoke", "--json"]);
    let audit: Value = serde_json::from_str(&audit.stdout).expect("--json prints JSON");
    assert_eq!((audit.as_array().map(Vec::len), &audit[0]["subject"]), (Some(1), &json!(id)));
    let unknown = up.cli(&["token", "revoke", "0000"]);
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    assert!(unknown.stderr.contains("id: there is no join token"), "{unknown:?}");
    let body = json!({"ttl_secs": 31 * 86_400, "uses": 100_001});
    up.client.post("/api/v1/tokens", body).assert_refused(1_000_811, &["ttl_secs: ", "uses: "]);
}

#[test]
fn an_address_that_no_host_can_have_is_refused() {
    let up = up();
    let token = up.token(&["--uses", "10"]);
    for (index, ip) in
        ["0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "::ffff:0.0.0.0"].into_iter().enumerate()
    {
        let data = up.folder(&format!("odd-{index}"));
        let agent = Joined::start(up.binary(), &up.link(), &data, ip, Some(&token));
        assert_refused(&up, agent, "cannot be the address of a host");
    }
    let mut mapped =
        Joined::start(up.binary(), &up.link(), &up.folder("mapped"), "::ffff:127.0.0.9", Some(&token));
    mapped.wait_until_connected(&up, "127.0.0.9");
    let proc = up.proc("there").on_host("::ffff:127.0.0.9").starts(&programs::foreground());
    proc.op(Op::Start).assert_success();
    proc.op(Op::Kill).assert_success();
}
