//! State of a machine that few procs have.

use super::command_at_work::CommandAtWork;
use super::health::CheckedProcess;
use super::schedule::{Overlap, OwnRun};
use crate::boot_time::BootTime;
use crate::id::OpId;
use crate::op::Order;
use crate::process::Process;
use crate::supervise::limits::LimitTracker;
use crate::supervise::record::ScheduledRun;
use std::ops::{Deref, DerefMut};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rare {
    /// Queries that wait for [`Machine::vetted`](super::Machine::vetted).
    pub(super) queries: Vec<Order>,
    /// The order that may begin in this step: no process of another account is involved.
    pub(super) vetted: Option<OpId>,
    /// The run of a periodic process that is under way and that this life of the agent began.
    pub(super) own_run: Option<OwnRun>,
    /// The durable part of the run under way; also of a run that began before a restart of the agent.
    pub(super) run: Option<Box<ScheduledRun>>,
    /// When the next run is due that the run under way blocks.
    pub(super) overlap: Overlap,
    /// When the wall clock was last asked for the next run.
    pub(super) planned: BootTime,
    /// The latest samples compared with the limits.
    pub(super) limit_tracker: Option<LimitTracker>,
    /// The state of the health checks.
    pub(super) checked: Option<CheckedProcess>,
    /// Why the agent or the kernel ended the process, until it runs stably again or an order came.
    pub(super) fault: Option<String>,
    /// An unusual reason why the process was not found.
    pub(super) odd_absence: Option<String>,
    /// The cancelled op that is still under way. It has been answered.
    pub(super) cancelled_op: Option<OpId>,
    /// When a launch began that a restart of the agent interrupted; until its process can no longer appear.
    pub(super) interrupted_launch: Option<BootTime>,
    /// Earlier generations of a program that has replaced itself, as long as they run.
    pub(super) older: Vec<Process>,
    /// The last process, as long as there is no other: its workers may outlive it and have the same name.
    pub(super) dead: Option<Process>,
    /// A note for the outcome of the op under way, should it succeed.
    pub(super) success_note: Option<String>,
    /// The command of the launch that has succeeded, as long as the command is at work.
    pub(super) command_at_work: Option<CommandAtWork>,
}

static NONE: Rare = Rare {
    queries: Vec::new(),
    vetted: None,
    own_run: None,
    run: None,
    overlap: Overlap::Unknown,
    planned: BootTime(0),
    limit_tracker: None,
    checked: None,
    fault: None,
    odd_absence: None,
    cancelled_op: None,
    interrupted_launch: None,
    older: Vec::new(),
    dead: None,
    success_note: None,
    command_at_work: None,
};

/// A [`Rare`] that is allocated only while it differs from [`NONE`].
#[derive(Clone, Debug, Default)]
pub(super) struct RareBox(Option<Box<Rare>>);

impl RareBox {
    /// Frees the memory if there is nothing in it.
    pub(super) fn tidy(&mut self) {
        self.0.take_if(|rare| **rare == NONE);
    }
}

impl Deref for RareBox {
    type Target = Rare;

    fn deref(&self) -> &Rare {
        self.0.as_deref().unwrap_or(&NONE)
    }
}

impl DerefMut for RareBox {
    fn deref_mut(&mut self) -> &mut Rare {
        self.0.get_or_insert_with(|| Box::new(NONE.clone()))
    }
}
