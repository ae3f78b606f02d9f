//! Bounds the ops that were accepted and have not ended: their number, and the bytes of their requests.
//!
//! ```text
//! take --capacity--> Share --keep(task)--> held by the task --ended(op) ...--> free
//!   \--none for MAX_WAIT--> Full: refused, and nothing of the task is stored
//! ```
//!
//! Callers wait in line, each for a short time. No app holds more than three quarters, so a burst of one app
//! does not block the others: a task that waits for the share of its own app lets other apps pass. A task
//! that is larger than the bound is accepted at its turn when nothing else is held.

use procfleet_core::id::TaskId;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// How long a caller waits for capacity.
pub const MAX_WAIT: Duration = Duration::from_secs(2);
/// After this time a refused caller should try again.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Held capacity: of a task, of an app, of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    pub ops: usize,
    /// Bytes of the requests' specs.
    pub bytes: usize,
}

/// There was no capacity for [`MAX_WAIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    pub of: FullOf,
    pub open: Load,
    pub most: Load,
}

/// Whose capacity is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullOf {
    /// That of the app alone: three quarters of all.
    App,
    All,
}

#[derive(Clone, Debug)]
pub struct Backlog(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    most: Load,
    state: Mutex<BacklogState>,
}

#[derive(Debug, Default)]
struct BacklogState {
    all: Load,
    by_app: HashMap<Arc<str>, Load>,
    by_task: HashMap<TaskId, HeldTask>,
    next: u64,
    /// In the order of arrival.
    waiting: VecDeque<WaitingTask>,
}

#[derive(Debug)]
struct HeldTask {
    /// `None`: an earlier server accepted the task.
    app: Option<Arc<str>>,
    load: Load,
}

#[derive(Debug)]
struct WaitingTask {
    number: u64,
    app: Arc<str>,
    load: Load,
    granted: oneshot::Sender<BacklogShare>,
}

/// Capacity for one task that is not stored yet, released on drop.
#[derive(Debug)]
pub struct BacklogShare {
    app: Arc<str>,
    load: Load,
    backlog: Backlog,
}

impl Load {
    fn add(&mut self, other: Load) {
        self.ops += other.ops;
        self.bytes += other.bytes;
    }

    fn sub(&mut self, other: Load) {
        self.ops = self.ops.saturating_sub(other.ops);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }

    /// Whether this much more stays within the bound. If nothing is held, any load fits.
    fn has_capacity(self, more: Load, most: Load) -> bool {
        self == Load::default() || (self.ops + more.ops <= most.ops && self.bytes + more.bytes <= most.bytes)
    }

    fn three_quarters(self) -> Load {
        Load { ops: self.ops / 4 * 3, bytes: self.bytes / 4 * 3 }
    }
}

impl Backlog {
    pub fn new(most: Load) -> Backlog {
        Backlog(Arc::new(Inner { most, state: Mutex::default() }))
    }

    /// The capacity that all tasks hold together.
    pub fn open(&self) -> Load {
        self.lock().all
    }

    /// Waits in line for capacity, at most [`MAX_WAIT`].
    pub async fn take(&self, app: &str, load: Load) -> Result<BacklogShare, Full> {
        let (granted, mut grant) = oneshot::channel();
        let number = {
            let mut state = self.lock();
            state.next += 1;
            let number = state.next;
            state.waiting.push_back(WaitingTask { number, app: app.into(), load, granted });
            number
        };
        self.grant();
        if let Ok(Ok(share)) = timeout(MAX_WAIT, &mut grant).await {
            return Ok(share);
        }
        let full = {
            let mut state = self.lock();
            state.waiting.retain(|waiting| waiting.number != number);
            let (all, own) = (state.all, state.by_app.get(app).copied().unwrap_or_default());
            let most_own = self.0.most.three_quarters();
            match own.has_capacity(load, most_own) {
                true => Full { of: FullOf::All, open: all, most: self.0.most },
                false => Full { of: FullOf::App, open: own, most: most_own },
            }
        };
        // A task behind this one may have waited for it.
        self.grant();
        // The capacity may have been granted after the timeout.
        grant.try_recv().map_err(|_| full)
    }

    /// Releases the capacity of all but this many ops of a task. Never takes capacity.
    pub fn release_down_to(&self, task: TaskId, ops: usize) {
        let ended = self.lock().by_task.get(&task).map_or(0, |held| held.load.ops.saturating_sub(ops));
        self.ended(task, ended);
    }

    /// Counts a task that an earlier server accepted, even beyond the bound.
    pub fn restore(&self, task: TaskId, load: Load) {
        let mut state = self.lock();
        state.all.add(load);
        state.by_task.insert(task, HeldTask { app: None, load });
    }

    /// Releases the capacity of ops that have ended. The bytes of the requests are released with the last op.
    pub fn ended(&self, task: TaskId, ops: usize) {
        let mut state = self.lock();
        let Some(held) = state.by_task.get_mut(&task) else { return };
        let ops = ops.min(held.load.ops);
        held.load.ops -= ops;
        let mut freed = Load { ops, bytes: 0 };
        let app = held.app.clone();
        if held.load.ops == 0 {
            freed.bytes = held.load.bytes;
            state.by_task.remove(&task);
        }
        state.free(app.as_ref(), freed);
        drop(state);
        self.grant();
    }

    /// Grants capacity in the order of the line, while there is some.
    fn grant(&self) {
        let mut unwanted = Vec::new();
        let mut state = self.lock();
        let mut stay = VecDeque::new();
        let mut full_apps: HashSet<Arc<str>> = HashSet::new();
        let mut queue = std::mem::take(&mut state.waiting);
        while let Some(waiting) = queue.pop_front() {
            if waiting.granted.is_closed() {
                continue;
            }
            let own = state.by_app.get(&waiting.app).copied().unwrap_or_default();
            let has_own = !full_apps.contains(&waiting.app)
                && own.has_capacity(waiting.load, self.0.most.three_quarters());
            if !has_own {
                full_apps.insert(waiting.app.clone());
                stay.push_back(waiting);
                continue;
            }
            if !state.all.has_capacity(waiting.load, self.0.most) {
                // No task overtakes: a large task would wait forever.
                stay.push_back(waiting);
                break;
            }
            state.all.add(waiting.load);
            state.by_app.entry(waiting.app.clone()).or_default().add(waiting.load);
            let share = BacklogShare { app: waiting.app, load: waiting.load, backlog: self.clone() };
            unwanted.extend(waiting.granted.send(share).err());
        }
        stay.append(&mut queue);
        state.waiting = stay;
        drop(state);
        // The caller has gone in the meantime: its capacity goes to the next.
        drop(unwanted);
    }

    fn lock(&self) -> MutexGuard<'_, BacklogState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BacklogState {
    fn free(&mut self, app: Option<&Arc<str>>, load: Load) {
        self.all.sub(load);
        let Some(app) = app else { return };
        if let Some(own) = self.by_app.get_mut(app) {
            own.sub(load);
            if *own == Load::default() {
                self.by_app.remove(app);
            }
        }
    }
}

impl BacklogShare {
    /// The task is stored: its capacity is released when its ops have ended.
    pub fn keep(mut self, task: TaskId) {
        let load = std::mem::take(&mut self.load);
        let app = Some(self.app.clone());
        self.backlog.lock().by_task.insert(task, HeldTask { app, load });
    }
}

impl Drop for BacklogShare {
    fn drop(&mut self) {
        if self.load != Load::default() {
            self.backlog.lock().free(Some(&self.app), self.load);
            self.backlog.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Load = Load { ops: 100, bytes: 1_000 };

    fn load(ops: usize, bytes: usize) -> Load {
        Load { ops, bytes }
    }

    fn task(number: u64) -> TaskId {
        TaskId { number, stamp: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_fit_is_refused_after_max_wait_and_holds_nothing() {
        for (held, more) in
            [(load(60, 0), load(50, 0)), (load(1, 600), load(1, 500)), (load(75, 0), load(1, 0))]
        {
            let backlog = Backlog::new(MOST);
            backlog.take("a", held).await.expect("capacity").keep(task(1));
            let began = tokio::time::Instant::now();
            let refused = backlog.take("a", more).await.expect_err("it is full");
            let full = Full { of: FullOf::App, open: held, most: MOST.three_quarters() };
            assert_eq!((began.elapsed(), refused), (MAX_WAIT, full));
            let refused = backlog.take("b", MOST).await.expect_err("all together are full");
            assert_eq!(refused, Full { of: FullOf::All, open: held, most: MOST });
            backlog.ended(task(1), held.ops);
            drop(backlog.take("a", more).await.expect("there is capacity again"));
            let state = backlog.lock();
            assert_eq!(state.all, Load::default());
            assert!(state.by_app.is_empty() && state.by_task.is_empty() && state.waiting.is_empty());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_of_another_app_passes_one_that_waits_for_its_own_app() {
        let backlog = Backlog::new(MOST);
        backlog.take("a", load(70, 0)).await.expect("capacity").keep(task(1));
        let same = tokio::spawn({
            let backlog = backlog.clone();
            async move { backlog.take("a", load(10, 0)).await.map(|_| ()) }
        });
        tokio::task::yield_now().await;
        let began = tokio::time::Instant::now();
        drop(backlog.take("b", load(20, 0)).await.expect("its quarter is free"));
        assert_eq!(began.elapsed(), Duration::ZERO);
        backlog.ended(task(1), 10);
        assert!(same.await.expect("no panic").is_ok(), "capacity of its own app was released");
    }

    #[tokio::test(start_paused = true)]
    async fn no_task_overtakes_a_large_one_and_one_above_the_bound_is_accepted_alone() {
        let backlog = Backlog::new(MOST);
        backlog.take("a", load(10, 0)).await.expect("capacity").keep(task(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let wait = |app: &'static str, ops| {
            let (backlog, order) = (backlog.clone(), order.clone());
            tokio::spawn(async move {
                let share = backlog.take(app, load(ops, 0)).await;
                order.lock().expect("no panic").push(app);
                share.map(drop)
            })
        };
        let large = wait("large", 500);
        tokio::task::yield_now().await;
        let small = wait("small", 1);
        tokio::task::yield_now().await;
        backlog.ended(task(1), 10);
        assert_eq!((large.await.expect("no panic"), small.await.expect("no panic")), (Ok(()), Ok(())));
        assert_eq!(*order.lock().expect("no panic"), ["large", "small"]);
    }

    #[tokio::test(start_paused = true)]
    async fn ops_that_ended_at_once_do_not_count_and_restored_tasks_do() {
        let backlog = Backlog::new(MOST);
        backlog.take("a", load(40, 100)).await.expect("capacity").keep(task(1));
        backlog.release_down_to(task(1), 15);
        assert_eq!(backlog.lock().all, load(15, 100));
        backlog.release_down_to(task(1), 0);
        backlog.restore(task(2), load(200, 0));
        assert!(backlog.take("a", load(1, 0)).await.is_err(), "the bound is exceeded already");
        backlog.ended(task(2), 150);
        backlog.ended(task(3), 7);
        drop(backlog.take("a", load(1, 0)).await.expect("capacity"));
        backlog.ended(task(2), 50);
        assert_eq!(backlog.lock().all, Load::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_hangs_up_leaves_the_line() {
        let backlog = Backlog::new(MOST);
        backlog.take("a", load(75, 0)).await.expect("capacity").keep(task(1));
        let gone = tokio::time::timeout(Duration::from_secs(1), backlog.take("b", load(60, 0))).await;
        assert!(gone.is_err());
        drop(backlog.take("c", load(20, 0)).await.expect("no task is before it"));
    }
}
