//! Rate limits of each agent: token buckets, one set per agent.
//!
//! The buckets belong to the agent and not to its session, so that reconnecting does not refill them. They
//! are not stored: after a restart of the server every bucket is full. A full bucket equals no bucket, so
//! full ones are removed, and the memory is bounded by the agents that sent something in the last minutes.

use procfleet_core::boot_time::BootTime;
use procfleet_core::id::AgentId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Events, one token for each KiB or part of it. The burst covers the 10,000 events that a host queues while
/// the server is unreachable.
const EVENTS: Rate = Rate { burst: 12_000.0, each_second: 10.0 };
/// States, process groups, outcomes and answers: one token for each item and for each KiB or part of it. The
/// burst covers the full list of the largest host. The rate covers 2,500 procs whose figures change with
/// every sample, or 150 ops a second.
const MESSAGES: Rate = Rate { burst: 40_000.0, each_second: 500.0 };
/// Minimum time between two log lines about the excess of one agent.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Below this number of agents no budget is removed.
const REMEMBERED: usize = 1_024;

#[derive(Clone, Copy, Debug)]
struct Rate {
    burst: f64,
    each_second: f64,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: f64,
    at: BootTime,
}

impl Bucket {
    fn refill(&mut self, rate: Rate, now: BootTime) {
        let more = now.since(self.at).as_secs_f64() * rate.each_second;
        *self = Bucket { level: (self.level + more).min(rate.burst), at: now };
    }
}

#[derive(Clone, Copy, Debug)]
struct Budget {
    events: Bucket,
    messages: Bucket,
    logged_at: Option<BootTime>,
}

impl Budget {
    fn full(now: BootTime) -> Budget {
        let bucket = |rate: Rate| Bucket { level: rate.burst, at: now };
        Budget { events: bucket(EVENTS), messages: bucket(MESSAGES), logged_at: None }
    }

    fn refill(&mut self, now: BootTime) {
        self.events.refill(EVENTS, now);
        self.messages.refill(MESSAGES, now);
    }

    fn is_forgettable(&self, now: BootTime) -> bool {
        let is_full = self.events.level >= EVENTS.burst && self.messages.level >= MESSAGES.burst;
        is_full && self.logged_at.is_none_or(|at| now.since(at) >= LOG_EVERY)
    }
}

/// The budgets of all agents.
#[derive(Clone, Debug, Default)]
pub struct Budgets {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    agents: HashMap<AgentId, AgentBudget>,
    /// When the map has this many agents, full budgets are removed.
    forget_at: usize,
}

/// The budget of one agent. Its session holds it, so that sessions do not wait for one another.
#[derive(Clone, Debug)]
pub(super) struct AgentBudget(Arc<Mutex<Budget>>);

impl Budgets {
    pub(super) fn of(&self, agent: &AgentId, now: BootTime) -> AgentBudget {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.agents.len() >= inner.forget_at.max(REMEMBERED) && !inner.agents.contains_key(agent) {
            inner.agents.retain(|_, budget| budget.is_held() || !budget.refilled(now).is_forgettable(now));
            inner.forget_at = inner.agents.len() * 2;
        }
        let new = || AgentBudget(Arc::new(Mutex::new(Budget::full(now))));
        inner.agents.entry(agent.clone()).or_insert_with(new).clone()
    }
}

impl AgentBudget {
    /// Whether a session uses this budget. If it were removed from the map, the next session of the agent
    /// would begin with a full budget.
    fn is_held(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    fn refilled(&self, now: BootTime) -> MutexGuard<'_, Budget> {
        let mut budget = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        budget.refill(now);
        budget
    }

    /// Pays for events. `Err`: there are too few tokens, nothing was taken, and the caller may try again
    /// after this time.
    pub(super) fn spend_events(&self, cost: usize, now: BootTime) -> Result<(), Duration> {
        let bucket = &mut self.refilled(now).events;
        let left = bucket.level - tokens(cost).min(EVENTS.burst);
        if left < 0.0 {
            return Err(Duration::from_secs_f64(-left / EVENTS.each_second) + Duration::from_millis(1));
        }
        bucket.level = left;
        Ok(())
    }

    /// Pays for a message that was read already. Returns for how long the session must not read
    /// (back-pressure).
    pub(super) fn spend_message(&self, cost: usize, now: BootTime) -> Duration {
        let bucket = &mut self.refilled(now).messages;
        // The debt is bounded, so that an agent that behaves again is soon read at full speed.
        bucket.level = (bucket.level - tokens(cost)).max(-MESSAGES.burst);
        Duration::from_secs_f64((-bucket.level).max(0.0) / MESSAGES.each_second)
    }

    /// Whether to log now that this agent sends too much: once per `LOG_EVERY`.
    pub(super) fn may_log(&self, now: BootTime) -> bool {
        let logged_at = &mut self.refilled(now).logged_at;
        let is_due = logged_at.is_none_or(|at| now.since(at) >= LOG_EVERY);
        if is_due {
            *logged_at = Some(now);
        }
        is_due
    }
}

/// The cost of a number of bytes, in tokens.
pub(super) fn cost_of(bytes: usize) -> usize {
    bytes.div_ceil(1024).max(1)
}

fn tokens(cost: usize) -> f64 {
    u32::try_from(cost).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(number: usize) -> AgentId {
        format!("a{number}").parse().expect("an agent id")
    }

    fn second(number: u64) -> BootTime {
        BootTime(number * 1_000)
    }

    #[test]
    fn a_burst_is_taken_at_once_and_then_a_fixed_number_each_second() {
        let budgets = Budgets::default();
        let one = budgets.of(&agent(1), second(0));
        for _ in 0..120 {
            assert_eq!(one.spend_events(100, second(0)), Ok(()));
        }
        let wait = one.spend_events(100, second(0)).expect_err("the bucket is empty");
        assert!((10_000..10_100).contains(&wait.as_millis()), "{wait:?}");
        assert!(one.spend_events(100, second(9)).is_err(), "not early");
        assert_eq!(one.spend_events(100, second(11)), Ok(()));
        assert_eq!(
            budgets.of(&agent(2), second(0)).spend_events(100, second(0)),
            Ok(()),
            "each agent has its own buckets"
        );
        assert_eq!(
            budgets.of(&agent(3), second(0)).spend_events(usize::MAX, second(0)),
            Ok(()),
            "a cost above the burst is capped"
        );
    }

    /// docs/operator/security.md names this number.
    #[test]
    fn the_events_of_an_agent_in_a_day_are_bounded() {
        let budgets = Budgets::default();
        let one = budgets.of(&agent(1), second(0));
        let mut kib = 0;
        for now in 0..86_400 {
            while one.spend_events(10, second(now)).is_ok() {
                kib += 10;
            }
        }
        assert!((850 * 1024..860 * 1024).contains(&kib), "{kib} KiB");
    }

    #[test]
    fn an_agent_that_sends_too_many_messages_is_read_more_slowly() {
        let budgets = Budgets::default();
        let one = budgets.of(&agent(1), second(0));
        for _ in 0..40 {
            assert_eq!(one.spend_message(1_000, second(0)), Duration::ZERO);
        }
        assert_eq!(one.spend_message(1_000, second(0)), Duration::from_secs(2));
        assert_eq!(one.spend_message(1_000, second(2)), Duration::from_secs(2));
        assert_eq!(one.spend_message(1_000, second(100)), Duration::ZERO);
    }

    #[test]
    fn the_excess_of_an_agent_is_logged_once_a_minute() {
        let budgets = Budgets::default();
        let logged: Vec<bool> = [0, 1, 59, 60, 61]
            .map(|at| budgets.of(&agent(1), second(at)).may_log(second(at)))
            .into_iter()
            .collect();
        assert_eq!(logged, [true, false, false, true, false]);
    }

    #[test]
    fn full_budgets_are_removed_and_debts_are_kept() {
        let budgets = Budgets::default();
        let spend_all = |now| budgets.of(&agent(0), now).spend_events(12_000, now);
        assert!(spend_all(second(0)).is_ok());
        let held = budgets.of(&agent(1), second(0));
        for number in 2..10 * REMEMBERED {
            let now = second(u64::try_from(number).expect("a small number") / 100);
            budgets.of(&agent(number), now).spend_message(1, now);
        }
        assert!(budgets.inner.lock().expect("no panic").agents.len() <= 2 * REMEMBERED);
        assert!(spend_all(second(110)).is_err(), "the debt is kept");
        assert!(held.spend_events(12_000, second(110)).is_ok());
        let next_session = budgets.of(&agent(1), second(110));
        assert!(next_session.spend_events(12_000, second(110)).is_err(), "the budget of a session is kept");
    }
}
