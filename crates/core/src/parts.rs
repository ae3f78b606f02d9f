//! An op on a proc of several instances: the instances that it concerns, and the merged outcome.
//!
//! The agent treats each instance as its own proc. Operations that start, host or register act on the number
//! of instances of the spec and leave surplus instances alone, so a smaller number ends no process.
//! Operations that end, unhost or query, and a restart, act on all known instances. To reduce the number:
//! stop, unregister, and start with the smaller number.

use crate::code::Code;
use crate::health::HealthReport;
use crate::op::{Content, OpKind, Outcome, ProcStatus};
use crate::spec::Instances;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// How many bytes of command lines the status of several instances holds in all: an outcome must fit a frame
/// of the link.
const COMMAND_LINES: usize = 4_096;
/// Maximum size of the merged notes in bytes.
const NOTES: usize = 4_096;

/// The instances of a proc that an agent knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownInstances {
    /// The number of instances in the newest spec of the agent.
    pub wanted: Option<Instances>,
    /// The instances with a record or an order.
    pub instances: BTreeSet<u32>,
}

/// The instances that an order for the whole proc concerns. The first is always among them.
pub fn concerned(kind: OpKind, sent: Option<Instances>, known: &KnownInstances) -> BTreeSet<u32> {
    match kind {
        OpKind::Start | OpKind::Host | OpKind::Register | OpKind::Update => wanted(sent, known).collect(),
        // A restart without a number is for all known instances.
        OpKind::Restart => wanted(sent, known).chain(known.instances.iter().copied()).collect(),
        OpKind::Stop
        | OpKind::Query
        | OpKind::Unhost
        | OpKind::Reload
        | OpKind::Kill
        | OpKind::Unregister => known.instances.iter().copied().chain([1]).collect(),
        // A process group belongs to a namespace, which has no instances.
        OpKind::Group => BTreeSet::from([1]),
    }
}

fn wanted(sent: Option<Instances>, known: &KnownInstances) -> RangeInclusive<u32> {
    let wanted = sent.or(known.wanted).unwrap_or_default().0;
    1..=wanted.clamp(1, Instances::MAX)
}

/// The outcome of the op, when all of its parts have ended. `None` if there are no parts.
///
/// The outcome is the failure of a part, if one failed. Otherwise it is a success, unless all parts had
/// nothing to do.
pub fn merge(parts: &BTreeMap<u32, Outcome>) -> Option<Outcome> {
    let first = parts.values().next()?;
    let content = merge_contents(parts).unwrap_or_else(|| first.content.clone());
    let mut failed = parts.iter().filter(|(_, outcome)| part_state(outcome) == PartState::Failed);
    if let Some((instance, outcome)) = failed.next() {
        let others: Vec<String> = failed.map(|(instance, _)| instance.to_string()).collect();
        let too = match others.as_slice() {
            [] => String::new(),
            [one] => format!(" (instance {one} failed too)"),
            many => format!(" (instances {} failed too)", many.join(", ")),
        };
        let message = format!("instance {instance}: {}{too}", outcome.message);
        return Some(Outcome::new(outcome.code, message, content));
    }
    let made_so = parts.values().find(|outcome| part_state(outcome) == PartState::Done);
    let said = made_so.unwrap_or(first);
    Some(Outcome::new(said.code, said.message.clone(), content))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PartState {
    Done,
    /// There was nothing to do.
    AlreadySo,
    Failed,
}

fn part_state(outcome: &Outcome) -> PartState {
    match outcome.code {
        Code::Success => PartState::Done,
        Code::AlreadyRunning | Code::NotRunning => PartState::AlreadySo,
        _ => PartState::Failed,
    }
}

/// `None` if they are of different kinds, which the parts of one op never are.
fn merge_contents(parts: &BTreeMap<u32, Outcome>) -> Option<Content> {
    match &parts.values().next()?.content {
        Content::Control { .. } => {
            let mut all_hosted = true;
            let mut named = (String::new(), String::new());
            for outcome in parts.values() {
                let Content::Control { hosted, proc_name, setup_path } = &outcome.content else {
                    return None;
                };
                all_hosted &= hosted;
                if named.0.is_empty() {
                    named = (proc_name.clone(), setup_path.clone());
                }
            }
            let (proc_name, setup_path) = named;
            Some(Content::Control { hosted: all_hosted, proc_name, setup_path })
        }
        Content::Status(_) => {
            let mut statuses = Vec::new();
            for (instance, outcome) in parts {
                let Content::Status(status) = &outcome.content else { return None };
                statuses.push((*instance, status.as_ref()));
            }
            merge_statuses(&statuses).map(|status| Content::Status(Box::new(status)))
        }
    }
}

/// The status of the first instance, with the other instances appended.
fn merge_statuses(statuses: &[(u32, &ProcStatus)]) -> Option<ProcStatus> {
    let (_, first) = statuses.first()?;
    let shown = COMMAND_LINES / statuses.len();
    let mut instances: Vec<_> = statuses.iter().map(|(_, status)| status.instance.clone()).collect();
    for instance in instances.iter_mut().flatten() {
        cut(&mut instance.command_line, shown);
    }
    let notes = statuses.iter().filter(|(_, status)| !status.note.is_empty());
    let notes: Vec<String> =
        notes.map(|(instance, status)| format!("instance {instance}: {}", status.note)).collect();
    let mut note = notes.join("; ");
    cut(&mut note, NOTES);
    let mut more = instances.into_iter();
    Some(ProcStatus {
        hosted: statuses.iter().all(|(_, status)| status.hosted),
        note,
        instance: more.next().flatten(),
        more: more.collect(),
        version: statuses
            .iter()
            .map(|(_, s)| &s.version)
            .find(|v| !v.is_empty())
            .cloned()
            .unwrap_or_default(),
        health: merge_healths(statuses),
        registered_at: first.registered_at,
        started_at: first.started_at,
        reported_at: first.reported_at,
        utc_offset_secs: first.utc_offset_secs,
    })
}

/// The health of the first unhealthy instance; if all are healthy, that of the first instance.
fn merge_healths(statuses: &[(u32, &ProcStatus)]) -> HealthReport {
    let unhealthy = statuses.iter().find_map(|(instance, status)| {
        let reason = status.health.unhealthy_reason()?;
        Some(HealthReport::Unhealthy { reason: format!("instance {instance}: {reason}") })
    });
    unhealthy.unwrap_or_else(|| statuses.first().map(|(_, status)| status.health.clone()).unwrap_or_default())
}

fn cut(text: &mut String, longest: usize) {
    text.truncate(text.floor_char_boundary(longest));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Instance;

    fn set(numbers: &[u32]) -> BTreeSet<u32> {
        numbers.iter().copied().collect()
    }

    #[test]
    fn an_order_concerns_the_instances_of_its_spec_or_the_known_instances() {
        let known = |wanted: Option<u32>, instances: &[u32]| KnownInstances {
            wanted: wanted.map(Instances),
            instances: set(instances),
        };
        // The sent number and the known instances; then the instances of a start and of a stop.
        type Row = (Option<u32>, KnownInstances, &'static [u32], &'static [u32]);
        let rows: &[Row] = &[
            (None, known(None, &[]), &[1], &[1]),
            (Some(3), known(None, &[]), &[1, 2, 3], &[1]),
            (None, known(Some(3), &[1]), &[1, 2, 3], &[1]),
            (None, known(Some(2), &[1, 2, 3]), &[1, 2], &[1, 2, 3]),
            (Some(1), known(Some(3), &[1, 2, 3]), &[1], &[1, 2, 3]),
            (Some(2), known(Some(1), &[2, 5]), &[1, 2], &[1, 2, 5]),
            (Some(0), known(None, &[]), &[1], &[1]),
        ];
        for (sent, known, launched, ended) in rows {
            let sent = sent.map(Instances);
            for kind in OpKind::ALL {
                let expected: &[u32] = match kind {
                    OpKind::Start | OpKind::Host | OpKind::Register | OpKind::Update => launched,
                    OpKind::Restart if ended.len() > launched.len() => ended,
                    OpKind::Restart => launched,
                    OpKind::Stop
                    | OpKind::Query
                    | OpKind::Unhost
                    | OpKind::Reload
                    | OpKind::Kill
                    | OpKind::Unregister => ended,
                    OpKind::Group => &[1],
                };
                assert_eq!(concerned(kind, sent, known), set(expected), "{kind:?} {sent:?} {known:?}");
            }
        }
        let most = concerned(OpKind::Start, Some(Instances(1_000)), &KnownInstances::default());
        assert_eq!(most.len(), 64);
    }

    fn control(code: Code, message: &str, hosted: bool) -> Outcome {
        let content = Content::Control {
            hosted,
            proc_name: if code == Code::NoSpec { String::new() } else { "web".to_owned() },
            setup_path: String::new(),
        };
        Outcome::new(code, message, content)
    }

    #[test]
    fn merged_outcome_is_failure_if_any_part_failed_else_success_over_already_done() {
        use Code::{AlreadyRunning, Cancelled, CommandFailed, NotRunning, PostCheck, Success};
        type Said = (Code, &'static str, bool);
        let rows: &[(&[Said], Said)] = &[
            (&[(Success, "success", true)], (Success, "success", true)),
            (&[(Success, "success", true), (Success, "success", false)], (Success, "success", false)),
            (&[(AlreadyRunning, "runs", true), (Success, "success", true)], (Success, "success", true)),
            (&[(Success, "success", false), (NotRunning, "gone", false)], (Success, "success", false)),
            (&[(AlreadyRunning, "one", true), (AlreadyRunning, "two", true)], (AlreadyRunning, "one", true)),
            (&[(NotRunning, "one", false), (NotRunning, "two", false)], (NotRunning, "one", false)),
            (
                &[(Success, "success", true), (PostCheck, "dead", false)],
                (PostCheck, "instance 2: dead", false),
            ),
            (
                &[(AlreadyRunning, "one", true), (CommandFailed, "bad", true), (Cancelled, "x", true)],
                (CommandFailed, "instance 2: bad (instance 3 failed too)", true),
            ),
            (
                &[(PostCheck, "a", true), (PostCheck, "b", true), (PostCheck, "c", true)],
                (PostCheck, "instance 1: a (instances 2, 3 failed too)", true),
            ),
        ];
        for (parts, expected) in rows {
            let parts =
                (1..).zip(parts.iter().map(|(code, message, hosted)| control(*code, message, *hosted)));
            let merged = merge(&parts.collect()).expect("there are parts");
            let Content::Control { hosted, proc_name, .. } = &merged.content else { panic!("{merged:?}") };
            assert_eq!((merged.code, merged.message.as_str(), *hosted), *expected);
            assert_eq!(proc_name, "web");
        }
        assert_eq!(merge(&BTreeMap::new()), None);
        let unnamed =
            BTreeMap::from([(1, control(Code::NoSpec, "", false)), (2, control(Success, "", false))]);
        let merged = merge(&unnamed).expect("there are parts");
        assert!(matches!(&merged.content, Content::Control { proc_name, .. } if proc_name == "web"));
    }

    fn status(pid: Option<u32>, hosted: bool, note: &str, health: &str) -> Outcome {
        let instance =
            pid.map(|pid| Instance { pid, command_line: "x".repeat(3_000), ..Instance::default() });
        let status = ProcStatus {
            hosted,
            instance,
            note: note.to_owned(),
            health: health.to_owned().into(),
            version: if pid == Some(7) { "1.2".to_owned() } else { String::new() },
            registered_at: pid.map_or(0, i64::from),
            ..ProcStatus::default()
        };
        Outcome::new(Code::Success, "success", Content::Status(Box::new(status)))
    }

    #[test]
    fn a_status_lists_the_instances_in_order() {
        let parts = [
            status(Some(5), true, "", "healthy"),
            status(None, true, "it gave up", ""),
            status(Some(7), true, "", "unhealthy: no answer"),
        ];
        let merged = merge(&(1..).zip(parts).collect()).expect("there are parts");
        let Content::Status(seen) = merged.content else { panic!("a status") };
        let pids: Vec<Option<u32>> = seen.more.iter().map(|more| more.as_ref().map(|i| i.pid)).collect();
        assert_eq!((seen.instance.as_ref().map(|i| i.pid), pids), (Some(5), vec![None, Some(7)]));
        assert_eq!((seen.hosted, seen.registered_at, seen.version.as_str()), (true, 5, "1.2"));
        assert_eq!(seen.note, "instance 2: it gave up");
        assert_eq!(seen.health.to_string(), "unhealthy: instance 3: no answer");
        assert_eq!(seen.instance.expect("it runs").command_line.len(), COMMAND_LINES / 3);
    }

    #[test]
    fn the_largest_status_fits_a_frame() {
        let part =
            || status(Some(4_194_304), true, &"n".repeat(3_000), &format!("unhealthy: {}", "h".repeat(256)));
        let merged = merge(&(1..=Instances::MAX).map(|k| (k, part())).collect()).expect("there are parts");
        let Content::Status(seen) = merged.content else { panic!("a status") };
        let lines: usize = seen.more.iter().flatten().map(|i| i.command_line.len()).sum();
        assert!(lines <= COMMAND_LINES && seen.note.len() <= NOTES && seen.health.to_string().len() < 400);
        assert_eq!(seen.more.len(), 63);
    }
}
