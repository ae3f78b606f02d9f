//! Which servers are alive, without comparing clocks between machines.
//!
//! Each server advances a number in the store, its beat. Two rules make sure that a server has stopped acting
//! before another one takes over from it:
//!
//! ```text
//! holder: trusts itself for TRUST from the moment before it sent the last confirmed beat
//! others: declare it dead after they have seen the same beat for TAKEOVER, by their own boot-time clocks
//! ```
//!
//! Whether a server may act is asked at the point of use ([`OwnBeat::holds`]): a process that was stopped for
//! a while must not act on an answer from before.

use crate::boot_time::BootTime;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// How long a server acts without a confirmed beat.
pub const TRUST: Duration = Duration::from_secs(10);
/// How long a server must be silent before it is declared dead. Longer than [`TRUST`] by the time that a
/// confirmed beat may be on its way, and by the drift of two clocks.
pub const TAKEOVER: Duration = Duration::from_secs(15);

/// A server's knowledge about its own beats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnBeat {
    confirmed: Option<BootTime>,
}

impl OwnBeat {
    /// The store has confirmed a beat. `sent_at`: when the attempt began. A late confirmation must not count
    /// from its arrival.
    pub fn confirm(&mut self, sent_at: BootTime) {
        self.confirmed = self.confirmed.max(Some(sent_at));
    }

    /// Another server has taken over, or this one has not entered yet.
    pub fn lose(&mut self) {
        self.confirmed = None;
    }

    /// Whether the server may send ops and decide about them.
    pub fn holds(&self, now: BootTime) -> bool {
        self.confirmed.is_some_and(|sent_at| now.since(sent_at) < TRUST)
    }
}

/// The beats of other servers, as one server has seen them.
#[derive(Clone, Debug)]
pub struct PeerBeats<Id> {
    /// The last beat of each, and when it was first seen.
    seen: HashMap<Id, (u64, BootTime)>,
}

impl<Id> Default for PeerBeats<Id> {
    fn default() -> Self {
        PeerBeats { seen: HashMap::new() }
    }
}

impl<Id: Copy + Eq + Hash> PeerBeats<Id> {
    /// Takes the beats of all other servers that the store has as alive. Returns those that have been silent
    /// for [`TAKEOVER`], each with the beat that it must still have when it is declared dead.
    pub fn observe(&mut self, now: BootTime, beats: &[(Id, u64)]) -> Vec<(Id, u64)> {
        self.seen.retain(|id, _| beats.iter().any(|(other, _)| other == id));
        let mut silent = Vec::new();
        for &(id, beat) in beats {
            let seen = self.seen.entry(id).or_insert((beat, now));
            if seen.0 != beat {
                *seen = (beat, now);
            }
            if now.since(seen.1) >= TAKEOVER {
                silent.push((id, beat));
            }
        }
        silent
    }

    /// Forgets all observations. To be called after this server did not look for a while: a gap in its own
    /// looks says nothing about the others.
    pub fn forget(&mut self) {
        self.seen.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_trusts_itself_from_before_it_sent_its_last_confirmed_beat() {
        let mut own = OwnBeat::default();
        assert!(!own.holds(BootTime(0)));
        own.confirm(BootTime(1_000));
        for (now, holds) in [(1_000, true), (10_999, true), (11_000, false), (99_000, false)] {
            assert_eq!(own.holds(BootTime(now)), holds, "{now}");
        }
        // A confirmation that arrives after a later one changes nothing.
        own.confirm(BootTime(5_000));
        own.confirm(BootTime(2_000));
        assert!(own.holds(BootTime(14_999)));
        own.lose();
        assert!(!own.holds(BootTime(5_001)));
    }

    #[test]
    fn a_server_is_silent_after_the_same_beat_was_seen_for_the_takeover_time() {
        let mut peers = PeerBeats::default();
        for (now, beats, silent) in [
            (0, vec![('a', 7), ('b', 1)], vec![]),
            (14_999, vec![('a', 7), ('b', 2)], vec![]),
            (15_000, vec![('a', 7), ('b', 2)], vec![('a', 7)]),
            // It beats again: the time begins anew.
            (16_000, vec![('a', 8), ('b', 2)], vec![]),
            (29_999, vec![('a', 8), ('b', 2)], vec![('b', 2)]),
            // Dead by the store's word: no longer in the list.
            (31_000, vec![('a', 8)], vec![('a', 8)]),
            (32_000, vec![('b', 2)], vec![]),
        ] {
            assert_eq!(peers.observe(BootTime(now), &beats), silent, "{now}");
        }
    }

    #[test]
    fn a_server_that_did_not_look_itself_declares_nobody_dead() {
        let mut peers = PeerBeats::default();
        peers.observe(BootTime(0), &[('a', 7)]);
        peers.forget();
        assert_eq!(peers.observe(BootTime(60_000), &[('a', 7)]), vec![]);
        assert_eq!(peers.observe(BootTime(75_000), &[('a', 7)]), vec![('a', 7)]);
    }

    /// Whatever the delays: the taker has waited longer than the holder trusts itself.
    #[test]
    fn a_holder_has_stopped_before_it_is_declared_dead() {
        for (sent, arrived) in [(0_u64, 0), (0, 900), (3_000, 4_100)] {
            let mut own = OwnBeat::default();
            own.confirm(BootTime(sent));
            let mut peers = PeerBeats::default();
            // The taker sees the beat when it is stored, at the earliest.
            peers.observe(BootTime(arrived), &[('h', 1)]);
            let dead =
                (arrived..).step_by(100).find(|now| !peers.observe(BootTime(*now), &[('h', 1)]).is_empty());
            assert!(dead.is_some_and(|dead| !own.holds(BootTime(dead))), "{sent} {arrived}");
        }
    }
}
