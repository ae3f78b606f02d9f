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

/// Appends a line to [`RUNS`].
const COUNT_RUN: &str = "echo run >> runs";

/// Stays in the foreground; the shell becomes it.
pub fn foreground() -> String {
    format!("{COUNT_RUN}; exec ./web 1000")
}

/// Stays in the foreground, below the shell.
pub fn foreground_below_shell() -> String {
    format!("{COUNT_RUN}; ./web 1000; true")
}

/// Stays in the foreground and ignores SIGTERM.
pub fn deaf_to_term() -> String {
    format!("{COUNT_RUN}; trap '' TERM; exec ./web 1000")
}

/// Goes into the background by double fork, in its own session, and writes its pid file before the command
/// ends.
pub fn daemon() -> String {
    format!("{COUNT_RUN}; rm -f web.pid; {}; until test -s web.pid; do sleep 0.01; done", daemon_body(""))
}

/// As [`daemon`], ignores SIGTERM.
pub fn daemon_deaf_to_term() -> String {
    format!(
        "{COUNT_RUN}; rm -f web.pid; {}; until test -s web.pid; do sleep 0.01; done",
        daemon_body("trap \"\" TERM; ")
    )
}

/// As [`daemon`], but the command ends at once and the pid file comes `secs` later.
pub fn daemon_with_late_pid_file(secs: u32) -> String {
    format!("{COUNT_RUN}; rm -f web.pid; {}", daemon_body(&format!("sleep {secs}; ")))
}

/// Goes into the background at once without a pid file; the command ends at once.
pub fn silent_daemon() -> String {
    format!("{COUNT_RUN}; (setsid ./web 1000 </dev/null >/dev/null 2>&1 &)")
}

/// As [`daemon`], but it clears its environment, including the mark.
pub fn daemon_without_environment() -> String {
    format!(
        "{COUNT_RUN}; rm -f web.pid; (setsid env -i /bin/sh -c 'echo $$ > web.pid; exec ./web 1000' </dev/null >/dev/null 2>&1 &); \
         until test -s web.pid; do sleep 0.01; done"
    )
}

/// Takes `secs` until it starts the daemon.
pub fn slow_daemon(secs: u32) -> String {
    format!("{COUNT_RUN}; sleep {secs}; {}; until test -s web.pid; do sleep 0.01; done", daemon_body(""))
}

/// As [`daemon`], once the test has made the file [`GATE`] in its folder.
pub fn gated_daemon() -> String {
    format!("{COUNT_RUN}; {}; {}; until test -s web.pid; do sleep 0.01; done", gate(GATE), daemon_body(""))
}

/// Waits until the test has made this file.
pub fn gate(file: &str) -> String {
    format!("until test -e {file}; do sleep 0.05; done")
}

/// Takes `secs` until it starts a daemon with a pid file that lives for 0.7 s. The command ends shortly after
/// the pid file is written.
pub fn slow_daemon_that_dies(secs: u32) -> String {
    format!(
        "{COUNT_RUN}; rm -f web.pid; sleep {secs}; \
         (setsid sh -c 'echo $$ > web.pid.new; mv web.pid.new web.pid; exec ./web 0.7' </dev/null >/dev/null 2>&1 &); \
         until test -s web.pid; do sleep 0.01; done; sleep 0.3"
    )
}

/// A script that starts the program as its child, writes down its pid, and ends or waits with it.
pub fn launcher(then: &str) -> String {
    format!("#!/bin/sh\n{COUNT_RUN}\n./web 1000 </dev/null >/dev/null 2>&1 &\necho $! > web.pid\n{then}\n")
}

/// Writes a line to each output and ends at once.
pub fn exits(code: i32) -> String {
    format!("{COUNT_RUN}; echo said on stdout; echo said on stderr >&2; exit {code}")
}

/// Runs in the foreground below its shell and then fails. The first life lasts until the test ends it: a
/// process that dies by itself may die within its check if the agent is late. The others last this many
/// seconds.
pub fn dies_again_after(secs: &str) -> String {
    format!("{COUNT_RUN}; if test $(wc -l < {RUNS}) -eq 1; then ./web 1000; else ./web {secs}; fi; exit 7")
}

/// The pid file is written in one piece, so that no reader sees half of it.
fn daemon_body(first: &str) -> String {
    format!(
        "(setsid sh -c '{first}echo $$ > web.pid.new; mv web.pid.new web.pid; exec ./web 1000' </dev/null >/dev/null 2>&1 &)"
    )
}
