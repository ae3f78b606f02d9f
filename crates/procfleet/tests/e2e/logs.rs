//! Logs of processes: read through the server, rotated on the host, and followed through restarts.

use crate::access::{OTHER, granted_app};
use crate::up;
use procfleet_testkit::{
    Joined, Need, Op, PATIENCE, Proc, Program, Signal, Up, account, has, programs, wait_until,
};
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const FILE_INVALID: u64 = 1_000_104;
const NO_AGENT: u64 = 1_000_117;
const BAD_REQUEST: u64 = 1_000_811;
const NOT_ALLOWED: u64 = 1_000_837;

#[track_caller]
fn logs(up: &Up, proc: &Proc, flags: &[&str]) -> String {
    let read = up.cli(&[&["logs", &proc.name, "--namespace", &proc.namespace], flags].concat());
    assert_eq!(read.code, Some(0), "{read:?}");
    read.stdout
}

/// `procfleet logs --follow`, beside the test.
fn follow(up: &Up, proc: &Proc) -> Program {
    let args = ["logs", &proc.name, "--namespace", &proc.namespace, "--follow", "--lines", "10000"];
    let mut follow = Program::new(up.binary()).args(args).env("PROCFLEET_DATA", up.data());
    follow.start();
    follow
}

fn question(proc: &Proc, more: &str) -> String {
    format!("/api/v1/logs?namespace={}&name={}{more}", proc.namespace, proc.name)
}

#[test]
fn the_newest_lines_are_shown() {
    let up = up();
    let command = "echo one; echo '\ttwo\u{1b}[31m' >&2; printf '\\377\\n'; printf half; exec ./web 1000";
    let proc = up.proc("talks").starts(command);
    proc.start();
    assert_eq!(
        logs(&up, &proc, &[]),
        "one\n\ttwo [31m\n\u{fffd}\nhalf\n",
        "what has no end yet is shown too"
    );
    assert_eq!(logs(&up, &proc, &["--raw", "-n", "3"]), "\ttwo\u{1b}[31m\n\u{fffd}\nhalf\n");
    assert_eq!(logs(&up, &proc, &["--lines", "1"]), "half\n");
    assert_eq!(logs(&up, &proc, &["--limit", "1"]), "half\n", "as the lists call it");
    let data = up.client.data(&question(&proc, "&lines=2&host=0:127.0.0.1"));
    assert_eq!(
        (&data["lines"], &data["rest"], &data["lossy"]),
        (&json!(["\u{fffd}"]), &json!("half"), &json!(true))
    );
    let file = data["file"].as_str().expect("a path");
    assert!(file.ends_with(&format!("/output/{}+talks/out.log", up.namespace)), "{file}");
    // The next run writes behind the last one, and its outcome has only what is its own.
    proc.op(Op::Kill).assert_success();
    proc.op(Op::Start).assert_success();
    assert!(logs(&up, &proc, &[]).starts_with("one\n\ttwo [31m\n\u{fffd}\nhalfone\n"));
    proc.op(Op::Kill).assert_success();
    let failing = proc.clone().starts("echo why; exit 3");
    let outcome = failing.op(Op::Start);
    assert!(outcome.message.contains("why") && !outcome.message.contains("one"), "{outcome:?}");
    let json = logs(&up, &proc, &["--json", "-n", "1"]);
    assert!(json.contains(r#""lines":["halfwhy"]"#), "{json}");

    let mut several = up.proc("several").starts("echo $PROCFLEET_INSTANCE speaks; exec ./web 1000");
    several.request["spec"]["instance_num"] = json!(2);
    several.op(Op::Start).assert_success();
    assert_eq!(logs(&up, &several, &[]), "[#1] 1 speaks\n[#2] 2 speaks\n");
    assert_eq!(logs(&up, &several, &["--instance", "2"]), "2 speaks\n");
    several.op(Op::Kill).assert_success();
}

#[test]
fn a_log_that_cannot_be_read_is_answered_with_the_reason() {
    let up = up();
    let client = &up.client;
    let wrong = "/api/v1/logs?lines=many&instance=0&host=x&agent=a+b&since=-1&wait_ms=soon&tail=1";
    let fields = ["namespace", "name", "lines", "instance", "host", "agent", "since", "wait_ms", "tail"];
    client.get(wrong).assert_refused(BAD_REQUEST, &fields.map(|field| field));
    client.get("/api/v1/logs?namespace=a&name=b&host=0:10.9.9.9").assert_refused(BAD_REQUEST, &["10.9.9.9"]);
    let unknown = up.proc("unknown");
    client.get(&question(&unknown, "")).assert_refused(FILE_INVALID, &["unknown", "never started here"]);
    let bad = up.cli(&["logs", "unknown", "--lines", "0"]);
    assert_eq!(bad.code, Some(2), "{bad:?}");

    // A daemon closes what it was given.
    let daemon = up.proc("daemon").with_pid_file().starts(&format!("echo starting; {}", programs::daemon()));
    daemon.start();
    let shown = up.cli(&["logs", "daemon", "--namespace", &up.namespace]);
    assert_eq!((shown.code, shown.stdout.as_str()), (Some(0), "starting\n"), "{shown:?}");
    assert!(shown.stderr.contains("the process itself writes to /dev/null"), "{shown:?}");

    // An app that may not use the account of the process does not see what it writes.
    let app = granted_app(&up, "reader");
    assert_eq!(app.get(&question(&daemon, "")).data()["lines"], json!(["starting"]));
    for (dimension, granted) in [("--account", account()), ("--op", "query".to_owned())] {
        let revoke = up.cli(&["app", "revoke", "reader", dimension, "*"]);
        assert_eq!(revoke.code, Some(0), "{revoke:?}");
        let given = if dimension == "--account" { "somebody".to_owned() } else { "start".to_owned() };
        let grant = up.cli(&["app", "grant", "reader", dimension, &given]);
        assert_eq!(grant.code, Some(0), "{grant:?}");
        let (code, word) = match dimension {
            "--account" => (NOT_ALLOWED, account()),
            _ => (crate::access::DENIED, "query".to_owned()),
        };
        app.get(&question(&daemon, "")).assert_refused(code, &[&word]);
        let back = up.cli(&["app", "grant", "reader", dimension, &granted]);
        assert_eq!(back.code, Some(0), "{back:?}");
        assert_eq!(app.get(&question(&daemon, "")).data()["lines"], json!(["starting"]), "{dimension}");
    }
}

#[test]
fn an_agent_that_is_away_is_named() {
    let up = up();
    let token = up.token(&[]);
    let data = up.folder("other");
    let mut other = Joined::start(up.binary(), &up.link(), &data, OTHER, Some(&token));
    other.wait_until_connected(&up, OTHER);
    let here = up.proc("web").starts("echo here; exec ./web 1000");
    // In a folder of its own, for both hosts are this one.
    let mut there = up.proc("elsewhere").on_host(OTHER).starts("echo there; exec ./web 1000");
    there.name = "web".to_owned();
    there.request["meta"]["name"] = json!("web");
    here.start();
    there.op(Op::Start).assert_success();
    wait_until(PATIENCE, "both hosts have reported it", || {
        let rows = up.client.data(&format!("/api/v1/procs?namespace={}", up.namespace));
        rows.as_array().is_some_and(|rows| rows.len() == 2)
    });
    assert_eq!(logs(&up, &here, &[]), "[0:127.0.0.1] here\n[0:127.0.0.2] there\n");
    assert_eq!(logs(&up, &here, &["--host", "0:127.0.0.2"]), "there\n");
    up.client.get(&question(&here, "")).assert_refused(BAD_REQUEST, &["host: is required"]);
    other.end(Signal::KILL);
    wait_until(PATIENCE, "the server knows that it is gone", || {
        up.client.get(&question(&here, "&host=0:127.0.0.2")).body["code"] == NO_AGENT
    });
    let away = up.client.get(&question(&here, "&host=0:127.0.0.2"));
    away.assert_refused(NO_AGENT, &["Can not find Agent by ip 0:127.0.0.2", "not connected"]);
    let shown = up.cli(&["logs", "web", "--namespace", &up.namespace]);
    assert_eq!((shown.code, shown.stdout.as_str()), (Some(1), "[0:127.0.0.1] here\n"), "{shown:?}");
    assert!(shown.stderr.contains("not connected"), "{shown:?}");
}

#[test]
fn a_revoked_host_is_left_out_unless_it_is_named() {
    const IP: &str = "127.0.0.2";
    let up = up();
    let mut joined = Joined::start(up.binary(), &up.link(), &up.folder("second"), IP, Some(&up.token(&[])));
    joined.wait_until_connected(&up, IP);
    let proc = up.proc("talks").starts("echo here; exec ./web 1000");
    let far = up.proc("talks").on_host(IP).starts("echo there; exec ./web 1000");
    for proc in [&proc, &far] {
        proc.start();
    }
    up.client.get(&question(&proc, "")).assert_refused(BAD_REQUEST, &["host: is required: several hosts"]);
    let agents = up.client.data("/api/v1/agents");
    let mut agents = agents.as_array().expect("agents are a list").iter();
    let id = &agents.find(|agent| agent["ip"] == IP).expect("the second agent")["bk_agent_id"];
    far.op(Op::Kill).assert_success();
    let revoked = up.cli(&["agents", "revoke", id.as_str().expect("an id"), "--reason", "a test"]);
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    assert_eq!(up.client.data(&question(&proc, ""))["lines"], json!(["here"]));
    let spec = up.cli(&["show", &proc.name, "--namespace", &proc.namespace]);
    assert!(spec.code == Some(0) && spec.stdout.contains("echo here"), "{spec:?}");
    let logs = up.cli(&["logs", &proc.name, "--namespace", &proc.namespace]);
    assert_eq!((logs.code, logs.stdout.as_str()), (Some(0), "here\n"), "{logs:?}");
    let ps = up.cli(&["ps", "--namespace", &proc.namespace]);
    assert_eq!(ps.stdout.matches("talks").count(), 2, "a list shows what the host said last: {ps:?}");
    up.client.get(&question(&proc, &format!("&host=0:{IP}"))).assert_refused(NO_AGENT, &[]);
}

#[test]
fn following_goes_on_through_rotation_and_the_agents_death() {
    let mut up =
        Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--log-size", "0.0625", "--log-keep", "1000"]);
    let count = "i=0; while [ $i -lt 6000 ]; do echo line $i of a process that talks a lot; i=$((i+1)); \
        if [ $i -eq 3000 ]; then until test -e go; do sleep 0.05; done; fi; done; exec ./web 1000";
    let proc = up.proc("counts").starts(count).policy("op_timeout", 60);
    proc.start();
    let mut followed = follow(&up, &proc);
    let lines = |followed: &Program| followed.stdout().lines().count();
    wait_until(PATIENCE, "the first half is shown", || lines(&followed) == 3_000);
    let folder = up.data().join("agent/output").join(format!("{}+counts", up.namespace));
    let copies = || {
        let names = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("out.log.")).count()
    };
    up.kill_agent();
    wait_until(PATIENCE, "the next agent has rotated the log", || copies() > 0);
    fs::write(proc.folder.join("go"), "").expect("our own folder");
    wait_until(PATIENCE, "the second half is shown", || lines(&followed) == 6_000);
    up.kill_all();
    up.again();
    up.wait_for_agent();
    let expected: Vec<String> =
        (0..6_000).map(|i| format!("line {i} of a process that talks a lot")).collect();
    let shown = followed.stdout();
    assert!(shown.lines().eq(expected.iter().map(String::as_str)), "every line once, and in its order");
    assert!(followed.is_running(), "{}", followed.stderr());
    assert_eq!(followed.end(Signal::INT, PATIENCE).0.code(), Some(0), "Ctrl-C is how it ends");
    // The copies are read as if they were one file.
    let all = logs(&up, &proc, &["--lines", "5500"]);
    assert!(all.lines().eq(expected[500..].iter().map(String::as_str)), "{} lines", all.lines().count());
    let one = up.client.data(&question(&proc, "&lines=1&since=0"));
    assert_eq!(one["lines"], json!([expected[0]]));
}

/// As logrotate does it, with `copytruncate` and without.
#[test]
fn a_log_that_others_empty_or_rename_is_still_read() {
    let up = up();
    let folder = up.folder("logs");
    let ticks = "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.02; done";
    let proc = up.proc("ticks").starts(ticks).identity("log_path", folder.to_str().expect("a plain path"));
    proc.start();
    let last = || -> u64 {
        let shown = logs(&up, &proc, &["-n", "1"]);
        shown.trim().strip_prefix("tick ").and_then(|n| n.parse().ok()).unwrap_or_default()
    };
    let goes_on = |what: &str| {
        let before = last();
        wait_until(PATIENCE, what, || last() > before + 1);
    };
    wait_until(PATIENCE, "it ticks", || last() > 3);
    let log = folder.join("ticks.log");
    fs::copy(&log, folder.join("ticks.log.1")).expect("our own folder");
    fs::OpenOptions::new().write(true).truncate(true).open(&log).expect("our own file");
    goes_on("the emptied log is read");
    fs::rename(&log, folder.join("ticks.log.2")).expect("our own folder");
    goes_on("the renamed log is read");
    up.kill_agent();
    goes_on("the next agent finds the renamed log");
    fs::remove_file(folder.join("ticks.log.2")).expect("our own folder");
    goes_on("the deleted log is read");
}

/// After a restart the agent looks at what its processes write to. What is not a log is neither copied nor
/// cut, whatever rights the agent has.
#[test]
fn an_output_that_is_no_log_is_never_cut() {
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--log-size", "0.0625", "--log-keep", "1000"]);
    let logs = up.folder("logs");
    let content = "what the host needs\n".repeat(20_000);
    let elsewhere = tempfile::tempdir().expect("a temp dir");
    fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o755)).expect("our own folder");
    let file = |name: &str| {
        let path = elsewhere.path().join(name);
        fs::write(&path, &content).expect("our own folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our own file");
        path
    };
    let (secret, export) = (file("secret"), file("export.csv"));
    let proc = |name: &str| up.proc(name).identity("log_path", logs.to_str().expect("a plain path"));

    // The program gives up root's rights, and then takes a file of root's as its output, which it cannot
    // open.
    let sly = has(Need::Root, account() == "root").then(|| {
        let perl = format!(
            "use POSIX; setgid(65534); setuid(65534); sysopen(my $file, \"{}\", 0x200000) or die $!; \
             dup2(fileno($file), 1) or die $!; exec {{\"/bin/sleep\"}} \"./web\", 1000",
            secret.display()
        );
        let sly = proc("sly").starts(&format!("exec perl -e '{perl}'"));
        (sly.start(), sly)
    });
    // An administrator has started a process whose output is a result.
    let by_hand = proc("by-hand").starts(&programs::foreground());
    let open = fs::OpenOptions::new().append(true).open(&export).expect("our own file");
    let mut web = Program::new(by_hand.folder.join(programs::NAME)).args(["1000"]);
    web = web.current_dir(&by_hand.folder).stdout_to(open);
    web.start();
    by_hand.op(Op::Host).assert_success();
    by_hand.row_with_pid(web.pid());
    let fill = "until test -e $1; do sleep 0.05; done; yes a line of a log | head -n 20000";
    let talks = proc("talks").starts(&format!("f() {{ {fill}; }}; f one; f two; exec ./web 1000"));
    talks.start();

    up.kill_agent();
    for proc in sly.iter().map(|(_, proc)| proc).chain([&by_hand]) {
        assert!(proc.op(Op::Query).pid().is_some(), "{}", proc.name);
    }
    if let Some((pid, sly)) = &sly {
        assert_eq!(sly.pid(), Some(*pid));
    }
    // When the second of these has been rotated, the round of the first is over for all logs.
    let copies = || {
        let names = fs::read_dir(&logs).expect("our own folder").flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("talks.log.")).count()
    };
    for gate in ["one", "two"] {
        let before = copies();
        talks.open_gate(gate);
        wait_until(PATIENCE, "the log was rotated", || copies() > before);
    }
    for path in [&secret, &export] {
        assert!(fs::read_to_string(path).is_ok_and(|now| now == content), "{} was cut", path.display());
    }
    let mut names: Vec<_> = fs::read_dir(&logs).expect("our own folder").flatten().collect();
    // `.talks.log.part` is a copy of talks.log that is not complete yet.
    names.retain(|entry| {
        !entry.file_name().to_string_lossy().trim_start_matches('.').starts_with("talks.log")
    });
    let copied: Vec<_> =
        names.iter().filter(|entry| entry.metadata().is_ok_and(|data| data.len() > 0)).collect();
    assert!(copied.is_empty(), "{copied:?}");
    let says = format!("writes to {}, which is no log of this agent", export.display());
    up.client.get(&question(&by_hand, "")).assert_refused(FILE_INVALID, &[&says]);
    assert!(web.is_running());
}

/// The last output of a command is in its outcome, also when earlier output was rotated out of the file
/// meanwhile.
#[test]
fn an_outcome_has_the_last_output_of_a_command_whose_log_was_rotated() {
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--log-size", "0.0625", "--log-keep", "2"]);
    // It goes on until its log has been rotated.
    let command = "until ls $COPIES* > /dev/null 2>&1; do head -c 100000 /dev/zero | tr '\\0' x | fold -w 99; sleep 0.2; done; \
                   echo; echo the last words; exit 3";
    let copies = up.data().join(format!("agent/output/{}+short/out.log.0", up.namespace));
    let copies = copies.to_str().expect("a plain path").replace('+', "\\+");
    let proc = up.proc("short").policy("auto_type", 2).starts(&command.replace("$COPIES", &copies));
    let outcome = proc.op(Op::Start);
    assert_eq!(outcome.code, 65535, "{outcome:?}");
    assert!(outcome.message.contains("\nthe last words] (start_cmd exited with status 3)"), "{outcome:?}");
    assert!(!outcome.message.contains('\0'), "{outcome:?}");
}
