//! The plan: which action at which failpoint, and at which pass.

use crate::Point;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// `POINT=ACTION[@N[+]]`, separated by commas. Actions: `kill` (SIGKILL), `panic`, `fail`,
/// `pause:MILLISECONDS`. `@N` is the Nth pass of the point (default: the first), `@N+` that and all later
/// ones.
#[derive(Clone, Debug, Default)]
pub struct FailPlan(Vec<std::sync::Arc<Rule>>);

#[derive(Debug)]
struct Rule {
    point: Point,
    action: Action,
    nth: u64,
    /// Also at all passes after the Nth.
    onwards: bool,
    passed: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Kill,
    Panic,
    Fail,
    Pause(Duration),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not POINT=kill|panic|fail|pause:MS[@N[+]]")]
pub struct BadPlan(String);

impl FromStr for FailPlan {
    type Err = BadPlan;
    fn from_str(text: &str) -> Result<FailPlan, BadPlan> {
        let rule = |text: &str| read(text).map(std::sync::Arc::new).ok_or_else(|| BadPlan(text.to_owned()));
        text.split(',').filter(|part| !part.is_empty()).map(rule).collect::<Result<_, _>>().map(FailPlan)
    }
}

fn read(text: &str) -> Option<Rule> {
    let (name, rest) = text.split_once('=')?;
    let point = Point::STEPS
        .into_iter()
        .chain(Point::DISKS)
        .chain(Point::WORKERS)
        .find(|point| point.name() == name)?;
    let (action, when) = rest.split_once('@').unwrap_or((rest, "1"));
    let (nth, onwards) = match when.strip_suffix('+') {
        Some(nth) => (nth, true),
        None => (when, false),
    };
    let action = match action.split_once(':') {
        None if action == "kill" => Action::Kill,
        None if action == "panic" => Action::Panic,
        None if action == "fail" => Action::Fail,
        Some(("pause", millis)) => Action::Pause(Duration::from_millis(millis.parse().ok()?)),
        _ => return None,
    };
    Some(Rule { point, action, nth: nth.parse().ok()?, onwards, passed: AtomicU64::new(0) })
}

static PLAN: OnceLock<FailPlan> = OnceLock::new();

/// Installs the plan. Only the first call has an effect.
pub fn follow(plan: FailPlan) {
    let _ = PLAN.set(plan);
}

/// Returns whether the operation at the point should fail.
pub(crate) fn pass(point: Point) -> bool {
    let mut fails = false;
    for rule in PLAN.get().iter().flat_map(|plan| &plan.0).filter(|rule| rule.point == point) {
        let times = rule.passed.fetch_add(1, Ordering::SeqCst) + 1;
        if times != rule.nth && !(rule.onwards && times > rule.nth) {
            continue;
        }
        match rule.action {
            Action::Fail => fails = true,
            Action::Panic => panic!("the plan wants a panic at {}", point.name()),
            Action::Kill => loop {
                // Runs no destructors and flushes no buffers.
                let _ =
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            },
            #[expect(clippy::disallowed_methods, reason = "the test asks for a pause")]
            Action::Pause(time) => std::thread::sleep(time),
        }
    }
    fails
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_understood_whole_or_not_at_all() {
        let plan: FailPlan =
            "server.op_sent=kill@3,agent.commit=fail@2+,agent.op_received=pause:50".parse().expect("a plan");
        let [first, second, third] = &plan.0[..] else { panic!("{plan:?}") };
        assert_eq!((first.action, first.nth, first.onwards), (Action::Kill, 3, false));
        assert_eq!(
            (second.point, second.action, second.nth, second.onwards),
            (Point::AgentCommit, Action::Fail, 2, true)
        );
        assert_eq!((third.action, third.nth), (Action::Pause(Duration::from_millis(50)), 1));
        assert!("".parse::<FailPlan>().is_ok_and(|plan| plan.0.is_empty()));
        for bad in ["server.op_sent", "server.nowhere=kill", "server.op_sent=pause", "server.op_sent=kill@x"]
        {
            assert_eq!(bad.parse::<FailPlan>().expect_err(bad), BadPlan(bad.to_owned()));
        }
    }
}
