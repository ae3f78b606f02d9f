//! Signals to the program itself.
//!
//! The default action of SIGHUP and SIGUSR2 ends a program. `main` therefore blocks both first, and unblocks
//! them once there is a handler: the kernel keeps a signal that arrives in between. Processes that the agent
//! starts get default actions and an empty mask.

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{SignalKind, signal};

/// Blocks SIGHUP and SIGUSR2. Call it before there is a second thread: later threads inherit the mask.
pub fn block_signals() {
    // Fails only for a set that the kernel does not know.
    let _ = blocked().thread_block();
}

/// Unblocks SIGHUP and SIGUSR2 in the calling thread. One thread is enough, because the kernel delivers the
/// signal to it.
pub fn unblock_signals() {
    let _ = blocked().thread_unblock();
}

/// Waits for SIGTERM or SIGINT. The handlers are installed when the call returns, before the future is
/// polled.
pub fn stop_requested() -> impl Future<Output = ()> {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    async move {
        let (Ok(mut term), Ok(mut int)) = signals else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
    }
}

fn blocked() -> SigSet {
    SigSet::from_iter([Signal::SIGHUP, Signal::SIGUSR2])
}
