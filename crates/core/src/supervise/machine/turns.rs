//! When a periodic process runs, and what becomes of a run that has ended.
//!
//! A run is `start_cmd` run to its end, however long that takes. While it lasts, its command is the process. One that
//! failed is an event, and changes nothing about the next.

use super::{Machine, State, busy};
use crate::moment::Moment;
use crate::process::{Exit, Process};
use crate::spec::Schedule;
use crate::supervise::job::{Purpose, Stage};
use crate::supervise::record::Rest;
use crate::supervise::{
    CommandEnd, Effect, Event, Hosting, Input, Next, PlanId, RunId, Step, Write, timetable, words,
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
pub(super) struct Turn {
    pub(super) run: RunId,
    pub(super) process: Process,
}

/// From when on the next run is counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Since {
    /// It is hosted from now on: what runs every so often runs at once.
    Hosting,
    /// Only the spec or the clock is new: nothing was missed, and nothing is to be done sooner than before.
    Now,
    /// A run has ended. What was due in the meantime is missed.
    Run,
    /// The agent was away. What was due in the meantime is missed, and is made up for once where the rule is only to run
    /// every so often.
    Away,
}

impl Machine {
    /// When the wall clock is to be asked again although nothing is due.
    pub(super) fn plans_again_at(&self) -> Option<Moment> {
        match self.timetable()? {
            Schedule::Every(_) => None,
            Schedule::Cron(_) => Some(self.planned + PLAN_EVERY),
        }
    }

    /// The schedule of a periodic proc.
    pub(super) fn timetable(&self) -> Option<&Schedule> {
        self.spec.as_ref().and_then(|spec| spec.policy.kind.schedule())
    }

    /// No run is under way: where a periodic proc goes from here.
    pub(super) fn schedule(&mut self, now: Moment, since: Since, out: &mut Step) -> State {
        let schedule = self.timetable().cloned().filter(|_| self.hosting == Hosting::Hosted);
        let Some(schedule) = schedule else { return State::Down(Rest::Idle) };
        if self.spec.as_ref().is_some_and(|spec| spec.control.start_cmd.is_empty()) {
            return self.give_up(words::no_plan("the spec has no start_cmd"), out);
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
                let (at, missed) = last.map_or((now, 0), |last| timetable::after(now, last, every));
                self.missed(missed, out);
                State::Down(Rest::Due { at })
            }
            (Schedule::Every(every), Since::Away) => {
                let due = due.or(last.map(|last| last + every)).unwrap_or(now);
                self.missed(if due < now { timetable::passed(now, due, every) } else { 0 }, out);
                State::Down(Rest::Due { at: due.max(now) })
            }
            (Schedule::Cron(rule), Since::Hosting | Since::Now) => self.plan(rule, None, out),
            (Schedule::Cron(rule), Since::Run) => self.plan(rule, last, out),
            (Schedule::Cron(rule), Since::Away) => {
                // The time that was waited for counts too, so it is asked from just before.
                let since = match due {
                    Some(due) => (due <= now).then(|| due - GRAIN),
                    None => last,
                };
                self.plan(rule, since, out)
            }
        }
    }

    fn plan(&mut self, rule: String, since: Option<Moment>, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        let plan = PlanId(self.serial());
        out.effects.push(Effect::Plan { plan, rule, since });
        busy(Purpose::Turn, spec, Stage::Planning { plan })
    }

    pub(super) fn planned(&mut self, now: Moment, next: Next, out: &mut Step) -> State {
        match next {
            Next::At { at, missed } => {
                self.planned = now;
                self.missed(missed, out);
                State::Down(Rest::Due { at })
            }
            Next::Never { reason } => self.give_up(words::no_plan(&reason), out),
        }
    }

    /// The time has come.
    pub(super) fn due(&mut self, now: Moment, at: Moment, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Down(Rest::Idle) };
        match spec.policy.kind.schedule() {
            Some(Schedule::Every(every)) => {
                // The first of them takes place, if late.
                self.missed(timetable::passed(now, at, *every).saturating_sub(1), out);
            }
            Some(Schedule::Cron(rule)) if now.since(at) > LATEST => {
                return self.plan(rule.clone(), Some(at - GRAIN), out);
            }
            Some(Schedule::Cron(_)) => {}
            // It was periodic when this was planned.
            None => return self.upkeep(now, "a run was due".to_owned(), out),
        }
        self.launch(now, Purpose::Turn, spec, None, out)
    }

    /// The end of a run is told once: its command's end is the end of its process, and has its output. Only of a run from
    /// an earlier life of the agent nothing but the process is known.
    pub(super) fn turn_ended(&mut self, state: &State, input: Input, out: &mut Step) -> Input {
        let stage = match state {
            State::Busy(job) => Some(&job.stage),
            State::Up(_) | State::Down(_) => None,
        };
        match (input, self.turn) {
            // Its launch waits for this very end.
            (input @ Input::CommandEnded { run, .. }, _) if matches!(stage, Some(Stage::Launching(launch)) if launch.command.run == run) => {
                input
            }
            (Input::CommandEnded { run, end }, Some(turn)) if turn.run == run => {
                self.turn = None;
                let exit = match &end {
                    CommandEnd::Exited { exit, .. } => *exit,
                    CommandEnd::NotStarted { .. } => Exit::Unknown,
                };
                // One that is being ended has not failed.
                if !matches!(stage, Some(Stage::Ending(_))) {
                    self.tell_failure(&end, out);
                }
                Input::Exited { process: turn.process, exit }
            }
            (Input::Exited { process, exit }, None)
                if self.timetable().is_some() && matches!(state, State::Up(up) if up.is(&process)) =>
            {
                self.tell_failure(&CommandEnd::Exited { exit, output: String::new() }, out);
                Input::Exited { process, exit }
            }
            (input, _) => input,
        }
    }

    fn tell_failure(&mut self, end: &CommandEnd, out: &mut Step) {
        let reason = match end {
            CommandEnd::NotStarted { reason, .. } => words::not_run("start_cmd", reason),
            CommandEnd::Exited { exit: Exit::Code(0) | Exit::Unknown, .. } => return,
            CommandEnd::Exited { exit, output } => words::command_failed("start_cmd", *exit, output),
        };
        out.writes.push(Write::Event(Event::RunFailed { reason }));
    }

    fn missed(&mut self, count: u32, out: &mut Step) {
        if count > 0 {
            out.writes.push(Write::Event(Event::RunMissed { count }));
        }
    }
}
