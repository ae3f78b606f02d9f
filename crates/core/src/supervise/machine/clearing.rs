//! After a stop has overtaken a launch: until nothing of the launch is left, the stop is not done.
//!
//! A stop tells the command and all that it has started to end, and kills what is left of it after stop_check. A kill does not
//! wait. A process that is still there then is not the launch's, and is ended as any other.

use super::leaving::Remains;
use super::{Machine, State, busy};
use crate::moment::Moment;
use crate::op::OpKind;
use crate::process::Sighting;
use crate::spec::Spec;
use crate::supervise::job::{Clearing, LOOK_EVERY, Measure, Purpose, Stage};
use crate::supervise::{Effect, Input, Leader, RunId, Scope, Step};
use std::sync::Arc;
use std::time::Duration;

/// How long what was killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

impl Machine {
    /// Ends a launch of which nothing was told to end yet.
    pub(super) fn clear(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        run: RunId,
        out: &mut Step,
    ) -> State {
        match purpose {
            Purpose::Op { kind: OpKind::Stop, .. } => {
                out.effects.push(Effect::TermRun(run));
                let measure = Measure::Told { until: now + spec.policy.stop_check };
                let clearing = Clearing { run, looking: None, next_look: now, measure };
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
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        run: RunId,
        out: &mut Step,
    ) -> State {
        let measure = Measure::Killed { until: now + PATIENCE };
        let clearing = Clearing { run, looking: None, next_look: now, measure };
        self.clearing(now, purpose, spec, clearing, Input::Tick, out)
    }

    pub(super) fn clearing(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut clearing: Clearing,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Sighted { look, sighting } if clearing.looking == Some(look) => match sighting {
                Sighting::Absent(_) => {
                    let until = now + spec.policy.stop_check;
                    let remains = Remains { command: None, until, note: String::new() };
                    return self.leave_nothing(now, purpose, spec, remains, out);
                }
                Sighting::Running(process) => {
                    clearing.looking = None;
                    clearing.next_look = now + LOOK_EVERY;
                    match clearing.measure {
                        // It is not the launch's, or it cannot be killed: then it is a process like any other.
                        Measure::Killed { until } if now >= until => {
                            out.effects.push(Effect::Watch(process));
                            return self.end(now, purpose, spec, process, None, out);
                        }
                        Measure::Told { until } if now >= until => {
                            clearing.measure = Measure::Killed { until: now + PATIENCE };
                            clearing.next_look = now;
                        }
                        Measure::None | Measure::Told { .. } | Measure::Killed { .. } => {}
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
            | Input::Overused { .. }
            | Input::Health { .. }
            | Input::Placed { .. } => {}
        }
        if clearing.looking.is_none() && now >= clearing.next_look {
            if let Measure::Killed { .. } = clearing.measure {
                out.effects.push(Effect::EndRun(clearing.run));
            }
            let scope = Scope::Launch { run: clearing.run, leader: Leader::Accept };
            clearing.looking = Some(self.look(scope, &spec, out));
        }
        busy(purpose, spec, Stage::Clearing(clearing))
    }
}
