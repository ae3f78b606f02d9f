//! Waits for process exits: all pidfds are in one epoll set, and one task waits for it.
//!
//! A task and a reactor registration for each process would cost a kilobyte each, for a thousand processes
//! that run for months. Here a process costs a descriptor and a callback; a task is spawned when it exits.

#![expect(unsafe_code, reason = "the registration of a descriptor has no safe wrapper")]

use crate::exec::watch::pidfd;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// Interval of polling for a process that epoll cannot take.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// Maximum number of events for each `epoll_wait`.
const AT_ONCE: usize = 64;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Then = Box<dyn FnOnce(OwnedFd) -> Task + Send>;

/// All pending waits.
#[derive(Default)]
pub(in crate::exec) struct Exits {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The last number that was given.
    number: u64,
    waits: HashMap<u64, Wait>,
    set: Option<Arc<OwnedFd>>,
    /// The task that waits for events of the set.
    listener: Option<OwnedTask>,
}

enum Wait {
    Running {
        pidfd: OwnedFd,
        then: Then,
        /// Polls the process if epoll does not accept the pidfd.
        polling: Option<OwnedTask>,
    },
    /// The callback runs; its task removes this entry.
    Ended(#[expect(dead_code, reason = "owned, so that the task ends with `Exits`")] OwnedTask),
}

/// A task that is aborted when its owner drops it.
#[derive(Debug)]
pub(in crate::exec) struct OwnedTask(JoinHandle<()>);

impl OwnedTask {
    pub(in crate::exec) fn spawn(task: impl Future<Output = ()> + Send + 'static) -> OwnedTask {
        OwnedTask(tokio::spawn(task))
    }

    pub(in crate::exec) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for OwnedTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Dropping it cancels the wait; a callback that already runs is not aborted.
#[derive(Debug)]
pub(in crate::exec) struct ExitSubscription {
    exits: Arc<Exits>,
    number: u64,
}

impl ExitSubscription {
    /// Whether the process has exited and the callback has finished.
    pub(in crate::exec) fn is_over(&self) -> bool {
        !self.exits.lock().waits.contains_key(&self.number)
    }
}

impl Drop for ExitSubscription {
    fn drop(&mut self) {
        let mut inner = self.exits.lock();
        if let Some(Wait::Ended(_)) = inner.waits.get(&self.number) {
            return;
        }
        let wait = inner.waits.remove(&self.number);
        drop(inner);
        // Dropped without the lock: the callback may own another subscription.
        drop(wait);
    }
}

impl std::fmt::Debug for Exits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exits").field("waits", &self.lock().waits.len()).finish_non_exhaustive()
    }
}

impl Exits {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `then` in a new task when the process behind the pidfd has exited. The process may not be reaped
    /// yet.
    pub(in crate::exec) fn when_gone<F>(
        self: &Arc<Exits>,
        pidfd: OwnedFd,
        then: impl FnOnce(OwnedFd) -> F + Send + 'static,
    ) -> ExitSubscription
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut inner = self.lock();
        inner.number += 1;
        let number = inner.number;
        let watched = self.set(&mut inner).and_then(|set| {
            // A process exits once.
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(set.as_fd(), pidfd.as_fd(), EventData::new_u64(number), flags)
        });
        let polling = watched.err().map(|error| {
            tracing::warn!(%error, "epoll_ctl failed; polling for the exit of one process");
            OwnedTask::spawn(Exits::poll(Arc::downgrade(self), number))
        });
        let then: Then = Box::new(move |pidfd| Box::pin(then(pidfd)));
        inner.waits.insert(number, Wait::Running { pidfd, then, polling });
        drop(inner);
        ExitSubscription { exits: self.clone(), number }
    }

    /// The epoll set, with a running listener.
    fn set(self: &Arc<Exits>, inner: &mut Inner) -> Result<Arc<OwnedFd>, Errno> {
        let set = match &inner.set {
            Some(set) => set.clone(),
            None => inner.set.insert(Arc::new(epoll::create(CreateFlags::CLOEXEC)?)).clone(),
        };
        if inner.listener.as_ref().is_none_or(OwnedTask::is_finished) {
            // SAFETY: the listener holds the set, so the descriptor stays open while it is registered.
            let listening = unsafe { AsyncFd::register_with_interest(set.clone(), Interest::READABLE) };
            let listening =
                listening.map_err(|error| Errno::from_io_error(&error.into()).unwrap_or(Errno::NOMEM))?;
            // Weak: the listener must not keep `Exits` alive.
            let exits = Arc::downgrade(self);
            inner.listener = Some(OwnedTask::spawn(async move {
                while let Ok(mut ready) = listening.readable().await {
                    let Some(exits) = exits.upgrade() else { return };
                    if exits.handle_exits(listening.get_ref()) < AT_ONCE {
                        ready.clear_ready();
                    }
                }
            }));
        }
        Ok(set)
    }

    /// Starts the callbacks of exited processes, and returns how many there were.
    fn handle_exits(self: &Arc<Exits>, set: &OwnedFd) -> usize {
        let mut events: Vec<Event> = Vec::with_capacity(AT_ONCE);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&at_once)) {
            Ok(_) => events.iter().for_each(|event| self.ended(event.data.u64())),
            Err(error) => {
                tracing::warn!(%error, "epoll_wait failed; process exits are not reported until it succeeds")
            }
        }
        events.len()
    }

    async fn poll(exits: Weak<Exits>, number: u64) {
        loop {
            let Some(exits) = exits.upgrade() else { return };
            let is_gone = match exits.lock().waits.get(&number) {
                Some(Wait::Running { pidfd, .. }) => pidfd::is_gone(pidfd),
                Some(Wait::Ended(_)) | None => return,
            };
            if is_gone {
                return exits.ended(number);
            }
            drop(exits);
            tokio::time::sleep(POLL_EVERY).await;
        }
    }

    fn ended(self: &Arc<Exits>, number: u64) {
        let mut inner = self.lock();
        // The subscription was dropped, or the callback runs already.
        let Some(Wait::Running { .. }) = inner.waits.get(&number) else { return };
        let Some(Wait::Running { pidfd, then, polling }) = inner.waits.remove(&number) else { return };
        let (exits, callback) = (Arc::downgrade(self), then(pidfd));
        let task = OwnedTask::spawn(async move {
            callback.await;
            // Without the lock: dropping the entry aborts this task, which has nothing left to do.
            let own = exits.upgrade().and_then(|exits| exits.lock().waits.remove(&number));
            drop(own);
        });
        inner.waits.insert(number, Wait::Ended(task));
        drop(inner);
        drop(polling);
    }
}
