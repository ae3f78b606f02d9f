//! Signals to the agent or the server itself, before it listens for them.
//!
//! The default action of SIGHUP and SIGUSR2 ends a program. So both are blocked as the first thing that
//! `main` does, and unblocked when there is a handler: the kernel keeps a signal that came meanwhile. Managed
//! processes inherit none of it (`fork` gives them default actions and an empty mask).

use nix::libc;
use nix::sys::signal::{SigSet, Signal};

/// Blocks SIGHUP and SIGUSR2. To be called before there is a second thread: later threads inherit the mask.
pub fn hold_signals() {
    // Fails only for a set that the kernel does not know.
    let _ = held().thread_block();
}

/// Unblocks SIGHUP and SIGUSR2 in the calling thread. One such thread is enough, for the kernel chooses it.
pub fn release_signals() {
    let _ = held().thread_unblock();
}

/// Until the successor of this program holds signals itself, being told once more to renew must not end it:
/// what it was told for, it is about to do.
pub(super) fn ignore_hangup() {
    ignore(libc::SIGHUP);
}

/// Earlier versions gave renamed logs their names back on SIGUSR2, and a host's logrotate may still send it.
/// The signal must not end the agent.
pub fn ignore_reopen_signal() {
    ignore(libc::SIGUSR2);
}

fn held() -> SigSet {
    SigSet::from_iter([Signal::SIGHUP, Signal::SIGUSR2])
}

#[expect(unsafe_code, reason = "there is no safe way to change what a signal does")]
fn ignore(signal: libc::c_int) {
    // SAFETY: no function of ours is called for it, then or later.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}
