//! Signals by their names and numbers, as a spec has them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A Linux signal with a name. Real-time signals are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct SignalNumber(u8);

/// In the order of their numbers, from 1 on.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

impl SignalNumber {
    pub const KILL: SignalNumber = SignalNumber(9);
    pub const TERM: SignalNumber = SignalNumber(15);

    pub fn number(self) -> u8 {
        self.0
    }

    /// Its name without `SIG`.
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0) - 1]
    }

    /// Whether the signal stops or continues a process without ending it.
    pub fn halts_or_wakes(self) -> bool {
        matches!(self.name(), "STOP" | "TSTP" | "TTIN" | "TTOU" | "CONT")
    }

    /// Whether no program ends by the signal. Its default action ends none, either; but programs such as
    /// httpd end by WINCH.
    pub fn ends_nothing(self) -> bool {
        self.halts_or_wakes() || matches!(self.name(), "CHLD" | "URG")
    }
}

impl fmt::Display for SignalNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIG{}", self.name())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be the name of a signal, such as TERM or SIGHUP, or its number from 1 to 31")]
pub struct UnknownSignal;

impl TryFrom<u8> for SignalNumber {
    type Error = UnknownSignal;

    fn try_from(number: u8) -> Result<SignalNumber, UnknownSignal> {
        if (1..=31).contains(&number) { Ok(SignalNumber(number)) } else { Err(UnknownSignal) }
    }
}

impl From<SignalNumber> for u8 {
    fn from(signal: SignalNumber) -> u8 {
        signal.0
    }
}

impl FromStr for SignalNumber {
    type Err = UnknownSignal;

    /// `TERM`, `SIGTERM`, `sigterm` and `15` are the same.
    fn from_str(text: &str) -> Result<SignalNumber, UnknownSignal> {
        let text = text.trim().to_ascii_uppercase();
        if let Ok(number) = text.parse::<u8>() {
            return SignalNumber::try_from(number);
        }
        let name = text.strip_prefix("SIG").unwrap_or(&text);
        let numbers = (1..).zip(NAMES);
        numbers
            .into_iter()
            .find(|(_, known)| *known == name)
            .map(|(number, _)| SignalNumber(number))
            .ok_or(UnknownSignal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_go_by_names_and_numbers() {
        for (text, number) in [
            ("TERM", Some(15)),
            ("sigterm", Some(15)),
            (" 15 ", Some(15)),
            ("HUP", Some(1)),
            ("SIGWINCH", Some(28)),
            ("31", Some(31)),
            ("SYS", Some(31)),
            ("0", None),
            ("32", None),
            ("-1", None),
            ("SIG", None),
            ("", None),
            ("TERMINATE", None),
            ("15 ; rm", None),
        ] {
            let read = text.parse::<SignalNumber>();
            assert_eq!(read.ok().map(SignalNumber::number), number, "{text:?}");
        }
        assert_eq!(SignalNumber::TERM.to_string(), "SIGTERM");
        assert_eq!(SignalNumber::try_from(9), Ok(SignalNumber::KILL));
        assert_eq!(SignalNumber::try_from(40), Err(UnknownSignal));
    }
}
