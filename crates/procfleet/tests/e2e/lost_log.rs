//! A log that cannot be written, or that has no reader: server, agent and client go on.

use crate::up;
use procfleet_testkit::{
    Op, PATIENCE, Program, Signal, Up, is_running, kill, programs, wait_for, wait_until,
};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Mutex;

const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");
/// O_NONBLOCK of Linux.
const NONBLOCK: i32 = 0o4000;

/// Ops end, a hosted process that dies is restarted, and neither server nor agent was restarted for it.
#[track_caller]
fn check(up: &Up) {
    let agent = up.agent_pid();
    let proc = up.proc("hosted").starts(&programs::foreground());
    let first = proc.start();
    proc.op(Op::Host).assert_success();
    let mut pid = first;
    // Each death is at least a line of the agent's log.
    for _ in 0..3 {
        let last = pid;
        kill(last, Signal::KILL);
        pid = wait_for(PATIENCE, "the hosted process is restarted", || {
            proc.pids().into_iter().find(|pid| *pid != last && is_running(*pid))
        });
        wait_until(PATIENCE, "its pid is known", || proc.pid() == Some(pid));
    }
    proc.op(Op::Query).assert_success();
    proc.op(Op::Stop).assert_success();
    assert!(proc.pids().is_empty(), "nothing is left of it");
    assert_eq!(up.agent_pid(), agent, "the agent went on");
}

/// The figure of the server's own log, or that of all agents' logs.
fn dropped(up: &Up, whose: &str) -> u64 {
    let metrics = up.client.page("/metrics").text;
    let name = format!("procfleet_{whose}log_lines_dropped_total ");
    let line = metrics.lines().find(|line| line.starts_with(&name));
    let count = line.and_then(|line| line.split(' ').nth(1)).unwrap_or_else(|| panic!("{metrics}"));
    count.parse().expect("a number")
}

#[test]
fn supervision_goes_on_with_a_log_on_a_full_disk() {
    let full = OpenOptions::new().write(true).open("/dev/full").expect("this is Linux");
    let mut up = Up::start_logging_to(BINARY, full.into());
    check(&up);
    assert!(dropped(&up, "") > 0, "the metrics tell of the server's lines that were lost");
    assert!(dropped(&up, "agent_") > 0, "and of the agent's");
    assert_eq!(up.end(Signal::TERM), Some(0));
}

#[test]
fn supervision_goes_on_when_the_reader_of_the_log_has_ended() {
    let (reader, writer) = pipe().expect("a pipe");
    let end = writer.try_clone().expect("a second handle");
    let mut up = Up::start_logging_to(BINARY, writer.into());
    assert_eq!(dropped(&up, ""), 0, "there was somebody who read");
    drop(reader);
    check(&up);
    wait_until(PATIENCE, "the server has lost a line", || dropped(&up, "") > 0);
    wait_until(PATIENCE, "and so has the agent", || dropped(&up, "agent_") > 0);

    // The log has a reader again, as after a restart of journald.
    let reader = File::open(format!("/proc/self/fd/{}", end.as_raw_fd())).expect("our own pipe");
    drop(end);
    let seen = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| read_all(reader, &seen));
        let said = || String::from_utf8_lossy(&seen.lock().expect("no panic")).into_owned();
        // Each program reports its own lines, after the first line that it could write.
        wait_until(PATIENCE, "server and agent say that lines were dropped", || {
            up.proc("after").op(Op::Query);
            said().matches("log lines were dropped because standard error could not be written").count() == 2
        });
        let lines = dropped(&up, "");
        assert!(said().contains(&format!("lines={lines} in_all={lines} ")), "{lines} of {}", said());
        assert_eq!(up.end(Signal::TERM), Some(0));
        drop(up);
    });
}

/// Reads until no writer is left.
fn read_all(mut reader: impl Read, seen: &Mutex<Vec<u8>>) {
    let mut some = [0; 4096];
    while let Ok(count @ 1..) = reader.read(&mut some) {
        seen.lock().expect("no panic").extend_from_slice(&some[..count]);
    }
}

/// As with a journald that hangs: nothing fails, but a write would block.
#[test]
fn supervision_goes_on_when_the_reader_of_the_log_reads_nothing() {
    let (reader, writer) = full_pipe();
    let mut up = Up::start_logging_to(BINARY, writer.into());
    check(&up);
    let seen = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| read_all(reader, &seen));
        for words in ["server is up", "agent is up", "op accepted"] {
            wait_until(PATIENCE, &format!("the log has {words:?} once it is read"), || {
                String::from_utf8_lossy(&seen.lock().expect("no panic")).contains(words)
            });
        }
        assert_eq!(up.end(Signal::TERM), Some(0));
        // The pipe ends with its last writer.
        drop(up);
    });
}

/// A pipe that takes not one byte more.
fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().expect("a pipe");
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    // Opened a second time: O_NONBLOCK must not be set for the writer that the programs get.
    let mut own: File =
        OpenOptions::new().write(true).custom_flags(NONBLOCK).open(path).expect("our own pipe");
    loop {
        match own.write(b".") {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return (reader, writer),
            Err(error) => panic!("{error}"),
        }
    }
}

/// `procfleet ps | head -1`.
#[test]
fn a_client_exits_with_0_when_its_output_is_closed() {
    let up = up();
    for args in [
        &["agents"][..],
        &["ps", "--json"],
        &["openapi"],
        &["completions", "bash"],
        &["man"],
        &["server", "--print-systemd-unit"],
        &["agent", "--server", "https://127.0.0.1:1", "--print-systemd-unit"],
    ] {
        let (reader, writer) = pipe().expect("a pipe");
        drop(reader);
        let program = Program::new(BINARY).args(args).env("PROCFLEET_DATA", up.data());
        let finished = program.stdout_to(writer).run();
        assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}
