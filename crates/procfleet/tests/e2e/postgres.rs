//! A server whose state is in PostgreSQL: the database goes away and comes back, another server comes.

use crate::events::events_of;
use procfleet_testkit::{
    Cluster, Joined, Op, PATIENCE, PoolMode, Pooler, Program, Signal, Up, is_running, kill, let_pass,
    programs, wait_for, wait_until,
};
use std::path::Path;
use std::time::Duration;

const NEEDS_OPERATOR: i32 = 78;
pub(crate) const RESULT: &str = "/api/c/compapi/v2/gse/get_proc_operate_result_v2/";

pub(crate) fn on_postgres() -> (Up, String) {
    let url = Cluster::shared().database();
    (Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--store", &url]), url)
}

pub(crate) fn server(data: &Path, url: &str) -> Program {
    let mut program = Program::new(env!("CARGO_BIN_EXE_procfleet"))
        .args(["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--store", url, "--data"])
        .args([data]);
    program.start();
    program
}

/// The database of a URL of the cluster.
pub(crate) fn name(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

/// Ends all connections to a database, and lets none in.
pub(crate) fn take_away(database: &str) {
    let psql = |sql: &str| Cluster::shared().psql("postgres", sql).expect("PostgreSQL answers");
    psql(&format!("ALTER DATABASE {database} ALLOW_CONNECTIONS false"));
    // A connection whose login had begun before may appear later.
    wait_until(PATIENCE, "nobody is connected to the database", || {
        let sessions = format!("FROM pg_stat_activity WHERE datname = '{database}'");
        psql(&format!("SELECT count(pg_terminate_backend(pid)) {sessions}")).trim() == "0"
    });
}

pub(crate) fn give_back(database: &str) {
    let sql = format!("ALTER DATABASE {database} ALLOW_CONNECTIONS true");
    Cluster::shared().psql("postgres", &sql).expect("the database is back");
}

#[test]
fn calls_are_refused_while_the_database_is_away_and_everything_goes_on_after() {
    let (up, url) = on_postgres();
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    take_away(name(&url));
    wait_until(PATIENCE, "readiness says no", || up.client.page("/readyz").status == 503);
    assert_eq!(up.client.page("/healthz").status, 200, "the server itself is alive");
    let mut call = up.admin();
    call["task_id"] = "GSETASK:20261115203000:1".into();
    let refused = up.client.raw(RESULT, &[], call.to_string().as_bytes());
    assert_eq!(refused.status, 503, "{}", refused.text);
    assert!(refused.text.contains("the database does not answer now"), "{}", refused.text);
    assert!(is_running(pid), "the process goes on");

    give_back(name(&url));
    wait_until(PATIENCE, "readiness says yes", || up.client.page("/readyz").status == 200);
    proc.op(Op::Stop).assert_success();
    assert!(!is_running(pid));
}

/// What the agent reports meanwhile waits in its session, which does not end.
#[test]
fn a_restart_while_the_database_is_away_is_told_in_the_same_session() {
    let (up, url) = on_postgres();
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    take_away(name(&url));
    wait_until(PATIENCE, "readiness says no", || up.client.page("/readyz").status == 503);
    kill(pid, Signal::KILL);
    let successor = wait_for(PATIENCE, "there is a replacement", || {
        proc.program_pid().filter(|other| *other != pid && is_running(*other))
    });
    // The server has tried to store the state, in vain, and tries again after its pause.
    let_pass(Duration::from_secs(3));
    give_back(name(&url));
    wait_until(PATIENCE, "readiness says yes", || up.client.page("/readyz").status == 200);
    proc.row_with_pid(successor);
    wait_until(PATIENCE, "the events are stored", || {
        let events = events_of(&up, &proc);
        events.iter().any(|event| event["details"]["exited"]["pid"] == pid)
    });
    let log = up.stderr();
    assert_eq!(log.lines().filter(|line| line.contains("agent connected")).count(), 1, "{log}");
    assert!(!log.contains("agent disconnected"), "{log}");
}

/// A refusal would let the agent back off from all servers for up to a minute.
#[test]
fn an_agent_that_comes_while_the_database_is_away_is_not_refused() {
    let (up, url) = on_postgres();
    let (data, ip) = (up.folder("joined"), "127.0.0.2");
    let token = up.token(&["--uses", "1"]);
    let mut agent = Joined::start(up.binary(), &up.link(), &data, ip, Some(&token));
    agent.wait_until_connected(&up, ip);
    agent.end(Signal::TERM);
    take_away(name(&url));
    wait_until(PATIENCE, "readiness says no", || up.client.page("/readyz").status == 503);
    let mut agent = Joined::start(up.binary(), &up.link(), &data, ip, None);
    agent.wait_until_log_says("session with the server failed; reconnecting");
    give_back(name(&url));
    agent.wait_until_connected(&up, ip);
    let log = agent.stderr();
    assert!(!log.contains("the server refused the session"), "{log}");
}

/// A refusal is final for an agent that joins, and another server of the fleet may reach the database.
#[test]
fn an_agent_that_joins_while_the_database_is_away_is_not_refused() {
    let (up, url) = on_postgres();
    let token = up.token(&["--uses", "1"]);
    take_away(name(&url));
    wait_until(PATIENCE, "readiness says no", || up.client.page("/readyz").status == 503);
    let ip = "127.0.0.2";
    let mut agent = Joined::start(up.binary(), &up.link(), &up.folder("joined"), ip, Some(&token));
    agent.wait_until_log_says("the server did not answer the request to join; retrying");
    give_back(name(&url));
    agent.wait_until_connected(&up, ip);
}

#[test]
fn a_server_that_was_killed_goes_on_at_its_next_start() {
    let (mut up, _) = on_postgres();
    // kill -9, and again on the same data: the dead process is known to be gone.
    let pid = up.proc("web").starts(&programs::foreground()).start();
    up.kill_all();
    up.again();
    assert!(is_running(pid), "the process has survived");
    up.proc("web").starts(&programs::foreground()).op(Op::Stop).assert_success();
    assert!(!is_running(pid));
    assert_eq!(up.end(Signal::TERM), Some(0));
}

#[test]
fn a_jump_of_the_databases_clock_is_logged_and_counted() {
    let url = Cluster::shared().database_with_clock();
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--store", &url]);
    let counts = |jumps: u64| {
        let line = format!("procfleet_store_clock_jumps_total {jumps}\n");
        up.client.page("/metrics").text.contains(&line)
    };
    assert!(counts(0), "{}", up.client.page("/metrics").text);
    Cluster::shared().set_clock(name(&url), "1 hour");
    wait_until(PATIENCE, "the jump is counted", || counts(1));
    wait_until(PATIENCE, "the jump is logged", || {
        up.stderr().contains("the database's clock has jumped; the store's time goes on as before")
    });
}

/// As by an upgrade of the other servers by two versions.
#[test]
fn a_server_that_has_become_too_old_ends_with_78() {
    let url = Cluster::shared().database();
    let folder = tempfile::tempdir().expect("a temp dir");
    let mut server = server(&folder.path().join("data"), &url);
    wait_until(PATIENCE, "the server is up", || {
        assert!(server.is_running(), "{}", server.stderr());
        server.stderr().contains("server is up")
    });
    let sql = "UPDATE schema_version SET version = version + 2, oldest_server = version + 1";
    Cluster::shared().psql(name(&url), sql).expect("our own database");
    let ended = server.finish(PATIENCE);
    assert_eq!(ended.code, Some(NEEDS_OPERATOR), "{ended:?}");
    assert!(ended.stderr.contains("a newer server has upgraded the store"), "{ended:?}");
    assert!(ended.stderr.contains("Upgrade it"), "{ended:?}");
}

#[test]
fn a_url_that_cannot_be_used_is_refused_with_its_reason() {
    for (url, code, reason) in [
        ("mysql://db/fleet", 2, "it does not begin with postgres://"),
        ("postgres://procfleet:sesame@db/fleet", 2, "--store: sslmode is missing and db is not this machine"),
        ("postgres://db/fleet?sslmode=require", 2, "sslmode=require: use disable, verify-ca or verify-full"),
        ("postgres://127.0.0.1:1/fleet", 1, "the database is away"),
        (
            "postgres://127.0.0.1/fleet?sslmode=verify-full&sslrootcert=/nowhere",
            NEEDS_OPERATOR,
            "sslrootcert=/nowhere",
        ),
    ] {
        let folder = tempfile::tempdir().expect("a temp dir");
        let ended = server(&folder.path().join("data"), url).finish(PATIENCE);
        assert_eq!(ended.code, Some(code), "{url}: {ended:?}");
        assert!(ended.stderr.contains(reason), "{url}: {ended:?}");
        assert!(!ended.stderr.contains("sesame"), "{url}: {ended:?}");
    }
}

#[test]
fn the_password_of_a_url_is_in_no_command_line_and_no_unit() {
    let url = Cluster::shared().database().replace("procfleet@", "procfleet:sesame@");
    let up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--store", &url]);
    let read = |pid: u32, file: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).expect("it runs");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let line = read(up.pid(), "cmdline");
    assert!(line.contains("--listen") && !line.contains("sesame") && !line.contains("--store"), "{line:?}");
    assert!(read(up.pid(), "environ").contains("sesame"), "this shows that it is the right process");
    let agent = read(up.agent_pid(), "environ");
    assert!(!agent.contains("sesame"), "{agent:?}");
    up.proc("web").starts(&programs::foreground()).op(Op::Query);

    for flags in [&["--store", &url][..], &[]] {
        let unit = Program::new(env!("CARGO_BIN_EXE_procfleet"))
            .args(["server", "--print-systemd-unit", "--keep-days", "7"])
            .args(flags)
            .env("PROCFLEET_STORE", &url)
            .run();
        assert_eq!(unit.code, Some(0), "{unit:?}");
        assert!(unit.stdout.contains("--keep-days 7\n#"), "{unit:?}");
        assert!(unit.stdout.contains("EnvironmentFile=/etc/procfleet/server.env"), "{unit:?}");
        assert!(!unit.stdout.contains("sesame"), "{unit:?}");
    }
}

#[test]
fn a_pooler_in_transaction_mode_is_refused_and_one_in_session_mode_works() {
    let direct = Cluster::shared().database();
    let folder = tempfile::tempdir().expect("a temp dir");
    let pooler = Pooler::start(Cluster::shared(), PoolMode::Transaction);
    let ended = server(&folder.path().join("data"), &pooler.url(&direct)).finish(PATIENCE);
    assert_eq!(ended.code, Some(NEEDS_OPERATOR), "{ended:?}");
    assert!(ended.stderr.contains("pool_mode = transaction"), "{ended:?}");
    let from = folder.path().join("data");
    let copied = Program::new(env!("CARGO_BIN_EXE_procfleet"))
        .args(["store", "copy", "--to", &pooler.url(&direct), "--from"])
        .args([from])
        .run();
    assert!(copied.code == Some(NEEDS_OPERATOR) && copied.stderr.contains("pool_mode"), "{copied:?}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(Cluster::shared().psql(name(&direct), tables).as_deref(), Ok("0"), "nothing was created");

    let pooler = Pooler::start(Cluster::shared(), PoolMode::Session);
    let mut up = Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--store", &pooler.url(&direct)]);
    let proc = up.proc("web").starts(&programs::foreground());
    let pid = proc.start();
    proc.op(Op::Stop).assert_success();
    assert!(!is_running(pid));
    assert_eq!(up.end(Signal::TERM), Some(0));
}
