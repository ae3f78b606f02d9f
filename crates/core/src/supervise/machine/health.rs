//! The reaction to an unhealthy process: an event, and, if the spec asks for it, a restart under the restart
//! policy. Never during a job, because the job may solve the problem.

use super::{Machine, State};
use crate::boot_time::BootTime;
use crate::process::Process;
use crate::spec::{Kind, OnUnhealthy};
use crate::supervise::job::Purpose;
use crate::supervise::policy::DownCause;
use crate::supervise::{Event, Health, Hosting, Step, Write, messages};

/// The last process whose health was reported, with its health.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckedProcess {
    process: Process,
    past: HealthHistory,
    /// The reason, until the machine has reacted to it.
    unhealthy: Option<String>,
}

/// A process that was never healthy counts as a failed start.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HealthHistory {
    NeverHealthy,
    OnceHealthy,
}

impl Machine {
    pub(super) fn health_changed(&mut self, state: State, process: Process, health: Health) -> State {
        let known = self.rare.checked.take().filter(|checked| checked.process.is(&process));
        let past = known.map_or(HealthHistory::NeverHealthy, |checked| checked.past);
        self.rare.checked = Some(match health {
            Health::Healthy => CheckedProcess { process, past: HealthHistory::OnceHealthy, unhealthy: None },
            Health::Unhealthy { reason } => CheckedProcess { process, past, unhealthy: Some(reason) },
        });
        state
    }

    /// Carries out a pending reaction when no job is under way.
    pub(super) fn react_to_unhealthy(&mut self, now: BootTime, out: &mut Step) {
        let State::Up(process) = self.state else { return };
        let Some(spec) = self.spec.clone() else { return };
        let Some(checked) = self.rare.checked.as_mut().filter(|checked| checked.process.is(&process)) else {
            return;
        };
        let Some(reason) = checked.unhealthy.take() else { return };
        let down_cause = match checked.past {
            HealthHistory::OnceHealthy => DownCause::Died,
            HealthHistory::NeverHealthy => DownCause::NotStarted,
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
                self.rare.fault = Some(messages::was_unhealthy(&reason));
                self.state =
                    self.end(now, Purpose::Enforce { down_cause, op: None }, spec, process, None, out);
            }
        }
    }
}
