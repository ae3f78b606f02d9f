//! `procfleet store copy`: a fleet moves from the embedded store to PostgreSQL.

use crate::backups::backup;
use crate::events::events_of;
use crate::up;
use procfleet_testkit::{
    Cluster, Finished, Joined, Op, PATIENCE, Program, Signal, Up, programs, wait_for, wait_until,
};
use serde_json::Value;
use std::fs;

const IP: &str = "127.0.0.2";

#[track_caller]
pub(crate) fn copy(up: &Up, url: &str, says: &str) -> Finished {
    let from = up.data();
    let done = up.cli(&["store", "copy", "--from", from.to_str().expect("a text"), "--to", url]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains(says), "{done:?}");
    done
}

pub(crate) fn psql(url: &str, sql: &str) -> String {
    Cluster::shared().psql(url.rsplit('/').next().expect("a name"), sql).expect("psql works")
}

fn last_event(up: &Up) -> u64 {
    up.client.data("/api/v1/events?limit=1")["last"].as_u64().expect("a number")
}

/// What the server says about its agents that does not depend on when it is asked.
fn agents(up: &Up) -> Vec<(Value, Value, Value)> {
    let agents = up.client.data("/api/v1/agents");
    let agents = agents.as_array().expect("a list").iter();
    agents
        .map(|agent| (agent["agent_id"].clone(), agent["ip"].clone(), agent["enrolled_at"].clone()))
        .collect()
}

/// Nothing of the embedded store is left, so whatever the next server knows is in PostgreSQL.
pub(crate) fn remove_embedded_store(up: &Up) {
    for name in ["server.db", "server.db-wal", "server.db-shm", "server.db.id"] {
        let _ = fs::remove_file(up.data().join(name));
    }
    assert!(!up.data().join("server.db").exists());
}

#[test]
fn a_fleet_moves_to_postgresql_and_nobody_joins_again() {
    let mut up = up();
    let mut far_agent = Joined::start(up.binary(), &up.link(), &up.folder("far"), IP, Some(&up.token(&[])));
    far_agent.wait_until_connected(&up, IP);
    let near = up.proc("near").starts(&programs::foreground());
    let far = up.proc("far").on_host(IP).starts(&programs::foreground());
    let pids = (near.start(), far.start());
    let asked = near.submit(Op::Query);
    asked.outcome().assert_success();
    wait_until(PATIENCE, "the starts are events", || {
        !events_of(&up, &near).is_empty() && !events_of(&up, &far).is_empty()
    });
    let cursor = last_event(&up);

    let url = Cluster::shared().database();
    let rehearsal = copy(&up, &url, "what it stores from now on is not in the copy");
    for table in ["agents", "sessions", "tasks", "ops", "outcomes", "events", "audit"] {
        let line = rehearsal.stdout.lines().find(|line| line.starts_with(&format!("{table} ")));
        assert!(
            line.is_some_and(|line| line.contains("rows, the same in both stores (sha256 ")),
            "{rehearsal:?}"
        );
    }
    // The server goes on, and the next copy has this, too.
    assert_eq!(up.cli(&["app", "create", "later"]).code, Some(0));
    far.op(Op::Query).assert_success();
    let late = up.proc("late").starts(&programs::foreground());
    late.start();
    wait_until(PATIENCE, "its start is an event", || !events_of(&up, &late).is_empty());
    let newer = events_of(&up, &late);
    let known = agents(&up);
    let result = up.client.results_now(&asked.id);
    let tasks = up.client.data("/api/v1/tasks?limit=100");
    up.end(Signal::TERM);
    copy(&up, &url, "start a server with --store on this copy");
    remove_embedded_store(&up);

    up.add_flags(&["--store", &url]);
    up.again_with_the_same_link();
    up.wait_for_agent();
    far_agent.wait_until_connected(&up, IP);
    assert_eq!(agents(&up), known, "the same agents, joined at the same time");
    assert_eq!(up.client.results_now(&asked.id), result, "an old task answers the same");
    assert_eq!(up.client.data("/api/v1/tasks?limit=100"), tasks);
    let after = up.client.data(&format!("/api/v1/events?after={cursor}&name=late"));
    assert_eq!(after["events"].as_array(), Some(&newer), "an old cursor continues where it was");
    assert!(up.client.data("/api/v1/apps").to_string().contains("\"later\""));
    assert!(!up.stderr().contains("a backup was restored"), "nothing is lost");

    let near = up.proc("near").starts(&programs::foreground());
    let far = up.proc("far").on_host(IP).starts(&programs::foreground());
    assert_eq!((near.pid(), far.pid()), (Some(pids.0), Some(pids.1)), "the processes went on");
    near.op(Op::Stop).assert_success();
    far.op(Op::Stop).assert_success();
    let newest = last_event(&up);
    near.start();
    wait_until(PATIENCE, "there is a new event", || last_event(&up) > newest);

    let from = up.data();
    let again = up.cli(&["store", "copy", "--from", from.to_str().expect("a text"), "--to", &url]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.stderr.contains("a server is using it now"), "{again:?}");
}

/// The copy of a backup, and equally one that was taken while a server ran.
#[test]
fn a_server_on_a_copy_of_a_backup_says_what_is_lost() {
    let mut up = up();
    let proc = up.proc("first").starts(&programs::foreground());
    proc.start();
    wait_until(PATIENCE, "its start is an event", || !events_of(&up, &proc).is_empty());
    let kept = last_event(&up);
    let file = backup(&up, "moved.db");
    let later = up.proc("second").starts(&programs::foreground());
    later.start();
    wait_until(PATIENCE, "its start is an event", || !events_of(&up, &later).is_empty());
    let lost = last_event(&up);
    up.end(Signal::TERM);

    let url = Cluster::shared().database();
    let done = up.cli(&["store", "copy", "--from", file.to_str().expect("a text"), "--to", &url]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("is a backup: a server that starts on this copy"), "{done:?}");
    remove_embedded_store(&up);
    up.add_flags(&["--store", &url]);
    up.again();
    assert!(up.stderr().contains("a backup was restored"), "{}", up.stderr());
    let ask = |after: u64| up.client.get(&format!("/api/v1/events?after={after}"));
    ask(lost).assert_refused(1000811, &["after", "was lost when a backup", "without `after`"]);
    ask(kept).data();
}

#[test]
fn a_copy_that_is_killed_changes_nothing_and_its_url_is_in_no_command_line() {
    let mut up = up();
    up.end(Signal::TERM);
    let url = Cluster::shared().database();
    copy(&up, &url, "start a server with --store on this copy");
    let before = psql(&url, "SELECT count(*), max(id), (SELECT count(*) FROM agents) FROM audit");
    // The next copy stops in the middle.
    psql(
        &url,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$; \
         CREATE TRIGGER wait BEFORE INSERT ON audit FOR EACH STATEMENT EXECUTE FUNCTION wait()",
    );
    let secret = url.replace("procfleet@", "procfleet:sesame@");
    assert_ne!(secret, url);
    let from = up.data();
    let mut copying = Program::new(up.binary()).args([
        "store",
        "copy",
        "--from",
        from.to_str().expect("a text"),
        "--to",
        &secret,
    ]);
    copying.start();
    let waiting =
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'";
    let backend = wait_for(PATIENCE, "the copy waits", || {
        assert!(copying.is_running(), "{}", copying.stderr());
        Some(psql(&url, waiting)).filter(|pid| !pid.is_empty())
    });
    let line = fs::read(format!("/proc/{}/cmdline", copying.pid())).expect("it runs");
    let line = String::from_utf8_lossy(&line);
    assert!(line.contains("copy") && !line.contains("sesame") && !line.contains("--to"), "{line:?}");
    copying.end(Signal::KILL, PATIENCE);
    wait_until(PATIENCE, "the database has noticed", || {
        psql(&url, &format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {backend}")) == "0"
    });
    assert_eq!(psql(&url, "SELECT count(*), max(id), (SELECT count(*) FROM agents) FROM audit"), before);
    psql(&url, "DROP TRIGGER wait ON audit");
    copy(&up, &url, "start a server with --store on this copy");
    let drafts = fs::read_dir(up.data()).expect("our own folder").flatten();
    let drafts: Vec<_> = drafts
        .map(|file| file.file_name())
        .filter(|name| name.to_string_lossy().contains("copying"))
        .collect();
    assert!(drafts.is_empty(), "{drafts:?}");
}
