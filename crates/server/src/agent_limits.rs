//! Limits on everything that an agent may send, so that a compromised agent cannot fill the store or the
//! memory of the server.
//!
//! Three answers to excess:
//! - A text for people is cut at a character boundary and ends in `…`. The item is stored and counted as cut.
//! - An item above a limit of its own, above a count limit, or above a budget that the agent ignores, is
//!   dropped and counted. The session goes on, because the agent would send the item again in the next one:
//!   agents of earlier versions may have names and states that are too large. Dropped items cost tokens, too.
//! - A message that no version of the agent sends ends the session ([`OversizedMessage`]).
//!
//! Budgets are in `sessions/budget.rs`. docs/operator/server-limits.md shows this table to operators.

use crate::json_check;
use procfleet_core::id::ProcKey;
use procfleet_core::op::{Content, Outcome};
use procfleet_core::supervise::Event;
use procfleet_proto::link::{
    self, EventMessage, Events, Hello, HostFacts, LOG_BYTES, LogRead, SpecRead, States,
};
use procfleet_proto::state::ProcReport;
use std::time::Duration;

/// Items in one message. The agent counts at least 32 bytes for each state in a message of at most 8 KiB, and
/// at least 40 for each event in one of at most 40 KiB, so it never sends more than 256 states or 1,024
/// events. Its hello names at most 1,000 ops.
pub const ITEMS: usize = 2_000;
/// Bytes of a namespace, proc name or OS account. The API accepts 256 characters, which are at most 1,024
/// bytes, and makes names of JOB's processes that have at most 1,074; an instance adds `#64`.
pub const NAME: usize = ProcKey::LONGEST;
/// Bytes of a journal's name. The agent makes one of 32 hexadecimal digits.
pub const JOURNAL: usize = 64;
/// Bytes of an event's message. The agent cuts its own at the same length.
pub const EVENT_MESSAGE: usize = 8 * 1024;
/// Bytes of an event's details. They repeat up to 4 KiB of a command's output as JSON, which may need six
/// bytes for one.
pub const EVENT_DETAILS: usize = 32 * 1024;
/// Levels of nesting in an event's details. The agent's have 4; parsers of callers allow 100 or more for the
/// whole answer.
const DETAILS_DEPTH: u8 = 32;
/// How far the time of an event may be ahead of the server's clock.
pub const EVENT_AHEAD: Duration = Duration::from_secs(300);
/// How far a time in a proc's state may be ahead. It is only displayed, and a host that takes local time for
/// UTC is wrong by hours.
pub const STATE_AHEAD: Duration = Duration::from_secs(86_400);
/// The kind of an event that this server does not know. An agent of a newer version may send it.
pub const UNKNOWN_KIND: &str = "unknown";
/// Bytes of a word: version, architecture, the name of an unknown kind.
pub const WORD: usize = 64;

/// Bytes of a proc's note, which may hold 4 KiB of a command's output and 1 KiB about its files.
pub const NOTE: usize = 8 * 1024;
/// Bytes of a proc's health. The agent keeps 256 characters of the output of `health_cmd`.
pub const HEALTH: usize = 2 * 1024;
/// Bytes of a proc's version. The agent keeps 256 characters of the output of `version_cmd`.
pub const VERSION: usize = 1024;
/// Bytes of all labels of a proc together.
pub const LABELS: usize = 48 * 1024;
/// Bytes of a proc's state as it is stored.
pub const STATE: usize = link::STATE;
/// How many lost log lines an agent can report at once.
pub const LOG_LINES_DROPPED: u64 = 1_000_000;

/// Bytes of the process groups of one namespace, as the API accepts them.
pub const GROUPS: usize = 24 * 1024;

/// Bytes of an outcome's message. The agent writes up to 4 KiB of output for each of a few causes.
pub const OUTCOME_MESSAGE: usize = 32 * 1024;
/// Bytes of an outcome's content as JSON. 64 instances have some 400 bytes each, and 4 KiB of command lines
/// and of notes.
pub const OUTCOME_CONTENT: usize = 48 * 1024;

/// Bytes of a certificate signing request. One for an Ed25519 or P-256 key has less than 500.
pub const SIGNING_REQUEST: usize = 8 * 1024;
/// Bytes of the path of a log, and of the message of an answer to a question.
pub const ANSWER_TEXT: usize = 4 * 1024;
/// Maximum number of processors, and of MiB of memory, that a host may report.
pub const CPUS: u64 = 1 << 16;
pub const MEMORY_MIB: u64 = 1 << 32;

/// A message that no version of the agent sends. The text names the field and never repeats the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent sent {0} above the limit of this server")]
pub struct OversizedMessage(pub &'static str);

fn at_most(what: &'static str, size: usize, most: usize) -> Result<(), OversizedMessage> {
    if size <= most { Ok(()) } else { Err(OversizedMessage(what)) }
}

/// Cuts a text at a character boundary and appends `…`. True: the text was too long.
fn cut(text: &mut String, most: usize) -> bool {
    const ELLIPSIS: &str = "…";
    let too_long = text.len() > most;
    if too_long {
        text.truncate(text.floor_char_boundary(most - ELLIPSIS.len()));
        text.push_str(ELLIPSIS);
    }
    too_long
}

pub fn check_hello(hello: &mut Hello) -> Result<(), OversizedMessage> {
    cut(&mut hello.version, WORD);
    at_most("a list of ops", hello.taken.len(), ITEMS)
}

/// `now`: seconds since 1970.
pub fn bound_facts(facts: &mut HostFacts, now: i64) {
    cut(&mut facts.os, WORD);
    cut(&mut facts.architecture, WORD);
    // A newer agent may send a value that this server does not know.
    if !matches!(facts.containment.as_str(), "cgroup" | "tree") {
        facts.containment.clear();
    }
    facts.cpus = facts.cpus.min(CPUS);
    facts.memory_mib = facts.memory_mib.min(MEMORY_MIB);
    facts.started_at = facts.started_at.clamp(0, ahead(now, STATE_AHEAD.as_secs()));
}

pub fn bound_version(version: &mut String) {
    cut(version, WORD);
}

pub fn check_signing_request(request: &[u8]) -> Result<(), OversizedMessage> {
    at_most("a certificate request", request.len(), SIGNING_REQUEST)
}

pub fn check_events(events: &Events) -> Result<(), OversizedMessage> {
    at_most("a list of events", events.events.len(), ITEMS)?;
    events.events.iter().try_for_each(|event| at_most("a journal's name", event.journal.len(), JOURNAL))
}

/// Whether the names of an event are within their limits.
pub fn is_stored(event: &EventMessage) -> bool {
    [&event.namespace, &event.name, &event.user].into_iter().all(|name| name.len() <= NAME)
}

/// Bounds one event. `times`: the earliest and the latest time that are accepted, in milliseconds since 1970.
/// True: something was cut.
pub fn bound_event(event: &mut EventMessage, times: (i64, i64)) -> bool {
    let mut was_cut = cut(&mut event.proc_name, NAME);
    if !Event::KINDS.contains(&event.kind.as_str()) {
        cut(&mut event.kind, WORD);
        event.message = format!("{}: {}", event.kind, event.message);
        event.kind = UNKNOWN_KIND.to_owned();
    }
    was_cut |= cut(&mut event.message, EVENT_MESSAGE);
    let (earliest, latest) = times;
    event.at = event.at.clamp(earliest, latest.max(earliest));
    if event.details.len() > EVENT_DETAILS {
        event.details = b"null".to_vec();
        was_cut = true;
    } else if check_details(&event.details).is_err() {
        event.details = b"null".to_vec();
    }
    event.report_id = event.report_id.max(0);
    was_cut
}

pub fn check_details(text: &[u8]) -> Result<(), serde_json::Error> {
    json_check::check(text, DETAILS_DEPTH)
}

/// How many items of a list of states were dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedStates {
    pub states: usize,
    pub groups: usize,
}

/// Drops items that are too large.
pub fn bound_states(states: &mut States) -> Result<DroppedStates, OversizedMessage> {
    at_most("a list of states", states.procs.len() + states.groups.len(), ITEMS)?;
    let sent = (states.procs.len(), states.groups.len());
    states.procs.retain(|state| {
        state.namespace.len() <= NAME && state.name.len() <= NAME && state.report.len() <= STATE
    });
    states.groups.retain(|groups| groups.namespace.len() <= NAME && groups.groups.len() <= GROUPS);
    Ok(DroppedStates { states: sent.0 - states.procs.len(), groups: sent.1 - states.groups.len() })
}

/// The result of bounding a proc's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounded {
    /// The state is within all limits.
    AsSent,
    /// A time was impossible; no text was lost.
    Clamped,
    Cut,
}

/// `now`: seconds since 1970.
pub fn bound_state(report: &mut ProcReport, now: i64) -> Bounded {
    let mut was_cut = cut(&mut report.note, NOTE);
    was_cut |= cut(&mut report.version, VERSION);
    let mut health = report.health.to_string();
    if cut(&mut health, HEALTH) {
        report.health = health.into();
        was_cut = true;
    }
    was_cut |= cut(&mut report.user, NAME);
    if report.labels.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() > LABELS {
        report.labels.clear();
        was_cut = true;
    }
    let latest = ahead(now, STATE_AHEAD.as_secs());
    let mut clamped = false;
    for time in [&mut report.registered_at, &mut report.started_at, &mut report.reported_at] {
        let believed = (*time).clamp(0, latest);
        clamped |= believed != *time;
        *time = believed;
    }
    match (was_cut, clamped) {
        (true, _) => Bounded::Cut,
        (false, true) => Bounded::Clamped,
        (false, false) => Bounded::AsSent,
    }
}

/// True: something was cut.
pub fn bound_outcome(outcome: &mut Outcome) -> bool {
    let was_cut = cut(&mut outcome.message, OUTCOME_MESSAGE);
    if serde_json::to_vec(&outcome.content).is_ok_and(|json| json.len() <= OUTCOME_CONTENT) {
        return was_cut;
    }
    outcome.content = match &outcome.content {
        Content::Status(_) => Content::Status(Box::default()),
        Content::Control { hosted, .. } => {
            Content::Control { hosted: *hosted, proc_name: String::new(), setup_path: String::new() }
        }
    };
    true
}

/// An answer to a question for at most `most` bytes of a log.
pub fn check_log(answer: &mut LogRead, most: usize) -> Result<(), OversizedMessage> {
    cut(&mut answer.message, ANSWER_TEXT);
    cut(&mut answer.file, ANSWER_TEXT);
    at_most("more of a log than was asked for", answer.bytes.len(), most.min(LOG_BYTES))?;
    // Offsets are added to one another; no real file is this large.
    let largest = [answer.begin, answer.end, answer.skipped].into_iter().max().unwrap_or_default();
    if largest > 1 << 62 { Err(OversizedMessage("an offset in a log")) } else { Ok(()) }
}

pub fn bound_spec_answer(answer: &mut SpecRead) {
    cut(&mut answer.message, ANSWER_TEXT);
}

fn ahead(now: i64, by: u64) -> i64 {
    now.saturating_add_unsigned(by)
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_proto::http::native::ProcState;
    use procfleet_proto::link::{GroupsMessage, MAX_FRAME, ProcStateMessage};

    const NOW: i64 = 1_800_000_000;

    #[test]
    fn a_text_is_cut_between_characters_and_ends_in_an_ellipsis() {
        for (text, most, expected) in
            [("abc", 3, "abc"), ("abcdef", 5, "ab…"), ("äöüäöü", 8, "äö…"), ("äöüäöü", 7, "äö…"), ("", 3, "")]
        {
            let mut found = text.to_owned();
            assert_eq!(cut(&mut found, most), text != expected, "{text}");
            assert!(found == expected && found.len() <= most, "{text}: {found}");
        }
    }

    fn event() -> EventMessage {
        EventMessage {
            journal: "j".repeat(32),
            number: 1,
            at: 150,
            kind: "exited".to_owned(),
            message: "m".repeat(EVENT_MESSAGE),
            details: b"{\"exited\":{}}".to_vec(),
            report_id: 7,
            ..EventMessage::default()
        }
    }

    #[track_caller]
    fn check_event(
        change: impl FnOnce(&mut EventMessage),
        cut: bool,
        expect: impl FnOnce(&mut EventMessage),
    ) {
        let (mut sent, mut expected) = (event(), event());
        change(&mut sent);
        expect(&mut expected);
        assert_eq!(bound_event(&mut sent, (100, 200)), cut);
        assert_eq!(sent, expected);
    }

    #[test]
    fn an_event_is_stored_within_its_limits() {
        check_event(|_| (), false, |_| ());
        let short = format!("{}…", "m".repeat(EVENT_MESSAGE - 3));
        check_event(|event| event.message.push('m'), true, |event| event.message = short.clone());
        check_event(|event| event.at = i64::MAX, false, |event| event.at = 200);
        check_event(|event| event.at = i64::MIN, false, |event| event.at = 100);
        let null = |event: &mut EventMessage| event.details = b"null".to_vec();
        check_event(|event| event.details = b"{".to_vec(), false, null);
        let nested = |levels| "[".repeat(levels) + &"]".repeat(levels);
        check_event(
            |event| event.details = nested(32).into(),
            false,
            |event| event.details = nested(32).into(),
        );
        check_event(|event| event.details = nested(33).into(), false, null);
        let large = format!("\"{}\"", "d".repeat(EVENT_DETAILS));
        check_event(|event| event.details = large.into_bytes(), true, null);
        check_event(|event| event.report_id = -5, false, |event| event.report_id = 0);
        let newer = |event: &mut EventMessage| {
            event.kind = "exploded".to_owned();
            event.message = "loudly".to_owned();
        };
        check_event(newer, false, |event| {
            event.kind = UNKNOWN_KIND.to_owned();
            event.message = "exploded: loudly".to_owned();
        });
    }

    #[test]
    fn a_message_that_no_agent_sends_is_refused_with_its_field() {
        let check = |change: fn(&mut EventMessage), expected| {
            let mut event = event();
            change(&mut event);
            assert_eq!(check_events(&Events { events: vec![event] }), expected);
        };
        check(|_| (), Ok(()));
        check(|event| event.journal = "j".repeat(65), Err(OversizedMessage("a journal's name")));
        let many = Events { events: vec![EventMessage::default(); ITEMS + 1] };
        assert_eq!(check_events(&many), Err(OversizedMessage("a list of events")));
    }

    #[test]
    fn an_event_with_a_name_that_is_too_long_is_not_stored() {
        let check = |change: fn(&mut EventMessage), expected| {
            let mut event = event();
            change(&mut event);
            assert_eq!(is_stored(&event), expected);
        };
        check(|_| (), true);
        check(|event| event.name = "ä".repeat(256) + "#64", true);
        check(|event| event.namespace = "n".repeat(NAME + 1), false);
        check(|event| event.name = "n".repeat(NAME + 1), false);
        check(|event| event.user = "n".repeat(NAME + 1), false);
    }

    #[test]
    fn states_and_groups_that_are_too_large_are_dropped_alone() {
        let state = |name: usize, bytes: usize| ProcStateMessage {
            name: "n".repeat(name),
            report: vec![b' '; bytes],
            ..ProcStateMessage::default()
        };
        let groups = |name: usize, bytes: usize| GroupsMessage {
            namespace: "n".repeat(name),
            groups: vec![b' '; bytes],
            ..GroupsMessage::default()
        };
        let kept = States {
            procs: vec![state(1, 1), state(NAME, STATE)],
            groups: vec![groups(1, 1), groups(NAME, GROUPS)],
            ..States::default()
        };
        let mut sent = kept.clone();
        assert_eq!(bound_states(&mut sent), Ok(DroppedStates::default()));
        sent.procs.extend([state(NAME + 1, 1), state(1, STATE + 1)]);
        sent.groups.insert(0, groups(1, GROUPS + 1));
        assert_eq!(bound_states(&mut sent), Ok(DroppedStates { states: 2, groups: 1 }));
        assert_eq!(sent, kept);
        sent.procs = vec![state(1, 1); ITEMS];
        assert_eq!(bound_states(&mut sent), Err(OversizedMessage("a list of states")));
    }

    #[test]
    fn a_state_is_stored_within_its_limits() {
        let check = |change: fn(&mut ProcReport), expected: Bounded| {
            let mut report = ProcReport::left_alone("n".repeat(NOTE));
            report.state = ProcState::Running;
            change(&mut report);
            assert_eq!(bound_state(&mut report, NOW), expected);
            assert_eq!(bound_state(&mut report, NOW), Bounded::AsSent, "bounding is idempotent");
        };
        check(|_| (), Bounded::AsSent);
        check(|report| report.note.push('n'), Bounded::Cut);
        check(|report| report.version = "v".repeat(VERSION + 1), Bounded::Cut);
        check(|report| report.health = "h".repeat(HEALTH + 1).into(), Bounded::Cut);
        check(|report| report.started_at = i64::MAX, Bounded::Clamped);
        check(|report| report.registered_at = -1, Bounded::Clamped);
        check(|report| report.reported_at = NOW + 3_600, Bounded::AsSent);
        check(|report| drop(report.labels.insert("l".to_owned(), "v".repeat(LABELS))), Bounded::Cut);
    }

    #[test]
    fn a_log_answer_is_not_larger_than_the_question_allows() {
        let check = |bytes: usize, begin: u64, expected| {
            let mut answer = LogRead { bytes: vec![b'x'; bytes], begin, ..LogRead::default() };
            assert_eq!(check_log(&mut answer, 100), expected);
        };
        check(100, 7, Ok(()));
        check(101, 7, Err(OversizedMessage("more of a log than was asked for")));
        check(0, u64::MAX, Err(OversizedMessage("an offset in a log")));
    }

    /// serde lists all variants in its error, so the test finds an event whose name is missing among the
    /// kinds.
    #[test]
    fn every_event_of_an_agent_of_this_version_is_of_a_known_kind() {
        let error = serde_json::from_str::<Event>("{\"nonsense\": {}}").expect_err("no event").to_string();
        let named = error.split('`').skip(1).step_by(2).filter(|word| *word != "nonsense");
        let (mut named, mut kinds) = (named.collect::<Vec<_>>(), Event::KINDS.to_vec());
        named.sort_unstable();
        kinds.sort_unstable();
        assert_eq!(named, kinds, "{error}");
    }

    /// Otherwise the limit of the frame would apply, and not that of this table.
    #[test]
    fn the_limits_are_within_a_frame() {
        for bytes in [
            EVENT_MESSAGE + EVENT_DETAILS,
            STATE + 2 * NAME,
            GROUPS,
            OUTCOME_CONTENT,
            LOG_BYTES + ANSWER_TEXT,
        ] {
            assert!(bytes < MAX_FRAME, "{bytes}");
        }
    }
}
