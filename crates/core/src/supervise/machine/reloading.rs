//! A reload, and whether the process is still there afterwards.

use super::turns::Since;
use super::{Machine, State, busy, op_kind};
use crate::code::Code;
use crate::moment::Moment;
use crate::process::{Exit, Process, Sighting};
use crate::spec::Spec;
use crate::supervise::job::{LOOK_EVERY, Overdue, Purpose, Review, Running, Stage};
use crate::supervise::policy::Fall;
use crate::supervise::{CommandEnd, Effect, Input, Scope, Step, words};
use std::sync::Arc;
use std::time::Duration;

/// How long a process must be alive after its `reload_signal`: one that does not expect the signal dies of it at once.
const SURVIVES: Duration = Duration::from_secs(1);

impl Machine {
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one stage, taken apart by the caller's match"
    )]
    pub(super) fn reloading(
        &mut self,
        now: Moment,
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
            Input::Exited { process: dead, .. } if process.is(&dead) => gone = true,
            Input::CommandEnded { run, end } if run == command.run => ended = Some(end),
            Input::Tick => match command.overdue(now) {
                Overdue::No => {}
                Overdue::End => out.effects.push(Effect::EndRun(command.run)),
                Overdue::Abandon => {
                    ended = Some(CommandEnd::Exited { exit: Exit::Unknown, output: String::new() })
                }
            },
            Input::Exited { .. }
            | Input::CommandEnded { .. }
            | Input::Sighted { .. }
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
        let (code, message) = match ended {
            None => return busy(purpose, spec, Stage::Reloading { command, process, gone }),
            Some(CommandEnd::NotStarted { code, reason }) => (code, words::not_run("reload_cmd", &reason)),
            Some(CommandEnd::Exited { output, .. }) if command.timed_out => {
                (Code::CommandTimeout, words::command_timeout("reload_cmd", spec.policy.op_timeout, &output))
            }
            Some(CommandEnd::Exited { exit: Exit::Code(0), output }) => {
                if !gone {
                    // Most programs keep their process; one that hands over says so in its pid file.
                    self.answer_op(&purpose, Code::Success, words::SUCCESS, out);
                    return State::Up(process);
                }
                let check = now + spec.policy.start_check;
                let until = command.deadline.map_or(check, |deadline| deadline.min(check));
                return self.reload_lost(now, purpose, spec, output, until, out);
            }
            Some(CommandEnd::Exited { exit, output }) => {
                (Code::CommandFailed, words::command_failed("reload_cmd", exit, &output))
            }
        };
        self.answer_op(&purpose, code, message.clone(), out);
        if gone { self.upkeep(now, message, out) } else { State::Up(process) }
    }

    /// Only the process itself is told: what it has started may not know what to do with it.
    pub(super) fn reload_by_signal(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        process: Process,
        out: &mut Step,
    ) -> State {
        if let Some(signal) = spec.control.reload_signal {
            out.effects.push(Effect::SignalOne { process, signal: signal.into() });
        }
        busy(purpose, spec, Stage::Signalled { process, until: now + SURVIVES })
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one stage, taken apart by the caller's match"
    )]
    pub(super) fn signalled(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        process: Process,
        until: Moment,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Exited { process: dead, .. } if process.is(&dead) => {
                return self.reload_lost(now, purpose, spec, String::new(), now + SURVIVES, out);
            }
            Input::Tick
            | Input::Exited { .. }
            | Input::CommandEnded { .. }
            | Input::Sighted { .. }
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
        if now >= until {
            self.answer_op(&purpose, Code::Success, words::SUCCESS, out);
            return State::Up(process);
        }
        busy(purpose, spec, Stage::Signalled { process, until })
    }

    /// The process did not survive its reload. It may have handed over to a successor.
    fn reload_lost(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        output: String,
        until: Moment,
        out: &mut Step,
    ) -> State {
        if self.timetable().is_some() {
            // Nobody takes the place of a run.
            let kind = op_kind(&purpose);
            let message = words::post_check(kind, &spec, &self.key.name, words::RUN_OVER, &output);
            self.answer_op(&purpose, Code::PostCheck, message, out);
            return self.schedule(now, Since::Run, out);
        }
        let review = Review { looking: None, next_look: now, until, output };
        self.reviewing(now, purpose, spec, review, Input::Tick, out)
    }

    pub(super) fn reviewing(
        &mut self,
        now: Moment,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut review: Review,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Sighted { look, sighting } if review.looking == Some(look) => match sighting {
                Sighting::Running(process) => {
                    out.effects.push(Effect::Watch(process));
                    self.answer_op(&purpose, Code::Success, words::SUCCESS, out);
                    return State::Up(process);
                }
                Sighting::Absent(absence) if now >= review.until => {
                    let why = absence.cause.to_string();
                    let kind = op_kind(&purpose);
                    let message = words::post_check(kind, &spec, &self.key.name, &why, &review.output);
                    self.answer_op(&purpose, Code::PostCheck, message.clone(), out);
                    return self.rest(now, Fall::Died, &message, out);
                }
                Sighting::Absent(_) => {
                    review.looking = None;
                    review.next_look = now + LOOK_EVERY;
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
        if review.looking.is_none() && now >= review.next_look {
            review.looking = Some(self.look(Scope::Settled, &spec, out));
        }
        busy(purpose, spec, Stage::Reviewing(review))
    }
}
