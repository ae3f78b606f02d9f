//! How the simulated processes and connections behave: plain data, read once and checked whole.

use crate::random::Random;
use procfleet_core::code::Code;
use serde::Deserialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// By default every op succeeds at once, and no connection breaks.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// How long an op takes.
    pub take_ms: DelayRange,
    /// How ops end: one of these, by weight.
    pub end: Vec<ScriptedEnd>,
    /// When connections break.
    pub drop: Drops,
    /// Percentage of reports that are sent twice.
    pub repeat_percent: f64,
    /// Agents that read too slowly.
    pub slow: Slow,
}

/// Uniformly distributed from the first to the second number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct DelayRange(pub u64, pub u64);

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedEnd {
    /// GSE's error code.
    pub code: u32,
    #[serde(default = "one")]
    pub weight: u32,
    /// Empty: a sentence that says that it is simulated.
    #[serde(default)]
    pub message: String,
}

/// Percentages of ops that break their connection at a step, and a time after which a connection breaks
/// without an op.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drops {
    /// The op has been read; the server does not know that yet.
    pub received_percent: f64,
    /// The server knows that the agent has the op.
    pub taken_percent: f64,
    /// The outcome was sent, and its acknowledgement is not awaited.
    pub reported_percent: f64,
    /// Average lifetime of a connection in seconds; 0: connections do not break.
    pub every_secs: f64,
    /// How long an agent that broke its connection stays away.
    pub away_ms: DelayRange,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slow {
    /// Percentage of agents that are slow.
    pub agents_percent: f64,
    /// Milliseconds in which a slow agent reads one message.
    pub read_every_ms: u64,
}

/// All faults of a script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadScript(pub Vec<String>);

fn one() -> u32 {
    1
}

impl Default for Script {
    fn default() -> Script {
        Script {
            take_ms: DelayRange(0, 0),
            end: vec![ScriptedEnd { code: Code::Success.number(), weight: 1, message: String::new() }],
            drop: Drops::default(),
            repeat_percent: 0.0,
            slow: Slow::default(),
        }
    }
}

impl Script {
    pub fn from_json(text: &str) -> Result<Script, BadScript> {
        let script: Script =
            serde_json::from_str(text).map_err(|error| BadScript(vec![error.to_string()]))?;
        script.check()?;
        Ok(script)
    }

    /// Every fault at once.
    pub fn check(&self) -> Result<(), BadScript> {
        let mut faults = Vec::new();
        for (name, percent) in [
            ("drop.received_percent", self.drop.received_percent),
            ("drop.taken_percent", self.drop.taken_percent),
            ("drop.reported_percent", self.drop.reported_percent),
            ("repeat_percent", self.repeat_percent),
            ("slow.agents_percent", self.slow.agents_percent),
        ] {
            if !(0.0..=100.0).contains(&percent) {
                faults.push(format!("{name}: {percent} is not from 0 to 100"));
            }
        }
        for (name, span) in [("take_ms", self.take_ms), ("drop.away_ms", self.drop.away_ms)] {
            if span.0 > span.1 {
                faults.push(format!("{name}: {} is more than {}", span.0, span.1));
            }
        }
        if !(self.drop.every_secs >= 0.0 && self.drop.every_secs.is_finite()) {
            faults.push(format!("drop.every_secs: {} is no length of time", self.drop.every_secs));
        }
        for (index, ending) in self.end.iter().enumerate() {
            match Code::from_number(ending.code) {
                None => faults.push(format!("end[{index}].code: there is no code {}", ending.code)),
                Some(Code::Handling) => {
                    faults.push(format!("end[{index}].code: {} means that an op goes on", ending.code));
                }
                Some(_) => {}
            }
        }
        if self.end.iter().map(|ending| u64::from(ending.weight)).sum::<u64>() == 0 {
            faults.push("end: at least one way to end needs a weight".to_owned());
        }
        if faults.is_empty() { Ok(()) } else { Err(BadScript(faults)) }
    }

    pub(crate) fn take(&self, random: &mut Random) -> Duration {
        self.take_ms.choose(random)
    }

    pub(crate) fn ending(&self, random: &mut Random) -> &ScriptedEnd {
        let total = self.end.iter().map(|ending| u64::from(ending.weight)).sum::<u64>();
        let mut roll = random.between(0, total.saturating_sub(1));
        for ending in &self.end {
            match roll.checked_sub(u64::from(ending.weight)) {
                Some(rest) => roll = rest,
                None => return ending,
            }
        }
        self.end.last().expect("a checked script has a way to end")
    }
}

impl DelayRange {
    pub(crate) fn choose(self, random: &mut Random) -> Duration {
        Duration::from_millis(random.between(self.0, self.1))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected N or N-M")]
pub struct BadSpan;

/// `50` or `10-200`.
impl FromStr for DelayRange {
    type Err = BadSpan;
    fn from_str(text: &str) -> Result<DelayRange, BadSpan> {
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| BadSpan);
        match text.split_once('-') {
            Some((least, most)) => Ok(DelayRange(number(least)?, number(most)?)),
            None => number(text).map(|both| DelayRange(both, both)),
        }
    }
}

impl fmt::Display for DelayRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected CODE or CODE=WEIGHT")]
pub struct BadEnding;

/// `836` or `836=5`.
impl FromStr for ScriptedEnd {
    type Err = BadEnding;
    fn from_str(text: &str) -> Result<ScriptedEnd, BadEnding> {
        let (code, weight) = text.split_once('=').unwrap_or((text, "1"));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| BadEnding);
        Ok(ScriptedEnd { code: number(code)?, weight: number(weight)?, message: String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_script_is_reported() {
        let script = Script::from_json(
            r#"{"take_ms": [10, 20], "end": [{"code": 0, "weight": 9}, {"code": 836, "message": "too late"}],
                "drop": {"taken_percent": 5, "away_ms": [100, 2000]}, "slow": {"agents_percent": 1, "read_every_ms": 500}}"#,
        )
        .expect("a good script");
        assert_eq!(
            (script.take_ms, script.end[1].weight, script.repeat_percent),
            (DelayRange(10, 20), 1, 0.0)
        );
        assert_eq!(Script::from_json("{}").expect("nothing is needed"), Script::default());
        let faults = Script::from_json(
            r#"{"take_ms": [2, 1], "repeat_percent": 101, "end": [{"code": 115}, {"code": 4, "weight": 0}]}"#,
        )
        .expect_err("four faults");
        let [repeat, take, handling, unknown] = &faults.0[..] else { panic!("{faults:?}") };
        assert!(repeat.starts_with("repeat_percent") && take.starts_with("take_ms"), "{faults}");
        assert!(handling.starts_with("end[0].code") && unknown.starts_with("end[1].code"), "{faults}");
        assert!(Script::from_json(r#"{"ends": []}"#).expect_err("unknown").to_string().contains("ends"));
        assert!(Script::from_json(r#"{"end": []}"#).is_err(), "an op must end somehow");
    }

    #[test]
    fn flags_are_short_forms_of_a_script() {
        assert_eq!("5".parse(), Ok(DelayRange(5, 5)));
        assert_eq!("5-7".parse(), Ok(DelayRange(5, 7)));
        assert_eq!("836=3".parse(), Ok(ScriptedEnd { code: 836, weight: 3, message: String::new() }));
        assert!("".parse::<DelayRange>().is_err() && "x=1".parse::<ScriptedEnd>().is_err());
    }

    #[test]
    fn endings_are_chosen_by_weight() {
        let script = Script::from_json(
            r#"{"end": [{"code": 0, "weight": 3}, {"code": 836}, {"code": 822, "weight": 0}]}"#,
        );
        let script = script.expect("a good script");
        let mut random = Random::new(7, 0);
        let mut count = |code: u32| (0..4_000).filter(|_| script.ending(&mut random).code == code).count();
        assert!((2_700..3_300).contains(&count(0)));
        assert!((800..1_200).contains(&count(836)));
        assert_eq!(count(822), 0);
    }
}
