//! The restart policy for a process that died: look for it, restart it, or give up.

use super::schedule::Since;
use super::{Machine, State, busy};
use crate::boot_time::BootTime;
use crate::op::{OpKind, Order};
use crate::process::{Exit, Found, Process};
use crate::spec::Kind;
use crate::stagger::{self, StaggerReason};
use crate::supervise::job::{Purpose, Stage};
use crate::supervise::policy::{DownCause, RestartVerdict};
use crate::supervise::record::Rest;
use crate::supervise::{Effect, Event, Hosting, LookScope, PlanId, Signal, Step, Write, messages};

/// Maximum number of earlier generations that are remembered.
const MOST_OLDER: usize = 8;

/// The decision about a proc that is not running.
pub(super) enum RestartPlan {
    /// Start it without a pause.
    Start { why: String },
    /// Start it at this time.
    StartAt { at: BootTime, why: String },
    /// Do not restart it, or only by its schedule.
    Stay(State),
}

impl Machine {
    /// The supervised process has exited without an order.
    pub(super) fn exited(&mut self, now: BootTime, process: Process, exit: Exit, out: &mut Step) -> State {
        if self.timetable().is_some() {
            // The end of a run is normal; a failure has been reported.
            return self.schedule(now, Since::Run, out);
        }
        out.writes.push(Write::Event(Event::Exited { pid: process.pid, exit }));
        let last = format!("pid {} {exit}", process.pid);
        if exit == Exit::OutOfMemory {
            // The process's own logs do not show the reason.
            self.rare.fault = Some(last.clone());
        }
        if let Some(spec) = self.spec.clone().filter(|spec| spec.policy.kind == Kind::Once) {
            return self.look_behind(LookScope::Leftovers, spec, out);
        }
        // A program that ended well may have handed over to another process, and a command may have left the
        // real one behind.
        self.rare.dead = (exit != Exit::Code(0)).then_some(process);
        match (process.found, exit) {
            // The command itself was the process, so there is no other process to look for.
            (Found::Foreground, exit) if exit != Exit::Code(0) => {
                let state = self.revive(now, &last, out);
                self.end_orphans(&state, out);
                state
            }
            // The program may have replaced itself, with a new process under the same pid file; or it was a
            // slow start command that left the real process behind and exited with 0.
            (Found::Foreground | Found::CommandChild | Found::Shell | Found::PidFile | Found::Name, _) => {
                self.upkeep(now, last, out)
            }
        }
    }

    /// Orphans are killed before the restart. A worker with the name of its master would otherwise be taken
    /// for the process, and there would be no restart.
    pub(super) fn end_orphans(&mut self, state: &State, out: &mut Step) {
        let waits = matches!(state, State::Down(Rest::Retry { .. } | Rest::GaveUp { .. }));
        if let Some(spec) = self.spec.clone().filter(|_| waits) {
            self.tidy(&spec, out);
        }
    }

    /// The program has replaced itself. The old process is no longer the supervised one, and its exit is not
    /// a death.
    pub(super) fn replaced(&mut self, old: Process, process: Process, out: &mut Step) -> State {
        let resident = self.spec.as_ref().is_some_and(|spec| spec.policy.kind == Kind::Resident);
        if !resident || old.is(&process) {
            return State::Up(old);
        }
        out.writes.push(Write::Event(Event::TookOver { pid: process.pid, from: Some(old.pid) }));
        out.effects.push(Effect::Watch(process));
        // A program that a shell started is not a successor of the shell.
        if process.found != Found::Foreground {
            self.outlive(old, out);
        }
        State::Up(process)
    }

    /// The process was started without an order. The machine adopts it, and a pending restart is cancelled.
    pub(super) fn appeared(&mut self, now: BootTime, rest: Rest, process: Process, out: &mut Step) -> State {
        if self.spec.is_none() || self.timetable().is_some() {
            return State::Down(rest);
        }
        self.rare.odd_absence = None;
        self.streak.last_start = Some(now);
        out.effects.push(Effect::Watch(process));
        out.writes.push(Write::Event(Event::TookOver { pid: process.pid, from: None }));
        State::Up(process)
    }

    /// The process is no longer the supervised one, and still runs.
    pub(super) fn outlive(&mut self, old: Process, out: &mut Step) {
        if self.rare.older.len() < MOST_OLDER && !self.rare.older.iter().any(|older| older.is(&old)) {
            self.rare.older.push(old);
        }
        out.effects.push(Effect::Retire(old));
    }

    /// Earlier generations are ended with the process, or before a restart_cmd replaces it. A sweep would
    /// find them too, but there is no sweep with `detached: keep`.
    pub(super) fn end_older(&mut self, signal: Signal, spare: &[Process], out: &mut Step) {
        for process in &self.rare.older {
            let spare = spare.to_vec();
            out.effects.push(Effect::SignalRetired { process: *process, signal, spare });
        }
        if signal == Signal::Kill {
            self.rare.older.clear();
        }
    }

    /// Looks for the process, and restarts it if it is absent and hosted.
    pub(super) fn upkeep(&mut self, now: BootTime, last: String, out: &mut Step) -> State {
        if self.timetable().is_some() {
            return self.schedule(now, Since::Run, out);
        }
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        let look = self.look(self.settled(), &spec, out);
        busy(Purpose::Upkeep { last }, spec, Stage::Looking { look, launch: None })
    }

    /// The process is not running. A pending restart that is due is carried out now; otherwise the policy
    /// decides.
    pub(super) fn revive(&mut self, now: BootTime, last: &str, out: &mut Step) -> State {
        match self.saved.as_ref().map(|record| &record.rest) {
            Some(Rest::Retry { at, .. }) if now >= *at && self.hosting == Hosting::Hosted => {
                match self.has_start_slot {
                    true => self.relaunch(now, last.to_owned(), out),
                    false => self.stagger_start(StaggerReason::Retry, last.to_owned(), out),
                }
            }
            _ => self.rest(now, DownCause::Died, last, out),
        }
    }

    /// The next state of a proc that is not running.
    pub(super) fn rest(&mut self, now: BootTime, down_cause: DownCause, last: &str, out: &mut Step) -> State {
        match self.plan_restart(now, down_cause, last, out) {
            RestartPlan::Start { .. } => self.relaunch(now, last.to_owned(), out),
            RestartPlan::StartAt { at, why } => State::Down(Rest::Retry { at, why }),
            RestartPlan::Stay(state) => state,
        }
    }

    /// As [`Machine::rest`]; also kills leftovers that were not recognised as the process.
    pub(super) fn rest_tidied(
        &mut self,
        now: BootTime,
        down_cause: DownCause,
        last: &str,
        out: &mut Step,
    ) -> State {
        let state = self.rest(now, down_cause, last, out);
        if let (State::Down(_), Some(spec)) = (&state, self.spec.clone()) {
            self.tidy(&spec, out);
            // The next launch sweeps again: a process may have escaped this time.
            self.may_have_leftovers = true;
        }
        state
    }

    /// The decision about a proc that is not running.
    pub(super) fn plan_restart(
        &mut self,
        now: BootTime,
        down_cause: DownCause,
        last: &str,
        out: &mut Step,
    ) -> RestartPlan {
        self.may_have_leftovers = true;
        if self.timetable().is_some() {
            return RestartPlan::Stay(self.schedule(now, Since::Run, out));
        }
        let Some(spec) = self.spec.clone().filter(|_| self.hosting == Hosting::Hosted) else {
            return RestartPlan::Stay(State::Down(Rest::Idle));
        };
        if spec.policy.kind == Kind::Once {
            self.hosting = Hosting::Unhosted;
            return RestartPlan::Stay(State::Down(Rest::Idle));
        }
        if spec.control.start_cmd.is_empty() {
            return RestartPlan::Stay(self.give_up(messages::no_way_back(last), out));
        }
        let verdict = self.streak.restart_verdict(now, down_cause, &spec.policy, &self.key);
        let why = || messages::retry(self.streak.restarts, spec.policy.start_retries, last);
        match verdict {
            RestartVerdict::Now => RestartPlan::Start { why: why() },
            RestartVerdict::At(at) => RestartPlan::StartAt { at, why: why() },
            RestartVerdict::GiveUp => {
                let reason = messages::gave_up(self.streak.restarts, last);
                RestartPlan::Stay(self.give_up(reason, out))
            }
        }
    }

    pub(super) fn relaunch(&mut self, now: BootTime, last: String, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        let ends = |order: &Order| matches!(order.kind, OpKind::Stop | OpKind::Kill) && now < order.start_by;
        if self.queue.iter().any(|order| ends(order)) {
            // A stop or kill is already queued. The retry is for the case that it is refused.
            return State::Down(Rest::Retry { at: now, why: last });
        }
        self.sweep(&spec, out);
        self.launch(now, Purpose::Upkeep { last }, spec, None, out)
    }

    /// Asks for a start time, because many procs may be due at this moment.
    pub(super) fn stagger_start(&mut self, reason: StaggerReason, last: String, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        let plan = PlanId(self.serial());
        out.effects.push(Effect::Stagger { plan, reason });
        busy(Purpose::Upkeep { last }, spec, Stage::Planning { plan })
    }

    pub(super) fn staggered(
        &mut self,
        now: BootTime,
        at: BootTime,
        cause: stagger::StaggerCause,
        out: &mut Step,
    ) -> State {
        let why = messages::staggered(cause).to_owned();
        self.has_start_slot = now < at;
        if self.has_start_slot { State::Down(Rest::Retry { at, why }) } else { self.relaunch(now, why, out) }
    }

    pub(super) fn give_up(&mut self, reason: String, out: &mut Step) -> State {
        out.writes.push(Write::Event(Event::GaveUp { reason: reason.clone() }));
        State::Down(Rest::GaveUp { reason })
    }
}
