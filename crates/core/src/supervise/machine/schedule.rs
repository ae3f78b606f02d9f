//! The schedule of a periodic process: when it runs, and the result of each run.
//!
//! A run is one execution of `start_cmd`, within `op_timeout`. During the run its command is the process. A
//! failed run is an event and does not affect the next one. A run that is due during another run is missed;
//! this is reported at that time, at most once a minute.

use super::ending::KILL_TIMEOUT;
use super::{Machine, State, busy};
use crate::boot_time::BootTime;
use crate::process::{Exit, Process};
use crate::spec::{Schedule, Spec};
use crate::supervise::job::{EndPhase, Ending, Job, Purpose, Stage};
use crate::supervise::record::Rest;
use crate::supervise::{
    CommandEnd, Effect, EffectAnswer, Event, Hosting, Input, Next, PlanId, ProcNotice, RunId, Signal, Step,
    Write, interval, messages,
};
use std::time::Duration;

/// How old a plan may become: by then the wall clock may have been set, or the time zone changed.
const PLAN_EVERY: Duration = Duration::from_secs(60);
/// A rule's time that was passed by more than this is missed. The host slept, or the agent was held up.
const LATEST: Duration = Duration::from_secs(60);
/// The times of a rule are whole seconds apart.
const GRAIN: Duration = Duration::from_secs(1);

/// A run that is under way. Its command's end is the end of its process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OwnRun {
    pub(super) run: RunId,
    pub(super) process: Process,
}

/// The pause between two events about runs that were missed while one run was under way.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// When the next run is due by a crontab rule while the one before is under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Overlap {
    Unknown,
    /// The wall clock was asked.
    Asked(PlanId),
    At(BootTime),
}

/// From when on the next run is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Since {
    /// The proc was just hosted: with an interval it runs at once.
    Hosting,
    /// Only the spec or the clock has changed: no run was missed, and none is due earlier.
    Now,
    /// A run has ended. Runs that were due meanwhile are missed.
    Run,
    /// The agent was away. Runs that were due meanwhile are missed; with an interval, one run takes place at
    /// once.
    Away,
}

impl Machine {
    /// When the wall clock is to be asked again although nothing is due.
    pub(super) fn plans_again_at(&self) -> Option<BootTime> {
        match self.timetable()? {
            Schedule::Every(_) => None,
            Schedule::Cron(_) => Some(self.rare.planned + PLAN_EVERY),
        }
    }

    /// The schedule of a periodic proc.
    pub(super) fn timetable(&self) -> Option<&Schedule> {
        self.spec.as_ref().and_then(|spec| spec.policy.kind.schedule())
    }

    /// The next state of a periodic proc when no run is under way.
    pub(super) fn schedule(&mut self, now: BootTime, since: Since, out: &mut Step) -> State {
        let schedule = self.timetable().cloned().filter(|_| self.hosting == Hosting::Hosted);
        let Some(schedule) = schedule else { return State::Down(Rest::Idle) };
        if self.spec.as_ref().is_some_and(|spec| spec.control.start_cmd.is_empty()) {
            return self.give_up(messages::no_plan("the spec has no start_cmd"), out);
        }
        let last = self.streak.last_start;
        let due = match self.saved.as_ref().map(|record| &record.rest) {
            Some(Rest::Due { at }) => Some(*at),
            _ => None,
        };
        match (schedule, since) {
            (Schedule::Every(_), Since::Hosting) => State::Down(Rest::Due { at: now }),
            (Schedule::Every(every), Since::Now) => {
                let at = last.map_or(now, |last| now.max(last + every));
                State::Down(Rest::Due { at })
            }
            (Schedule::Every(every), Since::Run) => {
                let (at, missed) = last.map_or((now, 0), |last| interval::after(now, last, every));
                self.missed_in_all(missed, out);
                State::Down(Rest::Due { at })
            }
            (Schedule::Every(every), Since::Away) => {
                let due = due.or(last.map(|last| last + every)).unwrap_or(now);
                self.missed_in_all(if due < now { interval::passed(now, due, every) } else { 0 }, out);
                State::Down(Rest::Due { at: due.max(now) })
            }
            (Schedule::Cron(rule), Since::Hosting | Since::Now) => self.plan(rule, None, out),
            (Schedule::Cron(rule), Since::Run) => self.plan(rule, last, out),
            (Schedule::Cron(rule), Since::Away) => {
                // The awaited time counts too, so the question begins just before it.
                let since = match due {
                    Some(due) => (due <= now).then(|| due - GRAIN),
                    None => last,
                };
                self.plan(rule, since, out)
            }
        }
    }

    fn plan(&mut self, rule: String, since: Option<BootTime>, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        let plan = PlanId(self.serial());
        out.effects.push(Effect::Plan { plan, rule, since });
        busy(Purpose::ScheduledRun, spec, Stage::Planning { plan })
    }

    pub(super) fn planned(&mut self, now: BootTime, next: Next, out: &mut Step) -> State {
        match next {
            Next::At { at, missed } => {
                self.rare.planned = now;
                self.missed_in_all(missed, out);
                State::Down(Rest::Due { at })
            }
            Next::Never { reason } => self.give_up(messages::no_plan(&reason), out),
        }
    }

    /// A scheduled run is due.
    pub(super) fn due(&mut self, now: BootTime, at: BootTime, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        match spec.policy.kind.schedule() {
            Some(Schedule::Every(every)) => {
                // The first of them takes place late.
                self.missed(interval::passed(now, at, *every).saturating_sub(1), out);
            }
            Some(Schedule::Cron(rule)) if now.since(at) > LATEST => {
                return self.plan(rule.clone(), Some(at - GRAIN), out);
            }
            Some(Schedule::Cron(_)) => {}
            // The proc is no longer periodic.
            None => return self.upkeep(now, "a run was due".to_owned(), out),
        }
        self.launch(now, Purpose::ScheduledRun, spec, None, out)
    }

    /// The end of a run is reported once: by the exit of its command, which has the output. Of a run from
    /// before a restart of the agent only the process is known.
    pub(super) fn run_ended(&mut self, state: &State, input: Input, out: &mut Step) -> Input {
        let stage = match state {
            State::Busy(job) => Some(&job.stage),
            State::Up(_) | State::Down(_) => None,
        };
        match (input, self.rare.own_run) {
            // The launch of the run handles the end of its command itself.
            (input @ Input::Answer(EffectAnswer::CommandEnded { run, .. }), _) if matches!(stage, Some(Stage::Launching(launch)) if launch.command.run == run) => {
                input
            }
            (Input::Answer(EffectAnswer::CommandEnded { run, end }), Some(own)) if own.run == run => {
                self.rare.own_run = None;
                let exit = match &end {
                    CommandEnd::Exited { exit, .. } => *exit,
                    CommandEnd::NotStarted { .. } => Exit::Unknown,
                };
                match state {
                    State::Busy(job) if is_overdue_run(job) => self.report_overdue_run(job, &end, out),
                    // A run that is being ended has not failed.
                    State::Busy(job) if matches!(job.stage, Stage::Ending(_)) => {}
                    State::Busy(_) | State::Up(_) | State::Down(_) => self.report_failed_run(&end, out),
                }
                Input::Notice(ProcNotice::Exited { process: own.process, exit })
            }
            (Input::Notice(ProcNotice::Exited { process, exit }), None)
                if let State::Busy(job) = state
                    && is_overdue_run(job)
                    && job.stage.process().is_some_and(|ended| ended.is(&process)) =>
            {
                self.report_overdue_run(job, &CommandEnd::Exited { exit, output: String::new() }, out);
                Input::Notice(ProcNotice::Exited { process, exit })
            }
            (Input::Notice(ProcNotice::Exited { process, exit }), None)
                if self.timetable().is_some() && matches!(state, State::Up(up) if up.is(&process)) =>
            {
                self.report_failed_run(&CommandEnd::Exited { exit, output: String::new() }, out);
                Input::Notice(ProcNotice::Exited { process, exit })
            }
            (input, _) => input,
        }
    }

    fn report_failed_run(&mut self, end: &CommandEnd, out: &mut Step) {
        let reason = match end {
            CommandEnd::NotStarted { reason, .. } => messages::not_run("start_cmd", reason),
            CommandEnd::Exited { exit: Exit::Code(0) | Exit::Unknown, .. } => return,
            CommandEnd::Exited { exit, output } => messages::command_failed("start_cmd", *exit, output),
        };
        out.writes.push(Write::Event(Event::RunFailed { reason }));
    }

    /// When the run under way must have ended.
    pub(super) fn run_deadline(&self) -> Option<BootTime> {
        self.timetable()?;
        self.rare.run.as_ref().map(|run| run.deadline)
    }

    /// When the run under way is to be looked at again.
    pub(super) fn run_wakes_at(&self) -> Option<BootTime> {
        let deadline = self.run_deadline()?;
        let run = self.rare.run.as_deref().filter(|_| self.hosting == Hosting::Hosted);
        let overlap = match (self.timetable(), self.rare.overlap, run) {
            (Some(Schedule::Every(every)), _, Some(run)) => {
                self.streak.last_start.map(|last| last + every.saturating_mul(run.missed.saturating_add(1)))
            }
            // The clock may be set meanwhile.
            (Some(Schedule::Cron(_)), Overlap::At(at), Some(_)) => {
                Some(at.min(self.rare.planned + PLAN_EVERY))
            }
            (_, _, _) => None,
        };
        let quiet_until = self.rare.run.as_ref().and_then(|run| run.told_at).map(|at| at + REPORT_EVERY);
        let overlap = overlap.map(|at| quiet_until.map_or(at, |quiet| at.max(quiet)));
        overlap.into_iter().chain([deadline]).min()
    }

    /// After each step: is another run due while one is under way?
    pub(super) fn watch_run(&mut self, now: BootTime, out: &mut Step) {
        if !matches!(self.state, State::Up(_)) {
            self.rare.overlap = Overlap::Unknown;
        }
        if let State::Down(_) = self.state {
            self.rare.run = None;
        }
        if !matches!(self.state, State::Up(_)) || self.rare.run.is_none() || self.hosting == Hosting::Unhosted
        {
            return;
        }
        let last = self.streak.last_start;
        match (self.timetable().cloned(), self.rare.overlap) {
            (Some(Schedule::Every(every)), _) => {
                let missed = last.map_or(0, |last| interval::after(now, last, every).1);
                self.missed_so_far(now, missed, out);
            }
            (Some(Schedule::Cron(_)), Overlap::At(at)) if now < at.min(self.rare.planned + PLAN_EVERY) => {}
            (Some(Schedule::Cron(rule)), Overlap::At(_) | Overlap::Unknown) => {
                let plan = PlanId(self.serial());
                self.rare.overlap = Overlap::Asked(plan);
                out.effects.push(Effect::Plan { plan, rule, since: last });
            }
            (Some(Schedule::Cron(_)), Overlap::Asked(_)) | (None, _) => {}
        }
    }

    /// The answer to the question when the next run is due.
    pub(super) fn overlap_planned(&mut self, now: BootTime, next: Next, out: &mut Step) {
        self.rare.planned = now;
        match next {
            Next::At { at, missed } => {
                self.rare.overlap = Overlap::At(at);
                self.missed_so_far(now, missed, out);
            }
            // The end of the run reports the reason.
            Next::Never { .. } => self.rare.overlap = Overlap::At(now + PLAN_EVERY),
        }
    }

    /// The run exceeded op_timeout. It is ended with all its descendants, like any command.
    pub(super) fn run_overdue(&mut self, now: BootTime, process: Process, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Up(process) };
        out.effects.push(match &self.rare.own_run {
            Some(own) => Effect::EndRun(own.run),
            None => Effect::Signal { process, signal: Signal::Kill, detached: spec.policy.detached },
        });
        let phase = EndPhase::Killed { until: now + KILL_TIMEOUT };
        let ending =
            Ending { process, phase, gone: false, signalled: false, note: String::new(), launch: None };
        busy(Purpose::ScheduledRun, spec, Stage::Ending(ending))
    }

    /// The run cannot be killed. The next try comes after the same time.
    pub(super) fn run_not_ended(&mut self, now: BootTime, spec: &Spec, process: Process, out: &mut Step) {
        let limit = spec.policy.op_timeout;
        if let Some(run) = &mut self.rare.run {
            run.deadline = now + limit.max(REPORT_EVERY);
        }
        let reason = messages::run_not_ended(limit, process.pid);
        out.writes.push(Write::Event(Event::RunFailed { reason }));
    }

    fn report_overdue_run(&mut self, job: &Job, end: &CommandEnd, out: &mut Step) {
        let output = match end {
            CommandEnd::Exited { output, .. } => output.as_str(),
            CommandEnd::NotStarted { .. } => "",
        };
        let reason = messages::command_timeout("start_cmd", job.spec.policy.op_timeout, output);
        out.writes.push(Write::Event(Event::RunFailed { reason }));
    }

    /// Reports the runs that were missed since the run under way began.
    fn missed_so_far(&mut self, now: BootTime, count: u32, out: &mut Step) {
        let Some(run) = &mut self.rare.run else { return };
        let is_quiet = run.told_at.is_some_and(|at| now.since(at) < REPORT_EVERY);
        let unreported = count.saturating_sub(run.missed);
        if unreported == 0 || is_quiet {
            return;
        }
        (run.missed, run.told_at) = (count, Some(now));
        self.missed(unreported, out);
    }

    /// Reports the runs that were missed since the last run began, except those that were already reported.
    fn missed_in_all(&mut self, count: u32, out: &mut Step) {
        let reported = self.rare.run.as_ref().map_or(0, |run| run.missed);
        self.missed(count.saturating_sub(reported), out);
    }

    fn missed(&mut self, count: u32, out: &mut Step) {
        if count > 0 {
            out.writes.push(Write::Event(Event::RunMissed { count }));
        }
    }
}

/// Whether the job ends a run that took too long.
fn is_overdue_run(job: &Job) -> bool {
    job.purpose == Purpose::ScheduledRun && matches!(job.stage, Stage::Ending(_))
}
