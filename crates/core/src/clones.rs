//! Whether one agent's certificate is used in two places at once.
//!
//! A life is one run of an agent's program. A life that has ended never comes back: after a restart, a reboot
//! of the host or the restore of a snapshot of its disk, another life takes its place for good. So when a
//! life comes back after another took its place, both were there at the same time; or its host was set back
//! to an earlier moment, memory and all, and then the other life is gone. Therefore it takes two: the one
//! comes back, and then the other does. Of two programs with one certificate that is what happens, for each
//! new connection ends that of the other, which then connects again.

use crate::boot_time::BootTime;
use std::net::IpAddr;
use std::time::Duration;

/// How soon after one another the two must have come back.
pub const WINDOW: Duration = Duration::from_secs(600);
/// So many lives of an agent are remembered. A host that restarts its agent again and again has many, and
/// none comes back.
const REMEMBERED: usize = 4;

/// What tells one run of an agent's program from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeId(pub u128);

/// The last lives of one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    /// The present one last.
    seen: Vec<(LifeId, IpAddr)>,
    /// The last one that came back after another had taken its place.
    returned: Option<(LifeId, BootTime)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloneVerdict {
    Alone,
    /// Two of them are there, and connect from these addresses.
    Two([IpAddr; 2]),
}

impl Lives {
    /// A life has connected.
    pub fn connected(&mut self, life: LifeId, from: IpAddr, now: BootTime) -> CloneVerdict {
        let present = self.seen.last().copied();
        let before = self.seen.iter().position(|(known, _)| *known == life);
        if let Some(place) = before {
            self.seen.remove(place);
        }
        if self.seen.len() == REMEMBERED {
            self.seen.remove(0);
        }
        self.seen.push((life, from));
        match (before, present) {
            (Some(_), Some((other, place))) if other != life => {
                let returned = self.returned.replace((life, now));
                match returned {
                    Some((first, at)) if first != life && now.since(at) <= WINDOW => {
                        CloneVerdict::Two([place, from])
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
    fn two_that_take_the_place_from_one_another_are_found() {
        check("abaB");
        check("aaabbbaaB");
        check("abcaB");
        check("abcdaB");
        check("xyabaB");
        check("ab.aB");
    }

    #[test]
    fn a_reboot_a_restart_or_a_restored_host_is_no_clone() {
        for story in [
            "a",
            "aaaa",
            // Restarts and reboots, however many; the old connection may be half open.
            "abcdefghij",
            "aabbccdd",
            // Set back to an earlier moment, memory and all; and again to the same one.
            "aba",
            "abac",
            "abacada",
            // An upgrade that was tried and taken back.
            "abacadaea",
            // Set back to one moment, and long afterwards to another.
            "aba.b",
        ] {
            check(story);
        }
    }

    #[test]
    fn the_verdict_names_both_places() {
        let places = [1, 2].map(|last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)));
        let mut lives = Lives::default();
        for (life, expected) in [
            (0, CloneVerdict::Alone),
            (1, CloneVerdict::Alone),
            (0, CloneVerdict::Alone),
            (1, CloneVerdict::Two([places[0], places[1]])),
        ] {
            assert_eq!(lives.connected(LifeId(life as u128), places[life], BootTime(1)), expected);
        }
    }
}
