//! Little programs to supervise, as commands for `start_cmd`: `/bin/sh`, `sleep` and `setsid` are all they
//! need.
//!
//! All of them run the program [`NAME`] in the proc's folder, which sleeps. Programs with a pid file write
//! [`PID_FILE`]. Each run of a command appends a line to [`RUNS`].

/// The file name of the program that sleeps.
pub const NAME: &str = "web";
pub const PID_FILE: &str = "web.pid";
pub const RUNS: &str = "runs";
/// The file for which [`gated_daemon`] waits.
pub const GATE: &str = "gate";

/// Leaves a line behind.
const NOTE: &str = "echo run >> runs";

/// Stays in the foreground; the shell becomes it.
pub fn foreground() -> String {
    format!("{NOTE}; exec ./web 1000")
}

/// Stays in the foreground, below the shell.
pub fn foreground_below_shell() -> String {
    format!("{NOTE}; ./web 1000; true")
}

/// Stays in the foreground and leaves SIGTERM unheeded; so do those that it becomes.
pub fn deaf_to_term() -> String {
    format!("{NOTE}; trap '' TERM; exec ./web 1000")
}

/// Goes into the background by double fork, in a session of its own, and writes its pid file before the
/// command ends.
pub fn daemon() -> String {
    format!("{NOTE}; rm -f web.pid; {}; until test -s web.pid; do sleep 0.01; done", daemon_body(""))
}

/// As [`daemon`], deaf to SIGTERM.
pub fn daemon_deaf_to_term() -> String {
    format!(
        "{NOTE}; rm -f web.pid; {}; until test -s web.pid; do sleep 0.01; done",
        daemon_body("trap \"\" TERM; ")
    )
}

/// As [`daemon`], but the command ends at once and the pid file comes `secs` later.
pub fn daemon_with_late_pid_file(secs: u32) -> String {
    format!("{NOTE}; rm -f web.pid; {}", daemon_body(&format!("sleep {secs}; ")))
}

/// Goes into the background at once and says nothing of where its pid is; the command ends at once.
pub fn silent_daemon() -> String {
    format!("{NOTE}; (setsid ./web 1000 </dev/null >/dev/null 2>&1 &)")
}

/// As [`daemon`], but it throws its environment away, and the mark with it.
pub fn daemon_without_environment() -> String {
    format!(
        "{NOTE}; rm -f web.pid; (setsid env -i /bin/sh -c 'echo $$ > web.pid; exec ./web 1000' </dev/null >/dev/null 2>&1 &); \
         until test -s web.pid; do sleep 0.01; done"
    )
}

/// Takes `secs` until it starts the daemon.
pub fn slow_daemon(secs: u32) -> String {
    format!("{NOTE}; sleep {secs}; {}; until test -s web.pid; do sleep 0.01; done", daemon_body(""))
}

/// As [`daemon`], once the test has made the file [`GATE`] in its folder.
pub fn gated_daemon() -> String {
    format!("{NOTE}; {}; {}; until test -s web.pid; do sleep 0.01; done", gate(GATE), daemon_body(""))
}

/// Waits until the test has made this file.
pub fn gate(file: &str) -> String {
    format!("until test -e {file}; do sleep 0.05; done")
}

/// Takes `secs` until it starts a daemon with a pid file that lives for 0.7 s. The command ends a moment
/// after the pid file is there.
pub fn slow_daemon_that_dies(secs: u32) -> String {
    format!(
        "{NOTE}; rm -f web.pid; sleep {secs}; \
         (setsid sh -c 'echo $$ > web.pid.new; mv web.pid.new web.pid; exec ./web 0.7' </dev/null >/dev/null 2>&1 &); \
         until test -s web.pid; do sleep 0.01; done; sleep 0.3"
    )
}

/// A script that starts the program as its child, writes down its pid, and ends or waits with it.
pub fn launcher(then: &str) -> String {
    format!("#!/bin/sh\n{NOTE}\n./web 1000 </dev/null >/dev/null 2>&1 &\necho $! > web.pid\n{then}\n")
}

/// Writes a line to each output and ends at once.
pub fn exits(code: i32) -> String {
    format!("{NOTE}; echo said on stdout; echo said on stderr >&2; exit {code}")
}

/// Runs in the foreground for a while and then fails.
pub fn dies_after(secs: &str) -> String {
    format!("{NOTE}; ./web {secs}; exit 7")
}

/// The pid file is written in one piece, so that no reader sees half of it.
fn daemon_body(first: &str) -> String {
    format!(
        "(setsid sh -c '{first}echo $$ > web.pid.new; mv web.pid.new web.pid; exec ./web 1000' </dev/null >/dev/null 2>&1 &)"
    )
}
