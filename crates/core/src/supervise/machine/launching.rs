//! From the command of a start or restart to the end of its check.

use super::schedule::{OwnRun, Since};
use super::{Machine, State, busy};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::op::OpKind;
use crate::process::{Exit, Found, Process, Sighting};
use crate::spec::{Detached, Kind, Spec};
use crate::supervise::job::{
    Ended, LONGEST_PAUSE, LOOK_EVERY, Launch, LaunchFailure, Overdue, Purpose, SeenProcess, Sight, Stage,
};
use crate::supervise::policy::DownCause;
use crate::supervise::record::{Rest, ScheduledRun};
use crate::supervise::{
    CommandEnd, Effect, EffectAnswer, Event, Hosting, Input, Leader, LookScope, ProcNotice, RunId, Signal,
    Step, Write, messages,
};
use std::sync::Arc;

impl Machine {
    pub(super) fn launch(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        old: Option<Process>,
        out: &mut Step,
    ) -> State {
        let periodic = spec.policy.kind.schedule().is_some();
        let (field, command) = match &purpose {
            // A run of a periodic process is always its start_cmd.
            Purpose::Op { kind: OpKind::Restart, .. }
                if !spec.control.restart_cmd.is_empty() && !periodic =>
            {
                ("restart_cmd", spec.control.restart_cmd.clone())
            }
            Purpose::Op { .. }
            | Purpose::Upkeep { .. }
            | Purpose::Enforce { .. }
            | Purpose::ScheduledRun
            | Purpose::Recover { .. }
            | Purpose::Aftermath => ("start_cmd", spec.control.start_cmd.clone()),
        };
        self.spec = Some(spec.clone());
        self.streak.last_start = Some(now);
        self.has_start_slot = false;
        let mut launch = Launch {
            command: self.run(field, &command, &spec, now, out),
            began: now,
            ended: None,
            old,
            seen: None,
            is_child: false,
            first_seen: None,
            died: None,
            was_command: false,
            missing: None,
            hopeless_looks: 0,
            looking: None,
            looked_at: None,
            last_look: false,
            next_look: now,
            pause: LOOK_EVERY,
        };
        launch.await_foreground(now, &spec);
        if periodic {
            self.rare.run = launch.command.deadline.map(|deadline| Box::new(ScheduledRun::until(deadline)));
        }
        if spec.policy.kind != Kind::Resident {
            // The run must be known from its start, because it cannot be found by name or pid file.
            launch.looking = Some(self.look(LookScope::Run(launch.command.run), &spec, out));
        }
        busy(purpose, spec, Stage::Launching(launch))
    }

    pub(super) fn launching(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut launch: Launch,
        input: Input,
        out: &mut Step,
    ) -> State {
        match input {
            Input::Answer(EffectAnswer::CommandEnded { run, end }) if run == launch.command.run => {
                return self.launched(now, purpose, spec, launch, end, out);
            }
            Input::Answer(EffectAnswer::Sighted { look, sighting }) if launch.looking == Some(look) => {
                launch.looking = None;
                launch.next_look = now + launch.pause;
                launch.pause = (launch.pause * 2).min(LONGEST_PAUSE);
                match sighting {
                    // The process is being ended with its command.
                    Sighting::Running(_) if launch.command.timed_out => {}
                    Sighting::Running(process) => {
                        launch.is_child = process.found == Found::CommandChild;
                        let process = process.child_as_foreground();
                        match spec.policy.kind {
                            // The exit of the command is the exit of the process, and is always reported.
                            Kind::Periodic(_) => {
                                self.rare.own_run = Some(OwnRun { run: launch.command.run, process });
                            }
                            Kind::Resident | Kind::Once => out.effects.push(Effect::Watch(process)),
                        }
                        // The command has run for `op_timeout`, so it is a foreground process that stays.
                        let stays = launch.last_look && process.found == Found::Foreground;
                        let seen = launch.sees(now, process);
                        let counts = !launch.awaits_script(&spec) && now >= launch.succeeds_at(&spec);
                        if stays || seen == Sight::Again && counts {
                            return self.launch_succeeded(purpose, &launch, process, out);
                        }
                    }
                    Sighting::Absent(absence) => {
                        launch.seen = None;
                        launch.hopeless_looks = if absence.hopeless { launch.hopeless_looks + 1 } else { 0 };
                        launch.missing = Some(Box::new(absence));
                    }
                }
            }
            Input::Notice(ProcNotice::Exited { process, exit }) => {
                if launch.seen.is_some_and(|seen| seen.process.is(&process)) {
                    let late = now >= launch.check_until(&spec);
                    launch.seen = None;
                    (launch.next_look, launch.pause) = (now, LOOK_EVERY);
                    let expected = launch.old.is_some_and(|old| old.is(&process));
                    if expected {
                        launch.first_seen = None;
                    }
                    // Processes that a running command starts and ends may be helpers.
                    if let Some(ended) = launch.ended.as_ref().filter(|_| !expected) {
                        let output = ended.output.clone();
                        launch.died = Some(Box::new((process, exit)));
                        // Another process may appear until the end of the window, not after it.
                        if late {
                            return self.not_alive(now, purpose, spec, launch, &output, out);
                        }
                        launch.missing = None;
                    }
                }
                if launch.old.is_some_and(|old| old.is(&process)) {
                    launch.old = None;
                    if launch.ended.is_none() {
                        launch.await_foreground(now, &spec);
                    }
                }
            }
            Input::Tick | Input::Order(_) | Input::Answer(_) | Input::Notice(_) => {}
        }
        self.check_launch(now, purpose, spec, launch, out)
    }

    /// The command of a launch ended, or never began.
    pub(super) fn launched(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut launch: Launch,
        end: CommandEnd,
        out: &mut Step,
    ) -> State {
        let field = launch.command.field;
        if spec.policy.kind.schedule().is_some() {
            (self.rare.own_run, launch.seen) = (None, None);
        }
        launch.forget_command();
        match end {
            CommandEnd::NotStarted { code, reason } => {
                let message = messages::not_run(field, &reason);
                let (run, left) = (launch.command.run, launch.process().or(launch.old));
                self.launch_over(now, purpose, run, LaunchFailure::new(code, message), left, out)
            }
            CommandEnd::Exited { output, .. } if launch.command.timed_out => {
                let missing = launch.missing.as_ref().map(|absence| &absence.cause);
                let message = messages::launch_timeout(field, spec.policy.op_timeout, missing, &output);
                self.launch_failed(now, purpose, launch, Code::CommandTimeout, message, out)
            }
            CommandEnd::Exited { exit: Exit::Code(0), output } => {
                match spec.policy.kind {
                    Kind::Resident => {}
                    Kind::Once => return self.ran_once(purpose, spec, &launch, out),
                    Kind::Periodic(_) => return self.ran_on_schedule(now, purpose, out),
                }
                launch.ended = Some(Box::new(Ended { at: now, output }));
                launch.next_look = now;
                launch.pause = LOOK_EVERY;
                launch.missing = None;
                launch.hopeless_looks = 0;
                self.check_launch(now, purpose, spec, launch, out)
            }
            CommandEnd::Exited { exit, output } => {
                let message = messages::command_failed(field, exit, &output);
                self.launch_failed(now, purpose, launch, Code::CommandFailed, message, out)
            }
        }
    }

    /// Decides whether the launch has succeeded, has failed, or continues.
    pub(super) fn check_launch(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        mut launch: Launch,
        out: &mut Step,
    ) -> State {
        let (check_until, succeeds_at) = (launch.check_until(&spec), launch.succeeds_at(&spec));
        let resident = spec.policy.kind == Kind::Resident;
        let is_overdue = launch.command.timed_out || launch.command.is_overdue(now);
        match (&launch.ended, launch.judged(&spec)) {
            (_, Some(SeenProcess { process, .. })) if purpose == Purpose::ScheduledRun => {
                return self.launch_succeeded(purpose, &launch, process, out);
            }
            // As long as the command of a resident process is at work, the last look decides.
            (ended, Some(SeenProcess { process, .. }))
                if now >= succeeds_at && (ended.is_some() || !resident && !is_overdue) =>
            {
                return self.launch_succeeded(purpose, &launch, process, out);
            }
            // A script that stays at work for as long as a command may is the process.
            (None, Some(SeenProcess { process, .. }))
                if launch.awaits_script(&spec) && launch.command.is_overdue(now) =>
            {
                return self.launch_succeeded(purpose, &launch, process, out);
            }
            (_, Some(_)) if resident => {}
            (Some(ended), _) => {
                // A look is required: at the end of the window, or earlier if no process can appear later.
                let over = launch.looked_at.is_some_and(|at| at >= check_until);
                let settled = launch.missing.is_some() && (over || launch.is_hopeless());
                if settled && launch.looking.is_none() {
                    let output = ended.output.clone();
                    return self.not_alive(now, purpose, spec, launch, &output, out);
                }
            }
            // The answer to a look decides the next step.
            (None, _) if launch.looking.is_some() => {}
            // A foreground program that never writes its pid file is not ended for that. This does not apply
            // to a restart_cmd whose old process still runs.
            (None, _)
                if resident
                    && launch.old.is_none()
                    && launch.command.is_overdue(now)
                    && !launch.last_look =>
            {
                launch.last_look = true;
                let scope = LookScope::Launch { run: launch.command.run, leader: Leader::AcceptNamed };
                launch.looking = Some(self.look(scope, &spec, out));
                return busy(purpose, spec, Stage::Launching(launch));
            }
            (None, _) => {
                let looked = launch.missing.is_some() || launch.old.is_some() || !resident;
                if looked || launch.command.timed_out {
                    match launch.command.overdue(now) {
                        Overdue::No => {}
                        Overdue::End => out.effects.push(Effect::EndRun(launch.command.run)),
                        Overdue::Abandon => {
                            let missing = launch.missing.as_ref().map(|absence| &absence.cause);
                            let (field, limit) = (launch.command.field, spec.policy.op_timeout);
                            let message = messages::launch_timeout(field, limit, missing, "");
                            return self.launch_failed(
                                now,
                                purpose,
                                launch,
                                Code::CommandTimeout,
                                message,
                                out,
                            );
                        }
                    }
                }
            }
        }
        if launch.look_at(&spec).is_some_and(|at| now >= at) {
            let scope = LookScope::Launch { run: launch.command.run, leader: Leader::Refuse };
            (launch.looking, launch.looked_at) = (Some(self.look(scope, &spec, out)), Some(now));
        }
        busy(purpose, spec, Stage::Launching(launch))
    }

    pub(super) fn launch_succeeded(
        &mut self,
        purpose: Purpose,
        launch: &Launch,
        process: Process,
        out: &mut Step,
    ) -> State {
        self.rare.interrupted_launch = None;
        // From now on the command counts as the process: no other has come.
        let process = process.counted();
        if purpose != Purpose::ScheduledRun && self.timetable().is_none() {
            // The running time of the command does not count as running time of the process.
            self.streak.last_start = Some(launch.alive_since());
        }
        let old = launch.old.filter(|old| !old.is(&process));
        let spare: Vec<Process> = old.into_iter().chain([process]).collect();
        self.end_older(Signal::Kill, &spare, out);
        if let Some(old) = old {
            self.outlive(old, out);
        }
        self.leave_at_work(&purpose, launch, process);
        match purpose {
            Purpose::Op { op, kind, .. } => {
                // A restart leaves hosting as it was.
                if matches!(kind, OpKind::Start | OpKind::Host) {
                    self.hosting = Hosting::Hosted;
                }
                out.writes.push(Write::Event(Event::Started { pid: process.pid }));
                self.answer_success(op, out);
            }
            Purpose::Upkeep { .. }
            | Purpose::Enforce { .. }
            | Purpose::Recover { .. }
            | Purpose::Aftermath => {
                out.writes.push(Write::Event(Event::RestartSucceeded { pid: process.pid }));
            }
            Purpose::ScheduledRun => {}
        }
        State::Up(process)
    }

    pub(super) fn ran_once(
        &mut self,
        purpose: Purpose,
        spec: Arc<Spec>,
        launch: &Launch,
        out: &mut Step,
    ) -> State {
        if launch.old.is_none() {
            // The answer of the op already says that the proc is not hosted.
            self.hosting = Hosting::Unhosted;
        }
        if let Purpose::Op { op, .. } = purpose {
            self.answer(op, Code::Success, messages::SUCCESS, out);
        }
        // A restart_cmd may have left the old process running.
        match launch.old {
            Some(old) => State::Up(old),
            None => self.look_behind(
                LookScope::Launch { run: launch.command.run, leader: Leader::Accept },
                spec,
                out,
            ),
        }
    }

    /// The command of a proc of kind `once` has exited, or a process that it left has. Remaining processes
    /// are supervised until they exit, unless the spec keeps them.
    pub(super) fn look_behind(&mut self, scope: LookScope, spec: Arc<Spec>, out: &mut Step) -> State {
        // The run itself is over, and nothing brings it back.
        self.hosting = Hosting::Unhosted;
        match spec.policy.detached {
            Detached::End => {
                self.may_have_leftovers = true;
                self.look_first(scope, Purpose::Aftermath, spec, None, out)
            }
            Detached::Keep => State::Down(Rest::Idle),
        }
    }

    /// A run that was ordered or due has ended well.
    pub(super) fn ran_on_schedule(&mut self, now: BootTime, purpose: Purpose, out: &mut Step) -> State {
        if let Purpose::Op { op, kind, .. } = purpose {
            if kind == OpKind::Start {
                self.hosting = Hosting::Hosted;
            }
            self.answer(op, Code::Success, messages::SUCCESS, out);
        }
        self.schedule(now, Since::Run, out)
    }

    pub(super) fn not_alive(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        launch: Launch,
        output: &str,
        out: &mut Step,
    ) -> State {
        let missing = launch.missing.as_ref().map(|absence| absence.cause.to_string());
        let missing = missing.unwrap_or_else(|| "it did not appear".to_owned());
        let why = match launch.died.as_deref().copied() {
            Some((process, exit)) => messages::died_in_check(process.pid, exit),
            None if launch.is_hopeless() => messages::was_command(launch.command.field, &missing),
            None => missing,
        };
        let kind = match &purpose {
            Purpose::Op { kind, .. } => *kind,
            Purpose::Upkeep { .. }
            | Purpose::Enforce { .. }
            | Purpose::ScheduledRun
            | Purpose::Recover { .. }
            | Purpose::Aftermath => OpKind::Start,
        };
        let message = messages::post_check(kind, &spec, &self.key.name, &why, output);
        self.launch_failed(now, purpose, launch, Code::PostCheck, message, out)
    }

    /// Unrecognised processes of the failed launch are ended, so that no process runs unsupervised. A
    /// recognised process keeps running, and the outcome names its pid.
    pub(super) fn launch_failed(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        launch: Launch,
        code: Code,
        message: String,
        out: &mut Step,
    ) -> State {
        if let Some((process, exit)) = launch.died.as_deref().copied()
            && exit != Exit::Code(0)
        {
            self.rare.dead = Some(process);
        }
        let (run, failure) = (launch.command.run, LaunchFailure::new(code, message));
        let spec = self.spec.clone().filter(|spec| spec.policy.kind == Kind::Resident);
        match (launch.process(), launch.old, spec) {
            (Some(process), _, _) => self.launch_over(now, purpose, run, failure, Some(process), out),
            // A failed restart_cmd may have left the old process alone, which does not belong to its run.
            (None, Some(old), spec) => {
                out.effects.extend(spec.map(|_| Effect::EndRun(run)));
                self.launch_over(now, purpose, run, failure, Some(old), out)
            }
            (None, None, Some(spec)) => self.clear_failed(now, purpose, spec, &launch.command, failure, out),
            (None, None, None) => self.launch_over(now, purpose, run, failure, None, out),
        }
    }

    /// Answers a failed launch. `left` is a process that keeps running and is supervised.
    pub(super) fn launch_over(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        run: RunId,
        failure: LaunchFailure,
        left: Option<Process>,
        out: &mut Step,
    ) -> State {
        let LaunchFailure { code, message, .. } = failure;
        let once = self.spec.clone().filter(|spec| spec.policy.kind == Kind::Once);
        let message = match left {
            Some(process) if self.timetable().is_none() => messages::goes_on(&message, process.pid),
            Some(_) | None => message,
        };
        match purpose {
            Purpose::Op { op, .. } => self.answer(op, code, message.clone(), out),
            Purpose::Upkeep { .. }
            | Purpose::Enforce { .. }
            | Purpose::Recover { .. }
            | Purpose::Aftermath => {
                out.writes.push(Write::Event(Event::RestartFailed { reason: message.clone() }));
            }
            Purpose::ScheduledRun => {
                out.writes.push(Write::Event(Event::RunFailed { reason: message.clone() }))
            }
        }
        match (left, once) {
            (Some(process), _) => State::Up(process),
            (None, Some(spec)) => {
                self.look_behind(LookScope::Launch { run, leader: Leader::Accept }, spec, out)
            }
            (None, None) => self.rest_tidied(now, DownCause::NotStarted, &message, out),
        }
    }
}
