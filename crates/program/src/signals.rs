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

/// The meaning of SIGHUP for a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// To load files again. Another part has the handler.
    Reload,
    /// To end in order, as the loss of the terminal does.
    Stop,
}

/// Like [`stop_requested`], for a program that SIGHUP may end, too. `nohup` still keeps the program running.
pub fn stop_requested_or_hangup(hangup: Hangup) -> impl Future<Output = ()> {
    let stop = stop_requested();
    let hangup = match hangup {
        Hangup::Stop if !ignores_hangup() => signal(SignalKind::hangup()).ok(),
        Hangup::Stop | Hangup::Reload => None,
    };
    async move {
        let Some(mut hangup) = hangup else { return stop.await };
        tokio::select! {
            () = stop => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Whether this program was started with SIGHUP ignored, as by `nohup`.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (Signal::SIGHUP as u32 - 1)) != 0)
}

fn blocked() -> SigSet {
    SigSet::from_iter([Signal::SIGHUP, Signal::SIGUSR2])
}
