//! Detects two agents that use the same certificate at the same time.
//!
//! A life is one run of an agent's program. A life that has ended never comes back: after a restart, a reboot
//! or the restore of a disk snapshot there is a new life. If a life comes back after another one replaced it,
//! either both run at the same time, or the host was restored from a snapshot with memory, and the other life
//! is gone. So two returns are required: first one life comes back, then the other. Two programs with one
//! certificate do exactly this, because each new connection ends the connection of the other, which then
//! reconnects.

use crate::boot_time::BootTime;
use std::net::IpAddr;
use std::time::Duration;

/// Maximum time between the two returns.
pub const WINDOW: Duration = Duration::from_secs(600);
/// Number of lives of an agent that are remembered. A host that restarts its agent repeatedly has many lives,
/// and none comes back.
const REMEMBERED: usize = 4;

/// Identifies one run of an agent's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeId(pub u128);

/// The last lives of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// The current life is the last.
    seen: Vec<(LifeId, IpAddr)>,
    /// The last life that came back after another one had replaced it.
    returned: Option<(LifeId, BootTime)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneVerdict {
    Alone,
    /// Two lives exist at the same time and connect from these addresses.
    Two([IpAddr; 2]),
}

impl Lives {
    /// A life has connected.
    pub fn connected(&mut self, life: LifeId, from: IpAddr, now: BootTime) -> CloneVerdict {
        let present = self.seen.last().copied();
        let before = self.seen.iter().position(|(known, _)| *known == life);
        if let Some(index) = before {
            self.seen.remove(index);
        }
        if self.seen.len() == REMEMBERED {
            self.seen.remove(0);
        }
        self.seen.push((life, from));
        match (before, present) {
            (Some(_), Some((other, address))) if other != life => {
                let returned = self.returned.replace((life, now));
                match returned {
                    Some((first, at)) if first != life && now.since(at) <= WINDOW => {
                        CloneVerdict::Two([address, from])
                    }
                    Some(_) | None => CloneVerdict::Alone,
                }
            }
            _ => CloneVerdict::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    /// Each letter is a life that connects, a second after the one before; `.` is an hour in which nothing
    /// happens. A capital letter at the end is where two were found.
    #[track_caller]
    fn check(story: &str) {
        let (mut lives, mut now) = (Lives::default(), BootTime(0));
        let found = story.chars().position(|letter| {
            now += Duration::from_secs(if letter == '.' { 3_600 } else { 1 });
            let life = letter.to_ascii_lowercase() as u8;
            let from = IpAddr::V4(Ipv4Addr::new(10, 0, 0, life));
            letter != '.' && lives.connected(LifeId(life.into()), from, now) != CloneVerdict::Alone
        });
        let expected = story.chars().position(|letter| letter.is_ascii_uppercase());
        assert_eq!(found, expected, "{story}");
    }

    #[test]
    fn two_hosts_that_replace_each_others_session_are_clones() {
        check("abaB");
        check("aaabbbaaB");
        check("abcaB");
        check("abcdaB");
        check("xyabaB");
        check("ab.aB");
    }

    #[test]
    fn a_reboot_a_restart_or_a_restored_host_is_not_reported_as_a_clone() {
        for story in [
            "a",
            "aaaa",
            // Restarts and reboots, however many; the old connection may be half open.
            "abcdefghij",
            "aabbccdd",
            // Restored from a snapshot with memory, twice from the same one.
            "aba",
            "abac",
            "abacada",
            // An upgrade that was tried and taken back.
            "abacadaea",
            // Restored to one snapshot, and long afterwards to another.
            "aba.b",
        ] {
            check(story);
        }
    }

    #[test]
    fn the_verdict_names_both_addresses() {
        let addresses = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let mut lives = Lives::default();
        for (life, expected) in [
            (0, CloneVerdict::Alone),
            (1, CloneVerdict::Alone),
            (0, CloneVerdict::Alone),
            (1, CloneVerdict::Two([addresses[0], addresses[1]])),
        ] {
            assert_eq!(lives.connected(LifeId(life as u128), addresses[life], BootTime(1)), expected);
        }
    }
}
