//! After a stop has overtaken a launch, or a launch has failed: the op is not done until the launch has no
//! processes left.
//!
//! The command and its descendants get SIGTERM, and SIGKILL after stop_check. A kill does not wait. A process
//! that remains then does not belong to the launch: a stop ends it like any other, and a failed launch names
//! it in its outcome and supervises it.

use super::leaving::Remains;
use super::{Machine, State, busy};
use crate::boot_time::BootTime;
use crate::op::OpKind;
use crate::process::Sighting;
use crate::spec::{Detached, Spec};
use crate::supervise::job::{Clearing, LOOK_EVERY, LaunchFailure, Measure, Purpose, Running, Stage};
use crate::supervise::{Effect, EffectAnswer, Input, Leader, LookScope, RunId, Step, messages};
use std::sync::Arc;
use std::time::Duration;

/// How long killed processes may take to disappear.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(1);

impl Machine {
    /// Ends a launch whose processes were not signalled yet.
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
                let measure = Measure::SentTerm { until: now + spec.policy.stop_check };
                let clearing = Clearing { run, looking: None, next_look: now, measure, failure: None };
                self.clearing(now, purpose, spec, clearing, Input::Tick, out)
            }
            Purpose::Op { .. }
            | Purpose::Upkeep { .. }
            | Purpose::Enforce { .. }
            | Purpose::ScheduledRun
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
        let measure = Measure::Killed { until: now + SWEEP_TIMEOUT };
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
        // A command that timed out has been killed with all its descendants.
        let measure = match command.timed_out {
            true => Measure::Killed { until: now + SWEEP_TIMEOUT },
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
            Input::Answer(EffectAnswer::Sighted { look, sighting }) if clearing.looking == Some(look) => {
                match sighting {
                    Sighting::Absent(_) if let Some(failure) = &clearing.failure => {
                        // With `detached: keep` nothing is swept before the next launch.
                        if spec.policy.detached == Detached::Keep {
                            out.effects.push(Effect::EndRun(clearing.run));
                        }
                        let LaunchFailure { code, message, ended } = failure;
                        let message =
                            ended.map_or(message.clone(), |ended| messages::was_ended(message, ended.pid));
                        let failure = LaunchFailure::new(*code, message);
                        return self.launch_over(now, purpose, clearing.run, failure, None, out);
                    }
                    Sighting::Absent(_) => {
                        let until = now + spec.policy.stop_check;
                        let remains = Remains { command: None, until, note: String::new() };
                        return self.end_descendants(now, purpose, spec, remains, out);
                    }
                    Sighting::Running(process) => {
                        let process = process.child_as_foreground();
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
                            // The process does not belong to the launch, or cannot be killed. It is treated
                            // like any other process.
                            Measure::Killed { until } if now >= until => {
                                out.effects.push(Effect::Watch(process));
                                return self.end(now, purpose, spec, process, None, out);
                            }
                            Measure::SentTerm { until } if now >= until => {
                                clearing.measure = Measure::Killed { until: now + SWEEP_TIMEOUT };
                                clearing.next_look = now;
                            }
                            Measure::None => {
                                out.effects.push(Effect::TermRun(clearing.run));
                                clearing.measure = Measure::SentTerm { until: now + spec.policy.stop_check };
                            }
                            Measure::SentTerm { .. } | Measure::Killed { .. } => {}
                        }
                    }
                }
            }
            Input::Tick | Input::Order(_) | Input::Answer(_) | Input::Notice(_) => {}
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
