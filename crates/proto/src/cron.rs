//! A crontab rule: checked where a request is read, and followed on the host, with the same parser on both
//! sides.
//!
//! A rule has five fields, or six with seconds first, or is one of `@hourly`, `@daily`, `@weekly`,
//! `@monthly`, `@yearly` and `@annually`. Where the clock is set forward in spring, a rule with a fixed time
//! of day that falls into the gap matches at its end; where it is set back in autumn, such a rule matches
//! once. A rule that repeats within the hour follows the real time.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::Zoned;
use jiff::civil::{DateTime, date};

/// A rule that matches at some time.
#[derive(Clone, Debug)]
pub struct CronRule(Cron);

/// Why a text is not a valid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRule {
    #[error(
        "has {found} fields, must have five (minute, hour, day, month, weekday), or six with seconds first"
    )]
    Fields { found: usize },
    #[error("{reason}")]
    Field { reason: String },
    #[error("never matches: there is no such day")]
    Never,
}

impl CronRule {
    pub fn parse(text: &str) -> Result<CronRule, BadRule> {
        let found = text.split_whitespace().count();
        if !text.trim().starts_with('@') && !matches!(found, 5 | 6) {
            return Err(BadRule::Fields { found });
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let rule = parser.parse(text).map_err(|error| BadRule::Field { reason: reason(text, &error) })?;
        // The search gives up at the year 5000, so from here it is short. Within 28 years every date falls on
        // every weekday, including 29 February.
        let from: DateTime = date(4960, 1, 1).at(0, 0, 0, 0);
        match rule.find_next_occurrence(&from, true) {
            Ok(_) => Ok(CronRule(rule)),
            Err(_) => Err(BadRule::Never),
        }
    }

    /// The first time that matches after this one, in its time zone. `None`: beyond all calendars.
    pub fn next_after(&self, time: &Zoned) -> Option<Zoned> {
        self.0.find_next_occurrence(time, false).ok()
    }
}

/// The parser's error message without its prefix.
fn reason(text: &str, error: &croner::errors::CronError) -> String {
    use croner::errors::CronError::{
        ComponentError, EmptyPattern, IllegalCharacters, InvalidDate, InvalidPattern, InvalidTime,
        TimeSearchLimitExceeded,
    };
    let why = match error {
        InvalidPattern(why) | IllegalCharacters(why) | ComponentError(why) => why.clone(),
        EmptyPattern | InvalidDate | InvalidTime | TimeSearchLimitExceeded => error.to_string(),
    };
    match text.trim().starts_with('@') {
        true => {
            format!("{:?} is no rule; there are @hourly, @daily, @weekly, @monthly, @yearly", text.trim())
        }
        false => format!("{text:?} is no rule: {}", why.replace("CronPattern", "it").trim_end_matches('.')),
    }
}
