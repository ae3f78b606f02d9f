//! Deterministic jitter: a per-process pseudo-random delay, so that many processes do not act at the same
//! time. `core` has no randomness, so the delay is a hash of the key.

use crate::id::ProcKey;
use std::time::Duration;

/// A pause shorter than `span`, derived from the proc and the number of the pause. Zero if `span` is zero.
pub(crate) fn below(span: Duration, key: &ProcKey, count: u32) -> Duration {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(mixed(key, count).checked_rem(millis).unwrap_or_default())
}

/// FNV-1a over the key and the count, then mixed, because keys often differ only in their last digit.
fn mixed(key: &ProcKey, count: u32) -> u64 {
    let bytes = key.namespace.bytes().chain([0xff]).chain(key.name.bytes()).chain(count.to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ProcKey {
        ProcKey { namespace: "web".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn jitter_is_constant_for_a_proc_and_differs_between_procs() {
        let second = Duration::from_secs(1);
        assert_eq!(below(second, &key("a"), 3), below(second, &key("a"), 3));
        assert_eq!(below(Duration::ZERO, &key("a"), 3), Duration::ZERO);
        let mut tenths = [0; 10];
        for number in 0..1_000 {
            let millis = below(second, &key(&format!("worker{number}")), 1).as_millis();
            tenths[usize::try_from(millis / 100).expect("below a second")] += 1;
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }

    #[test]
    fn another_try_is_another_number() {
        let numbers: std::collections::BTreeSet<Duration> =
            (0..100).map(|count| below(Duration::from_secs(100), &key("a"), count)).collect();
        assert!(numbers.len() > 95, "{}", numbers.len());
    }
}
