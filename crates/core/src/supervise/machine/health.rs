//! The reaction to an unhealthy process: an event, and, if the spec asks for it, a restart under the restart
//! policy. Never during a job, because the job may solve the problem.

use super::{Machine, State};
use crate::boot_time::BootTime;
use crate::process::Process;
use crate::spec::{Kind, OnUnhealthy};
use crate::supervise::job::Purpose;
use crate::supervise::policy::Fall;
use crate::supervise::{Event, Health, Hosting, Step, Write, messages};

/// The process whose health was last heard of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckedProcess {
    process: Process,
    past: HealthHistory,
    /// Why it is ill, until something was done about it.
    ill: Option<String>,
}

/// A process that was never healthy counts as a failed start.
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

    /// Carries out a pending reaction when no job is under way.
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
            // The process would not be restarted.
            (Hosting::Hosted, Kind::Once) | (Hosting::Unhosted, _) => OnUnhealthy::Tell,
        };
        out.writes.push(Write::Event(Event::Unhealthy { reason: reason.clone(), then }));
        match then {
            OnUnhealthy::Tell => {}
            OnUnhealthy::Restart => {
                self.fault = Some(messages::was_ill(&reason));
                self.state = self.end(now, Purpose::Limit { fall, op: None }, spec, process, None, out);
            }
        }
    }
}
