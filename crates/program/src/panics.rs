//! Logs every panic with its location, and counts it.
//!
//! A panic ends the program. The service manager restarts it, and it continues from its journal or store.
//! The exception is work for a single request, session or question, which is [contained](contain): its panic
//! fails that request alone.
//!
//! The panic hook decides, so detached tasks and threads are covered, too.

use futures_util::FutureExt;
use std::any::Any;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::watch;
use tokio::task::JoinHandle;

static TOTAL: AtomicU64 = AtomicU64::new(0);
static FATAL: LazyLock<watch::Sender<Option<Panicked>>> = LazyLock::new(|| watch::channel(None).0);

thread_local! {
    /// How many nested containments this thread is in.
    static CONTAINED: Cell<u32> = const { Cell::new(0) };
}

/// A panic that ends the program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a part of the program panicked at {location}: {message}")]
pub struct Panicked {
    /// File, line and column.
    pub location: String,
    pub message: String,
}

/// A panic that was contained. The log has its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error: the work was aborted by a defect of procfleet; the log has the file and line")]
pub struct Caught;

/// Number of panics since the start of the program, including contained ones.
pub fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

/// Returns after a panic that was not contained. The caller must end the program.
pub async fn fatal() -> Panicked {
    let mut panicked = FATAL.subscribe();
    loop {
        if let Some(panicked) = panicked.borrow_and_update().clone() {
            return panicked;
        }
        if panicked.changed().await.is_err() {
            // The sender is static.
            std::future::pending::<()>().await;
        }
    }
}

pub(crate) fn install_hook() {
    std::panic::set_hook(Box::new(report));
}

fn report(info: &PanicHookInfo<'_>) {
    TOTAL.fetch_add(1, Ordering::Relaxed);
    let location = info.location().map_or_else(|| "an unknown location".to_owned(), ToString::to_string);
    let message = message_of(info.payload());
    let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
    let backtrace = Backtrace::capture();
    let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    // A thread that is ending has no thread-locals, and contains nothing.
    if CONTAINED.try_with(Cell::get).unwrap_or(0) > 0 {
        tracing::error!(
            location,
            message,
            thread,
            backtrace,
            "panicked: this request or session was aborted, the program continues. Report this line as a defect"
        );
    } else {
        tracing::error!(
            location,
            message,
            thread,
            backtrace,
            "panicked: the program exits with status 70; start it again if no service manager does. Report this line as a defect"
        );
        // The first one is the cause.
        FATAL.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(Panicked { location, message });
            is_first
        });
    }
}

fn message_of(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "(no message)".to_owned(),
    }
}

struct Within;

impl Within {
    fn enter() -> Within {
        CONTAINED.set(CONTAINED.get() + 1);
        Within
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        CONTAINED.set(CONTAINED.get() - 1);
    }
}

/// A panic of the future does not end the program, but unwinds the task that polls it. So the future should
/// be the whole task.
///
/// The future is boxed: an `async fn` would hold it twice.
pub fn contain<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let mut future = Box::pin(future);
    poll_fn(move |context| {
        let _within = Within::enter();
        future.as_mut().poll(context)
    })
}

/// As [`contain`], and returns the panic as an error. The future must not leave shared state half changed.
pub async fn catch<T>(future: impl Future<Output = T>) -> Result<T, Caught> {
    AssertUnwindSafe(contain(future)).catch_unwind().await.map_err(|_| Caught)
}

/// As [`catch`], for a function.
pub fn catch_in<T>(act: impl FnOnce() -> T) -> Result<T, Caught> {
    let _within = Within::enter();
    catch_unwind(AssertUnwindSafe(act)).map_err(|_| Caught)
}

/// `tokio::task::spawn_blocking` for a single request. A panic is an error of its handle alone.
pub fn block_for_request<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(move || {
        let _within = Within::enter();
        act()
    })
}
