//! The policy of a host: the operations that its owner permits there.

use crate::up;
use procfleet_testkit::{Joined, Need, Op, PATIENCE, Program, Up, account, has, programs};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

const IP: &str = "127.0.0.2";

fn agent_with_policy(up: &Up, policy: &str) -> Joined {
    let path = up.folder("policy").join("policy.json");
    fs::write(&path, policy).expect("our own folder");
    let token = up.token(&[]);
    let (data, binary) = (up.folder("second"), up.binary());
    let mut agent =
        Joined::start_with(binary, &up.link(), &data, IP, Some(&token), &[("PROCFLEET_POLICY", &path)]);
    agent.wait_until_connected(up, IP);
    agent
}

#[test]
fn an_op_that_the_host_policy_forbids_is_refused_and_runs_nothing() {
    let up = up();
    let allowed = up.proc("allowed").on_host(IP).starts(&programs::foreground());
    let policy = format!(
        r#"{{"allow": {{"users": ["{}"], "paths": ["{}"], "ops": ["start", "stop", "query", "host"]}}}}"#,
        account(),
        allowed.folder.display()
    );
    let _agent = agent_with_policy(&up, &policy);
    allowed.start();
    allowed.op(Op::Kill).assert(837, "this host does not allow").assert_says("does not allow kill");
    assert!(allowed.pid().is_some());

    let elsewhere = up.proc("elsewhere").on_host(IP).starts(&programs::foreground());
    elsewhere.op(Op::Start).assert(837, "this host does not allow").assert_says("does not allow setup_path");
    elsewhere.op(Op::Host).assert(837, "this host does not allow");
    // A link out of the allowed folder leads to where it leads.
    let link = allowed.folder.join("link");
    std::os::unix::fs::symlink(&elsewhere.folder, &link).expect("our own folder");
    let linked = elsewhere.clone().identity("setup_path", link.to_str().expect("a plain path"));
    linked.op(Op::Start).assert(837, "start_cmd could not be run").assert_says("which is");
    let somebody = allowed.clone().identity("user", "somebody-else");
    somebody.op(Op::Stop).assert(837, "this host does not allow").assert_says("does not allow user");
    assert_eq!(elsewhere.runs(), 0);
    allowed.op(Op::Stop).assert_success();
}

#[test]
fn an_agent_with_an_invalid_policy_does_not_start() {
    let up = up();
    let path = up.folder("policy").join("policy.json");
    fs::write(&path, r#"{"allow": {"user": ["www"]}}"#).expect("our own folder");
    let refused = Program::new(up.binary())
        .args(["agent", "--server", "https://127.0.0.1:1", "--data"])
        .args([&up.folder("third")])
        .args([Path::new("--policy"), &path])
        .run();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("unknown field `user`"), "{refused:?}");
}

/// An account that can write the policy decides what root does here.
#[test]
fn an_agent_whose_policy_others_could_change_does_not_start() {
    let up = up();
    let folder = up.folder("policy");
    let path = folder.join("policy.json");
    let refused = |says: &str| {
        fs::write(&path, r#"{"allow": {}}"#).expect("our own folder");
        let refused = Program::new(up.binary())
            .args(["agent", "--server", "https://127.0.0.1:1", "--data"])
            .args([&up.folder("third")])
            .args([Path::new("--policy"), &path])
            .run();
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(says) && refused.stderr.contains("chmod go-w"), "{refused:?}");
    };
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("our own folder");
    refused("anybody may write the folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("our own folder");
    if has(Need::Root, account() == "root") {
        chown(&path, Some(65_534), None).expect("root may");
        refused("it belongs to account");
    }
}

#[test]
fn the_systemd_unit_runs_the_agent_as_it_was_asked_for() {
    let up = up();
    let mut print = Program::new(up.binary()).args([
        "agent",
        "--server",
        "https://10.0.0.1",
        "--data",
        "/var/lib/proc fleet",
        "--print-systemd-unit",
    ]);
    print.start();
    let unit = print.finish(PATIENCE).stdout;
    let command = format!(
        "ExecStart={} agent --server https://10.0.0.1:48668 --data \"/var/lib/proc fleet\"",
        up.binary().display()
    );
    assert!(unit.contains(&command), "{unit}");
    for line in [
        "KillMode=process",
        "Restart=always",
        "StartLimitIntervalSec=0",
        "RestartPreventExitStatus=78",
        "Delegate=yes",
        "ExecReload=/bin/kill -HUP $MAINPID",
    ] {
        assert!(unit.lines().any(|said| said == line), "{line}: {unit}");
    }
    assert!(!unit.contains("Limit=") && !unit.contains("LimitNOFILE"), "every process would have it: {unit}");
    let file = up.folder("units").join("procfleet-agent.service");
    std::fs::write(&file, &unit).expect("our own folder");
    if Path::new("/usr/bin/systemd-analyze").exists() {
        let verified = Program::new("/usr/bin/systemd-analyze").args(["verify"]).args([&file]).run();
        let ours: Vec<&str> =
            verified.stderr.lines().filter(|line| line.contains("procfleet-agent.service")).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}
