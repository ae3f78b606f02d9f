//! From the command or signal of a stop, kill or restart until the process is gone.

use super::{Machine, OvertakenRun, State, busy, op_kind};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::op::OpKind;
use crate::process::{Found, Process};
use crate::spec::{Kind, Spec};
use crate::supervise::job::{EndPhase, Ending, Overdue, Purpose, Stage};
use crate::supervise::policy::DownCause;
use crate::supervise::record::Rest;
use crate::supervise::{CommandEnd, Effect, EffectAnswer, Input, ProcNotice, Signal, Step, messages};
use std::sync::Arc;
use std::time::Duration;

/// How long a killed process may take to disappear: the kernel has to free its memory.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// The command that ends the process, with the name of its field. Empty: the process gets a signal.
fn end_command<'a>(purpose: &Purpose, spec: &'a Spec) -> (&'static str, &'a str) {
    match purpose {
        Purpose::Op { kind: OpKind::Kill, .. } => ("kill_cmd", &spec.control.kill_cmd),
        Purpose::Op { .. }
        | Purpose::Upkeep { .. }
        | Purpose::Enforce { .. }
        | Purpose::ScheduledRun
        | Purpose::Recover { .. }
        | Purpose::Aftermath => ("stop_cmd", &spec.control.stop_cmd),
    }
}

pub(super) fn has_end_command(purpose: &Purpose, spec: &Spec) -> bool {
    !end_command(purpose, spec).1.is_empty()
}

/// Whether the command may not know the process. It is run for each of several instances, and ordinary
/// scripts know one pid file: whichever instance has written the file last is ended.
fn may_miss(purpose: &Purpose, spec: &Spec) -> bool {
    matches!(purpose, Purpose::Op { .. }) && spec.instances.0 > 1 && !end_command(purpose, spec).1.is_empty()
}

/// How long a process may take to exit before the next measure. A process that the command may have missed
/// gets a signal after half of the time.
fn next_measure_within(purpose: &Purpose, spec: &Spec) -> Duration {
    let whole = vanishes_within(purpose, spec);
    if may_miss(purpose, spec) { whole / 2 } else { whole }
}

/// How long a process may take to exit after the stop.
pub(super) fn vanishes_within(purpose: &Purpose, spec: &Spec) -> Duration {
    let kill_after = spec.policy.kill_after.filter(|_| escalates(purpose, spec));
    kill_after.unwrap_or(spec.policy.stop_check)
}

/// Whether a process that does not exit is killed. GSE's callers get 836 instead, unless their spec asks for
/// the kill.
fn escalates(purpose: &Purpose, spec: &Spec) -> bool {
    match purpose {
        Purpose::Enforce { .. } => true,
        Purpose::Op { .. } if may_miss(purpose, spec) => true,
        Purpose::Op { kind: OpKind::Kill, .. } => false,
        Purpose::Op { .. }
        | Purpose::Upkeep { .. }
        | Purpose::ScheduledRun
        | Purpose::Recover { .. }
        | Purpose::Aftermath => spec.policy.kill_after.is_some(),
    }
}

impl Machine {
    /// Ends the process, with the command of the spec or a signal.
    pub(super) fn end(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        process: Process,
        launch: OvertakenRun,
        out: &mut Step,
    ) -> State {
        let kill = matches!(purpose, Purpose::Op { kind: OpKind::Kill, .. });
        let (field, command) = end_command(&purpose, &spec);
        let signal = if kill { Signal::Kill } else { spec.control.stop_signal.0.into() };
        self.end_older(signal, &[process], out);
        let phase = if command.is_empty() {
            out.effects.push(Effect::Signal { process, signal, detached: spec.policy.detached });
            EndPhase::Vanish { until: now + vanishes_within(&purpose, &spec) }
        } else {
            EndPhase::Command(self.run(field, command, &spec, now, out))
        };
        busy(
            purpose,
            spec,
            Stage::Ending(Ending {
                process,
                phase,
                gone: false,
                signalled: false,
                note: String::new(),
                launch,
            }),
        )
    }

    /// An input while the process is being ended. [`Machine::process_gone`] follows when the process is gone.
    pub(super) fn ending(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut ending: Ending,
        input: Input,
        out: &mut Step,
    ) -> State {
        match (&mut ending.phase, input) {
            (_, Input::Notice(ProcNotice::Exited { process, .. })) if ending.process.is(&process) => {
                ending.gone = true
            }
            (EndPhase::Command(command), Input::Answer(EffectAnswer::CommandEnded { run, end }))
                if command.run == run =>
            {
                let field = command.field;
                match end {
                    // The process gets the stop signal instead.
                    CommandEnd::NotStarted { .. }
                        if !ending.gone && matches!(purpose, Purpose::Enforce { .. }) =>
                    {
                        let (process, detached) = (ending.process, spec.policy.detached);
                        let signal = spec.control.stop_signal.0.into();
                        out.effects.push(Effect::Signal { process, signal, detached });
                    }
                    // The process is gone, so the op succeeds although its command could not be started.
                    CommandEnd::NotStarted { code, reason } if !ending.gone => {
                        let message = messages::not_run(field, &reason);
                        return match ending.launch.filter(|_| spec.policy.kind == Kind::Resident) {
                            Some(run) => self.clear_by_force(now, purpose, spec, run, out),
                            None => self.end_failed(purpose, ending, code, message, out),
                        };
                    }
                    CommandEnd::NotStarted { .. } | CommandEnd::Exited { .. } => {}
                }
                ending.note = messages::command_note(field, (!command.timed_out).then_some(&end));
                ending.phase = EndPhase::Vanish { until: now + next_measure_within(&purpose, &spec) };
            }
            (EndPhase::Command(command), Input::Tick) => match command.overdue(now) {
                Overdue::No => {}
                Overdue::End => out.effects.push(Effect::EndRun(command.run)),
                Overdue::Abandon => {
                    ending.note = messages::command_note(command.field, None);
                    ending.phase = EndPhase::Vanish { until: now + next_measure_within(&purpose, &spec) };
                }
            },
            // Other inputs only re-check the deadlines below.
            (EndPhase::Command(_) | EndPhase::Vanish { .. } | EndPhase::Killed { .. }, _) => {}
        }
        match ending.phase {
            EndPhase::Command(_) => {
                // The op is answered as soon as no process is left, even if the command still runs.
                if matches!(purpose, Purpose::Op { kind: OpKind::Stop | OpKind::Kill, .. })
                    && ending.gone
                    && ending.launch.is_none()
                {
                    return self.process_gone(now, purpose, spec, ending, out);
                }
            }
            EndPhase::Vanish { .. } | EndPhase::Killed { .. } if ending.gone => {
                return self.ended(now, purpose, spec, ending, out);
            }
            EndPhase::Vanish { until } if now >= until && !ending.signalled && may_miss(&purpose, &spec) => {
                let (process, detached) = (ending.process, spec.policy.detached);
                let signal = match op_kind(&purpose) {
                    OpKind::Kill => Signal::Kill,
                    _ => spec.control.stop_signal.0.into(),
                };
                out.effects.push(Effect::Signal { process, signal, detached });
                ending.signalled = true;
                ending.phase = EndPhase::Vanish { until: now + next_measure_within(&purpose, &spec) };
            }
            EndPhase::Vanish { until } if now >= until && escalates(&purpose, &spec) => {
                let (process, detached) = (ending.process, spec.policy.detached);
                out.effects.push(Effect::Signal { process, signal: Signal::Kill, detached });
                ending.phase = EndPhase::Killed { until: now + KILL_TIMEOUT };
                if let Purpose::Op { .. } = purpose {
                    self.rare.success_note = Some(match spec.policy.kill_after {
                        Some(limit) => messages::had_to_be_killed(process.pid, limit, &ending.note),
                        None => messages::missed_by_command(process.pid, end_command(&purpose, &spec).0),
                    });
                }
            }
            // The process belongs to a cancelled start, which must not continue.
            EndPhase::Vanish { until } | EndPhase::Killed { until }
                if now >= until
                    && spec.policy.kind == Kind::Resident
                    && let Some(run) = ending.launch =>
            {
                return self.clear_by_force(now, purpose, spec, run, out);
            }
            EndPhase::Vanish { until } | EndPhase::Killed { until } if now >= until => {
                if purpose == Purpose::ScheduledRun {
                    self.run_not_ended(now, &spec, ending.process, out);
                }
                let kind = op_kind(&purpose);
                let message = messages::still_alive(
                    kind,
                    &spec,
                    &self.key.name,
                    ending.process.pid,
                    vanishes_within(&purpose, &spec),
                    &ending.note,
                );
                return self.end_failed(purpose, ending, Code::PostCheck, message, out);
            }
            EndPhase::Vanish { .. } | EndPhase::Killed { .. } => {}
        }
        busy(purpose, spec, Stage::Ending(ending))
    }

    pub(super) fn ended(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        ending: Ending,
        out: &mut Step,
    ) -> State {
        // A command that was taken for the process may have left the real one behind.
        self.may_have_leftovers |= ending.process.found == Found::Foreground;
        self.rare.dead = Some(ending.process);
        match purpose {
            Purpose::Op { kind: OpKind::Stop | OpKind::Kill, .. } | Purpose::Aftermath
                if let Some(run) = ending.launch =>
            {
                self.clear_by_force(now, purpose, spec, run, out)
            }
            Purpose::Op { .. } => self.process_gone(now, purpose, spec, ending, out),
            Purpose::Aftermath => {
                // The command may have left something itself.
                self.may_have_leftovers = true;
                self.tidy(&spec, out);
                State::Down(Rest::Idle)
            }
            Purpose::Enforce { down_cause, op } => {
                // The start command may still run beside the process.
                out.effects.extend(ending.launch.map(Effect::EndRun));
                self.limited(now, down_cause, op, out)
            }
            Purpose::Upkeep { .. } | Purpose::ScheduledRun | Purpose::Recover { .. } => {
                self.rest(now, DownCause::Died, "it was ended", out)
            }
        }
    }

    pub(super) fn end_failed(
        &mut self,
        purpose: Purpose,
        ending: Ending,
        code: Code,
        message: String,
        out: &mut Step,
    ) -> State {
        if let Purpose::Op { before, .. } = &purpose {
            self.hosting = before.hosting;
        }
        self.answer_op(&purpose, code, message, out);
        State::Up(ending.process)
    }
}
