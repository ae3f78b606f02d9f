//! The output of a proc: request, answer, and the split of bytes into lines.

use super::fault::Faults;
use super::manage::read;
use super::query::{host, text, wait};
use super::read::{Reader, RequestBody};
use procfleet_core::id::{AgentId, Host, ProcKey};
use procfleet_core::spec::Instances;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

const LONGEST_NAME: usize = 256;
/// Maximum number of lines in one answer.
const MOST_LINES: i64 = 10_000;
const LINES: u32 = 100;

/// A proc on one host; the host may be omitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogOf {
    /// With the instance's number behind its name, unless it is the first.
    pub proc: ProcKey,
    pub host: Option<Host>,
    pub agent: Option<AgentId>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogsQuery {
    pub of: LogOf,
    pub lines: u32,
    /// `None`: the newest lines.
    pub since: Option<u64>,
    /// With `since`: how long to wait for a line.
    pub wait: Duration,
}

/// `GET /api/v1/logs` (query: `namespace`, `name`, `instance`, `host` or `agent`, `lines`, `since`,
/// `wait_ms`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LogsView {
    pub bk_agent_id: String,
    pub bk_cloud_id: u32,
    pub ip: String,
    /// The path of the log on the host.
    pub file: String,
    pub lines: Vec<String>,
    /// The bytes after the last complete line; they are returned again with their line.
    pub rest: String,
    /// Pass this cursor as `since` to get the following lines.
    pub cursor: String,
    /// The end of the log when it was read: at this cursor there is nothing more.
    pub end: String,
    /// Number of bytes before the first line that were lost by rotation.
    pub skipped_bytes: u64,
    /// Some bytes were not valid UTF-8 and were replaced.
    pub lossy: bool,
    /// A remark about the log; else empty.
    pub note: String,
}

pub fn logs<'v>(body: impl Into<RequestBody<'v>>) -> Result<LogsQuery, Faults> {
    let known = ["namespace", "name", "instance", "host", "agent", "lines", "since", "wait_ms"];
    read(body.into(), &known, |reader, faults| {
        let lines = reader.integer("lines", 1..=MOST_LINES, faults);
        let since = reader.integer("since", 0..=i64::MAX, faults);
        LogsQuery {
            of: log_of(reader, faults),
            lines: lines.and_then(|lines| u32::try_from(lines).ok()).unwrap_or(LINES),
            since: since.and_then(|since| u64::try_from(since).ok()),
            wait: wait(reader, faults),
        }
    })
}

/// The proc whose stored spec is requested.
pub fn spec<'v>(body: impl Into<RequestBody<'v>>) -> Result<LogOf, Faults> {
    read(body.into(), &["namespace", "name", "instance", "host", "agent"], log_of)
}

fn log_of(reader: &Reader<'_>, faults: &mut Faults) -> LogOf {
    let namespace = reader.required_text("namespace", LONGEST_NAME, faults);
    let name = reader.required_text("name", LONGEST_NAME, faults);
    let instance = reader.integer("instance", 1..=i64::from(Instances::MAX), faults);
    let proc = ProcKey { namespace, name };
    let agent = text(reader, "agent", faults).and_then(|agent| match agent.parse() {
        Ok(agent) => Some(agent),
        Err(reason) => {
            faults.add("agent", format!("{reason}"));
            None
        }
    });
    LogOf {
        proc: proc.instance(instance.and_then(|number| u32::try_from(number).ok()).unwrap_or(1)),
        host: host(reader, faults),
        agent,
    }
}

/// The lines of a piece of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    pub lines: Vec<String>,
    pub rest: String,
    /// How many bytes the lines take.
    pub taken: usize,
    pub lossy: bool,
}

/// Maximum number of lines. `full` bytes without a line end count as a line, which continues in the next
/// answer.
pub fn split(bytes: &[u8], most: usize, full: usize) -> Lines {
    let mut split = Lines::default();
    let words = |bytes: &[u8], lossy: &mut bool| {
        let text = String::from_utf8_lossy(bytes);
        *lossy |= matches!(text, std::borrow::Cow::Owned(_));
        text.into_owned()
    };
    while split.lines.len() < most {
        let left = &bytes[split.taken..];
        let Some(end) = left.iter().position(|byte| *byte == b'\n') else { break };
        let line = left[..end].strip_suffix(b"\r").unwrap_or(&left[..end]);
        split.lines.push(words(line, &mut split.lossy));
        split.taken += end + 1;
    }
    let left = &bytes[split.taken..];
    if split.lines.is_empty() && left.len() >= full {
        // Does not cut a character in two.
        let cut = match std::str::from_utf8(left) {
            Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
            Ok(_) | Err(_) => left.len(),
        };
        split.lines.push(words(&left[..cut], &mut split.lossy));
        split.taken += cut;
    } else if !left.contains(&b'\n') {
        split.rest = words(left, &mut split.lossy);
    }
    split
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bytes_become_lines() {
        let check = |bytes: &[u8], lines: &[&str], rest: &str, taken: usize, lossy: bool| {
            let lines = lines.iter().map(|line| (*line).to_owned()).collect();
            let expected = Lines { lines, rest: rest.to_owned(), taken, lossy };
            assert_eq!(split(bytes, 3, 8), expected, "{bytes:?}");
        };
        check(b"", &[], "", 0, false);
        check(b"a\n\nb\r\n", &["a", "", "b"], "", 6, false);
        check(b"a\nb", &["a"], "b", 2, false);
        check(b"1\n2\n3\n4\n5", &["1", "2", "3"], "", 6, false);
        check(b"\xff\n", &["\u{fffd}"], "", 2, true);
        check(b"12345678", &["12345678"], "", 8, false);
        check("1234567é".as_bytes(), &["1234567é"], "", 9, false);
        check(&"1234567é".as_bytes()[..8], &["1234567"], "", 7, false);
        check(b"a\n12345678", &["a"], "12345678", 2, false);
    }

    #[test]
    fn all_faults_of_a_log_query_are_reported_at_once() {
        let sent = json!({"name": " ", "instance": "0", "host": "x", "agent": "a b", "lines": "many", "since": -1,
            "tail": 3});
        let faults = logs(&sent).expect_err("it is all wrong").to_string();
        for field in ["namespace", "name", "instance", "host", "agent", "lines", "since", "tail"] {
            assert!(faults.contains(&format!("{field}: ")), "{field}: {faults}");
        }
        let sent =
            json!({"namespace": "web", "name": "nginx", "instance": "2", "lines": 5, "wait_ms": 99_999});
        let question = logs(&sent).expect("a good one");
        assert_eq!(question.of.proc, ProcKey { namespace: "web".to_owned(), name: "nginx#2".to_owned() });
        assert_eq!((question.lines, question.wait), (5, Duration::from_secs(30)));
    }
}
