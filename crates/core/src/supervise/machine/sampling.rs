//! What a sample of the process means: nothing, or that it is to be ended.

use super::{Machine, State};
use crate::groups::Overuse;
use crate::moment::Moment;
use crate::process::Process;
use crate::spec::Kind;
use crate::supervise::job::Purpose;
use crate::supervise::limits::{Past, Usage, Verdict};
use crate::supervise::policy::Fall;
use crate::supervise::{Event, Hosting, Step, Write, words};

impl Machine {
    pub(super) fn sampled(&mut self, now: Moment, process: Process, usage: Usage, out: &mut Step) -> State {
        let Some(spec) = self.spec.clone() else { return State::Up(process) };
        match self.strain.weigh(process, usage, &spec.resource, spec.policy.limit_samples) {
            Verdict::Within => {
                let stable = |start| now.since(start) > spec.policy.start_interval;
                if !self.fault.is_empty() && self.streak.last_start.is_none_or(stable) {
                    self.fault.clear();
                }
                State::Up(process)
            }
            Verdict::Wait => State::Up(process),
            Verdict::Over { samples, past } => {
                let event = Event::OverLimit { pid: process.pid, limits: spec.resource, samples };
                self.fault = words::over_limit(&event);
                out.writes.push(Write::Event(event));
                self.end(now, Purpose::Limit { fall: fall(past) }, spec, process, None, out)
            }
        }
    }

    /// All of its namespace use too much, and it is its turn.
    pub(super) fn overused(
        &mut self,
        now: Moment,
        process: Process,
        overuse: Overuse,
        past: Past,
        out: &mut Step,
    ) -> State {
        let Some(spec) = self.spec.clone() else { return State::Up(process) };
        let event = Event::GroupOverLimit { pid: process.pid, overuse };
        self.fault = words::over_limit(&event);
        out.writes.push(Write::Event(event));
        self.end(now, Purpose::Limit { fall: fall(past) }, spec, process, None, out)
    }

    /// One that was over its limits, or ill, is gone: it comes back under the restart policy, if it is to come back at all. One that
    /// was over from its beginning has had no stable run, however long the samples took: else it would come back for ever.
    pub(super) fn limited(&mut self, now: Moment, fall: Fall, out: &mut Step) -> State {
        let resident = self.spec.clone().filter(|spec| spec.policy.kind == Kind::Resident);
        if let (Some(spec), Hosting::Unhosted) = (resident, self.hosting) {
            // Nobody will start it again and sweep first, and what it has left may be what was too much.
            self.sweep(&spec, out);
        }
        let last = self.fault.clone();
        self.rest(now, fall, &last, out)
    }
}

/// One that was over from its beginning is no more started than one that does not live.
fn fall(past: Past) -> Fall {
    match past {
        Past::OnceWithin => Fall::Died,
        Past::AlwaysOver => Fall::NotStarted,
    }
}
