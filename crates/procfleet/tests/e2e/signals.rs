//! Signals to the agent at whatever moment, and the signals that its processes begin with.

use crate::up;
use procfleet_testkit::{
    Fifo, Joined, Op, PATIENCE, Program, Signal, is_running, kill, programs, wait_until,
};
use std::fs;

const IP: &str = "127.0.0.2";

/// The lines of /proc/PID/status about blocked, ignored and caught signals.
fn signals(status: &str) -> Vec<&str> {
    let fields = ["SigBlk:", "SigIgn:", "SigCgt:"];
    status.lines().filter(|line| fields.iter().any(|field| line.starts_with(field))).collect()
}

#[test]
fn signals_before_the_agent_listens_do_not_end_it() {
    let up = up();
    let (data, token) = (up.folder("joined"), up.folder("token").join("token"));
    // The agent reads its token before it listens for signals.
    let fifo = Fifo::make(&token);
    let environment = [("PROCFLEET_TOKEN_FILE", token.as_path())];
    let mut agent = Joined::start_with(up.binary(), &up.link(), &data, IP, None, &environment);
    let held = fifo.wait_for_reader();
    kill(agent.pid(), Signal::HUP);
    kill(agent.pid(), Signal::USR2);
    held.release(&up.token(&[]));
    agent.wait_until_log_says("re-executing the agent");
    agent.wait_until_connected(&up, IP);
}

/// A terminal that is closed sends it. A server with `--tls-cert` loads its certificate instead.
#[test]
fn sighup_ends_a_server_in_order_unless_it_was_started_with_nohup() {
    const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");
    for verb in [&["up"][..], &["server"], &["server", "--tls"]] {
        let folder = tempfile::tempdir().expect("a temp dir");
        let begun = |program: &str, words: &[&str]| {
            let mut server = Program::new(program)
                .args(words)
                .args(verb)
                .args(["--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--data"])
                .args([folder.path().join("data")]);
            server.start();
            wait_until(PATIENCE, "it is ready", || server.stdout().contains(" is ready"));
            server
        };
        // The tests themselves may have been started with nohup.
        let mut server = begun("env", &["--default-signal=HUP", BINARY]);
        let (ended, _) = server.end(Signal::HUP, PATIENCE);
        assert!(ended.success(), "{verb:?}: {ended}");
        assert!(server.stderr().contains("server has ended"), "{verb:?}: {}", server.stderr());
        let mut server = begun("nohup", &[BINARY]);
        let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("a mask");
        let mask = u64::from_str_radix(ignored, 16).expect("hexadecimal digits");
        assert_eq!(mask & 1, 1, "{verb:?}: {status}");
        let (ended, _) = server.end(Signal::INT, PATIENCE);
        assert!(ended.success(), "{verb:?}: {ended}");
    }
}

/// A host's logrotate may still send the signal on which earlier versions gave renamed logs their names back.
#[test]
fn sigusr2_does_not_end_the_agent() {
    let up = up();
    up.wait_for_agent();
    let (agent, proc) = (up.agent_pid(), up.proc("web").starts(&programs::foreground()));
    kill(agent, Signal::USR2);
    proc.start();
    assert!(is_running(agent), "{}", up.stderr());
    assert_eq!(up.agent_pid(), agent);
}

#[test]
fn a_process_begins_with_default_signals_and_none_blocked() {
    let up = up();
    let proc = up.proc("web").starts(&programs::foreground());
    let proc = proc.control("reload_cmd", "cat /proc/self/status > reload.status");
    let pid = proc.start();
    wait_until(PATIENCE, "the shell has become the program", || proc.program_pid() == Some(pid));
    let none = ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "SigCgt:\t0000000000000000"];
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    assert_eq!(signals(&status), none);
    proc.op(Op::Reload).assert_success();
    assert_eq!(signals(&proc.read("reload.status")), none, "of another command");
    // An agent that was renewed has inherited how its last life treated signals.
    up.renew_agent();
    proc.op(Op::Restart).assert_success();
    let status = fs::read_to_string(format!("/proc/{}/status", proc.wait_for_program())).expect("it runs");
    assert_eq!(signals(&status), none, "of a process of the renewed agent");
}
