//! A start or restart command that is still at work when its launch has succeeded: its later failure is an
//! event, because the op has been answered.
//!
//! Many commands end because their process has ended: a shell that waits for its program exits with the
//! status of the program. The exit of the process is reported then, so the failure of a command is reported
//! only if the process outlives the command.

use super::{Machine, State};
use crate::boot_time::BootTime;
use crate::op::OpKind;
use crate::process::{Exit, Found, Process};
use crate::spec::Kind;
use crate::supervise::job::{Launch, Purpose, Stage};
use crate::supervise::{CommandEnd, Effect, EffectAnswer, Event, Input, ProcNotice, RunId, Step, Write};
use std::time::Duration;

/// The exits of a process and of its command arrive in any order, so a failure waits this long for the exit
/// of the process.
const GRACE: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct CommandAtWork {
    run: RunId,
    field: &'static str,
    /// The order that it was run for. `None`: the agent restarted the process.
    op: Option<OpKind>,
    failure: Option<CommandFailure>,
}

#[derive(Clone, Debug, PartialEq)]
struct CommandFailure {
    at: BootTime,
    exit: Exit,
    output: String,
}

impl CommandAtWork {
    /// The command of a launch that has succeeded with this process. `None`: the command has ended, or is the
    /// process.
    pub(super) fn of(purpose: &Purpose, launch: &Launch, process: Process) -> Option<CommandAtWork> {
        let is_command = process.found == Found::Foreground && !launch.is_child;
        (launch.ended.is_none() && !is_command).then(|| CommandAtWork {
            run: launch.command.run,
            field: launch.command.field,
            op: purpose.op().map(|(_, kind)| kind),
            failure: None,
        })
    }

    /// When its failure is to be reported.
    pub(super) fn wakes_at(&self) -> Option<BootTime> {
        self.failure.as_ref().map(|failure| failure.at + GRACE)
    }
}

impl Machine {
    pub(super) fn leave_at_work(&mut self, purpose: &Purpose, launch: &Launch, process: Process) {
        let resident = self.spec.as_ref().is_some_and(|spec| spec.policy.kind == Kind::Resident);
        let command = CommandAtWork::of(purpose, launch, process).filter(|_| resident);
        self.rare.command_at_work = command;
    }

    /// Takes notice of the end of the command, and of the process.
    pub(super) fn observe_command(&mut self, now: BootTime, input: &Input) {
        let present = self.process();
        let Some(command) = &mut self.rare.command_at_work else { return };
        let is_over = match input {
            Input::Answer(EffectAnswer::CommandEnded { run, end }) if *run == command.run => match end {
                CommandEnd::Exited { exit: Exit::Code(0) | Exit::Unknown, .. }
                | CommandEnd::NotStarted { .. } => true,
                CommandEnd::Exited { exit, output } => {
                    command.failure = Some(CommandFailure { at: now, exit: *exit, output: output.clone() });
                    false
                }
            },
            Input::Notice(ProcNotice::Exited { process, .. }) => {
                present.is_some_and(|present| present.is(process))
            }
            Input::Order(_) | Input::Answer(_) | Input::Notice(_) | Input::Tick => false,
        };
        if is_over {
            self.rare.command_at_work = None;
        }
    }

    /// Reports the failure when it is due. A command that the agent ends itself has not failed.
    pub(super) fn report_command_failure(&mut self, now: BootTime, out: &mut Step) {
        let Some(command) = &self.rare.command_at_work else { return };
        let is_ended = out.effects.iter().any(|effect| self.may_end_command(effect));
        let is_due = is_ended || command.wakes_at().is_some_and(|at| now >= at);
        if !is_due {
            return;
        }
        if let Some(CommandAtWork { field, op, failure: Some(failure), .. }) =
            self.rare.command_at_work.take()
        {
            let CommandFailure { exit, output, .. } = failure;
            let event = Event::CommandFailed { command: field.to_owned(), op, exit, output };
            out.writes.push(Write::Event(event));
        }
    }

    fn may_end_command(&self, effect: &Effect) -> bool {
        let own = self.rare.command_at_work.as_ref().map(|command| command.run);
        match effect {
            // Only a reload leaves the processes of the proc alone.
            Effect::Run { .. } => {
                !matches!(&self.state, State::Busy(job) if matches!(job.stage, Stage::Reloading { .. }))
            }
            Effect::EndRun(run) | Effect::TermRun(run) => own == Some(*run),
            Effect::Signal { .. } | Effect::Sweep(_) | Effect::ClearSince(_) => true,
            Effect::Look { .. }
            | Effect::Watch(_)
            | Effect::SignalOne { .. }
            | Effect::Retire(_)
            | Effect::SignalRetired { .. }
            | Effect::Inspect { .. }
            | Effect::Vet { .. }
            | Effect::Plan { .. }
            | Effect::Stagger { .. } => false,
        }
    }
}
