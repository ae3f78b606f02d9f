//! Rate limit of ops that end when their task is made, for each app: a token bucket with a token for each op.
//!
//! Such an op has a host without an agent or of another business, or belongs to an invalid request. It is
//! never open, so the backlog does not bound it, but the store keeps it as long as its task. The buckets are
//! not stored: after a restart of the server each is full.

use procfleet_core::boot_time::BootTime;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Three of the largest calls.
const BURST: f64 = 300_000.0;
/// Covers an app that asks for 6,000 hosts without an agent every minute.
const EACH_SECOND: f64 = 100.0;

#[derive(Clone, Debug, Default)]
pub struct EndedOpsLimiter(Arc<Mutex<HashMap<String, AppTokens>>>);

#[derive(Clone, Copy, Debug)]
struct AppTokens {
    level: f64,
    at: BootTime,
}

/// The app has too few tokens. After this time it has enough for the same call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedOpsLimitExceeded(pub Duration);

impl EndedOpsLimiter {
    /// Pays for the ops of one call, or takes nothing.
    pub fn spend(&self, app: &str, ops: usize, now: BootTime) -> Result<(), EndedOpsLimitExceeded> {
        if ops == 0 {
            return Ok(());
        }
        let mut apps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = apps.entry(app.to_owned()).or_insert(AppTokens { level: BURST, at: now });
        let more = now.since(bucket.at).as_secs_f64() * EACH_SECOND;
        *bucket = AppTokens { level: (bucket.level + more).min(BURST), at: now };
        let cost = u32::try_from(ops).map_or(BURST, f64::from).min(BURST);
        if bucket.level < cost {
            let wait = Duration::from_secs_f64((cost - bucket.level) / EACH_SECOND);
            return Err(EndedOpsLimitExceeded(wait + Duration::from_millis(1)));
        }
        bucket.level -= cost;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: u64) -> BootTime {
        BootTime(number * 1_000)
    }

    #[test]
    fn an_app_has_a_burst_and_then_a_fixed_number_each_second() {
        let ended = EndedOpsLimiter::default();
        for _ in 0..3 {
            assert_eq!(ended.spend("a", 100_000, second(0)), Ok(()));
        }
        let EndedOpsLimitExceeded(wait) = ended.spend("a", 1_000, second(0)).expect_err("it is empty");
        assert!((10_000..=10_001).contains(&wait.as_millis()), "{wait:?}");
        assert!(ended.spend("a", 1_000, second(9)).is_err(), "not early");
        assert_eq!(ended.spend("a", 0, second(9)), Ok(()), "a call without such ops");
        assert_eq!(ended.spend("a", 1_000, second(10)), Ok(()), "the refused calls took nothing");
        assert_eq!(ended.spend("b", 100_000, second(10)), Ok(()), "each app has its own");
        assert_eq!(ended.spend("a", usize::MAX, second(10_000)), Ok(()), "no more than the burst");
    }
}
