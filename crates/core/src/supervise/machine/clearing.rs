//! After a stop has overtaken a launch: until nothing of the launch is left, the stop is not done.

use super::leaving::Remains;
use super::{Machine, State, busy};
use crate::moment::Moment;
use crate::process::Sighting;
use crate::spec::Spec;
use crate::supervise::job::{Clearing, LOOK_EVERY, Purpose, Stage};
use crate::supervise::{Effect, Input, Leader, RunId, Scope, Step};
use std::sync::Arc;
use std::time::Duration;

/// How long what was killed may take to be gone.
const PATIENCE: Duration = Duration::from_secs(1);

impl Machine {
    pub(super) fn clear(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        run: RunId,
        out: &mut Step,
    ) -> State {
        let clearing = Clearing { run, looking: None, next_look: now, until: now + PATIENCE };
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
                // It is not the launch's, or it cannot be killed: then it is a process like any other.
                Sighting::Running(process) if now >= clearing.until => {
                    out.effects.push(Effect::Watch(process));
                    return self.end(now, purpose, spec, process, None, out);
                }
                Sighting::Running(_) => {
                    clearing.looking = None;
                    clearing.next_look = now + LOOK_EVERY;
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
            out.effects.push(Effect::EndRun(clearing.run));
            let scope = Scope::Launch { run: clearing.run, leader: Leader::Accept };
            clearing.looking = Some(self.look(scope, &spec, out));
        }
        busy(purpose, spec, Stage::Clearing(clearing))
    }
}
