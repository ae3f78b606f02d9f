//! After a stop has overtaken a launch, or a launch has failed: the op is not done until the launch has no
//! processes left.
//!
//! The command and all that it has started are told to end, and killed after stop_check. A kill does not
//! wait. A process that is still there then does not belong to the launch: a stop ends it as any other, and a
//! failed launch names it in its outcome and keeps it as the known process.

use super::leaving::Remains;
use super::{Machine, State, busy};
use crate::boot_time::BootTime;
use crate::op::OpKind;
use crate::process::Sighting;
use crate::spec::{Detached, Spec};
use crate::supervise::job::{Clearing, LOOK_EVERY, LaunchFailure, Measure, Purpose, Running, Stage};
use crate::supervise::{Effect, Input, Leader, LookScope, RunId, Step, words};
use std::sync::Arc;
use std::time::Duration;

/// How long what was killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

impl Machine {
    /// Ends a launch of which nothing was told to end yet.
    pub(super) fn clear(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        run: RunId,
        out: &mut Step,
    ) -> State {
        match purpose {
            Purpose::Op { kind: OpKind::Stop, .. } => {
                out.effects.push(Effect::TermRun(run));
                let measure = Measure::Told { until: now + spec.policy.stop_check };
                let clearing = Clearing { run, looking: None, next_look: now, measure, failure: None };
                self.clearing(now, purpose, spec, clearing, Input::Tick, out)
            }
            Purpose::Op { .. }
            | Purpose::Upkeep { .. }
            | Purpose::Limit { .. }
            | Purpose::Turn
            | Purpose::Recover { .. }
            | Purpose::Aftermath => self.clear_by_force(now, purpose, spec, run, out),
        }
    }

    pub(super) fn clear_by_force(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        run: RunId,
        out: &mut Step,
    ) -> State {
        let measure = Measure::Killed { until: now + PATIENCE };
        let clearing = Clearing { run, looking: None, next_look: now, measure, failure: None };
        self.clearing(now, purpose, spec, clearing, Input::Tick, out)
    }

    /// Ends the processes of a failed launch, if there are any.
    pub(super) fn clear_failed(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        command: &Running,
        failure: LaunchFailure,
        out: &mut Step,
    ) -> State {
        // A command that ran out of time has been killed with all that it started.
        let measure = match command.timed_out {
            true => Measure::Killed { until: now + PATIENCE },
            false => Measure::None,
        };
        let (run, failure) = (command.run, Some(failure));
        let clearing = Clearing { run, looking: None, next_look: now, measure, failure };
        self.clearing(now, purpose, spec, clearing, Input::Tick, out)
    }

    pub(super) fn clearing(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut clearing: Clearing,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Sighted { look, sighting } if clearing.looking == Some(look) => match sighting {
                Sighting::Absent(_) if let Some(failure) = &clearing.failure => {
                    // With `detached: keep` nothing is swept before the next launch.
                    if spec.policy.detached == Detached::Keep {
                        out.effects.push(Effect::EndRun(clearing.run));
                    }
                    let LaunchFailure { code, message, ended } = failure;
                    let message = ended.map_or(message.clone(), |ended| words::was_ended(message, ended.pid));
                    let failure = LaunchFailure::new(*code, message);
                    return self.launch_over(now, purpose, clearing.run, failure, None, out);
                }
                Sighting::Absent(_) => {
                    let until = now + spec.policy.stop_check;
                    let remains = Remains { command: None, until, note: String::new() };
                    return self.leave_nothing(now, purpose, spec, remains, out);
                }
                Sighting::Running(process) => {
                    clearing.looking = None;
                    clearing.next_look = now + LOOK_EVERY;
                    clearing.failure.iter_mut().for_each(|failure| {
                        failure.ended.get_or_insert(process);
                    });
                    match clearing.measure {
                        Measure::Killed { until }
                            if now >= until
                                && let Some(LaunchFailure { code, message, .. }) = &clearing.failure =>
                        {
                            out.effects.push(Effect::Watch(process));
                            let failure = LaunchFailure::new(*code, message.clone());
                            let left = Some(process.counted());
                            return self.launch_over(now, purpose, clearing.run, failure, left, out);
                        }
                        // It is not the launch's, or it cannot be killed: then it is a process like any
                        // other.
                        Measure::Killed { until } if now >= until => {
                            out.effects.push(Effect::Watch(process));
                            return self.end(now, purpose, spec, process, None, out);
                        }
                        Measure::Told { until } if now >= until => {
                            clearing.measure = Measure::Killed { until: now + PATIENCE };
                            clearing.next_look = now;
                        }
                        Measure::None => {
                            out.effects.push(Effect::TermRun(clearing.run));
                            clearing.measure = Measure::Told { until: now + spec.policy.stop_check };
                        }
                        Measure::Told { .. } | Measure::Killed { .. } => {}
                    }
                }
            },
            Input::Tick
            | Input::Exited { .. }
            | Input::Sighted { .. }
            | Input::CommandEnded { .. }
            | Input::Order(_)
            | Input::Inspected { .. }
            | Input::Planned { .. }
            | Input::Sampled { .. }
            | Input::Succeeded { .. }
            | Input::Appeared { .. }
            | Input::Overused { .. }
            | Input::Health { .. }
            | Input::Placed { .. } => {}
        }
        if clearing.looking.is_none() && now >= clearing.next_look {
            if let Measure::Killed { .. } = clearing.measure {
                out.effects.push(Effect::EndRun(clearing.run));
            }
            let scope = LookScope::Launch { run: clearing.run, leader: Leader::Accept };
            clearing.looking = Some(self.look(scope, &spec, out));
        }
        busy(purpose, spec, Stage::Clearing(clearing))
    }
}
