//! The last result of `health_cmd`.

use serde::{Deserialize, Serialize};
use std::fmt;

const HEALTHY: &str = "healthy";
const UNHEALTHY: &str = "unhealthy";

/// Stored, sent and shown as a text: empty, `healthy`, `healthy: OUTPUT` or `unhealthy: REASON`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum HealthReport {
    /// There is no result yet, or no `health_cmd`.
    #[default]
    Unknown,
    /// The output may be empty.
    Healthy {
        output: String,
    },
    Unhealthy {
        reason: String,
    },
    /// A text that only a newer agent understands.
    Other(String),
}

impl HealthReport {
    pub fn is_unknown(&self) -> bool {
        *self == HealthReport::Unknown
    }

    /// Why the process is unhealthy, if it is.
    pub fn unhealthy_reason(&self) -> Option<&str> {
        match self {
            HealthReport::Unhealthy { reason } => Some(reason),
            HealthReport::Unknown | HealthReport::Healthy { .. } | HealthReport::Other(_) => None,
        }
    }
}

impl fmt::Display for HealthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HealthReport::Unknown => Ok(()),
            HealthReport::Healthy { output } if output.is_empty() => f.write_str(HEALTHY),
            HealthReport::Healthy { output } => write!(f, "{HEALTHY}: {output}"),
            HealthReport::Unhealthy { reason } => write!(f, "{UNHEALTHY}: {reason}"),
            HealthReport::Other(text) => f.write_str(text),
        }
    }
}

impl From<HealthReport> for String {
    fn from(report: HealthReport) -> String {
        report.to_string()
    }
}

impl From<String> for HealthReport {
    fn from(text: String) -> HealthReport {
        match text.split_once(": ") {
            None if text.is_empty() => HealthReport::Unknown,
            None if text == HEALTHY => HealthReport::Healthy { output: String::new() },
            Some((HEALTHY, output)) if !output.is_empty() => {
                HealthReport::Healthy { output: output.to_owned() }
            }
            Some((UNHEALTHY, reason)) => HealthReport::Unhealthy { reason: reason.to_owned() },
            None | Some(_) => HealthReport::Other(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_survives_a_round_trip() {
        for text in [
            "",
            "healthy",
            "healthy: 7 clients",
            "healthy: ",
            "unhealthy",
            "unhealthy: ",
            "unhealthy: no answer: 3",
            "degraded: slow",
        ] {
            let report = HealthReport::from(text.to_owned());
            assert_eq!(report.to_string(), text);
            assert_eq!(report.unhealthy_reason().is_some(), text.starts_with("unhealthy: "), "{text}");
        }
    }
}
