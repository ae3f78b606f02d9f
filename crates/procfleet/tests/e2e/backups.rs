//! Backups of the server's store: made while it runs, put back while it does not, and never mixed with the
//! log of another file.

use crate::events::events_of;
use crate::up;
use procfleet_testkit::{Joined, Op, PATIENCE, Program, Signal, Up, programs, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const NEEDS_OPERATOR: i32 = 78;

/// A backup of the running server's store.
#[track_caller]
pub(crate) fn backup(up: &Up, name: &str) -> PathBuf {
    let file = up.folder("backups").join(name);
    let done = up.cli(&["store", "backup", file.to_str().expect("a text")]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("keep it together with ca.* and admin.json"), "{done:?}");
    file
}

#[track_caller]
pub(crate) fn restore(up: &Up, file: &Path) {
    let done = up.cli(&["store", "restore", file.to_str().expect("a text")]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains("server.db.before-restore-1"), "{done:?}");
}

#[track_caller]
fn add_app(up: &Up, code: &str) {
    let done = up.cli(&["app", "create", code]);
    assert_eq!(done.code, Some(0), "{done:?}");
}

fn has_app(up: &Up, code: &str) -> bool {
    up.client.data("/api/v1/apps").to_string().contains(&format!("\"{code}\""))
}

/// The message of a second attempt to start the server on this data.
#[track_caller]
fn refused_start(data: &Path) -> String {
    let done = Program::new(env!("CARGO_BIN_EXE_procfleet"))
        .args(["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--data"])
        .args([data])
        .run();
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{done:?}");
    done.stderr
}

#[test]
fn a_backup_of_a_running_server_is_restored_and_the_old_store_is_kept() {
    let mut up = up();
    add_app(&up, "before");
    let file = backup(&up, "first.db");
    let mode = fs::metadata(&file).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds hashes of secrets");
    add_app(&up, "after");

    let text = file.to_str().expect("a text");
    let twice = up.cli(&["store", "backup", text]);
    assert!(twice.code == Some(1) && twice.stderr.contains("first.db"), "never over another file: {twice:?}");
    let running = up.cli(&["store", "restore", text]);
    assert!(running.code == Some(1) && running.stderr.contains("in use by another server"), "{running:?}");

    up.kill_all();
    let store = up.data().join("server.db");
    let kept = fs::read(&store).expect("it is there");
    let garbage = up.folder("backups").join("garbage.db");
    for bytes in [b"no database".repeat(999), fs::read(&file).expect("it is there")[..8192].to_vec()] {
        fs::write(&garbage, bytes).expect("our own file");
        let bad = up.cli(&["store", "restore", garbage.to_str().expect("a text")]);
        assert!(bad.code == Some(1) && bad.stderr.contains("garbage.db cannot be restored"), "{bad:?}");
        assert!(bad.stderr.contains("Nothing was changed"), "{bad:?}");
    }
    assert_eq!(fs::read(&store).expect("it is there"), kept, "nothing was changed");

    restore(&up, &file);
    for ending in ["", "-wal"] {
        assert!(up.data().join(format!("server.db.before-restore-1{ending}")).exists(), "{ending:?}");
    }
    up.again();
    assert!(has_app(&up, "before") && !has_app(&up, "after"));
    assert!(up.stderr().contains("a backup was restored"), "{}", up.stderr());
    // It says so once.
    up.end(Signal::TERM);
    up.again();
    assert!(!up.stderr().contains("a backup was restored"), "{}", up.stderr());
}

#[test]
fn a_backup_that_is_copied_back_beside_an_old_log_is_refused() {
    let mut up = up();
    let file = backup(&up, "old.db");
    add_app(&up, "after");
    up.kill_all();
    let (store, log) = (up.data().join("server.db"), up.data().join("server.db-wal"));
    let kept_log = fs::read(&log).expect("it was killed, so its log is there");
    fs::copy(&file, &store).expect("a copy");
    let said = refused_start(&up.data());
    for words in ["server.db-wal belongs to another file", "procfleet store restore", "left as they are"] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
    assert_eq!(fs::read(&log).expect("it is there"), kept_log);
    // The way out that the message names.
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(up.data().join(format!("server.db{ending}")));
    }
    up.again();
    assert!(!has_app(&up, "after"));
}

/// The page at which a table begins.
fn page_of(store: &Path, table: &str) -> std::ops::Range<u64> {
    let database = rusqlite::Connection::open(store).expect("a database");
    let sql = "SELECT rootpage FROM sqlite_schema WHERE name = ?";
    let root: u32 = database.query_row(sql, [table], |row| row.get(0)).expect("there is such a table");
    let size: u32 = database.pragma_query_value(None, "page_size", |row| row.get(0)).expect("a number");
    u64::from(root - 1) * u64::from(size)..u64::from(root) * u64::from(size)
}

fn overwrite(store: &Path, page: std::ops::Range<u64>) {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().write(true).open(store).expect("our own file");
    for at in page {
        file.write_all_at(&[0xa5], at).expect("our own file");
    }
}

#[test]
fn a_store_with_damaged_pages_is_not_served() {
    let mut up = up();
    up.end(Signal::TERM);
    let store = up.data().join("server.db");
    let sound = fs::read(&store).expect("it is there");
    // Neither is read at a start.
    for table in ["business_sets", "events"] {
        overwrite(&store, page_of(&store, table));
        let damaged = fs::read(&store).expect("it is there");
        let said = refused_start(&up.data());
        for words in ["server.db cannot be used", "malformed", "procfleet store restore"] {
            assert!(said.contains(words), "{table}: no {words:?} in {said}");
        }
        assert!(fs::read(&store).expect("it is there") == damaged, "{table}: it is left as it is");
        fs::write(&store, &sound).expect("our own file");
    }
    up.again();
}

#[test]
fn a_large_store_is_checked_while_the_server_works() {
    let mut up = up();
    up.end(Signal::TERM);
    let store = up.data().join("server.db");
    let page = page_of(&store, "business_sets");
    let database = rusqlite::Connection::open(&store).expect("a database");
    // The name is the last in the order of the alphabet.
    database
        .execute_batch("CREATE TABLE zz (x); INSERT INTO zz VALUES (zeroblob(70000000));")
        .expect("it is written");
    database.close().expect("it is closed");
    overwrite(&store, page);
    let mut server = Program::new(env!("CARGO_BIN_EXE_procfleet"))
        .args(["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--data"])
        .args([up.data()]);
    server.start();
    let done = server.finish(PATIENCE);
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{done:?}");
    let at = |words: &str| done.stderr.find(words).unwrap_or_else(|| panic!("no {words:?} in {done:?}"));
    assert!(at("server is up") < at("server.db cannot be used"), "the check delays no start: {done:?}");
}

#[test]
fn the_first_damaged_page_that_a_query_meets_ends_the_server() {
    let mut up = up();
    let store = up.data().join("server.db");
    let page = page_of(&store, "business_sets");
    overwrite(&store, page);
    let _ = up.client.try_get("/api/v1/business_sets");
    let done = up.finish();
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{}", done.stderr);
    assert!(done.stderr.contains("malformed"), "{}", done.stderr);
}

#[test]
fn a_cursor_of_events_that_were_lost_with_a_restored_backup_is_refused() {
    let mut up = up();
    let last = |up: &Up| up.client.data("/api/v1/events?limit=1")["last"].as_u64().expect("a number");
    let start = |up: &Up, name: &str| {
        let proc = up.proc(name).starts(&programs::foreground());
        proc.start();
        wait_until(PATIENCE, "its start is an event", || !events_of(up, &proc).is_empty());
    };
    start(&up, "first");
    let kept = last(&up);
    let file = backup(&up, "events.db");
    start(&up, "second");
    let lost = last(&up);
    assert!(lost > kept);
    up.kill_all();
    restore(&up, &file);
    up.again();
    up.wait_for_agent();
    let ask = |after: u64| up.client.get(&format!("/api/v1/events?after={after}"));
    ask(lost).assert_refused(1000811, &["after", "was lost when a backup", "without `after`"]);
    ask(lost + 5_000_000_000).assert_refused(1000811, &["after", "no event has had the number"]);
    ask(kept).data();
    start(&up, "third");
    let new = last(&up);
    assert!(new > 1_000_000_000, "no number is given out twice: {new}");
    assert!(!ask(kept).data()["events"].as_array().expect("a list").is_empty());
    ask(new).data();
}

/// An op that was open in the backup may have been carried out since.
#[test]
fn an_op_that_was_open_in_a_restored_backup_is_not_carried_out_again() {
    let mut up = up();
    let command = format!("until test -e go; do sleep 0.05; done; {}", programs::daemon());
    let proc = up.proc("slow").with_pid_file().starts(&command);
    let task = proc.submit(Op::Start);
    let file = backup(&up, "open.db");
    fs::write(proc.folder.join("go"), "").expect("our own folder");
    task.outcome().assert_success();
    proc.op(Op::Stop).assert_success();
    up.end(Signal::TERM);
    restore(&up, &file);
    up.again();
    up.wait_for_agent();
    let outcome = up.client.outcome(&task.id);
    outcome.assert(805, "the server's store was restored from a backup");
    assert_eq!(proc.program_pids(), Vec::<u32>::new());
}

#[test]
fn readiness_ends_while_the_disk_is_full_and_comes_back() {
    let Some((up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "48m") else { return };
    assert_eq!(up.client.page("/readyz").status, 200);
    disk.fill();
    let answer = up.client.page("/readyz");
    assert!(answer.status == 503 && answer.text.contains("disk of the data folder is full"), "{answer:?}");
    assert_eq!(up.client.page("/healthz").status, 200);
    disk.free();
    wait_until(PATIENCE, "it is ready again", || up.client.page("/readyz").status == 200);
}

#[test]
fn readiness_ends_while_the_disk_is_read_only_and_comes_back() {
    let Some((up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "48m") else { return };
    assert_eq!(up.client.page("/readyz").status, 200);
    let read_only = disk.mount_read_only();
    let answer = up.client.page("/readyz");
    assert!(answer.status == 503 && answer.text.contains("data folder is read-only"), "{answer:?}");
    assert_eq!(up.client.page("/healthz").status, 200);
    drop(read_only);
    assert_eq!(up.client.page("/readyz").status, 200);
}

#[test]
fn an_agent_that_joined_after_the_backup_comes_back_when_it_is_readmitted() {
    const IP: &str = "127.0.0.2";
    let mut up = up();
    let file = backup(&up, "agents.db");
    let data = up.folder("second");
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("far").on_host(IP).starts(&programs::foreground());
    let pid = proc.start();
    agent.end(Signal::TERM);
    up.end(Signal::TERM);
    restore(&up, &file);

    up.again_with_the_same_link();
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, None);
    agent.wait_until_log_says("is not known here: the server's store was restored from a backup");
    agent.wait_until_log_says("--readmit");
    agent.end(Signal::TERM);
    up.end(Signal::TERM);

    up.add_flags(&["--readmit", "60"]);
    up.again_with_the_same_link();
    let mut odd = Joined::start(up.binary(), &up.link(), &data, "224.0.0.1", None);
    odd.wait_until_log_says("cannot be the address of a host");
    odd.end(Signal::TERM);
    let mut agent = Joined::start(up.binary(), &up.link(), &data, "::ffff:127.0.0.2", None);
    agent.wait_until_connected(&up, IP);
    let shown = up.cli(&["audit"]);
    assert!(shown.stdout.contains("agent_readmit"), "{shown:?}");
    let proc = up.proc("far").on_host(IP).starts(&programs::foreground());
    proc.op(Op::Query).assert_success();
    assert_eq!(proc.program_pid(), Some(pid), "its processes went on");
    // It is known from now on.
    agent.end(Signal::TERM);
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, None);
    agent.wait_until_connected(&up, IP);
}
