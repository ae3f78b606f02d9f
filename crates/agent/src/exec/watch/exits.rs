//! Waiting for the end of processes: all pidfds are in one epoll set, and one task sleeps on it.
//!
//! A task and a registration for each process would be a kilobyte each, for a thousand processes that do
//! nothing for months. Here a process that runs costs a descriptor and what is to be done at its end; a task
//! is made when it has come.

#![expect(unsafe_code, reason = "the registration of a descriptor has no safe wrapper")]

use crate::exec::watch::pidfd;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// How often a process is looked at when the kernel has no room for a proper watch.
const POLL_EVERY: Duration = Duration::from_millis(100);

/// How many are heard of at once.
const AT_ONCE: usize = 64;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
type Then = Box<dyn FnOnce(OwnedFd) -> Task + Send>;

/// All that is waited for.
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
    /// The one that sleeps on the set.
    listener: Option<JoinHandle<()>>,
}

enum Wait {
    Running(OwnedFd, Then),
    /// What is to be done at its end is under way.
    Ended,
}

/// Dropping it ends the waiting.
#[derive(Debug)]
pub(in crate::exec) struct ExitSubscription {
    exits: Arc<Exits>,
    number: u64,
}

impl ExitSubscription {
    /// Whether the process has ended, and what was to be done then is done.
    pub(in crate::exec) fn is_over(&self) -> bool {
        !self.exits.lock().waits.contains_key(&self.number)
    }
}

impl Drop for ExitSubscription {
    fn drop(&mut self) {
        let wait = self.exits.lock().waits.remove(&self.number);
        // What is dropped with it may wait for something itself, so the lock is not held.
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

    /// Does `then`, as a task of its own, when the process behind the pidfd is gone. It may be dead and not
    /// yet reaped then.
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
            // It is heard of once: nobody comes back from the dead.
            let flags = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(set.as_fd(), pidfd.as_fd(), EventData::new_u64(number), flags)
        });
        inner.waits.insert(number, Wait::Running(pidfd, Box::new(move |pidfd| Box::pin(then(pidfd)))));
        drop(inner);
        if let Err(error) = watched {
            tracing::warn!(%error, "a pidfd cannot be watched and is polled instead");
            let exits = self.clone();
            tokio::spawn(async move { exits.poll(number).await });
        }
        ExitSubscription { exits: self.clone(), number }
    }

    /// The set, with somebody who listens to it.
    fn set(self: &Arc<Exits>, inner: &mut Inner) -> Result<Arc<OwnedFd>, Errno> {
        let set = match &inner.set {
            Some(set) => set.clone(),
            None => inner.set.insert(Arc::new(epoll::create(CreateFlags::CLOEXEC)?)).clone(),
        };
        if inner.listener.as_ref().is_none_or(JoinHandle::is_finished) {
            // SAFETY: whoever listens holds the set, so its descriptor stays open, and the same, for as long
            // as it is registered.
            let listening = unsafe { AsyncFd::register_with_interest(set.clone(), Interest::READABLE) };
            let listening =
                listening.map_err(|error| Errno::from_io_error(&error.into()).unwrap_or(Errno::NOMEM))?;
            // It must not keep alive what it works for.
            let exits = Arc::downgrade(self);
            inner.listener = Some(tokio::spawn(async move {
                while let Ok(mut heard) = listening.readable().await {
                    let Some(exits) = exits.upgrade() else { return };
                    if exits.heard(listening.get_ref()) < AT_ONCE {
                        heard.clear_ready();
                    }
                }
            }));
        }
        Ok(set)
    }

    /// Takes up those that have ended, and says how many there were.
    fn heard(self: &Arc<Exits>, set: &OwnedFd) -> usize {
        let mut events: Vec<Event> = Vec::with_capacity(AT_ONCE);
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(set, rustix::buffer::spare_capacity(&mut events), Some(&at_once)) {
            Ok(_) => events.iter().for_each(|event| self.ended(event.data.u64())),
            Err(error) => tracing::warn!(%error, "the ends of processes cannot be heard"),
        }
        events.len()
    }

    async fn poll(self: Arc<Exits>, number: u64) {
        loop {
            match self.lock().waits.get(&number) {
                Some(Wait::Running(pidfd, _)) if !pidfd::is_gone(pidfd) => {}
                Some(Wait::Running(..)) => break,
                Some(Wait::Ended) | None => return,
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
        self.ended(number);
    }
    fn ended(self: &Arc<Exits>, number: u64) {
        let mut inner = self.lock();
        // Nobody waits for it any more, or it is taken up already.
        let Some(wait @ Wait::Running(..)) = inner.waits.get_mut(&number) else { return };
        let wait = std::mem::replace(wait, Wait::Ended);
        drop(inner);
        if let Wait::Running(pidfd, then) = wait {
            let (exits, task) = (self.clone(), then(pidfd));
            tokio::spawn(async move {
                task.await;
                exits.lock().waits.remove(&number);
            });
        }
    }
}

impl Drop for Exits {
    fn drop(&mut self) {
        if let Some(listener) = &self.lock().listener {
            listener.abort();
        }
    }
}
