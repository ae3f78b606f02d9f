//! The verbs that list things: filters, order, times, watching; and agents that are forgotten.

use crate::up;
use procfleet_testkit::{Joined, Op, PATIENCE, Program, Signal, Up, account, programs, wait_until};
use serde_json::{Value, json};

#[track_caller]
fn cli(up: &Up, args: &[&str]) -> Value {
    let done = up.cli(&[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    serde_json::from_str(&done.stdout).expect("--json prints JSON")
}

#[track_caller]
fn column(rows: &Value, field: &str) -> Vec<String> {
    let text = |row: &Value| row[field].as_str().unwrap_or_default().to_owned();
    rows.as_array().expect("a list").iter().map(text).collect()
}

#[test]
fn processes_are_filtered_and_ordered() {
    let up = up();
    let ns = up.namespace.as_str();
    let runs = up.proc("runs").starts(&programs::foreground());
    runs.start();
    let stopped = up.proc("also-stopped").starts(&programs::foreground());
    stopped.start();
    stopped.op(Op::Stop).assert_success();
    let fails = up.proc("fails").starts("exit 1").policy("start_retries", 1).policy("start_interval", 1);
    fails.op(Op::Host);
    fails.row_when(PATIENCE, "gave_up");
    stopped.row_when(PATIENCE, "stopped");
    let ps = |more: &[&str]| column(&cli(&up, &[&["ps", "--namespace", ns], more].concat()), "name");
    assert_eq!(ps(&["--state", "running"]), ["runs"]);
    assert_eq!(ps(&["--state", "gave-up"]), ["fails"]);
    assert_eq!(ps(&["--failed"]), ["fails"]);
    assert_eq!(ps(&["--sort", "name"]), ["also-stopped", "fails", "runs"]);
    assert_eq!(ps(&["--sort", "name", "--limit", "1"]), ["also-stopped"]);
    assert_eq!(ps(&["--select", "127.0.0.1", "--state", "stopped"]), ["also-stopped"]);
    assert!(ps(&["--select", "10.9.9.9"]).is_empty());

    // Tasks, events and the audit, filtered by failure and by time.
    let failed = cli(&up, &["task", "list", "--failed"]);
    assert_eq!(failed.as_array().map(Vec::len), Some(1), "{failed}");
    let id = failed[0]["task_id"].as_str().expect("an id");
    let shown = cli(&up, &["task", "show", id, "--failed"]);
    assert_eq!(shown["ops"].as_array().map(Vec::len), Some(1), "{shown}");
    assert!(cli(&up, &["task", "list", "--state", "open"]).as_array().is_some_and(Vec::is_empty));
    assert_eq!(column(&cli(&up, &["task", "list", "--since", "1d", "--limit", "2"]), "task_id").len(), 2);
    let events =
        cli(&up, &["events", "--namespace", ns, "--since", "1d", "--select", "127.0.0.1", "--limit", "1"]);
    assert_eq!(events["events"].as_array().map(Vec::len), Some(1), "{events}");
    let none = cli(&up, &["events", "--namespace", ns, "--select", "10.9.9.9"]);
    assert_eq!(none["events"], json!([]));
    up.client.as_app("nobody", "wrong").get("/api/v1/procs");
    wait_until(PATIENCE, "the refusal is recorded", || {
        let audit = cli(&up, &["audit", "--failed", "--since", "1h"]);
        let rows = audit.as_array().expect("a list");
        !rows.is_empty() && rows.iter().all(|row| row["code"] != 0)
    });
    runs.op(Op::Kill).assert_success();
}

#[test]
fn lists_are_read_page_by_page() {
    let up = up();
    let ns = up.namespace.as_str();
    let folder = up.folder("pages");
    let folder = folder.to_str().expect("a path in UTF-8");
    let names = ["web", "api", "db", "cache", "queue"];
    let user = account();
    let spec = ["--namespace", ns, "--host", "127.0.0.1", "--cmd", "exec sleep 1000", "--setup-path", folder];
    let started = up.cli(&[&["start"], names.as_slice(), &spec, &["--user", &user]].concat());
    assert_eq!(started.code, Some(0), "{started:?}");
    // Each proc that is new to its host is called by its own name there.
    for name in names {
        let spec = cli(&up, &["show", name, "--namespace", ns]);
        assert_eq!(spec[0]["spec"]["identity"]["proc_name"], name, "{spec}");
    }
    wait_until(PATIENCE, "the server knows all of them", || {
        cli(&up, &["ps", "--namespace", ns, "--state", "running"]).as_array().map(Vec::len) == Some(5)
    });

    let path = |sort: &str, after: &str| format!("/api/v1/procs?namespace={ns}&limit=2&sort={sort}{after}");
    for sort in ["host", "name", "state", "since"] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = up.client.get(&path(sort, &after)).body;
            assert_eq!(page["total"], 5, "{page}");
            seen.extend(column(&page["data"], "name"));
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => break,
            }
        }
        let mut sorted = seen.clone();
        sorted.sort();
        assert_eq!(sorted, ["api", "cache", "db", "queue", "web"], "each once, by {sort}");
        if sort == "name" {
            assert_eq!(seen, sorted);
        }
    }
    let page = up.cli(&["ps", "--namespace", ns, "--sort", "name", "--limit", "2"]);
    assert!(page.stdout.contains("api") && !page.stdout.contains("db"), "{page:?}");
    let words = "showing 2 of 5; for more: --limit N, or --after ";
    let cursor = page.stderr.trim().strip_prefix(words).expect("it says that there is more").to_owned();
    let rest = cli(&up, &["ps", "--namespace", ns, "--sort", "name", "--after", &cursor]);
    assert_eq!(column(&rest, "name"), ["db", "queue", "web"]);
    let glob = cli(&up, &["ps", "--namespace", ns, "--name", "?[b*"]);
    assert_eq!(glob, json!([]), "a bracket is a bracket");
    assert_eq!(column(&cli(&up, &["ps", "--namespace", ns, "--name", "?b"]), "name"), ["db"]);
    up.client.get(&format!("/api/v1/procs?after={cursor}&state=x&limit=0&sort=size")).assert_refused(
        1_000_811,
        &["after: is not a cursor of this list in this order", "state: ", "limit: is 0", "sort: "],
    );

    // The ops of a task, and tasks.
    let list = up.client.get("/api/v1/tasks?limit=1").body;
    let task = list["data"][0]["task_id"].as_str().expect("a task").to_owned();
    assert_eq!((&list["total"], &list["next"]), (&json!(1), &Value::Null), "{list}");
    let ops = up.client.get(&format!("/api/v1/tasks/{task}?limit=2")).body;
    assert_eq!((&ops["total"], ops["data"]["ops"].as_array().map(Vec::len)), (&json!(5), Some(2)));
    let shown = up.cli(&["task", "show", &task, "--limit", "2"]);
    assert!(shown.stderr.contains("showing 2 of 5"), "{shown:?}");
    assert!(shown.stdout.contains("5 ok"), "the counts are those of the whole task: {shown:?}");

    // Another app sees nothing of it, neither rows nor totals.
    let secret = cli(&up, &["app", "create", "other"])["secret"].as_str().expect("a secret").to_owned();
    let other = up.client.as_app("other", &secret);
    for list in ["procs", "agents", "tasks"] {
        let page = other.get(&format!("/api/v1/{list}")).body;
        assert_eq!((&page["data"], &page["total"]), (&json!([]), &json!(0)), "{list}: {page}");
    }
    let killed = up.cli(&["kill", "--all", "--namespace", ns]);
    assert_eq!(killed.code, Some(0), "{killed:?}");
}

/// The agents that were heard last, connected or not; the server orders before it cuts.
#[test]
fn the_agents_that_were_heard_last_come_first() {
    let up = up();
    let token = up.token(&["--uses", "2"]);
    // Its id may come first or last: two of them, so that one of the orders is not that of ids.
    let mut away = ["127.0.0.21", "127.0.0.22"].map(|ip| {
        let mut joined = Joined::start(up.binary(), &up.link(), &up.folder(ip), ip, Some(&token));
        joined.wait_until_connected(&up, ip);
        joined
    });
    for joined in &mut away {
        joined.end(Signal::TERM);
    }
    wait_until(PATIENCE, "both have gone", || {
        cli(&up, &["agents", "--state", "away"]).as_array().is_some_and(|rows| rows.len() == 2)
    });
    let since = |rows: &Value| -> Vec<i64> {
        let rows = rows.as_array().expect("a list").iter();
        rows.map(|row| row["heard_at"].as_i64().expect("a time")).collect()
    };
    wait_until(PATIENCE, "this host was heard after the others had gone", || {
        let all = cli(&up, &["agents", "--sort", "heard"]);
        let heard = since(&all);
        heard.len() == 3 && heard[0] > heard[1] && all[0]["ip"] == "127.0.0.1"
    });
    let first = up.cli(&["agents", "--sort", "heard", "--limit", "1"]);
    assert!(first.stdout.contains("0:127.0.0.1 "), "{first:?}");
    assert!(first.stderr.contains("showing 1 of 3; "), "{first:?}");
    let cursor = first.stderr.trim().rsplit(' ').next().expect("a cursor");
    let rest = cli(&up, &["agents", "--sort", "heard", "--after", cursor]);
    let heard = since(&rest);
    assert!(heard.len() == 2 && heard[0] >= heard[1], "{rest}");
}

#[test]
fn times_are_local_unless_utc_is_wanted() {
    let up = up();
    up.token(&[]);
    let audit = |zone: &str, flags: &[&str]| {
        let mut program = Program::new(up.binary()).args([&["audit", "--limit", "1"], flags].concat());
        program = program.env("PROCFLEET_DATA", up.data()).env("TZ", zone).current_dir(&up.folder("cli"));
        program.run().stdout
    };
    for zone in ["UTC-8", "Asia/Shanghai"] {
        assert!(audit(zone, &[]).contains("+08:00"), "{zone}: {}", audit(zone, &[]));
        let utc = audit(zone, &["--utc"]);
        assert!(utc.contains("Z  ") && !utc.contains("+08:00"), "{zone}: {utc}");
    }
    assert!(!audit("UTC", &[]).contains('\u{1b}'), "no colours without a terminal");
}

/// `script` gives the client a terminal.
#[test]
fn states_are_coloured_on_a_terminal_unless_no_color_is_set() {
    let up = up();
    let proc = up.proc("web").starts(&programs::foreground());
    proc.start();
    proc.op(Op::Stop).assert_success();
    proc.row_when(PATIENCE, "stopped");
    let ps = |flags: &str| format!("{} ps {flags}", up.binary().display());
    let in_folder = |program: Program| {
        program.env("PROCFLEET_DATA", up.data()).env("TERM", "xterm").current_dir(&up.folder("cli"))
    };
    let at_terminal = |flags: &str| in_folder(Program::new("script").args(["-qec", &ps(flags), "/dev/null"]));
    let piped = |flags: &str| in_folder(Program::new("/bin/sh").args(["-c", &ps(flags)]));
    for (program, is_coloured, what) in [
        (at_terminal(""), true, "a terminal"),
        (at_terminal("").env("NO_COLOR", ""), true, "an empty NO_COLOR"),
        (at_terminal("").env("NO_COLOR", "1"), false, "NO_COLOR"),
        (at_terminal("--color never"), false, "--color never"),
        (at_terminal("--color always").env("NO_COLOR", "1"), true, "the flag is more special"),
        (piped(""), false, "no terminal"),
        (piped("--color always"), true, "--color always"),
    ] {
        let shown = program.run();
        assert_eq!(shown.code, Some(0), "{what}: {shown:?}");
        assert!(shown.stdout.contains("stopped"), "{what}: {shown:?}");
        assert_eq!(shown.stdout.contains("\u{1b}[90m"), is_coloured, "{what}: {shown:?}");
    }
}

#[test]
fn a_watched_list_is_printed_until_its_reader_closes() {
    let up = up();
    up.token(&[]);
    for (verb, word) in [("agents", "connected"), ("audit", "token_create")] {
        let mut watching =
            Program::new(up.binary()).args([verb, "--watch", "1"]).env("PROCFLEET_DATA", up.data());
        watching.start();
        wait_until(PATIENCE, "it was shown twice", || watching.stdout().matches(word).count() >= 2);
        watching.end(Signal::TERM, PATIENCE);
    }
}

#[test]
fn lists_of_the_newest_rows_name_the_number_of_all() {
    let up = up();
    let procs = ["one", "two", "three"].map(|name| up.proc(name).starts(&programs::foreground()));
    procs.iter().for_each(|proc| _ = proc.start());
    let ns = up.namespace.as_str();
    let events = |more: &str| up.client.get(&format!("/api/v1/events?namespace={ns}{more}")).body;
    wait_until(PATIENCE, "each start is an event", || events("&limit=1")["total"] == 3);
    assert_eq!(events("&name=two")["total"], 1);
    assert_eq!(events("&kind=exited")["total"], 0);
    assert_eq!(events("&after=0")["total"], Value::Null, "who follows events counts them itself");
    let shown = up.cli(&["events", "--namespace", ns, "--limit", "2"]);
    assert_eq!(shown.stdout.lines().count(), 2, "{shown:?}");
    assert_eq!(shown.stderr.trim(), "showing 2 of 3; for more: --limit N");
    let all = up.cli(&["events", "--namespace", ns]);
    assert_eq!((all.stdout.lines().count(), all.stderr.as_str()), (3, ""), "{all:?}");

    for code in ["first", "second"] {
        cli(&up, &["app", "create", code]);
    }
    let made = up.client.get("/api/v1/audit?action=app_create&limit=1").body;
    assert_eq!((&made["total"], made["data"].as_array().map(Vec::len)), (&json!(2), Some(1)), "{made}");
    let shown = up.cli(&["audit", "--action", "app_create", "--limit", "1"]);
    assert_eq!(shown.stderr.trim(), "showing 1 of 2; for more: --limit N");
    assert_eq!(up.client.get("/api/v1/audit?action=app_create&failed=true").body["total"], 0);

    // An app sees and counts the events of its own namespaces only.
    let secret = cli(&up, &["app", "create", "other"])["secret"].as_str().expect("a secret").to_owned();
    let other = up.client.as_app("other", &secret).get("/api/v1/events").body;
    assert_eq!((&other["total"], &other["data"]["events"]), (&json!(0), &json!([])), "{other}");
}

#[test]
fn an_agent_that_is_away_can_be_forgotten() {
    let up = up();
    let token = up.token(&["--uses", "2"]);
    // As texts these two addresses have the opposite order.
    let [near, ip] = ["127.0.0.2", "127.0.0.10"];
    let start = |ip: &str| Joined::start(up.binary(), &up.link(), &up.folder(ip), ip, Some(&token));
    let (mut gone, mut other) = (start(ip), start(near));
    gone.wait_until_connected(&up, ip);
    other.wait_until_connected(&up, near);
    let listed = column(&cli(&up, &["agents"]), "ip");
    assert_eq!(listed, ["127.0.0.1", near, ip], "in the order of addresses");
    let page = up.cli(&["agents", "--limit", "2", "--json"]);
    let rows: Value = serde_json::from_str(&page.stdout).expect("--json prints JSON");
    assert_eq!(column(&rows, "ip"), ["127.0.0.1", near], "a page is in the same order");
    let cursor = page.stderr.trim().rsplit(' ').next().expect("a cursor");
    assert_eq!(column(&cli(&up, &["agents", "--after", cursor]), "ip"), [ip], "and so is the next one");
    let refused = up.cli(&["agents", "forget", "0:127.0.0.10"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("is connected; only one that is away can be forgotten"), "{refused:?}");
    gone.end(Signal::TERM);
    wait_until(PATIENCE, "it has gone", || {
        cli(&up, &["agents", "--state", "away"]).as_array().is_some_and(|rows| rows.len() == 1)
    });
    assert_eq!(column(&cli(&up, &["agents", "forget", "127.0.0.10"]), "ip"), [ip]);
    assert_eq!(column(&cli(&up, &["agents"]), "ip"), ["127.0.0.1", near]);
    assert_eq!(cli(&up, &["audit", "--action", "agents_forget"]).as_array().map(Vec::len), Some(1));
    let unknown = up.cli(&["stop", "x", "--host", ip]);
    assert!(unknown.stdout.contains("failed (117)"), "{unknown:?}");
    // Only an administrator may forget an agent.
    let secret = cli(&up, &["app", "create", "other"])["secret"].as_str().expect("a secret").to_owned();
    let other = up.client.as_app("other", &secret);
    let body = json!({"agents": ["0:127.0.0.1"]});
    other.post("/api/v1/agents/forget", body).assert_refused(1_306_403, &["administrators only"]);
}
