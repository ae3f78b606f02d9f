//! The supervision machine: everything that is decided about one proc on its host.
//!
//! The agent keeps one [`Machine`] per proc and feeds it inputs: orders from the server, exits of watched
//! processes, answers to what it asked for, and ticks. Each [`Machine::step`] returns a [`Step`]: what must
//! be durable first (`writes`), and what is to be done then (`effects`). The machine never acts, waits or
//! asks for the time.
//!
//! ```text
//!              Order(start, host, restart)          found running: nothing is run
//!        +-----------------------------> Looking -----------------------------------+
//!        |                                  | absent                                |
//!        |            command failed,       v            there at the end           v
//!      Down <-------------------------- Launching --------------------------------> Up
//!      |  ^     not alive, timed out        ^            of start_check             | ^
//!      |  |                                 |                                       | |
//!      |  |   retry is due, still absent    |   Exited, hosted                      | | still alive after
//!      |  +- (Retry) ----> Looking ---------+   lived long: at once                 | | stop_check
//!      |  |                                 +---------------------------------------+ |
//!      |  |                                     unstable: Retry, then gave up        | |
//!      |  |                                                                          v |
//!      |  +----------------------------------------------------------------------- Ending
//!      |        gone                                          Order(stop, kill, restart)
//!      +--> GaveUp: ends with start or host
//! ```
//!
//! A periodic proc has a schedule instead of a wish to live, and its process is the command of a run:
//!
//! ```text
//!   Order(host), the agent's return                the time has come        seen
//!   -------------------------------> Planning --> Down (Due) -----> Launching ----> Up
//!                                     ^   ^         |  every           |            |
//!                                     |   +---------+  minute          | ended      | ended
//!                                     +--------------------------------+------------+
//!                                       hosted, else Down (Idle)        RunFailed, RunMissed
//! ```
//!
//! - `Looking`, `Launching`, `Ending`, `Leaving`, `Reloading`, `Reviewing` and `Planning` are stages of a
//!   job; while a job runs, further orders wait in a queue. A stop or kill does not wait for what launches:
//!   it overtakes it. A kill does not wait for a stop or a reload either. What was overtaken is told so.
//! - A launch that was overtaken does not go on: its command and all that it has started are ended
//!   (`Clearing`). A process that was recognised is first told to end as any other is; a stop_cmd is run only
//!   where there is a process.
//! - The window of a launch begins when a process was first seen or when the command ended, whichever is
//!   later. At its end a process must be alive that has been for at least a second; another pid within the
//!   window is no failure. A launch fails earlier only if no process can appear any more: its command failed,
//!   or was the process and has ended.
//! - The processes of a failed launch are ended before the op is answered (`Clearing`), or named in its
//!   outcome and known from then on.
//! - A start command of the agent's last life that is still at work is waited for (`Awaiting`). It is not the
//!   process.
//! - A process that was started by hand while the proc had none is adopted by a query or by the agent's
//!   regular scan.
//! - A program that replaces itself leaves its old process running for a while. That one is known as an
//!   earlier generation until it ends, and a stop, kill or restart ends it too.
//! - Before anything is launched, the process is looked for. One that is found is taken up and nothing is
//!   run, so there are never two. What may be left of one that was not stopped is swept away first.
//! - A stop or restart whose process does not end is given up after stop_check, or kills the process where
//!   the spec has a `kill_after`.
//! - A stop, kill or restart is done when nothing is left of what the process has started (`Leaving`), unless
//!   the spec says that it may stay: what is left is told to end, and killed after what remains of
//!   stop_check.
//! - A stop first ends hosting, durably, and then acts: a crash of the agent in the middle never brings a
//!   stopped process back. A stop that fails puts hosting back as it was.
//! - One that uses more than its limits allow in several samples in a row is ended: by its stop_cmd or
//!   SIGTERM, and after stop_check by SIGKILL. Then it is one that died, and an order under way is answered
//!   with the reason. So is one whose turn it is when its namespace uses too much, and one that is unhealthy
//!   and whose spec wants it started again for that. A resident process that is not hosted is left alone.
//! - What died while the agent was away waits for its place among all that did (see [`crate::spread`]), and
//!   so does what is to be started after a boot of the host, and a restart that is due together with many
//!   others. An order does not wait for it.
//! - A run of a periodic proc is known by its command alone, never by name or pid file: what it leaves behind
//!   may be what it was for. It is written down before it begins and never begun twice, whatever dies. A run
//!   that takes longer than op_timeout is ended. A run that is due meanwhile is missed, and told then.
//! - Deadlines are part of the state. [`Machine::wake_at`] says when the next one is due; a tick that comes
//!   late or twice does no harm.

mod event;
mod job;
mod limits;
mod machine;
mod policy;
mod record;
mod timetable;
mod words;

pub use crate::usage::{LimitHistory, Usage};
pub use event::Severity;
pub use machine::{Machine, group_refusal};
pub use record::{Record, Rest, ScheduledRun};

use crate::boot_time::BootTime;
use crate::code::Code;
use crate::groups::Overuse;
use crate::id::OpId;
use crate::op::{Instance, Order, Outcome};
use crate::process::{Exit, Process, Sighting};
use crate::signal::SignalNumber;
use crate::spec::{Detached, OnUnhealthy, Resource, Spec};
use crate::spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One run of a command. Unique within one life of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(pub u64);

/// One question "is it running?". An answer to an older question is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LookId(pub u64);

/// One question "when is it due?". An answer to an older question is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlanId(pub u64);

/// Whether the agent keeps the proc in its wanted state (托管).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Hosting {
    Hosted,
    Unhosted,
}

/// What is under way with a proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Starting,
    Stopping,
    /// By an order, or because it died or must be ended.
    Restarting,
    Reloading,
    /// It is looked at or written down.
    Other,
}

/// What a machine is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    Order(Box<Order>),
    /// The answer to [`Effect::Look`].
    Sighted {
        look: LookId,
        sighting: Sighting,
    },
    /// The answer to [`Effect::Inspect`].
    Inspected {
        op: OpId,
        view: Box<View>,
    },
    /// A command ended, or never began.
    CommandEnded {
        run: RunId,
        end: CommandEnd,
    },
    /// A watched process is gone.
    Exited {
        process: Process,
        exit: Exit,
    },
    /// The answer to [`Effect::Plan`].
    Planned {
        plan: PlanId,
        next: Next,
    },
    /// What a process and all that belongs to it use now.
    Sampled {
        process: Process,
        usage: Usage,
    },
    /// The pid file names another process of this proc now: the program has replaced itself, and the old
    /// process may go on beside it for a while.
    Succeeded {
        old: Process,
        process: Process,
    },
    /// The process was started without an order.
    Appeared {
        process: Process,
    },
    /// A pool of its namespace is overused, and this process is among those that are ended for it.
    Overused {
        process: Process,
        overuse: Box<Overuse>,
        past: LimitHistory,
    },
    /// What the last answers of its `health_cmd` add up to, when that has changed.
    Health {
        process: Process,
        health: Health,
    },
    /// The answer to [`Effect::Place`].
    Placed {
        plan: PlanId,
        at: BootTime,
        cause: spread::SpreadCause,
    },
    /// Time has passed.
    Tick,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Well,
    /// It has failed so often in a row that this is no accident.
    Ill {
        reason: String,
    },
}

/// When a cron rule is to be followed next. Only the shell knows wall-clock time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// `missed`: how many of its times have passed since the moment that was asked for.
    At { at: BootTime, missed: u32 },
    /// The rule cannot be followed on this host.
    Never { reason: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// It ran; `output` is the last of what it wrote.
    Exited { exit: Exit, output: String },
    /// It could not be started at all.
    NotStarted { code: Code, reason: String },
}

/// What an inspection saw. The wall-clock times are the shell's to give: the rules do not know them.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub sighting: Sighting,
    pub instance: Option<Instance>,
    /// What `version_cmd` and `health_cmd` said last.
    pub version: String,
    pub health: String,
    pub registered_at: i64,
    pub started_at: i64,
    pub reported_at: i64,
    pub utc_offset_secs: i32,
}

/// The outcome of one step. The writes are one transaction; whether the effects wait for it, `commit` says.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    pub writes: Vec<Write>,
    pub effects: Vec<Effect>,
    pub commit: Commit,
}

/// When the writes of a step must be durable. Those of one proc become so in their order in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// Before its effects, and with all that was written before.
    #[default]
    First,
    /// When the disk is ready: a crash that loses them loses nothing that a look at the host does not bring
    /// back. So a hosted process comes back at once, also on a host whose disk is full.
    Alongside,
}

/// What must survive the agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// The proc as it is to be remembered.
    Record(Box<Record>),
    /// The proc is not to be remembered any more.
    Forget,
    /// The op is about to act: after a crash it must not be repeated.
    Begun(OpId),
    /// The op has ended.
    Done(OpId, Outcome),
    /// Something happened without an op.
    Event(Event),
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Look {
        look: LookId,
        scope: LookScope,
        spec: Arc<Spec>,
    },
    /// Report the exit of this process.
    Watch(Process),
    Run {
        run: RunId,
        command: String,
        spec: Arc<Spec>,
    },
    /// Kill the command and all that it started.
    EndRun(RunId),
    /// Tell the command and all that it started to end.
    TermRun(RunId),
    /// Signal the process and all that it started.
    Signal {
        process: Process,
        signal: Signal,
        /// Whether a kill reaches also what has left the process.
        detached: Detached,
    },
    /// Signal the process alone.
    SignalOne {
        process: Process,
        signal: Signal,
    },
    /// The process is an earlier generation of the program: report its exit, and count it among what is left
    /// behind.
    Retire(Process),
    /// Signal an earlier generation and all that it started, but these processes and what they have started.
    SignalRetired {
        process: Process,
        signal: Signal,
        spare: Vec<Process>,
    },
    /// Signal what dead processes of this proc have left behind.
    Sweep(Signal),
    /// Kill what was started for this proc since then, and what that has started; but nothing that belongs to
    /// older ones.
    ClearSince(BootTime),
    Inspect {
        op: OpId,
        process: Option<Process>,
        /// Where to look for it when it is not known.
        scope: LookScope,
        spec: Arc<Spec>,
    },
    /// Does a process of another account than these have to do with the op? The answer is
    /// [`Machine::vetted`].
    Vet {
        op: OpId,
        /// The one that is known. `None`: it is to be looked for.
        process: Option<Process>,
        scope: LookScope,
        spec: Arc<Spec>,
        accounts: BTreeSet<String>,
    },
    /// When does this rule match next by the host's wall clock, and how often has it matched after `since`?
    Plan {
        plan: PlanId,
        rule: String,
        since: Option<BootTime>,
    },
    /// When may it be started, among all that are to be started for the same reason?
    Place {
        plan: PlanId,
        occasion: spread::Occasion,
    },
}

/// A process of this proc that runs as an account which the app may not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherAccount {
    pub pid: u32,
    pub user: String,
}

/// Where to look for the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookScope {
    /// By pid file; without one, by name.
    Settled,
    /// As `Settled`, for a proc whose last process is dead: a process that the dead one has left, or that an
    /// older command has started, is not found by its name.
    After { dead: Process },
    /// As above, and among what this run started.
    Launch { run: RunId, leader: Leader },
    /// After a start of the agent: first the process that was known, then as above, then anything that bears
    /// this proc's mark.
    Recovery { last: Option<Process> },
    /// The command of this run itself, and nothing else: a periodic process is its command.
    Run(RunId),
    /// Whatever a sweep would end.
    Leftovers,
    /// The run of a periodic process from an earlier life of the agent: the process that was known; or, of a
    /// run that began at `since` and was not seen yet, what bears this proc's mark and leads a session. What
    /// older runs have left behind is no run.
    Turn { last: Option<Process>, since: Option<BootTime> },
}

/// Whether a command that is still running counts as the process although neither its name nor a pid file
/// says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    Accept,
    /// Only if its executable is called as the process: then it is a program in the foreground that writes no
    /// pid file.
    AcceptNamed,
    Refuse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    Term,
    Kill,
    /// Neither of these.
    Other(SignalNumber),
}

impl From<SignalNumber> for Signal {
    fn from(signal: SignalNumber) -> Signal {
        match signal {
            SignalNumber::TERM => Signal::Term,
            SignalNumber::KILL => Signal::Kill,
            other => Signal::Other(other),
        }
    }
}

/// Something that happened to a proc without an op.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An order has started it, and it held up.
    Started {
        pid: u32,
    },
    /// Its `health_cmd` has failed so often in a row that this is no accident.
    Unhealthy {
        reason: String,
        /// What is done about it.
        #[serde(default, skip_serializing_if = "is_told")]
        then: OnUnhealthy,
    },
    /// A file of its `configmap` is not as the spec says.
    ConfigDrift {
        reason: String,
    },
    Exited {
        pid: u32,
        exit: Exit,
    },
    /// Another process has taken its place without us: the program restarted itself, or somebody started it.
    TookOver {
        pid: u32,
        /// `None`: that one has ended, which was told.
        from: Option<u32>,
    },
    RestartSucceeded {
        pid: u32,
    },
    RestartFailed {
        reason: String,
    },
    GaveUp {
        reason: String,
    },
    /// A scheduled run of a periodic process did not end well. The next one comes when it is due.
    RunFailed {
        reason: String,
    },
    /// So many runs of a periodic process were due and did not take place: the one before was still under
    /// way, or nobody was there to begin them.
    RunMissed {
        count: u32,
    },
    /// It used more than its limits allow in each of these samples, and is ended for it.
    OverLimit {
        pid: u32,
        limits: Resource,
        samples: Vec<Usage>,
    },
    /// All processes of its namespace together used more than a group allows, and this one is ended for it.
    /// Each that is has an event of its own.
    GroupOverLimit {
        pid: u32,
        #[serde(flatten)]
        overuse: Overuse,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_told(then: &OnUnhealthy) -> bool {
    *then == OnUnhealthy::Tell
}
