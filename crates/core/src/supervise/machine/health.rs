//! What becomes of a process that is ill: it is told, and where the spec wants it the process is ended and
//! comes back under the restart policy. Never during a job: what is under way may be the cure.

use super::{Machine, State};
use crate::boot_time::BootTime;
use crate::process::Process;
use crate::spec::{Kind, OnUnhealthy};
use crate::supervise::job::Purpose;
use crate::supervise::policy::Fall;
use crate::supervise::{Event, Health, Hosting, Step, Write, words};

/// The process whose health was last heard of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckedProcess {
    process: Process,
    past: HealthHistory,
    /// Why it is ill, until something was done about it.
    ill: Option<String>,
}

/// One that was never well is no more started than one that does not live.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HealthHistory {
    NeverWell,
    OnceWell,
}

impl Machine {
    pub(super) fn heard(&mut self, state: State, process: Process, health: Health) -> State {
        let known = self.patient.take().filter(|patient| patient.process.is(&process));
        let past = known.map_or(HealthHistory::NeverWell, |patient| patient.past);
        self.patient = Some(match health {
            Health::Well => CheckedProcess { process, past: HealthHistory::OnceWell, ill: None },
            Health::Ill { reason } => CheckedProcess { process, past, ill: Some(reason) },
        });
        state
    }

    /// Does what is to be done about an illness, once nothing is under way any more.
    pub(super) fn treat(&mut self, now: BootTime, out: &mut Step) {
        let State::Up(process) = self.state else { return };
        let Some(spec) = self.spec.clone() else { return };
        let Some(patient) = self.patient.as_mut().filter(|patient| patient.process.is(&process)) else {
            return;
        };
        let Some(reason) = patient.ill.take() else { return };
        let fall = match patient.past {
            HealthHistory::OnceWell => Fall::Died,
            HealthHistory::NeverWell => Fall::NotStarted,
        };
        let then = match (self.hosting, &spec.policy.kind) {
            (Hosting::Hosted, Kind::Resident | Kind::Periodic(_)) => spec.policy.on_unhealthy,
            // Nobody would start it again.
            (Hosting::Hosted, Kind::Once) | (Hosting::Unhosted, _) => OnUnhealthy::Tell,
        };
        out.writes.push(Write::Event(Event::Unhealthy { reason: reason.clone(), then }));
        match then {
            OnUnhealthy::Tell => {}
            OnUnhealthy::Restart => {
                self.fault = words::was_ill(&reason);
                self.state = self.end(now, Purpose::Limit { fall, op: None }, spec, process, None, out);
            }
        }
    }
}
