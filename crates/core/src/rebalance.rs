//! How many agents a server sends to other servers, decided once a second.
//!
//! ```text
//! an operator drains it     all of them, as fast as the others can accept them
//! it has too many           the excess, slowly, when no server has come or gone for STABLE
//! ```
//!
//! A server has too many agents above 1.2 times its share plus a slack. It sheds down to that limit and not
//! to its share, so that two servers never send agents back and forth.

use std::time::Duration;

/// Servers that come and go move agents by themselves. Shedding begins this long after the last change.
pub const STABLE: Duration = Duration::from_secs(60);
/// A session that is younger is not sent away. An agent that knows no other server comes back at once, and
/// would otherwise reconnect all the time.
pub const SETTLED: Duration = Duration::from_secs(10);
/// Agents above 1.2 times the share that do not matter.
const SLACK: u64 = 50;
/// One of this many sessions is shed each second: 0.5 %.
const SHED_OF: u64 = 200;
/// How many new sessions a server with two cores can accept each second.
const ACCEPTED: u64 = 500;

/// The agents of one living server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerShare {
    pub agents: u64,
    pub drains: bool,
}

/// How many of its `own` agents a server sheds now. `all`: the living servers, this one included.
/// `stable_for`: how long they have been the same.
pub fn excess(own: u64, all: &[ServerShare], stable_for: Duration) -> u64 {
    let takers = takers(all);
    if stable_for < STABLE || takers == 0 {
        return 0;
    }
    let agents = all.iter().fold(0_u64, |sum, server| sum.saturating_add(server.agents));
    let limit = (agents.saturating_mul(6) / takers.saturating_mul(5)).saturating_add(SLACK);
    own.saturating_sub(limit).min((own / SHED_OF).max(1))
}

/// How many of its `own` agents a server that drains sends away now. None, if no server would take them.
pub fn drained(own: u64, all: &[ServerShare]) -> u64 {
    own.min(takers(all).saturating_mul(ACCEPTED))
}

fn takers(all: &[ServerShare]) -> u64 {
    all.iter().filter(|server| !server.drains).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A negative number: a server with so many agents that drains.
    fn servers(agents: &[i64]) -> Vec<ServerShare> {
        let share = |agents: &i64| ServerShare { agents: agents.unsigned_abs(), drains: *agents < 0 };
        agents.iter().map(share).collect()
    }

    #[test]
    fn a_server_sheds_what_is_above_its_limit_and_slowly() {
        for (own, all, stable_secs, expected) in [
            // Alone, or with an even share.
            (10_000, vec![10_000], 60, 0),
            (10_000, vec![10_000, 10_000], 60, 0),
            // 20,000 on two: the limit is 12,050.
            (12_050, vec![12_050, 7_950], 60, 0),
            (12_051, vec![12_051, 7_949], 60, 1),
            (12_100, vec![12_100, 7_900], 60, 50),
            (20_000, vec![20_000, 0], 60, 100),
            (7_950, vec![12_050, 7_950], 60, 0),
            // Servers have just come or gone.
            (20_000, vec![20_000, 0], 59, 0),
            (20_000, vec![20_000, 0], 0, 0),
            // Few agents: the slack is all.
            (50, vec![50, 0], 600, 0),
            (125, vec![125, 0], 600, 0),
            (126, vec![126, 0], 600, 1),
            // 30,000 on three.
            (15_000, vec![15_000, 15_000, 0], 60, 75),
            // A server that drains has no share, but its agents come to the others: 9,000 for each of two.
            (12_000, vec![12_000, 0, -6_000], 60, 60),
            (9_000, vec![9_000, 9_000, -6_000], 60, 0),
            // Nobody takes agents.
            (20_000, vec![-20_000], 60, 0),
            // The figures of the others may be anything.
            (u64::MAX, vec![i64::MAX, 0], 60, u64::MAX / 200),
            (5, vec![], 60, 0),
        ] {
            let shed = excess(own, &servers(&all), Duration::from_secs(stable_secs));
            assert_eq!(shed, expected, "{own} of {all:?} after {stable_secs} s");
        }
    }

    /// Two servers, one empty: it ends within the tolerance, and nothing is sent back.
    #[test]
    fn shedding_ends() {
        let (mut one, mut other) = (20_000_u64, 0_u64);
        let mut seconds = 0;
        loop {
            let all = [one, other].map(|agents| ServerShare { agents, drains: false });
            let (shed, back) = (excess(one, &all, STABLE), excess(other, &all, STABLE));
            assert_eq!(back, 0, "{one} {other}");
            if shed == 0 {
                break;
            }
            (one, other, seconds) = (one - shed, other + shed, seconds + 1);
        }
        assert_eq!((one, other), (12_050, 7_950));
        assert!((60..600).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_server_that_drains_sends_all_away_if_another_takes_them() {
        for (own, all, expected) in [
            (3, vec![-3, 0], 3),
            (3, vec![-3], 0),
            (3, vec![-3, -9], 0),
            (0, vec![-1, 0], 0),
            (20_000, vec![-20_000, 0], 500),
            (20_000, vec![-20_000, 0, 7], 1_000),
        ] {
            assert_eq!(drained(own, &servers(&all)), expected, "{own} of {all:?}");
        }
    }
}
