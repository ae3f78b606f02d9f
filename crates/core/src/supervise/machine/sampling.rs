//! Decides by the samples of a process whether it must be ended.
//!
//! Limits are part of hosting, so a resident process that is not hosted is left alone. Runs of periodic procs
//! and procs of kind `once` are always limited. A process that is being checked or reloaded is limited too,
//! and the order under way is answered with the reason. A process that is being ended is not judged.

use super::{Machine, State};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::groups::Overuse;
use crate::id::OpId;
use crate::op::OpKind;
use crate::process::{Found, Process};
use crate::spec::{Detached, Kind, Resource, Spec};
use crate::supervise::job::{Job, Purpose, Stage, Survival};
use crate::supervise::limits::{LimitTracker, LimitVerdict};
use crate::supervise::policy::DownCause;
use crate::supervise::{Effect, Event, Hosting, RunId, Step, Write, messages};
use crate::usage::{LimitHistory, Usage};
use std::sync::Arc;

impl Machine {
    /// The process that limits hold for now. While a start is checked that may be the shell of its command.
    pub fn limited_process(&self) -> Option<Process> {
        self.limited_in(&self.state)
    }

    fn limited_in(&self, state: &State) -> Option<Process> {
        let job = match state {
            State::Down(_) => return None,
            State::Up(process) => return Some(*process).filter(|process| self.limits_hold(process)),
            State::Busy(job) => job,
        };
        match &job.stage {
            Stage::Launching(launch) => {
                let seen = launch.seen.filter(|_| !launch.command.timed_out)?.process;
                // A process that is being started is hosted from the moment it is up.
                let is_started =
                    matches!(job.purpose, Purpose::Op { kind: OpKind::Start | OpKind::Host, .. });
                (is_started || self.limits_hold(&seen)).then_some(seen)
            }
            Stage::Reloading { process, gone: false, .. } | Stage::Surviving(Survival { process, .. }) => {
                self.limits_hold(process).then_some(*process)
            }
            Stage::Reloading { gone: true, .. }
            | Stage::Looking { .. }
            | Stage::Ending(_)
            | Stage::Leaving(_)
            | Stage::Clearing(_)
            | Stage::Awaiting(_)
            | Stage::Reviewing(_)
            | Stage::Planning { .. } => None,
        }
    }

    fn limits_hold(&self, process: &Process) -> bool {
        match (self.hosting, self.spec.as_ref().map(|spec| &spec.policy.kind)) {
            (Hosting::Hosted, _) | (_, Some(Kind::Periodic(_))) => true,
            // Only the command is the run; a process that was found by name or pid file is not.
            (Hosting::Unhosted, Some(Kind::Once)) => process.found == Found::Foreground,
            (Hosting::Unhosted, Some(Kind::Resident) | None) => false,
        }
    }

    pub(super) fn sampled(
        &mut self,
        now: BootTime,
        state: State,
        process: Process,
        usage: Usage,
        out: &mut Step,
    ) -> State {
        let Some(spec) = self.spec.clone() else { return state };
        let is_limited = spec.resource != Resource::default()
            && self.limited_in(&state).is_some_and(|limited| limited.is(&process));
        if !is_limited {
            if matches!(state, State::Up(up) if up.is(&process)) {
                // Samples of a process without limits, or that is left alone, do not count later.
                self.rare.limit_tracker = None;
                self.forget_fault(now, &spec);
            }
            return state;
        }
        // A process that ran stably before its first sample under these limits was within them, or had none.
        let stable = |start| now.since(start) > spec.policy.stable_after() * 2;
        let past = match self.streak.last_start.is_none_or(stable) {
            true => LimitHistory::OnceWithin,
            false => LimitHistory::AlwaysOver,
        };
        let limit_tracker = self.rare.limit_tracker.get_or_insert_with(|| LimitTracker::of(process, past));
        match limit_tracker.add_sample(process, usage, &spec.resource, spec.policy.limit_samples) {
            LimitVerdict::Within => {
                if let State::Up(_) = state {
                    self.forget_fault(now, &spec);
                }
                state
            }
            LimitVerdict::Wait => state,
            LimitVerdict::Over { samples, past } => {
                let event = Event::OverLimit { pid: process.pid, limits: spec.resource, samples };
                self.end_over(now, state, spec, process, past, event, out)
            }
        }
    }

    /// The pool of the namespace is overused, and this process was chosen to be ended.
    pub(super) fn overused(
        &mut self,
        now: BootTime,
        state: State,
        process: Process,
        overuse: Overuse,
        past: LimitHistory,
        out: &mut Step,
    ) -> State {
        let limited = self.limited_in(&state).filter(|limited| limited.is(&process));
        let (Some(spec), Some(process)) = (self.spec.clone(), limited) else { return state };
        let event = Event::GroupOverLimit { pid: process.pid, overuse };
        self.end_over(now, state, spec, process, past, event, out)
    }

    /// Clears the reason of the last end when the process runs stably again.
    fn forget_fault(&mut self, now: BootTime, spec: &Spec) {
        let stable = |start| now.since(start) > spec.policy.stable_after();
        if self.rare.fault.is_some() && self.streak.last_start.is_none_or(stable) {
            self.rare.fault = None;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one verdict, and the state that it is about")]
    fn end_over(
        &mut self,
        now: BootTime,
        state: State,
        spec: Arc<Spec>,
        process: Process,
        past: LimitHistory,
        event: Event,
        out: &mut Step,
    ) -> State {
        self.rare.fault = Some(messages::over_limit(&event));
        out.writes.push(Write::Event(event));
        let (op, launch) = match state {
            State::Busy(job) => interrupt(*job, out),
            State::Up(_) | State::Down(_) => (None, None),
        };
        self.end(now, Purpose::Enforce { down_cause: down_cause(past), op }, spec, process, launch, out)
    }

    /// A process that exceeded its limits or was unhealthy is gone. The restart policy starts it again, if it
    /// is hosted. A process that exceeded its limits from its start had no stable run, however long the
    /// samples took; otherwise it would be restarted endlessly.
    pub(super) fn limited(
        &mut self,
        now: BootTime,
        down_cause: DownCause,
        op: Option<(OpId, OpKind)>,
        out: &mut Step,
    ) -> State {
        let last = self.rare.fault.clone().unwrap_or_default();
        if let (Some((op, kind)), Some(spec)) = (op, self.spec.clone()) {
            let message = messages::post_check(kind, &spec, &self.key.name, &last, "");
            self.answer(op, Code::PostCheck, message, out);
        }
        let hosting = self.hosting;
        let is_over = |spec: &Arc<Spec>| match spec.policy.kind {
            Kind::Resident => hosting == Hosting::Unhosted,
            Kind::Once => true,
            Kind::Periodic(_) => false,
        };
        if let Some(spec) = self.spec.clone().filter(is_over) {
            // There is no restart that would sweep first, and the leftovers may have caused the overuse.
            self.sweep(&spec, out);
        }
        self.rest(now, down_cause, &last, out)
    }
}

/// Ends a job. Returns its order, and the command that must end with the process.
fn interrupt(job: Job, out: &mut Step) -> (Option<(OpId, OpKind)>, Option<RunId>) {
    let Job { purpose, spec, stage } = job;
    let launch = match stage {
        Stage::Launching(launch) => {
            // A run may leave processes on purpose.
            let ends_with_it = match (&spec.policy.kind, spec.policy.detached) {
                (Kind::Resident, _) | (Kind::Once, Detached::End) => launch.ended.is_none(),
                (Kind::Once, Detached::Keep) | (Kind::Periodic(_), _) => false,
            };
            ends_with_it.then_some(launch.command.run)
        }
        Stage::Reloading { command, .. } => {
            out.effects.push(Effect::EndRun(command.run));
            None
        }
        Stage::Looking { .. }
        | Stage::Surviving(_)
        | Stage::Ending(_)
        | Stage::Leaving(_)
        | Stage::Clearing(_)
        | Stage::Awaiting(_)
        | Stage::Reviewing(_)
        | Stage::Planning { .. } => None,
    };
    (purpose.op(), launch)
}

/// A process that exceeded its limits from its start counts as a failed start.
fn down_cause(past: LimitHistory) -> DownCause {
    match past {
        LimitHistory::OnceWithin => DownCause::Died,
        LimitHistory::AlwaysOver => DownCause::NotStarted,
    }
}
