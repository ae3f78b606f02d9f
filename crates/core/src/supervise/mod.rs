//! The supervision machine: everything that is decided about one proc on its host.
//!
//! The agent keeps one [`Machine`] per proc and feeds it inputs: orders from the server, answers to effects,
//! news of the process, and ticks. Each [`Machine::step`] returns a [`Step`]: `writes`, which must be durable
//! first, and `effects`, which the agent then carries out. The machine does no I/O, does not wait and reads
//! no clock.
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
//! A periodic proc is started by a schedule instead of being kept alive. Its process is the command of a run:
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
//! - `Looking`, `Launching`, `Awaiting`, `Ending`, `Leaving`, `Clearing`, `Reloading`, `Surviving`,
//!   `Reviewing` and `Planning` are stages of a job. While a job runs, further orders wait in a queue. A stop
//!   or kill supersedes a launch, and a kill also supersedes a stop or a reload. The outcome of the
//!   superseded op says so.
//! - A superseded launch does not continue: its command and all descendants are ended (`Clearing`). A process
//!   that was recognised is first stopped like any other; a stop_cmd is run only if there is a process.
//! - The window of a launch begins when a process was first seen or when the command ended, whichever is
//!   later. At its end a process must be alive that has lived for at least a second; a change of the pid
//!   within the window is not a failure. A launch fails earlier only if no process can appear later: the
//!   command failed, or the command was the process and has exited.
//! - A command that is still at work when its launch has succeeded may fail later. That is an event, unless
//!   the process has ended too.
//! - The processes of a failed launch are ended before the op is answered (`Clearing`). A process that cannot
//!   be ended is named in the outcome and supervised.
//! - After a restart of the agent, a start command that is still running is waited for (`Awaiting`). It is
//!   not the process. If the command has ended and no process is known, its process is looked for until the
//!   time for a check has passed.
//! - A process that was started by hand while the proc had none is adopted by a query or by the agent's
//!   regular scan.
//! - A program that replaces itself leaves its old process running for a while. That one is known as an
//!   earlier generation until it ends, and a stop, kill or restart ends it too.
//! - Before a launch, the machine looks for a running process. If there is one, it is supervised and nothing
//!   is launched, so there are never two. Leftovers of a process that was not stopped are killed first.
//! - If the process does not exit, a stop or restart fails after stop_check, or kills the process if the spec
//!   has a `kill_after`.
//! - A stop, kill or restart is done when the process has no descendants left (`Leaving`), unless the spec
//!   keeps them (`detached: keep`). Remaining descendants get SIGTERM, and SIGKILL after the rest of
//!   stop_check.
//! - A stop first ends hosting, durably, and then acts, so a crash of the agent in between never restarts a
//!   stopped process. A stop that fails restores hosting.
//! - A process that exceeds its limits in several consecutive samples is ended by its stop_cmd or SIGTERM,
//!   and after stop_check by SIGKILL. It then counts as dead, and an order under way is answered with the
//!   reason. The same applies to a process that is chosen because its namespace exceeds a pool limit, and to
//!   an unhealthy process if its spec asks for a restart. A resident process that is not hosted is left
//!   alone.
//! - Restarts of processes that died while the agent was away are staggered (see [`crate::stagger`]), and so
//!   are starts after a boot of the host, and restarts that are due together with many others. Orders are not
//!   staggered.
//! - A run of a periodic proc is identified by its command alone, never by name or pid file, because a run
//!   may leave processes behind on purpose. It is journalled before it begins and never begun twice. A run
//!   that takes longer than op_timeout is ended. A run that is due meanwhile is missed and reported at that
//!   time.
//! - Deadlines are part of the state. [`Machine::wake_at`] says when the next one is due; a tick that comes
//!   late or twice does no harm.

mod event;
mod interval;
mod job;
mod limits;
mod machine;
mod messages;
mod policy;
mod record;

pub use crate::usage::{LimitHistory, Usage};
pub use event::Severity;
pub use machine::{Machine, group_refusal};
pub use record::{Record, Rest, ScheduledRun};

use crate::boot_time::BootTime;
use crate::code::Code;
use crate::groups::Overuse;
use crate::health::HealthReport;
use crate::id::OpId;
use crate::op::{Instance, OpKind, Order, Outcome};
use crate::process::{Exit, Process, Sighting};
use crate::signal::SignalNumber;
use crate::spec::{Detached, OnUnhealthy, Resource, Spec};
use crate::stagger;
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

/// The operation that is under way for a proc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    Starting,
    Stopping,
    /// By an order, or because the process died or must be ended.
    Restarting,
    Reloading,
    /// Looking for the process, or changing its record.
    Other,
}

/// The input of a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// An op from the server.
    Order(Box<Order>),
    /// The result of an effect.
    Answer(EffectAnswer),
    /// A change of the process that the machine did not ask for.
    Notice(ProcNotice),
    /// Time has passed.
    Tick,
}

/// The result of an [`Effect`]. Each names the effect that it belongs to; a late answer is ignored.
#[derive(Clone, Debug, PartialEq)]
pub enum EffectAnswer {
    /// The answer to [`Effect::Look`].
    Sighted { look: LookId, sighting: Sighting },
    /// The answer to [`Effect::Inspect`].
    Inspected { op: OpId, view: Box<View> },
    /// The answer to [`Effect::Run`]: the command ended, or could not be started.
    CommandEnded { run: RunId, end: CommandEnd },
    /// The answer to [`Effect::Plan`].
    Planned { plan: PlanId, next: Next },
    /// The answer to [`Effect::Stagger`].
    Staggered { plan: PlanId, at: BootTime, cause: stagger::StaggerCause },
}

/// A change of a process, or of the resources that it uses.
#[derive(Clone, Debug, PartialEq)]
pub enum ProcNotice {
    /// A watched process has exited.
    Exited { process: Process, exit: Exit },
    /// The current usage of a process with all its descendants.
    Sampled { process: Process, usage: Usage },
    /// The pid file names another process of this proc now: the program has replaced itself, and the old
    /// process may run beside it for a while.
    Replaced { old: Process, process: Process },
    /// The process was started without an order.
    Appeared { process: Process },
    /// A pool of the namespace is overused, and this process is to be ended for it.
    Overused { process: Process, overuse: Box<Overuse>, past: LimitHistory },
    /// The health of the process has changed, by the last results of its `health_cmd`.
    Health { process: Process, health: Health },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// `health_cmd` has failed several times in a row.
    Unhealthy {
        reason: String,
    },
}

/// When a cron rule is to be followed next. Only the shell knows wall-clock time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// `missed`: number of matches of the rule since [`Effect::Plan::since`].
    At { at: BootTime, missed: u32 },
    /// The rule cannot be followed on this host.
    Never { reason: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// The command ran; `output` is the end of its output.
    Exited { exit: Exit, output: String },
    /// The command could not be started.
    NotStarted { code: Code, reason: String },
}

/// The result of an inspection. The agent adds the wall-clock times, because `core` does not know them.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    pub sighting: Sighting,
    pub instance: Option<Instance>,
    /// The last results of `version_cmd` and `health_cmd`.
    pub version: String,
    pub health: HealthReport,
    pub registered_at: i64,
    pub started_at: i64,
    pub reported_at: i64,
    pub utc_offset_secs: i32,
}

/// The result of one step. The writes are one transaction; `commit` says whether the effects wait for it.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    pub writes: Vec<Write>,
    pub effects: Vec<Effect>,
    pub commit: Commit,
}

/// When the writes of a step must be durable. The writes of one proc always become durable in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// Before the effects, together with all earlier writes.
    #[default]
    First,
    /// Whenever the disk is ready. Only for writes that a restarted agent can reconstruct by a look at the
    /// host. So a hosted process is restarted at once, even if the disk is full.
    Alongside,
}

/// State that must survive a restart of the agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// The new record of the proc.
    Record(Box<Record>),
    /// Delete the record of the proc.
    Forget,
    /// The op is about to act: after a crash it must not be repeated.
    Begun(OpId),
    /// The op has ended.
    Done(OpId, Outcome),
    /// Something happened without an op.
    Event(Event),
}

/// An action of the agent. Actions are carried out in order.
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
    /// SIGKILL to the command and all its descendants.
    EndRun(RunId),
    /// SIGTERM to the command and all its descendants.
    TermRun(RunId),
    /// Signal the process and all its descendants.
    Signal {
        process: Process,
        signal: Signal,
        /// Whether a kill also reaches detached descendants.
        detached: Detached,
    },
    /// Signal the process alone.
    SignalOne {
        process: Process,
        signal: Signal,
    },
    /// The process is an earlier generation of the program: report its exit, and treat it as a leftover.
    Retire(Process),
    /// Signal an earlier generation and its descendants, but not the processes of `spare` and their
    /// descendants.
    SignalRetired {
        process: Process,
        signal: Signal,
        spare: Vec<Process>,
    },
    /// Signal the leftovers of dead processes of this proc.
    Sweep(Signal),
    /// Kill processes that were started for this proc since then, with their descendants, but not descendants
    /// of older processes.
    ClearSince(BootTime),
    Inspect {
        op: OpId,
        process: Option<Process>,
        /// Where to look for the process if it is not known.
        scope: LookScope,
        spec: Arc<Spec>,
    },
    /// Does the op involve a process of any other account? The answer is [`Machine::vetted`].
    Vet {
        op: OpId,
        /// The known process. `None`: look for it.
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
    /// When may the process be started? Starts for the same reason are staggered.
    Stagger {
        plan: PlanId,
        reason: stagger::StaggerReason,
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
    /// Like `Settled`, for a proc whose last process is dead: leftovers of the dead process and of older
    /// commands are not found by name.
    After { dead: Process },
    /// Like `Settled`, and among the descendants of this run.
    Launch { run: RunId, leader: Leader },
    /// After a start of the agent: the last known process, then like `Settled`, then any process with the
    /// environment variables of this proc.
    Recovery { last: Option<Process> },
    /// The command of this run itself, and nothing else: a periodic process is its command.
    Run(RunId),
    /// The processes that a sweep would end.
    Leftovers,
    /// The run of a periodic process from before a restart of the agent: the known process, or, if the run
    /// began at `since` and was not seen yet, a session leader with the environment variables of this proc.
    /// Leftovers of older runs do not count.
    ScheduledRun { last: Option<Process>, since: Option<BootTime> },
}

/// Whether a command that is still running counts as the process although neither its name nor a pid file
/// says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leader {
    Accept,
    /// Only if its executable has the name `proc_name` and is not an interpreter: a foreground program that
    /// writes no pid file.
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
    /// Its `health_cmd` has failed several times in a row.
    Unhealthy {
        reason: String,
        /// The reaction.
        #[serde(default, skip_serializing_if = "is_event_only")]
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
    /// Another process has replaced it without an order: the program restarted itself, or was started by
    /// hand.
    TookOver {
        pid: u32,
        /// `None`: the earlier process has exited, which was reported.
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
    /// A start or restart command failed that was still at work when its launch had succeeded. The process
    /// goes on.
    CommandFailed {
        /// The field of the spec: `start_cmd` or `restart_cmd`.
        command: String,
        /// The order that it was run for. `None`: the agent restarted the process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        op: Option<OpKind>,
        exit: Exit,
        /// The end of its output.
        output: String,
    },
    /// A scheduled run of a periodic process did not end well. The next one comes when it is due.
    RunFailed {
        reason: String,
    },
    /// Number of runs of a periodic process that were due and did not take place, because the previous run
    /// was still under way or the agent was not running.
    RunMissed {
        count: u32,
    },
    /// It used more than its limits allow in each of these samples, and is ended for it.
    OverLimit {
        pid: u32,
        limits: Resource,
        samples: Vec<Usage>,
    },
    /// The processes of the namespace exceeded a pool limit, and this process is ended for it. Each ended
    /// process has its own event.
    GroupOverLimit {
        pid: u32,
        #[serde(flatten)]
        overuse: Overuse,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_event_only(then: &OnUnhealthy) -> bool {
    *then == OnUnhealthy::Tell
}
