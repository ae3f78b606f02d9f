//! The meaning of an observation for the job that asked for it.

use super::schedule::Since;
use super::upkeep::RestartPlan;
use super::{Machine, OvertakenRun, State, busy, unreachable_kind};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::id::OpId;
use crate::op::OpKind;
use crate::process::{Absence, Exit, Found, Process, Sighting};
use crate::spec::{Kind, Spec};
use crate::stagger::StaggerReason;
use crate::supervise::job::{Job, Purpose, Stage};
use crate::supervise::messages::Left;
use crate::supervise::policy::DownCause;
use crate::supervise::record::Rest;
use crate::supervise::{Effect, EffectAnswer, Event, Hosting, Input, Step, Write, messages};
use std::sync::Arc;

impl Machine {
    /// Passes an input to the stage of the job under way.
    pub(super) fn advance(&mut self, now: BootTime, job: Job, input: Input, out: &mut Step) -> State {
        let Job { purpose, spec, stage } = job;
        match (stage, input) {
            (
                Stage::Looking { look, launch },
                Input::Answer(EffectAnswer::Sighted { look: answered, sighting }),
            ) if look == answered => {
                self.remember_odd_absence(&sighting);
                match sighting {
                    Sighting::Running(process) => {
                        out.effects.push(Effect::Watch(process));
                        self.found(now, purpose, spec, process, launch, out)
                    }
                    Sighting::Absent(absence) => self.missing(now, purpose, spec, absence, launch, out),
                }
            }
            (Stage::Launching(launch), input) => self.launching(now, purpose, spec, launch, input, out),
            (Stage::Ending(ending), input) => self.ending(now, purpose, spec, ending, input, out),
            (Stage::Reloading { command, process, gone }, input) => {
                self.reloading(now, purpose, spec, command, process, gone, input, out)
            }
            (Stage::Surviving(survival), input) => self.surviving(now, purpose, spec, survival, input, out),
            (Stage::Leaving(leaving), input) => self.leaving(now, purpose, spec, leaving, input, out),
            (Stage::Clearing(clearing), input) => self.clearing(now, purpose, spec, clearing, input, out),
            (Stage::Awaiting(awaiting), input) => self.awaiting(now, purpose, spec, awaiting, input, out),
            (Stage::Planning { plan }, Input::Answer(EffectAnswer::Planned { plan: answered, next }))
                if plan == answered =>
            {
                self.planned(now, next, out)
            }
            (
                Stage::Planning { plan },
                Input::Answer(EffectAnswer::Staggered { plan: answered, at, cause }),
            ) if plan == answered => self.staggered(now, at, cause, out),
            (Stage::Reviewing(review), input) => self.reviewing(now, purpose, spec, review, input, out),
            (
                stage @ (Stage::Looking { .. } | Stage::Planning { .. }),
                Input::Tick | Input::Order(_) | Input::Answer(_) | Input::Notice(_),
            ) => busy(purpose, spec, stage),
        }
    }

    /// An unusual reason is shown while the process is not running.
    pub(super) fn remember_odd_absence(&mut self, sighting: &Sighting) {
        self.rare.odd_absence = match sighting {
            Sighting::Absent(Absence { cause, .. }) if messages::is_odd_absence(cause) => {
                Some(cause.to_string())
            }
            Sighting::Absent(_) | Sighting::Running(_) => None,
        };
    }

    /// The process is running: the next step, by purpose.
    pub(super) fn found(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        process: Process,
        launch: OvertakenRun,
        out: &mut Step,
    ) -> State {
        let cut_off = matches!(purpose, Purpose::Recover { .. }) && spec.policy.kind == Kind::Resident;
        let process = if cut_off { process } else { process.counted() };
        match purpose {
            Purpose::Op { op, kind, before } => match kind {
                OpKind::Start => {
                    // No command is run and no spec is replaced, but the spec of an unknown proc is stored.
                    let message = messages::already_running(&spec, &self.key.name);
                    self.spec.get_or_insert(spec);
                    self.answer(op, Code::AlreadyRunning, message, out);
                    State::Up(process)
                }
                OpKind::Host => {
                    self.spec = Some(spec);
                    self.hosting = Hosting::Hosted;
                    self.streak.reset();
                    self.answer(op, Code::Success, messages::SUCCESS, out);
                    State::Up(process)
                }
                OpKind::Restart => {
                    self.spec = Some(spec.clone());
                    let purpose = Purpose::Op { op, kind, before };
                    if spec.control.restart_cmd.is_empty() || spec.policy.kind.schedule().is_some() {
                        self.end(now, purpose, spec, process, launch, out)
                    } else {
                        self.end_older(spec.control.stop_signal.0.into(), &[process], out);
                        self.launch(now, purpose, spec, Some(process), out)
                    }
                }
                OpKind::Stop | OpKind::Kill => {
                    // Hosting ends first, durably, so that the process is not restarted whatever happens
                    // next.
                    self.hosting = Hosting::Unhosted;
                    self.end(now, Purpose::Op { op, kind, before }, spec, process, launch, out)
                }
                OpKind::Reload if spec.control.reload_cmd.is_empty() => {
                    self.reload_by_signal(now, Purpose::Op { op, kind, before }, spec, process, out)
                }
                OpKind::Reload => {
                    let command = self.run("reload_cmd", &spec.control.reload_cmd, &spec, now, out);
                    busy(
                        Purpose::Op { op, kind, before },
                        spec,
                        Stage::Reloading { command, process, gone: false },
                    )
                }
                OpKind::Register | OpKind::Update => {
                    self.spec = Some(spec);
                    self.answer(op, Code::Success, messages::SUCCESS, out);
                    State::Up(process)
                }
                OpKind::Query | OpKind::Unhost | OpKind::Unregister | OpKind::Group => unreachable_kind(kind),
            },
            Purpose::Upkeep { .. } => {
                out.writes.push(Write::Event(Event::TookOver { pid: process.pid, from: None }));
                State::Up(process)
            }
            // Processes that a run has left are part of the run.
            Purpose::Aftermath if spec.policy.kind == Kind::Once => {
                State::Up(Process { found: Found::Foreground, ..process })
            }
            Purpose::Enforce { .. } | Purpose::ScheduledRun | Purpose::Aftermath => State::Up(process),
            Purpose::Recover { interrupted } if process.found == Found::Shell => {
                self.report_death(None, &interrupted, out);
                self.interrupted(interrupted, Left::Command(process.pid), out);
                self.wait_for_command(now, spec, process, out)
            }
            Purpose::Recover { interrupted } => {
                // The launch may still bring another process only if the spec has a pid file and this process
                // was found in another way.
                self.rare.interrupted_launch = self
                    .rare
                    .interrupted_launch
                    .filter(|_| process.found != Found::PidFile && !spec.identity.pid_path.is_empty());
                self.report_death(Some(process), &interrupted, out);
                self.interrupted(interrupted, Left::Process(process.pid), out);
                State::Up(process)
            }
        }
    }

    /// The process is not running: the next step, by purpose.
    pub(super) fn missing(
        &mut self,
        now: BootTime,
        purpose: Purpose,
        spec: Arc<Spec>,
        absence: Absence,
        launch: OvertakenRun,
        out: &mut Step,
    ) -> State {
        match purpose {
            Purpose::Op { op, kind, before } => match kind {
                OpKind::Host if spec.policy.kind.schedule().is_some() => {
                    self.spec = Some(spec);
                    self.hosting = Hosting::Hosted;
                    self.streak.reset();
                    self.answer(op, Code::Success, messages::SUCCESS, out);
                    let since = match before.hosting {
                        Hosting::Unhosted => Since::Hosting,
                        Hosting::Hosted => Since::Now,
                    };
                    self.schedule(now, since, out)
                }
                OpKind::Start | OpKind::Host | OpKind::Restart => {
                    // A run that fails is not tried again, so its hosting begins with success, as for a
                    // start.
                    if kind == OpKind::Host && spec.policy.kind != Kind::Once {
                        self.hosting = Hosting::Hosted;
                    }
                    self.streak.reset();
                    self.tidy(&spec, out);
                    self.launch(now, Purpose::Op { op, kind, before }, spec, None, out)
                }
                OpKind::Stop | OpKind::Kill => {
                    self.hosting = Hosting::Unhosted;
                    if kind == OpKind::Kill && spec.control.kill_cmd.is_empty() {
                        // Processes that were never recognised are ended, too.
                        self.sweep(&spec, out);
                    }
                    // Leftovers of a dead process are ended, too.
                    self.tidy(&spec, out);
                    match launch {
                        Some(run) => self.clear(now, Purpose::Op { op, kind, before }, spec, run, out),
                        // The schedule was ended, although no run was under way.
                        None if before.hosting == Hosting::Hosted && self.timetable().is_some() => {
                            self.answer(op, Code::Success, messages::SUCCESS, out);
                            State::Down(Rest::Idle)
                        }
                        None => {
                            let message = messages::not_running(kind, &spec, &self.key.name, &absence.cause);
                            self.answer(op, Code::NotRunning, message, out);
                            State::Down(Rest::Idle)
                        }
                    }
                }
                OpKind::Reload => {
                    let message = messages::not_running(kind, &spec, &self.key.name, &absence.cause);
                    self.answer(op, Code::NotRunning, message, out);
                    State::Down(before.rest)
                }
                OpKind::Register | OpKind::Update => {
                    self.spec = Some(spec);
                    self.answer(op, Code::Success, messages::SUCCESS, out);
                    match before.rest {
                        _ if self.timetable().is_some() => self.schedule(now, Since::Now, out),
                        // The proc is no longer periodic.
                        Rest::Due { .. } | Rest::Begun { .. } => {
                            self.rest(now, DownCause::Died, "it is no longer periodic", out)
                        }
                        rest @ (Rest::Idle | Rest::Retry { .. } | Rest::GaveUp { .. }) => State::Down(rest),
                    }
                }
                OpKind::Query | OpKind::Unhost | OpKind::Unregister | OpKind::Group => unreachable_kind(kind),
            },
            Purpose::Upkeep { last } => {
                let state = self.revive(now, &last, out);
                if spec.identity.pid_path.is_empty() {
                    self.end_orphans(&state, out);
                }
                state
            }
            Purpose::ScheduledRun => self.schedule(now, Since::Run, out),
            Purpose::Enforce { down_cause, op } => self.limited(now, down_cause, op, out),
            Purpose::Aftermath => State::Down(Rest::Idle),
            Purpose::Recover { interrupted } => {
                self.report_death(None, &interrupted, out);
                self.interrupted(interrupted, Left::Nothing, out);
                if self.timetable().is_some() {
                    return self.schedule(now, Since::Away, out);
                }
                // The process of the launch may be on its way: another start would end it as a leftover.
                if self.rare.interrupted_launch.is_some() {
                    return self.wait_after_command(now, spec, out);
                }
                let saved = self.saved.as_ref().map(|record| (record.rest.clone(), record.process));
                let has_workers = |process: &Process| {
                    process.found == Found::Foreground || spec.identity.pid_path.is_empty()
                };
                let left_workers =
                    saved.as_ref().is_some_and(|(_, last)| last.as_ref().is_some_and(has_workers));
                let begun = |at| self.streak.last_start.is_some_and(|start| start >= at);
                let plan_restart = match saved {
                    Some((rest @ Rest::GaveUp { .. }, _)) => RestartPlan::Stay(State::Down(rest)),
                    Some((Rest::Retry { at, why }, _)) if self.hosting == Hosting::Hosted && !begun(at) => {
                        RestartPlan::StartAt { at, why }
                    }
                    // A restart that had begun counts, although its result is unknown: it may have crashed
                    // the agent, and would do so at every start.
                    Some((Rest::Idle | Rest::Retry { .. } | Rest::Due { .. } | Rest::Begun { .. }, None)) => {
                        self.plan_restart(
                            now,
                            DownCause::NotStarted,
                            "it was not running when the agent came back",
                            out,
                        )
                    }
                    Some((_, Some(_))) | None => {
                        self.plan_restart(now, DownCause::Died, "it ended while the agent was away", out)
                    }
                };
                // Many restarts may be due now, so they are staggered.
                let state = match plan_restart {
                    RestartPlan::Start { why } => self.stagger_start(StaggerReason::AgentRestart, why, out),
                    RestartPlan::StartAt { at, why } if now >= at => {
                        self.stagger_start(StaggerReason::AgentRestart, why, out)
                    }
                    RestartPlan::StartAt { at, why } => State::Down(Rest::Retry { at, why }),
                    RestartPlan::Stay(state) => state,
                };
                if left_workers {
                    self.end_orphans(&state, out);
                }
                state
            }
        }
    }

    /// The known process may have exited while the agent was away. This is reported once, because the same
    /// step forgets the process. The end of a run is normal, and an op that was under way may have ended the
    /// process.
    fn report_death(&mut self, found: Option<Process>, interrupted: &[(OpId, OpKind)], out: &mut Step) {
        let last = self.saved.as_ref().and_then(|record| record.process);
        let dead = last.filter(|last| !found.is_some_and(|found| found.is(last)));
        if let Some(dead) = dead.filter(|_| interrupted.is_empty() && self.timetable().is_none()) {
            out.writes.push(Write::Event(Event::Exited { pid: dead.pid, exit: Exit::Unknown }));
        }
    }

    pub(super) fn interrupted(&mut self, ops: Vec<(OpId, OpKind)>, left: Left, out: &mut Step) {
        for (op, kind) in ops {
            self.answer(op, Code::Interrupted, messages::interrupted(kind, left), out);
        }
    }
}
