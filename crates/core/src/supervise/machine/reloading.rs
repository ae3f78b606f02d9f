//! A reload, and whether the process is still there afterwards.

use super::schedule::Since;
use super::{Machine, State, busy, op_kind};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::process::{Exit, Process, Sighting};
use crate::spec::{LEAST_LIFE, Spec};
use crate::supervise::job::{LOOK_EVERY, Overdue, Purpose, Review, Running, Stage, Survival};
use crate::supervise::policy::DownCause;
use crate::supervise::{CommandEnd, Effect, EffectAnswer, Input, LookScope, ProcNotice, Step, messages};
use std::sync::Arc;
use std::time::Duration;

/// How long a process must be alive after its reload. A process that does not handle the signal dies of it at
/// once.
const SURVIVES: Duration = LEAST_LIFE;

impl Machine {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one stage, taken apart by the caller's match"
    )]
    pub(super) fn reloading(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut command: Running,
        process: Process,
        mut gone: bool,
        input: Input,
        out: &mut Step,
    ) -> State {
        let mut ended = None;
        match input {
            Input::Notice(ProcNotice::Exited { process: dead, .. }) if process.is(&dead) => gone = true,
            Input::Answer(EffectAnswer::CommandEnded { run, end }) if run == command.run => ended = Some(end),
            Input::Tick => match command.overdue(now) {
                Overdue::No => {}
                Overdue::End => out.effects.push(Effect::EndRun(command.run)),
                Overdue::Abandon => {
                    ended = Some(CommandEnd::Exited { exit: Exit::Unknown, output: String::new() })
                }
            },
            Input::Order(_) | Input::Answer(_) | Input::Notice(_) => {}
        }
        let (code, message) = match ended {
            None => return busy(purpose, spec, Stage::Reloading { command, process, gone }),
            Some(CommandEnd::NotStarted { code, reason }) => (code, messages::not_run("reload_cmd", &reason)),
            Some(CommandEnd::Exited { output, .. }) if command.timed_out => (
                Code::CommandTimeout,
                messages::command_timeout("reload_cmd", spec.policy.op_timeout, &output),
            ),
            Some(CommandEnd::Exited { exit: Exit::Code(0), output }) => {
                let check = now + spec.policy.start_check;
                let until = command.deadline.map_or(check, |deadline| deadline.min(check));
                if gone {
                    return self.reload_lost(now, purpose, spec, output, until, out);
                }
                // Most programs keep their process; a program that hands over to a successor writes its pid
                // file.
                let survives = now + SURVIVES;
                let survival = Survival {
                    process,
                    until: survives,
                    successor_by: Some(until),
                    is_successor: false,
                    output,
                };
                return busy(purpose, spec, Stage::Surviving(survival));
            }
            Some(CommandEnd::Exited { exit, output }) => {
                (Code::CommandFailed, messages::command_failed("reload_cmd", exit, &output))
            }
        };
        self.answer_op(&purpose, code, message.clone(), out);
        if gone { self.upkeep(now, message, out) } else { State::Up(process) }
    }

    /// Only the main process is signalled: its descendants may not handle the signal.
    pub(super) fn reload_by_signal(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        process: Process,
        out: &mut Step,
    ) -> State {
        if let Some(signal) = spec.control.reload_signal {
            out.effects.push(Effect::SignalOne { process, signal: signal.into() });
        }
        let (until, output) = (now + SURVIVES, String::new());
        let survival = Survival { process, until, successor_by: None, is_successor: false, output };
        busy(purpose, spec, Stage::Surviving(survival))
    }

    pub(super) fn surviving(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        survival: Survival,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Notice(ProcNotice::Exited { process: dead, exit }) if survival.process.is(&dead) => {
                let until = survival.successor_by.unwrap_or(now + SURVIVES);
                // Successors are accepted until then, not after it.
                if survival.is_successor && now >= until {
                    let why = format!("pid {} {exit}", dead.pid);
                    return self.reload_failed(now, &purpose, &spec, &why, &survival.output, out);
                }
                return self.reload_lost(now, purpose, spec, survival.output, until, out);
            }
            Input::Tick | Input::Order(_) | Input::Answer(_) | Input::Notice(_) => {}
        }
        if now >= survival.until {
            self.answer_op(&purpose, Code::Success, messages::SUCCESS, out);
            return State::Up(survival.process);
        }
        busy(purpose, spec, Stage::Surviving(survival))
    }

    /// The process did not survive its reload. It may have handed over to a successor.
    fn reload_lost(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        output: String,
        until: BootTime,
        out: &mut Step,
    ) -> State {
        if self.timetable().is_some() {
            // A run has no successor.
            let kind = op_kind(&purpose);
            let message = messages::post_check(kind, &spec, &self.key.name, messages::RUN_OVER, &output);
            self.answer_op(&purpose, Code::PostCheck, message, out);
            return self.schedule(now, Since::Run, out);
        }
        let review = Review { looking: None, next_look: now, until, output };
        self.reviewing(now, purpose, spec, review, Input::Tick, out)
    }

    fn reload_failed(
        &mut self,
        now: BootTime,
        purpose: &Purpose,
        spec: &Spec,
        why: &str,
        output: &str,
        out: &mut Step,
    ) -> State {
        let message = messages::post_check(op_kind(purpose), spec, &self.key.name, why, output);
        self.answer_op(purpose, Code::PostCheck, message.clone(), out);
        self.rest_tidied(now, DownCause::Died, &message, out)
    }

    pub(super) fn reviewing(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut review: Review,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Answer(EffectAnswer::Sighted { look, sighting }) if review.looking == Some(look) => {
                match sighting {
                    Sighting::Running(process) => {
                        out.effects.push(Effect::Watch(process));
                        let (until, successor_by, output) =
                            (now + SURVIVES, Some(review.until), review.output);
                        let survival = Survival { process, until, successor_by, is_successor: true, output };
                        return busy(purpose, spec, Stage::Surviving(survival));
                    }
                    Sighting::Absent(absence) if now >= review.until => {
                        let why = absence.cause.to_string();
                        return self.reload_failed(now, &purpose, &spec, &why, &review.output, out);
                    }
                    Sighting::Absent(_) => {
                        review.looking = None;
                        review.next_look = now + LOOK_EVERY;
                    }
                }
            }
            Input::Tick | Input::Order(_) | Input::Answer(_) | Input::Notice(_) => {}
        }
        if review.looking.is_none() && now >= review.next_look {
            review.looking = Some(self.look(LookScope::Settled, &spec, out));
        }
        busy(purpose, spec, Stage::Reviewing(review))
    }
}
