//! Processes that have left the proc's cgroups and its mark: `su -` clears the environment, and where each
//! session has a cgroup, it leaves that of the run.
//!
//! They are noted during a launch, while they descend from a process in a cgroup of the proc, together with
//! the scope of the session that they have entered. An orphan in that scope that has come to the agent is one
//! of them, too, even if it was never seen below the proc. A process that leaves both between two looks is
//! not found, and neither is one that an earlier agent process had noted. Later sessions are not noted: they
//! are those of the users of an `sshd`, for example.

use crate::exec::cgroup;
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::tree;
use crate::exec::watch::exits::OwnedTask;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Pause before the first look for strays of a command. Each next pause is twice as long.
const FIRST_NOTE: Duration = Duration::from_millis(50);
/// A command that runs for twice as long may be the process itself, which opens sessions for its users.
const LAST_NOTE: Duration = Duration::from_secs(3);

#[derive(Debug, Default)]
pub(in crate::exec) struct Strays {
    pub(in crate::exec) processes: Vec<Id>,
    /// The scopes that they have entered, as the kernel writes them.
    pub(in crate::exec) scopes: Vec<String>,
}

pub(in crate::exec) fn lock(strays: &Mutex<Strays>) -> MutexGuard<'_, Strays> {
    strays.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes descendants of the processes in these cgroups of a proc that are in none of them.
pub(in crate::exec) fn note(strays: &Mutex<Strays>, groups: &[Arc<Path>]) {
    let found = tree::outside(groups);
    if found.is_empty() {
        return;
    }
    let mut strays = lock(strays);
    strays.processes.retain(|id| Stat::read(id.pid).is_some_and(|stat| stat.id == *id));
    for stat in found {
        let scope = cgroup::scope_of(stat.id.pid).filter(|scope| !strays.scopes.contains(scope));
        strays.scopes.extend(scope);
        if !strays.processes.contains(&stat.id) {
            strays.processes.push(stat.id);
        }
    }
}

/// Notes strays of commands while they run, with one task for all: a task for each command would stay in
/// memory as long as its process runs.
#[derive(Debug, Default)]
pub(in crate::exec) struct StrayWatch {
    followed: Arc<Mutex<FollowedCommands>>,
}

#[derive(Debug, Default)]
struct FollowedCommands {
    commands: Vec<FollowedCommand>,
    /// `Some` while there are commands.
    task: Option<OwnedTask>,
}

struct FollowedCommand {
    /// Gone when the proc has forgotten its strays.
    strays: Weak<Mutex<Strays>>,
    group: Arc<Path>,
    has_ended: Box<dyn Fn() -> bool + Send>,
    next_note: Instant,
    pause: Duration,
}

impl StrayWatch {
    /// Follows a command in this cgroup: what a command does in another session it does before it ends.
    pub(in crate::exec) fn follow(
        &self,
        strays: &Arc<Mutex<Strays>>,
        group: Arc<Path>,
        has_ended: impl Fn() -> bool + Send + 'static,
    ) {
        let mut followed = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        followed.commands.push(FollowedCommand {
            strays: Arc::downgrade(strays),
            group,
            has_ended: Box::new(has_ended),
            next_note: Instant::now() + FIRST_NOTE,
            pause: FIRST_NOTE,
        });
        if followed.task.is_none() {
            followed.task = Some(OwnedTask::spawn(run(Arc::downgrade(&self.followed))));
        }
    }
}

async fn run(followed: Weak<Mutex<FollowedCommands>>) {
    loop {
        tokio::time::sleep(FIRST_NOTE).await;
        let Some(followed) = followed.upgrade() else { return };
        let lock = || followed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let due: Vec<FollowedCommand> =
            lock().commands.extract_if(.., |command| command.next_note <= now).collect();
        for command in due {
            if let Some(command) = command.noted() {
                lock().commands.push(command);
            }
            // Thousands of commands may have begun together.
            tokio::task::yield_now().await;
        }
        let mut followed = lock();
        if followed.commands.is_empty() {
            *followed = FollowedCommands::default();
            return;
        }
    }
}

impl FollowedCommand {
    /// Looks once. `None`: it was the last look.
    fn noted(mut self) -> Option<FollowedCommand> {
        note(&*self.strays.upgrade()?, std::slice::from_ref(&self.group));
        self.pause *= 2;
        self.next_note = Instant::now() + self.pause;
        (self.pause < LAST_NOTE && !(self.has_ended)()).then_some(self)
    }
}

impl fmt::Debug for FollowedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowedCommand").field("group", &self.group).finish_non_exhaustive()
    }
}
