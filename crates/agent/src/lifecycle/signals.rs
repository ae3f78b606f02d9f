//! Signals that the agent ignores.

use nix::libc;

/// A second SIGHUP must not end the program between the re-exec and the time at which the new program blocks
/// signals itself.
pub(super) fn ignore_hangup() {
    ignore(libc::SIGHUP);
}

/// SIGUSR2 made earlier versions reopen renamed logs, and a host's logrotate may still send it. The signal
/// must not end the agent.
pub(crate) fn ignore_reopen_signal() {
    ignore(libc::SIGUSR2);
}

#[expect(unsafe_code, reason = "there is no safe way to change what a signal does")]
fn ignore(signal: libc::c_int) {
    // SAFETY: SIG_IGN installs no handler function.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}
