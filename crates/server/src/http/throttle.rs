//! Delays the answers to repeated wrong logins from one address; correct logins are never delayed.
//!
//! Each refused login adds one to the debt of its address, which decreases by one every second. Up to `FREE`
//! there is no delay; beyond it each failure delays the answer longer, up to `LONGEST`. A caller that shares
//! the address with an attacker and has the right secret is not delayed: only refusals are.

use crate::peer::PeerNet;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Number of failures without a delay, for a person who tries out credentials by hand.
const FREE: f64 = 20.0;
const STEP: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);
/// The debt decreases at this rate per second.
const FORGIVEN: f64 = 1.0;
/// Maximum debt; the delay has reached `LONGEST` before.
const MOST_DEBT: f64 = 600.0;
/// Maximum number of addresses. Beyond it the one with the smallest debt is removed.
const ADDRESSES: usize = 4_096;

#[derive(Clone, Debug, Default)]
pub(super) struct LoginThrottle(Arc<Mutex<HashMap<PeerNet, Debt>>>);

#[derive(Clone, Copy, Debug)]
struct Debt {
    amount: f64,
    at: Instant,
}

impl Debt {
    fn now(self, now: Instant) -> f64 {
        (self.amount - now.duration_since(self.at).as_secs_f64() * FORGIVEN).max(0.0)
    }
}

impl LoginThrottle {
    /// Records a refused login from this address. Returns for how long to delay its answer.
    pub(super) fn refused(&self, net: PeerNet, now: Instant) -> Duration {
        let mut debts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if debts.len() >= ADDRESSES && !debts.contains_key(&net) {
            debts.retain(|_, debt| debt.now(now) > 0.0);
            let smallest = debts.iter().map(|(net, debt)| (*net, debt.now(now)));
            let smallest = smallest.min_by(|one, other| one.1.total_cmp(&other.1));
            if let Some((net, _)) = smallest.filter(|_| debts.len() >= ADDRESSES) {
                debts.remove(&net);
            }
        }
        let debt = debts.entry(net).or_insert(Debt { amount: 0.0, at: now });
        *debt = Debt { amount: (debt.now(now) + 1.0).min(MOST_DEBT), at: now };
        STEP.mul_f64((debt.amount - FREE).max(0.0)).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn net(number: u32) -> PeerNet {
        IpAddr::V4(Ipv4Addr::from_bits(number)).into()
    }

    #[test]
    fn the_delay_grows_up_to_a_bound_and_shrinks_with_time() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        let delays: Vec<_> = (0..200).map(|_| throttle.refused(net(1), now)).collect();
        assert!(delays[..20].iter().all(Duration::is_zero), "the first are free");
        assert!(delays[20..].is_sorted() && delays[20] > Duration::ZERO, "then each delay is longer");
        assert_eq!(delays[199], LONGEST);
        assert_eq!(throttle.refused(net(2), now), Duration::ZERO, "another address is not delayed");
        assert_eq!(throttle.refused(net(1), now + Duration::from_secs(3_600)), Duration::ZERO);
    }

    #[test]
    fn the_memory_for_addresses_is_bounded() {
        let (throttle, now) = (LoginThrottle::default(), Instant::now());
        for _ in 0..100 {
            throttle.refused(net(0), now);
        }
        for number in 1..3 * ADDRESSES {
            throttle.refused(net(u32::try_from(number).expect("a small number")), now);
        }
        assert!(throttle.0.lock().expect("no panic").len() <= ADDRESSES);
        assert!(throttle.refused(net(0), now) > Duration::ZERO, "the largest debt is kept");
    }
}
