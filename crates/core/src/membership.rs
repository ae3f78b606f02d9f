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
//! Whether a server may act is asked at the point of use ([`OwnBeat::may_act`]): a process that was stopped
//! for a while must not act on an answer from before.

use crate::boot_time::BootTime;
use std::collections::{HashMap, VecDeque};
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
    pub fn may_act(&self, now: BootTime) -> bool {
        self.confirmed.is_some_and(|sent_at| now.since(sent_at) < TRUST)
    }
}

/// How many confirmed beats a server remembers: two a second for ten minutes.
const REMEMBERED_BEATS: usize = 1_200;

/// The last confirmed beats of a server. A database that went back in time has a prefix of its changes: it
/// has every change that was confirmed before the server sent the last beat that the database still has.
#[derive(Clone, Debug, Default)]
pub struct ConfirmedBeats(VecDeque<(u64, BootTime)>);

impl ConfirmedBeats {
    /// `sent_at`: when the attempt began.
    pub fn confirm(&mut self, beat: u64, sent_at: BootTime) {
        if self.0.len() == REMEMBERED_BEATS {
            self.0.pop_front();
        }
        self.0.push_back((beat, sent_at));
    }

    /// The database went back, and has this beat as the last one of the server; `None`: it does not know the
    /// server. Returns the time before which nothing that was confirmed is lost, and forgets the lost beats.
    pub fn went_back_to(&mut self, last: Option<u64>) -> BootTime {
        self.0.retain(|(beat, _)| last.is_some_and(|last| *beat <= last));
        self.0.back().map_or(BootTime(0), |(_, sent_at)| *sent_at)
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
        assert!(!own.may_act(BootTime(0)));
        own.confirm(BootTime(1_000));
        for (now, holds) in [(1_000, true), (10_999, true), (11_000, false), (99_000, false)] {
            assert_eq!(own.may_act(BootTime(now)), holds, "{now}");
        }
        // A confirmation that arrives after a later one changes nothing.
        own.confirm(BootTime(5_000));
        own.confirm(BootTime(2_000));
        assert!(own.may_act(BootTime(14_999)));
        own.lose();
        assert!(!own.may_act(BootTime(5_001)));
    }

    #[test]
    fn a_server_is_silent_after_the_same_beat_was_seen_for_the_takeover_time() {
        let mut peers = PeerBeats::default();
        for (now, beats, silent) in [
            (0, vec![('a', 7), ('b', 1)], vec![]),
            (14_999, vec![('a', 7), ('b', 2)], vec![]),
            (15_000, vec![('a', 7), ('b', 2)], vec![('a', 7)]),
            // Its heartbeats have resumed: restart the timer.
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

    #[test]
    fn changes_before_the_last_beat_that_a_database_still_has_are_not_lost() {
        let confirmed = || {
            let mut beats = ConfirmedBeats::default();
            (2..=5).for_each(|beat| beats.confirm(beat, BootTime(beat * 100)));
            beats
        };
        for (last, safe_until) in [
            // The confirmation of the last one was lost with the connection.
            (Some(6), 500),
            (Some(5), 500),
            (Some(3), 300),
            (Some(1), 0),
            (None, 0),
        ] {
            assert_eq!(confirmed().went_back_to(last), BootTime(safe_until), "{last:?}");
        }
        // Numbers of lost beats are used again.
        let mut beats = confirmed();
        beats.went_back_to(Some(3));
        beats.confirm(4, BootTime(900));
        assert_eq!(beats.went_back_to(Some(3)), BootTime(300));
        let mut beats = ConfirmedBeats::default();
        (1..=2_000).for_each(|beat| beats.confirm(beat, BootTime(beat)));
        assert_eq!(beats.went_back_to(Some(2_000 - 1_200)), BootTime(0), "so long ago is not remembered");
        assert!(beats.0.is_empty());
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
            assert!(dead.is_some_and(|dead| !own.may_act(BootTime(dead))), "{sent} {arrived}");
        }
    }
}
