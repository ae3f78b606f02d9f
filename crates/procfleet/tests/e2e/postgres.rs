//! A server whose state is in PostgreSQL: the database goes away and comes back, another server comes.

use procfleet_testkit::{Cluster, Op, PATIENCE, Program, Signal, Up, is_running, programs, wait_until};
use std::path::Path;

const NEEDS_OPERATOR: i32 = 78;
const RESULT: &str = "/api/c/compapi/v2/gse/get_proc_operate_result_v2/";

fn on_postgres() -> (Up, String) {
    let url = Cluster::shared().database();
    (Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--store", &url]), url)
}

fn server(data: &Path, url: &str) -> Program {
    let mut program = Program::new(env!("CARGO_BIN_EXE_procfleet"))
        .args(["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--store", url, "--data"])
        .args([data]);
    program.start();
    program
}

/// The database of a URL of the cluster.
fn name(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

/// Ends all connections to a database, and lets none in.
fn take_away(database: &str) {
    let sql = format!(
        "ALTER DATABASE {database} ALLOW_CONNECTIONS false; \
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
    );
    Cluster::shared().psql("postgres", &sql).expect("the database is away");
}

fn give_back(database: &str) {
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

#[test]
fn another_server_is_kept_out_while_the_first_is_alive_and_takes_over_at_once_after_it() {
    let (mut up, url) = on_postgres();
    let folder = tempfile::tempdir().expect("a temp dir");
    let mut second = server(&folder.path().join("data"), &url);
    let ended = second.finish(PATIENCE);
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("is in use by another server"), "{ended:?}");

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
fn a_url_that_cannot_be_used_is_refused_with_its_reason() {
    for (url, code, reason) in [
        ("mysql://db/fleet", 2, "it does not begin with postgres://"),
        ("postgres://db/fleet", 2, "sslmode is missing and db is not this machine"),
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
    }
}
