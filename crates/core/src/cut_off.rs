//! When a server that does not reach the store sends its agents to other servers.
//!
//! A server that has lost the database may not act. If the database is away for all servers, as during a
//! failover, its agents are as well off here as elsewhere, and moving the whole fleet would only add load. If
//! another server still reaches the database, only this one is cut off, and its agents should leave.
//!
//! ```text
//!          does not hold          ASK_AFTER, a peer holds            CONFIRM_AFTER, a peer holds
//! Holding --------------> Lost -----------------------------> Suspected ---------------------------> Left
//!    ^                     ^  \--nobody holds: asks again         |
//!    |                     +---------------nobody holds------------+
//!    +--holds again, from every state
//! ```
//!
//! "Holds" means: may act, because its last confirmed beat is recent. After a failover a peer may reach the
//! database a moment earlier than this server and must not empty it, so a peer must say twice that it holds.

use crate::boot_time::BootTime;
use std::time::Duration;

/// How long a server that may not act any more waits before it asks the others.
pub const ASK_AFTER: Duration = Duration::from_secs(10);
/// How long it waits between the two answers that make it send its agents away.
pub const CONFIRM_AFTER: Duration = Duration::from_secs(3);
/// How often it asks while nobody holds.
pub const ASK_AGAIN: Duration = Duration::from_secs(5);

/// One server's watch over its own connection to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CutOffWatch {
    state: CutOffState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum CutOffState {
    #[default]
    Holding,
    Lost {
        ask_at: BootTime,
    },
    Suspected {
        ask_at: BootTime,
    },
    /// The agents were sent away. Nothing remains to be done until the server holds again.
    Left,
}

/// What a server that looks at its own state does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOffStep {
    Nothing,
    /// Ask the other servers whether one of them holds; [`CutOffWatch::answered`] takes the answer.
    AskPeers,
}

/// What the answers of the other servers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOffVerdict {
    /// The sessions stay.
    Stay,
    /// Only this server is cut off: its agents are to leave.
    Leave,
}

impl CutOffWatch {
    /// `holds`: whether this server may act ([`crate::membership::OwnBeat::may_act`]).
    pub fn look(&mut self, now: BootTime, holds: bool) -> CutOffStep {
        if holds {
            self.state = CutOffState::Holding;
            return CutOffStep::Nothing;
        }
        match self.state {
            CutOffState::Holding => {
                self.state = CutOffState::Lost { ask_at: now + ASK_AFTER };
                CutOffStep::Nothing
            }
            CutOffState::Lost { ask_at } | CutOffState::Suspected { ask_at } if now >= ask_at => {
                CutOffStep::AskPeers
            }
            CutOffState::Lost { .. } | CutOffState::Suspected { .. } | CutOffState::Left => {
                CutOffStep::Nothing
            }
        }
    }

    /// `a_peer_holds`: one of the others says that it may act. Nobody answering means no.
    pub fn answered(&mut self, now: BootTime, a_peer_holds: bool) -> CutOffVerdict {
        let (next, verdict) = match (self.state, a_peer_holds) {
            (CutOffState::Suspected { .. }, true) => (CutOffState::Left, CutOffVerdict::Leave),
            (CutOffState::Lost { .. }, true) => {
                (CutOffState::Suspected { ask_at: now + CONFIRM_AFTER }, CutOffVerdict::Stay)
            }
            (CutOffState::Lost { .. } | CutOffState::Suspected { .. }, false) => {
                (CutOffState::Lost { ask_at: now + ASK_AGAIN }, CutOffVerdict::Stay)
            }
            (state @ (CutOffState::Holding | CutOffState::Left), _) => (state, CutOffVerdict::Stay),
        };
        self.state = next;
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row: the time in seconds, whether the server holds, whether a peer says that it holds if one is
    /// asked, and whether the agents leave.
    #[track_caller]
    fn check(rows: &[(u64, bool, Option<bool>, bool)]) {
        let mut watch = CutOffWatch::default();
        for (at, holds, peer, leaves) in rows {
            let now = BootTime(at * 1_000);
            let step = watch.look(now, *holds);
            assert_eq!(step == CutOffStep::AskPeers, peer.is_some(), "at {at} s: {watch:?}");
            let verdict = peer.map_or(CutOffVerdict::Stay, |holds| watch.answered(now, holds));
            assert_eq!(verdict == CutOffVerdict::Leave, *leaves, "at {at} s: {watch:?}");
        }
    }

    #[test]
    fn a_server_that_is_cut_off_alone_leaves_after_two_answers_and_only_once() {
        check(&[
            (0, true, None, false),
            (1, false, None, false),
            (10, false, None, false),
            (11, false, Some(true), false),
            (12, false, None, false),
            (14, false, Some(true), true),
            (15, false, None, false),
            (99, false, None, false),
            // It is back, and is cut off again.
            (100, true, None, false),
            (101, false, None, false),
            (111, false, Some(true), false),
            (114, false, Some(true), true),
        ]);
    }

    #[test]
    fn nobody_leaves_while_no_server_holds() {
        check(&[
            (0, false, None, false),
            (10, false, Some(false), false),
            (14, false, None, false),
            (15, false, Some(false), false),
            (20, false, Some(false), false),
            (25, true, None, false),
        ]);
    }

    /// The database is back, and a peer has noticed it a moment earlier.
    #[test]
    fn a_failover_moves_nobody() {
        check(&[
            (0, false, None, false),
            (10, false, Some(true), false),
            (12, true, None, false),
            (13, true, None, false),
        ]);
        check(&[
            (0, false, None, false),
            (10, false, Some(true), false),
            (13, false, Some(false), false),
            (18, false, Some(true), false),
            (21, true, None, false),
        ]);
    }

    #[test]
    fn an_answer_that_arrives_late_changes_nothing() {
        let mut watch = CutOffWatch::default();
        assert_eq!(watch.answered(BootTime(0), true), CutOffVerdict::Stay);
        assert_eq!(watch, CutOffWatch::default());
    }
}
