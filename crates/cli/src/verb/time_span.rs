//! Lengths of time in arguments, such as `--ttl 10m` and `--since 7d`.

use std::str::FromStr;

/// A number and one of `s`, `m`, `h`, `d`; at least a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    pub secs: u64,
}

impl FromStr for TimeSpan {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "expected a number and a unit, such as 30s, 10m, 1h or 7d".to_owned();
        let unit = text.chars().next_back().ok_or_else(bad)?;
        let number = &text[..text.len() - unit.len_utf8()];
        let scale: u64 = match unit {
            's' => 1,
            'm' => 60,
            'h' => 60 * 60,
            'd' => 24 * 60 * 60,
            _ => return Err(bad()),
        };
        // `parse` alone would accept a plus sign.
        if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let secs = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
        match secs {
            Some(0) => Err("must be at least 1s".to_owned()),
            Some(secs) => Ok(TimeSpan { secs }),
            None => Err("is too long".to_owned()),
        }
    }
}

impl TimeSpan {
    /// The time this long ago; not before 1970.
    pub(super) fn ago(self, now: i64) -> i64 {
        now.saturating_sub(i64::try_from(self.secs).unwrap_or(i64::MAX)).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_span_is_a_number_and_a_unit() {
        for (text, secs) in [("30s", 30), ("10m", 600), ("1h", 3_600), ("7d", 604_800)] {
            assert_eq!(text.parse::<TimeSpan>(), Ok(TimeSpan { secs }), "{text}");
        }
        for bad in ["", "s", "30", "1w", "-1h", "+1h", "1.5h", "1h30m", "1µ", "99999999999999999999d"] {
            assert!(bad.parse::<TimeSpan>().is_err(), "{bad}");
        }
        assert_eq!("0s".parse::<TimeSpan>(), Err("must be at least 1s".to_owned()));
    }
}
