//! A start command of the previous agent process still runs, or has ended without a process that is known.
//!
//! Its op was answered as interrupted. The command is not taken for the process, and nothing is started
//! beside it: the process that it brings is looked for until the command has ended and the time for a check
//! has passed. One look is not enough: it is no snapshot, so it misses a process that begins, and a command
//! that ends, while it is under way. A daemon may also write its pid file after its command has ended.

use super::leaving::Remains;
use super::{Machine, State, busy};
use crate::boot_time::BootTime;
use crate::process::{Found, Process, Sighting};
use crate::spec::{Detached, Spec};
use crate::supervise::job::{Awaiting, LONGEST_PAUSE, LOOK_EVERY, Purpose, Stage};
use crate::supervise::policy::DownCause;
use crate::supervise::{
    Effect, EffectAnswer, Event, Hosting, Input, LookScope, ProcNotice, Signal, Step, Write, messages,
};
use std::sync::Arc;

impl Machine {
    pub(super) fn wait_for_command(
        &mut self,
        now: BootTime,
        spec: Arc<Spec>,
        command: Process,
        out: &mut Step,
    ) -> State {
        // The command is not the process, so a sweep ends it.
        out.effects.push(Effect::Retire(command));
        // Without a pid file a command that runs this long is the process, as in a launch.
        let counts_after = match spec.identity.proc_name.is_empty() {
            true => spec.policy.launch_check(),
            false => spec.policy.op_timeout,
        };
        let counts_at = spec.identity.pid_path.is_empty().then(|| now + counts_after);
        let deadline = now + spec.policy.op_timeout;
        self.wait_for_process(now, spec, Some(command), counts_at, deadline, out)
    }

    /// The command has ended already, and its process was not found.
    pub(super) fn wait_after_command(&mut self, now: BootTime, spec: Arc<Spec>, out: &mut Step) -> State {
        self.wait_for_process(now, spec, None, None, now, out)
    }

    fn wait_for_process(
        &mut self,
        now: BootTime,
        spec: Arc<Spec>,
        command: Option<Process>,
        counts_at: Option<BootTime>,
        deadline: BootTime,
        out: &mut Step,
    ) -> State {
        let awaiting = Awaiting {
            command,
            counts_at,
            deadline,
            gone: command.is_none().then_some(now),
            looking: None,
            next_look: now + LOOK_EVERY,
            pause: LOOK_EVERY,
        };
        let purpose = Purpose::Upkeep { last: messages::CUT_OFF.to_owned() };
        self.awaiting(now, purpose, spec, awaiting, Input::Tick, out)
    }

    pub(super) fn awaiting(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut awaiting: Awaiting,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Answer(EffectAnswer::Sighted { look, sighting }) if awaiting.looking == Some(look) => {
                awaiting.looking = None;
                awaiting.next_look = now + awaiting.pause;
                awaiting.pause = (awaiting.pause * 2).min(LONGEST_PAUSE);
                match (sighting, awaiting.gone) {
                    (Sighting::Running(process), _) if process.found != Found::Shell => {
                        return self.came(now, process, out);
                    }
                    // The first look missed the command.
                    (Sighting::Running(command), _) if awaiting.command.is_none() => {
                        return self.wait_for_command(now, spec, command, out);
                    }
                    // A process that the command left may still write its pid file.
                    (Sighting::Absent(absence), Some(gone)) => {
                        if now >= gone + spec.policy.launch_check() {
                            let why = absence.cause.to_string();
                            // Processes of the launch that were not recognised must not stay unknown.
                            out.effects.extend(self.rare.interrupted_launch.take().map(Effect::ClearSince));
                            return self.rest(now, DownCause::NotStarted, &why, out);
                        }
                    }
                    // The command still runs: its exit would have been reported.
                    (Sighting::Running(_) | Sighting::Absent(_), _) => {
                        if let Some(command) = awaiting.command {
                            if awaiting.counts_at.is_some_and(|at| now >= at) {
                                return self.came(now, Process { found: Found::Foreground, ..command }, out);
                            }
                            if now >= awaiting.deadline {
                                return self.command_overdue(now, &spec, command, out);
                            }
                        }
                    }
                }
            }
            Input::Notice(ProcNotice::Exited { process, .. })
                if awaiting.command.is_some_and(|command| command.is(&process)) =>
            {
                awaiting.gone = awaiting.gone.or(Some(now));
                (awaiting.next_look, awaiting.pause) = (now, LOOK_EVERY);
            }
            Input::Tick | Input::Order(_) | Input::Answer(_) | Input::Notice(_) => {}
        }
        if awaiting.looking.is_none() && now >= awaiting.next_look {
            awaiting.looking = Some(self.look(LookScope::Recovery { last: self.rare.dead }, &spec, out));
        }
        busy(purpose, spec, Stage::Awaiting(awaiting))
    }

    /// A stop or kill does not wait: the command is ended with all its descendants.
    pub(super) fn overtake_awaiting(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        awaiting: &Awaiting,
        out: &mut Step,
    ) -> State {
        self.hosting = Hosting::Unhosted;
        if spec.policy.detached == Detached::Keep {
            match awaiting.command {
                Some(command) => self.end_cut_off(&spec, command, out),
                None => out.effects.extend(self.rare.interrupted_launch.take().map(Effect::ClearSince)),
            }
        }
        let until = now + spec.policy.stop_check;
        let remains = Remains { command: None, until, note: String::new() };
        self.end_descendants(now, purpose, spec, remains, out)
    }

    /// The process is there.
    fn came(&mut self, now: BootTime, process: Process, out: &mut Step) -> State {
        self.rare.interrupted_launch = None;
        self.streak.last_start = Some(now);
        out.effects.push(Effect::Watch(process));
        out.writes.push(Write::Event(Event::TookOver { pid: process.pid, from: None }));
        State::Up(process)
    }

    fn command_overdue(&mut self, now: BootTime, spec: &Spec, command: Process, out: &mut Step) -> State {
        self.end_cut_off(spec, command, out);
        let message = messages::command_timeout("start_cmd", spec.policy.op_timeout, "");
        if self.hosting == Hosting::Hosted {
            out.writes.push(Write::Event(Event::RestartFailed { reason: message.clone() }));
        }
        self.rest(now, DownCause::NotStarted, &message, out)
    }

    fn end_cut_off(&mut self, spec: &Spec, command: Process, out: &mut Step) {
        let detached = spec.policy.detached;
        out.effects.push(Effect::Signal { process: command, signal: Signal::Kill, detached });
        out.effects.extend(self.rare.interrupted_launch.take().map(Effect::ClearSince));
    }
}
