//! After the exit of the process: a stop is not done until all descendants are gone.
//!
//! Descendants get SIGTERM, and SIGKILL if they do not exit. A stop command that still runs may be about to
//! end them itself, so it is waited for first.

use super::{Machine, State, busy};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::op::OpKind;
use crate::process::{Process, Sighting};
use crate::spec::{Detached, Spec};
use crate::supervise::job::{
    EndPhase, Ending, LOOK_EVERY, Leaving, Measure, Overdue, Purpose, Running, Stage,
};
use crate::supervise::policy::DownCause;
use crate::supervise::record::Rest;
use crate::supervise::{CommandEnd, Effect, EffectAnswer, Input, LookScope, Signal, Step, messages};
use std::sync::Arc;
use std::time::Duration;

/// Minimum time between SIGTERM and SIGKILL.
const TERM_GRACE: Duration = Duration::from_millis(500);
/// How long killed processes may take to disappear.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between the first and the second look; it doubles with each look. Most processes exit at once.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// Whether no descendant may outlive the process. A run of a periodic process may leave processes on purpose.
pub(super) fn ends_whole(spec: &Spec) -> bool {
    spec.policy.kind.schedule().is_none() && spec.policy.detached == Detached::End
}

/// The state when the process is gone.
pub(super) struct Remains {
    /// The stop command, while it is at work, and the process that it was for.
    pub(super) command: Option<(Running, Process)>,
    pub(super) until: BootTime,
    pub(super) note: String,
}

impl Machine {
    /// The process is gone.
    pub(super) fn process_gone(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        ending: Ending,
        out: &mut Step,
    ) -> State {
        let Ending { process, phase, note, .. } = ending;
        self.rare.dead = Some(process);
        let (command, until) = match phase {
            EndPhase::Command(command) => (Some((command, process)), now + spec.policy.stop_check),
            EndPhase::Vanish { until } | EndPhase::Killed { until } => (None, until),
        };
        self.end_descendants(now, purpose, spec, Remains { command, until, note }, out)
    }

    /// Descendants may take this long to exit.
    pub(super) fn end_descendants(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        remains: Remains,
        out: &mut Step,
    ) -> State {
        let Remains { command, until, note } = remains;
        if !ends_whole(&spec) {
            return self.descendants_gone(now, purpose, spec, command, out);
        }
        let looking = Some(self.look(LookScope::Leftovers, &spec, out));
        let leaving = Leaving {
            command,
            note,
            until,
            measure: Measure::None,
            seen: None,
            looking,
            next_look: now,
            pause: FIRST_PAUSE,
        };
        busy(purpose, spec, Stage::Leaving(leaving))
    }

    pub(super) fn leaving(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut leaving: Leaving,
        input: Input,
        out: &mut Step,
    ) -> State {
        match (input, &mut leaving.command) {
            (Input::Answer(EffectAnswer::Sighted { look, sighting }), _) if leaving.looking == Some(look) => {
                match sighting {
                    Sighting::Absent(_) => {
                        return self.descendants_gone(now, purpose, spec, leaving.command, out);
                    }
                    Sighting::Running(process) => {
                        if let Measure::Killed { until } = leaving.measure {
                            if now >= until {
                                return self.descendant_not_killed(now, purpose, spec, process, leaving, out);
                            }
                            // A process that forks may have escaped the last sweep.
                            out.effects.push(Effect::Sweep(Signal::Kill));
                        }
                        leaving.seen = Some(process);
                        leaving.looking = None;
                        leaving.next_look = now + leaving.pause;
                        leaving.pause = (leaving.pause * 2).min(LOOK_EVERY);
                    }
                }
            }
            (Input::Answer(EffectAnswer::CommandEnded { run, end }), Some((command, _)))
                if command.run == run =>
            {
                let end: Option<&CommandEnd> = (!command.timed_out).then_some(&end);
                leaving.note = messages::command_note(command.field, end);
                leaving.command = None;
                leaving.next_look = now;
            }
            (Input::Tick, Some((command, _))) => match command.overdue(now) {
                Overdue::No => {}
                Overdue::End => out.effects.push(Effect::EndRun(command.run)),
                Overdue::Abandon => {
                    leaving.note = messages::command_note(command.field, None);
                    leaving.command = None;
                }
            },
            // Other inputs only re-check the deadlines below.
            (_, _) => {}
        }
        if leaving.seen.is_some() && leaving.command.is_none() {
            let kill = matches!(purpose, Purpose::Op { kind: OpKind::Kill, .. });
            match leaving.measure {
                Measure::None if !kill => {
                    out.effects.push(Effect::Sweep(Signal::Term));
                    leaving.measure = Measure::SentTerm { until: leaving.until.max(now + TERM_GRACE) };
                }
                Measure::SentTerm { until } if now < until => {}
                Measure::None | Measure::SentTerm { .. } => {
                    out.effects.push(Effect::Sweep(Signal::Kill));
                    leaving.measure = Measure::Killed { until: now + SWEEP_TIMEOUT };
                }
                Measure::Killed { .. } => {}
            }
        }
        if leaving.looking.is_none() && now >= leaving.next_look {
            leaving.looking = Some(self.look(LookScope::Leftovers, &spec, out));
        }
        busy(purpose, spec, Stage::Leaving(leaving))
    }

    /// A kill does not wait for the descendants that a stop or restart left, and a stop continues the stop of
    /// a restart.
    pub(super) fn overtake_leaving(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut leaving: Leaving,
        out: &mut Step,
    ) -> State {
        self.hosting = crate::supervise::Hosting::Unhosted;
        if let Purpose::Op { kind: OpKind::Kill, .. } = purpose {
            leaving.measure = Measure::None;
            if let Some((command, _)) = leaving.command.take() {
                out.effects.push(Effect::EndRun(command.run));
            }
        }
        self.leaving(now, purpose, spec, leaving, Input::Tick, out)
    }

    /// No descendant is left, or the rest may stay.
    fn descendants_gone(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        command: Option<(Running, Process)>,
        out: &mut Step,
    ) -> State {
        if ends_whole(&spec) {
            self.may_have_leftovers = false;
        }
        self.end_older(Signal::Kill, &[], out);
        match purpose {
            Purpose::Op { kind: OpKind::Restart, .. } => {
                self.streak.reset();
                self.tidy(&spec, out);
                self.launch(now, purpose, spec, None, out)
            }
            Purpose::Op { op, .. } => {
                self.tidy(&spec, out);
                self.answer_success(op, out);
                match command {
                    // The op is answered as soon as the process is gone; the next order waits for the
                    // command.
                    Some((command, process)) => {
                        let phase = EndPhase::Command(command);
                        let ending = Ending {
                            process,
                            phase,
                            gone: true,
                            signalled: false,
                            note: String::new(),
                            launch: None,
                        };
                        busy(Purpose::Aftermath, spec, Stage::Ending(ending))
                    }
                    None => State::Down(Rest::Idle),
                }
            }
            Purpose::Aftermath => State::Down(Rest::Idle),
            Purpose::Enforce { down_cause, op } => self.limited(now, down_cause, op, out),
            Purpose::Upkeep { .. } | Purpose::ScheduledRun | Purpose::Recover { .. } => {
                self.rest(now, DownCause::Died, "it was ended", out)
            }
        }
    }

    /// A descendant could not be killed.
    fn descendant_not_killed(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        process: Process,
        leaving: Leaving,
        out: &mut Step,
    ) -> State {
        self.may_have_leftovers = true;
        let kind = super::op_kind(&purpose);
        let message = messages::left_behind(kind, &spec, &self.key.name, process.pid, &leaving.note);
        self.answer_op(&purpose, Code::PostCheck, message.clone(), out);
        match kind {
            OpKind::Restart => self.rest(now, DownCause::NotStarted, &message, out),
            _ => State::Down(Rest::Idle),
        }
    }
}
