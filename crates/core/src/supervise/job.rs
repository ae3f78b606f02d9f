//! The job that a machine is busy with: a purpose, and a stage with its deadlines.

use super::policy::DownCause;
use super::{Activity, Hosting, LookId, PlanId, Rest, RunId};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::id::OpId;
use crate::op::OpKind;
use crate::process::{Absence, Exit, Found, Process};
use crate::spec::{Kind, LEAST_LIFE, Spec};
use std::sync::Arc;
use std::time::Duration;

/// How often a process that should appear is looked for. Each look reads one small file.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(25);
/// Maximum pause between two looks. The pause doubles with each look.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Number of consecutive looks that must find no descendant of the command before a launch fails early.
pub(super) const HOPELESS_LOOKS: u32 = 3;
/// How long a command that was ended may take to be gone before its op is answered without its output.
pub(super) const COMMAND_END_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Job {
    pub(super) purpose: Purpose,
    pub(super) spec: Arc<Spec>,
    pub(super) stage: Stage,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// An order.
    Op { op: OpId, kind: OpKind, before: Before },
    /// The process died, or a retry is due.
    Upkeep { last: String },
    /// The process exceeds its own limits or those of its namespace, or is unhealthy, and is ended for it.
    /// `op`: the order that was under way, and that is answered when the process is gone.
    Enforce { down_cause: DownCause, op: Option<(OpId, OpKind)> },
    /// The next run of a periodic process: when it is due, and its beginning.
    ScheduledRun,
    /// The agent has just started.
    Recover { interrupted: Vec<(OpId, OpKind)> },
    /// A stop or kill has been answered because the process is gone, but its command still runs. The command
    /// must not affect the next launch.
    Aftermath,
}

/// The state before an order. A stop that fails goes back to `hosting`; an order that changes nothing, to
/// `rest`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Before {
    pub(super) hosting: Hosting,
    pub(super) rest: Rest,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Stage {
    /// Is it running? `launch` is a run that a stop overtook: it must end with the process.
    Looking {
        look: LookId,
        launch: Option<RunId>,
    },
    Launching(Launch),
    Ending(Ending),
    Reloading {
        command: Running,
        process: Process,
        gone: bool,
    },
    /// The process was reloaded, and must not die of it.
    Surviving(Survival),
    /// The process is gone: does it have descendants left?
    Leaving(Leaving),
    /// A launch that was overtaken, or has failed, is ended: is anything of it left?
    Clearing(Clearing),
    /// A start command of the previous agent process still runs.
    Awaiting(Awaiting),
    /// After a reload whose process is gone: is there a successor?
    Reviewing(Review),
    /// When is the next run due, or the staggered start?
    Planning {
        plan: PlanId,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Clearing {
    pub(super) run: RunId,
    pub(super) looking: Option<LookId>,
    pub(super) next_look: BootTime,
    pub(super) measure: Measure,
    /// How the launch has failed. `None`: a stop or kill overtook it.
    pub(super) failure: Option<LaunchFailure>,
}

/// Why a launch has failed, and the process that was ended for it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LaunchFailure {
    pub(super) code: Code,
    pub(super) message: String,
    /// A process of the launch that got SIGTERM.
    pub(super) ended: Option<Process>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Awaiting {
    /// The command, or its shell. `None`: it had ended when the agent came back.
    pub(super) command: Option<Process>,
    /// When the command counts as the process; `None`: its pid file decides.
    pub(super) counts_at: Option<BootTime>,
    /// When the command must have ended.
    pub(super) deadline: BootTime,
    /// When it had ended.
    pub(super) gone: Option<BootTime>,
    pub(super) looking: Option<LookId>,
    pub(super) next_look: BootTime,
    pub(super) pause: Duration,
}

/// From the end of the process until nothing of it is left.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Leaving {
    /// The stop command, while it is at work, and the process that it was for.
    pub(super) command: Option<(Running, Process)>,
    pub(super) note: String,
    /// Deadline for the leftovers to exit; after it they are killed.
    pub(super) until: BootTime,
    pub(super) measure: Measure,
    /// Something that was still running at the last look.
    pub(super) seen: Option<Process>,
    pub(super) looking: Option<LookId>,
    pub(super) next_look: BootTime,
    pub(super) pause: Duration,
}

/// The last measure against the leftovers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Measure {
    None,
    /// SIGTERM was sent.
    SentTerm {
        until: BootTime,
    },
    Killed {
        until: BootTime,
    },
}

/// A command under way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Running {
    pub(super) run: RunId,
    pub(super) field: &'static str,
    /// `None`: no time limit.
    pub(super) deadline: Option<BootTime>,
    /// The command exceeded its time limit and got SIGTERM.
    pub(super) timed_out: bool,
}

/// From the command of a start or restart to the end of its check. Fields that most launches do not need are
/// boxed: a thousand launches at the same time leave as many holes of this size in the heap.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Launch {
    pub(super) command: Running,
    /// When the command began; with a restart_cmd, when it had ended the old process.
    pub(super) began: BootTime,
    /// `None`: the command is still running; perhaps it is the process.
    pub(super) ended: Option<Box<Ended>>,
    /// The process before a restart: its exit is not a failure.
    pub(super) old: Option<Process>,
    pub(super) seen: Option<SeenProcess>,
    /// The process that was seen last is a child of the command, which does more than wait for it.
    pub(super) is_child: bool,
    /// When a process was first recognised. A later process with another pid does not restart the window.
    pub(super) first_seen: Option<BootTime>,
    /// A process was seen and died after the command had ended.
    pub(super) died: Option<Box<(Process, Exit)>>,
    /// The command itself was the process when the command ended, and no process was seen since.
    pub(super) was_command: bool,
    pub(super) missing: Option<Box<Absence>>,
    /// How many looks in a row found that nothing of the command is left. A single look may fall into an
    /// `execve`, during which a process cannot be recognised.
    pub(super) hopeless_looks: u32,
    pub(super) looking: Option<LookId>,
    /// When the last look was asked for.
    pub(super) looked_at: Option<BootTime>,
    /// The command has run out of time, and was looked at once more: it may be the process itself.
    pub(super) last_look: bool,
    pub(super) next_look: BootTime,
    /// The pause before the next look.
    pub(super) pause: Duration,
}

/// A process that was seen, and since when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SeenProcess {
    pub(super) process: Process,
    pub(super) since: BootTime,
}

/// After a reload: the process must be alive until `until`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Survival {
    pub(super) process: Process,
    pub(super) until: BootTime,
    /// Deadline for a successor if the process dies. `None`: one second after its death.
    pub(super) successor_by: Option<BootTime>,
    /// The process is the successor of the reloaded process.
    pub(super) is_successor: bool,
    pub(super) output: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Review {
    pub(super) looking: Option<LookId>,
    pub(super) next_look: BootTime,
    /// When a successor must have appeared.
    pub(super) until: BootTime,
    pub(super) output: String,
}

/// Whether a process was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    First,
    Again,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ended {
    pub(super) at: BootTime,
    pub(super) output: String,
}

/// From the command or signal of a stop, kill or restart until the process is gone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ending {
    pub(super) process: Process,
    pub(super) phase: EndPhase,
    pub(super) gone: bool,
    /// The stop command left the process running, and the process got the stop signal.
    pub(super) signalled: bool,
    pub(super) note: String,
    pub(super) launch: Option<RunId>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum EndPhase {
    Command(Running),
    Vanish {
        until: BootTime,
    },
    /// The process did not end by itself and was killed.
    Killed {
        until: BootTime,
    },
}

impl LaunchFailure {
    pub(super) fn new(code: Code, message: String) -> LaunchFailure {
        LaunchFailure { code, message, ended: None }
    }
}

impl Measure {
    fn delay(&mut self, by: Duration) {
        match self {
            Measure::None => {}
            Measure::SentTerm { until } | Measure::Killed { until } => *until += by,
        }
    }
}

impl Running {
    fn delay(&mut self, by: Duration) {
        self.deadline.iter_mut().for_each(|deadline| *deadline += by);
    }

    pub(super) fn is_overdue(&self, now: BootTime) -> bool {
        !self.timed_out && self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The deadline has come. The first time the command is to be ended, the second time it is not waited
    /// for.
    pub(super) fn overdue(&mut self, now: BootTime) -> Overdue {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return Overdue::No;
        }
        if self.timed_out {
            return Overdue::Abandon;
        }
        self.timed_out = true;
        self.deadline = Some(now + COMMAND_END_TIMEOUT);
        Overdue::End
    }
}

pub(super) enum Overdue {
    No,
    End,
    Abandon,
}

impl Purpose {
    /// The order that is answered when the job ends.
    pub(super) fn op(&self) -> Option<(OpId, OpKind)> {
        match self {
            Purpose::Op { op, kind, .. } => Some((*op, *kind)),
            Purpose::Enforce { op, .. } => *op,
            Purpose::Upkeep { .. } | Purpose::ScheduledRun | Purpose::Recover { .. } | Purpose::Aftermath => {
                None
            }
        }
    }
}

impl Job {
    pub(super) fn activity(&self) -> Activity {
        if let Stage::Awaiting(_) = self.stage {
            return Activity::Starting;
        }
        match &self.purpose {
            Purpose::ScheduledRun if matches!(self.stage, Stage::Ending(_)) => Activity::Stopping,
            Purpose::Op { kind: OpKind::Start | OpKind::Host, .. } | Purpose::ScheduledRun => {
                Activity::Starting
            }
            Purpose::Op { kind: OpKind::Stop | OpKind::Kill, .. } | Purpose::Aftermath => Activity::Stopping,
            Purpose::Op { kind: OpKind::Restart, .. } | Purpose::Upkeep { .. } | Purpose::Enforce { .. } => {
                Activity::Restarting
            }
            Purpose::Op { kind: OpKind::Reload, .. } => Activity::Reloading,
            Purpose::Op {
                kind:
                    OpKind::Query
                    | OpKind::Unhost
                    | OpKind::Register
                    | OpKind::Update
                    | OpKind::Unregister
                    | OpKind::Group,
                ..
            }
            | Purpose::Recover { .. } => Activity::Other,
        }
    }

    /// Whether an order of this kind supersedes the job. A stop or kill supersedes a launch; a kill also
    /// supersedes a stop that waits for a process, and a reload.
    pub(super) fn yields_to(&self, order: OpKind) -> bool {
        let ends = order.ends_process();
        match &self.purpose {
            Purpose::Op { kind: OpKind::Start | OpKind::Host | OpKind::Restart, .. }
            | Purpose::Upkeep { .. }
            | Purpose::Enforce { .. } => ends,
            // A plan is answered at once.
            Purpose::ScheduledRun => ends && !matches!(self.stage, Stage::Planning { .. }),
            Purpose::Op { kind: OpKind::Stop | OpKind::Reload, .. } => {
                // A look is answered at once.
                order == OpKind::Kill && !matches!(self.stage, Stage::Looking { .. })
            }
            // These jobs are short.
            Purpose::Op {
                kind:
                    OpKind::Kill
                    | OpKind::Query
                    | OpKind::Unhost
                    | OpKind::Register
                    | OpKind::Update
                    | OpKind::Unregister
                    | OpKind::Group,
                ..
            }
            | Purpose::Recover { .. }
            | Purpose::Aftermath => false,
        }
    }
}

impl Stage {
    pub(super) fn wake_at(&self, spec: &Spec) -> Option<BootTime> {
        match self {
            Stage::Looking { .. } | Stage::Planning { .. } => None,
            Stage::Clearing(clearing) => clearing.looking.is_none().then_some(clearing.next_look),
            Stage::Awaiting(awaiting) => awaiting.looking.is_none().then_some(awaiting.next_look),
            Stage::Leaving(leaving) => leaving.wake_at(),
            Stage::Reviewing(review) => review.looking.is_none().then_some(review.next_look),
            Stage::Launching(launch) => launch.wake_at(spec),
            Stage::Surviving(survival) => Some(survival.until),
            Stage::Ending(Ending { phase: EndPhase::Command(command), .. })
            | Stage::Reloading { command, .. } => command.deadline,
            Stage::Ending(Ending {
                phase: EndPhase::Vanish { until } | EndPhase::Killed { until }, ..
            }) => Some(*until),
        }
    }

    /// Moves every deadline, because the effects of the stage began this much later than planned.
    pub(super) fn delay(&mut self, by: Duration) {
        match self {
            Stage::Looking { .. } | Stage::Planning { .. } => {}
            Stage::Launching(launch) => {
                launch.command.delay(by);
                launch.began += by;
                launch.next_look += by;
                launch.ended.iter_mut().for_each(|ended| ended.at += by);
                launch.seen.iter_mut().for_each(|seen| seen.since += by);
                launch.first_seen.iter_mut().chain(&mut launch.looked_at).for_each(|at| *at += by);
            }
            Stage::Ending(ending) => match &mut ending.phase {
                EndPhase::Command(command) => command.delay(by),
                EndPhase::Vanish { until } | EndPhase::Killed { until } => *until += by,
            },
            Stage::Reloading { command, .. } => command.delay(by),
            Stage::Surviving(survival) => {
                survival.until += by;
                survival.successor_by.iter_mut().for_each(|at| *at += by);
            }
            Stage::Leaving(leaving) => {
                leaving.command.iter_mut().for_each(|(command, _)| command.delay(by));
                leaving.until += by;
                leaving.next_look += by;
                leaving.measure.delay(by);
            }
            Stage::Clearing(clearing) => {
                clearing.next_look += by;
                clearing.measure.delay(by);
            }
            Stage::Awaiting(awaiting) => {
                awaiting.counts_at.iter_mut().chain(&mut awaiting.gone).for_each(|at| *at += by);
                awaiting.deadline += by;
                awaiting.next_look += by;
            }
            Stage::Reviewing(review) => {
                review.until += by;
                review.next_look += by;
            }
        }
    }

    /// The process that this stage knows of, for status and the record.
    pub(super) fn process(&self) -> Option<Process> {
        match self {
            Stage::Looking { .. }
            | Stage::Reviewing(_)
            | Stage::Clearing(_)
            | Stage::Awaiting(_)
            | Stage::Leaving(_)
            | Stage::Planning { .. } => None,
            Stage::Launching(launch) => launch.process().or(launch.old),
            Stage::Ending(ending) => (!ending.gone).then_some(ending.process),
            Stage::Reloading { process, gone, .. } => (!gone).then_some(*process),
            Stage::Surviving(survival) => Some(survival.process),
        }
    }
}

impl Leaving {
    fn wake_at(&self) -> Option<BootTime> {
        let look = self.looking.is_none().then_some(self.next_look);
        let command = self.command.as_ref().and_then(|(command, _)| command.deadline);
        let measure = match self.measure {
            Measure::SentTerm { until } => Some(until),
            // The verdict waits for a look.
            Measure::None | Measure::Killed { .. } => None,
        };
        look.into_iter().chain(command).chain(measure).min()
    }
}

impl Launch {
    /// The process that was recognised. A shell that may yet start it is none.
    pub(super) fn process(&self) -> Option<Process> {
        self.seen.map(|seen| seen.process).filter(|process| process.found != Found::Shell)
    }

    /// The process that is checked. A proc of kind `once` is judged by the exit of its command.
    pub(super) fn judged(&self, spec: &Spec) -> Option<SeenProcess> {
        self.seen.filter(|_| spec.policy.kind != Kind::Once)
    }

    /// Whether the command is a script at work that may yet start the process which the spec names: the
    /// script does not count as the process before `op_timeout`.
    pub(super) fn awaits_script(&self, spec: &Spec) -> bool {
        let is_script = self.seen.is_some_and(|seen| seen.process.found == Found::Shell);
        self.ended.is_none()
            && is_script
            && spec.policy.kind == Kind::Resident
            && !spec.identity.proc_name.is_empty()
    }

    /// The end of the window, at which a process must be alive. The window begins when a process was first
    /// seen or when the command ended, whichever is later. While the command is at work it may be the
    /// process, and only the sight counts.
    pub(super) fn check_until(&self, spec: &Spec) -> BootTime {
        let begins = self.ended.as_ref().map_or(self.began, |ended| ended.at);
        let until = begins + spec.policy.launch_check();
        let first_seen = self.first_seen.or(self.seen.map(|seen| seen.since));
        first_seen.map_or(until, |first| until.max(first + spec.policy.sight_check()))
    }

    /// When the present process counts as started. A process that appeared in the last second of the window
    /// gets a full second.
    pub(super) fn succeeds_at(&self, spec: &Spec) -> BootTime {
        let until = self.check_until(spec);
        self.seen.map_or(until, |seen| until.max(seen.since + LEAST_LIFE))
    }

    /// Whether no process can appear later: the command was the process, and all its descendants have exited.
    /// After any other command a process may appear until the end of the window.
    pub(super) fn is_hopeless(&self) -> bool {
        self.was_command && self.hopeless_looks >= HOPELESS_LOOKS
    }

    /// Since when the present process counts as running: since it was seen, or since the command ended,
    /// whichever is later.
    pub(super) fn alive_since(&self) -> BootTime {
        let ended = self.ended.as_ref().map_or(self.began, |ended| ended.at);
        self.seen.map_or(ended, |seen| ended.max(seen.since))
    }

    /// From now on the command may be the process, or start it at any time.
    pub(super) fn await_foreground(&mut self, now: BootTime, spec: &Spec) {
        self.began = now;
        self.pause = LOOK_EVERY;
        let first = now + spec.policy.check_begin.max(self.pause);
        self.next_look = self.command.deadline.map_or(first, |deadline| deadline.min(first));
    }

    /// Records the result of a look. A process counts as seen before if it runs the same program; a shell
    /// that has called exec since then does not.
    pub(super) fn sees(&mut self, now: BootTime, process: Process) -> Sight {
        let is_same = |seen: &SeenProcess| {
            let programs = seen.process.evidence.program.zip(process.evidence.program);
            seen.process.is(&process) && programs.is_none_or(|(before, now)| before == now)
        };
        let known = self.seen.filter(is_same);
        self.seen = Some(SeenProcess { process, since: known.map_or(now, |seen| seen.since) });
        self.missing = None;
        match process.found {
            Found::Shell => {}
            Found::PidFile | Found::Foreground | Found::CommandChild | Found::Name => {
                self.first_seen.get_or_insert(now);
            }
        }
        // A process that outlives the command is not the command.
        self.was_command = false;
        if known.is_some() { Sight::Again } else { Sight::First }
    }

    /// The command has exited: its own process is gone, and the process is looked for again.
    pub(super) fn forget_command(&mut self) {
        self.was_command = self.seen.is_some_and(|seen| seen.process.found == Found::Foreground);
        self.seen = self.seen.filter(|seen| seen.process.found == Found::PidFile);
        self.first_seen = self.first_seen.filter(|_| self.seen.is_some());
    }

    /// When to look for the process next; `None` while a look is under way, and if no look is needed. While
    /// the command runs, a known process is looked at once more before it counts as started, because the
    /// shell may have become it by exec. Without a process, the look at the end of the window decides.
    pub(super) fn look_at(&self, spec: &Spec) -> Option<BootTime> {
        // A restart_cmd at work has yet to end the old process. Taken for the new one, its end would be
        // followed by a second launch beside the one under way.
        let too_early = self.ended.is_none() && self.old.is_some();
        if self.looking.is_some() || self.command.timed_out || too_early || spec.policy.kind != Kind::Resident
        {
            return None;
        }
        match (&self.ended, self.seen) {
            (None, Some(_)) if self.awaits_script(spec) => Some(self.next_look),
            (None, Some(_)) => Some(self.succeeds_at(spec)),
            (Some(_), Some(_)) => None,
            (None, None) => Some(self.next_look),
            // A process that has died by then may come back, so there is no look.
            (Some(ended), None) => {
                let next = self.next_look.max(ended.at + spec.policy.check_begin);
                Some(next.min(self.check_until(spec)))
            }
        }
    }

    fn wake_at(&self, spec: &Spec) -> Option<BootTime> {
        match (&self.ended, self.judged(spec), self.looking) {
            // The verdict waits for the answer.
            (_, _, Some(_)) => None,
            (_, Some(_), None) if spec.policy.kind.schedule().is_some() => {
                // A run that is being ended is no longer checked.
                let check = (!self.command.timed_out).then(|| self.succeeds_at(spec));
                self.command.deadline.into_iter().chain(check).min()
            }
            (None, Some(_), None) if self.awaits_script(spec) => {
                self.look_at(spec).into_iter().chain(self.command.deadline).min()
            }
            // A process has been recognised: the command's own limit no longer counts.
            (_, Some(_), None) => Some(self.succeeds_at(spec)),
            (None, None, None) => self.look_at(spec).into_iter().chain(self.command.deadline).min(),
            (Some(_), None, None) => Some(self.look_at(spec).unwrap_or_else(|| self.check_until(spec))),
        }
    }
}
