//! Callers that hang up before the answer.

use crate::postgres::{name, on_postgres};
use procfleet_testkit::{Cluster, Op, PATIENCE, let_pass, programs, wait_until};
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

const V2: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
const CALLERS: u32 = 4;
const CALLS: u32 = 2_500;
/// Maximum number of connections of one server, as docs/operator/servers.md says.
const CONNECTIONS: u32 = 12;

#[test]
fn calls_that_hang_up_leave_nothing_behind() {
    let (up, url) = on_postgres();
    let proc = up.proc("web").starts(&programs::foreground());
    proc.start();
    let body = proc.body(Op::Query).to_string();
    let login = up.client.authorization();
    let files = || std::fs::read_dir(format!("/proc/{}/fd", up.pid())).expect("it runs").count();
    let before = files();
    let call = |key: String, patience: Duration| {
        let mut stream = TcpStream::connect(up.client.address()).expect("the server listens");
        let request = format!(
            "POST {V2} HTTP/1.1\r\nHost: fleet\r\nX-Bkapi-Authorization: {login}\r\nIdempotency-Key: {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it is open");
        let_pass(patience);
    };
    std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            scope.spawn(move || {
                for (number, patience) in (0..CALLS).zip([0, 1, 5].into_iter().cycle()) {
                    call(format!("{caller}-{number}"), Duration::from_millis(patience));
                }
            });
        }
    });

    let count = |sql: &str| -> u32 {
        let sql = format!("SELECT count(*) FROM {sql}");
        Cluster::shared().psql(name(&url), &sql).expect("readable").parse().expect("a number")
    };
    wait_until(PATIENCE, "every task has ended", || count("tasks WHERE is_open") == 0);
    // Some hang up before the server has read the call, some while it is being stored, some after.
    let tasks = count("tasks");
    assert!(tasks > 1 && tasks <= CALLERS * CALLS + 10, "{tasks}");
    assert_eq!(
        count("idempotency_keys AS k WHERE NOT EXISTS (SELECT 1 FROM tasks WHERE number = k.task)"),
        0
    );
    let others = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() \
                  AND backend_type = 'client backend'";
    assert!(count(others) <= CONNECTIONS, "{}", count(others));
    wait_until(PATIENCE, "the connections of the callers are closed", || {
        files() <= before + CONNECTIONS as usize
    });
    Cluster::shared().assert_invariants(&url);
    proc.op(Op::Stop).assert_success();
}
