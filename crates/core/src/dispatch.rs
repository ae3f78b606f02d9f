//! Decides about an open op: send it, wait, or end it.
//!
//! The dispatcher asks for each open op whenever something about it may have changed; the answer depends on
//! nothing but the arguments. An op that was sent in an older session is sent again: the agent's journal
//! makes sure that it is carried out once.

use crate::boot_time::BootTime;
use crate::code::Code;
use crate::id::Epoch;
use crate::op::{OpKind, Outcome};
use std::fmt::Display;
use std::time::Duration;

/// How long an op may wait on its agent for other ops to end, beyond its own time.
pub const QUEUE_ALLOWANCE: Duration = Duration::from_secs(60);
/// How long an absent agent may take to come back before its ops are ended.
pub const RECONNECT_GRACE: Duration = Duration::from_secs(5);
/// After a start of the server, agents that were connected before get this long instead.
pub const RESTART_GRACE: Duration = Duration::from_secs(60);
/// How many ops one agent is given at a time.
pub const WINDOW: usize = 64;

/// An op without an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOp {
    pub kind: OpKind,
    pub accepted: BootTime,
    /// Deadline for the op to begin.
    pub start_by: BootTime,
    /// Deadline for the outcome.
    pub deadline: BootTime,
    pub progress: OpProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpProgress {
    Waiting,
    Sent(Epoch),
    /// The agent has it in its journal.
    Taken(Epoch),
}

/// Whether the op's agent is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Connected(Epoch),
    /// Not connected; until `back_by` it may come back.
    Away {
        back_by: BootTime,
    },
    /// No agent was ever known for the target.
    Unknown,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    Send,
    Wait { until: BootTime },
    End(Outcome),
}

pub fn decide(now: BootTime, op: &OpenOp, presence: Presence, target: impl Display) -> Decision {
    // An op without an agent ends at once, with its own reason, even after the deadline.
    if presence != Presence::Unknown && now >= op.deadline {
        let message = match op.progress {
            OpProgress::Waiting => {
                format!("no outcome by the deadline: {target} was never given the operation")
            }
            OpProgress::Sent(_) => {
                format!("no outcome by the deadline: {target} never confirmed the operation")
            }
            OpProgress::Taken(_) => {
                format!("no outcome by the deadline: {target} took the operation and did not report")
            }
        };
        return Decision::End(Outcome::without_status(Code::Timeout, message, op.kind));
    }
    match (presence, op.progress) {
        (Presence::Unknown, _) => Decision::End(Outcome::without_status(
            Code::NoAgent,
            format!("Can not find Agent by ip {target}: no such host is known here"),
            op.kind,
        )),
        // Too many ops were queued before it, or the server was too busy to send it. The two cannot be
        // distinguished.
        (Presence::Connected(_), OpProgress::Waiting) if now >= op.start_by => {
            let verb = op.kind.verb();
            let message = format!(
                "{target} was not given the operation in time (it was away or too busy, or the server was); {verb} was not begun"
            );
            Decision::End(Outcome::without_status(Code::Timeout, message, op.kind))
        }
        (Presence::Connected(_), OpProgress::Waiting) => Decision::Send,
        (Presence::Connected(epoch), OpProgress::Sent(old) | OpProgress::Taken(old)) if epoch != old => {
            Decision::Send
        }
        (Presence::Connected(_), OpProgress::Sent(_) | OpProgress::Taken(_)) => {
            Decision::Wait { until: op.deadline }
        }
        // The agent may be carrying it out at this moment: only the deadline ends it.
        (Presence::Away { .. }, OpProgress::Taken(_)) => Decision::Wait { until: op.deadline },
        (Presence::Away { back_by }, OpProgress::Waiting | OpProgress::Sent(_)) => {
            let until = back_by.max(op.accepted + RECONNECT_GRACE);
            match op.progress {
                _ if now < until => Decision::Wait { until: until.min(op.deadline) },
                // The op may have arrived just before the connection broke.
                OpProgress::Sent(_) => Decision::Wait { until: op.deadline },
                OpProgress::Waiting | OpProgress::Taken(_) => Decision::End(Outcome::without_status(
                    Code::NoAgent,
                    format!("Can not find Agent by ip {target}: its agent is not connected"),
                    op.kind,
                )),
            }
        }
    }
}

/// The outcome of an op that changes single fields of a stored spec, for an agent of a version that would
/// replace the whole spec.
pub fn cannot_change(op: &OpenOp, target: impl Display) -> Outcome {
    let message = format!(
        "the agent of {target} is of a version that cannot change single fields of a spec; {} was not begun: upgrade \
         the agent, or send the whole spec",
        op.kind.verb()
    );
    Outcome::without_status(Code::ArgsInvalid, message, op.kind)
}

/// How an op ends whose message does not fit a frame of the link.
pub fn too_large(op: &OpenOp, target: impl Display, bytes: usize, most: usize) -> Outcome {
    let message = format!(
        "{} was not sent to {target}: the spec and the OS accounts of the app have {bytes} bytes together, at most {most} \
         are allowed; send a smaller spec, or grant the app fewer accounts",
        op.kind.verb()
    );
    Outcome::without_status(Code::BadRequest, message, op.kind)
}

/// The outcome of an op whose app is limited to OS accounts, if the agent's version cannot check accounts.
/// `None`: the op was sent in an earlier session, and its report is awaited.
pub fn accounts_unsupported(op: &OpenOp, target: impl Display) -> Option<Outcome> {
    (op.progress == OpProgress::Waiting).then(|| {
        let message = format!(
            "the app is limited to some OS accounts, and the agent of {target} is of a version that cannot check them; upgrade the \
             agent, or use an app with all accounts; {} was not begun",
            op.kind.verb()
        );
        Outcome::without_status(Code::NotAllowed, message, op.kind)
    })
}

/// How long an agent may take to say how far a cancelled op has come.
pub const CANCEL_GRACE: Duration = Duration::from_secs(10);

/// The state of a cancellation at the op's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelling {
    /// The agent of this session was not asked yet.
    Due,
    /// The cancellation was sent in this session; its deadline is `until`.
    Asked { epoch: Epoch, until: BootTime },
    /// The agent's version does not know the message.
    Unsupported,
}

#[derive(Clone, Debug, PartialEq)]
pub enum CancelStep {
    /// Send the cancellation to the agent.
    Ask,
    Wait {
        until: BootTime,
    },
    End(Outcome),
}

/// Decides about an open op that was cancelled.
pub fn cancel(
    now: BootTime,
    op: &OpenOp,
    presence: Presence,
    cancelling: Cancelling,
    target: impl Display,
) -> CancelStep {
    let end = |message: String| CancelStep::End(Outcome::without_status(Code::Cancelled, message, op.kind));
    let verb = op.kind.verb();
    let unknown = format!("whether {verb} was carried out is not known");
    match (op.progress, presence, cancelling) {
        (OpProgress::Waiting, _, _) => {
            end(format!("cancelled: {verb} was not sent to {target} yet, and nothing was done"))
        }
        (_, Presence::Away { .. } | Presence::Unknown, _) => {
            end(format!("cancelled while {target} was away: {unknown}"))
        }
        (_, Presence::Connected(_), Cancelling::Unsupported) => {
            end(format!("cancelled, but the agent of {target} is too old to be told: {unknown}"))
        }
        (_, Presence::Connected(session), Cancelling::Asked { epoch, until }) if epoch == session => {
            match now < until {
                true => CancelStep::Wait { until },
                false => end(format!("cancelled, and {target} did not say how far it had come: {unknown}")),
            }
        }
        (_, Presence::Connected(_), Cancelling::Due | Cancelling::Asked { .. }) => CancelStep::Ask,
    }
}

/// The outcome of an op whose agent will never come back; `reason` continues the text "its agent".
pub fn dismissed(op: &OpenOp, target: impl Display, reason: &str) -> Outcome {
    let (code, message) = match op.progress {
        OpProgress::Waiting => (
            Code::NoAgent,
            format!("Can not find Agent by ip {target}: its agent {reason}; nothing was done"),
        ),
        OpProgress::Sent(_) | OpProgress::Taken(_) => (
            Code::Interrupted,
            format!("{target}: its agent {reason}; whether the operation was carried out is not known"),
        ),
    };
    Outcome::without_status(code, message, op.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(progress: OpProgress) -> OpenOp {
        OpenOp {
            kind: OpKind::Start,
            accepted: BootTime(1_000),
            start_by: BootTime(60_000),
            deadline: BootTime(100_000),
            progress,
        }
    }

    fn check(now: u64, progress: OpProgress, presence: Presence, expected: &str) {
        let said = match decide(BootTime(now), &op(progress), presence, "0:10.0.0.1") {
            Decision::Send => "send".to_owned(),
            Decision::Wait { until } => format!("wait {}", until.0),
            Decision::End(outcome) => format!("end {}", outcome.code.number()),
        };
        assert_eq!(said, expected, "{now} {progress:?} {presence:?}");
    }

    #[test]
    fn a_cancelled_op_ends_soon_whatever_its_agent_does() {
        let (one, two) = (Epoch(1), Epoch(2));
        let asked = Cancelling::Asked { epoch: one, until: BootTime(12_000) };
        let (here, away) = (Presence::Connected(one), Presence::Away { back_by: BootTime(9_000) });
        for (now, progress, presence, cancelling, expected) in [
            (2_000, OpProgress::Waiting, here, Cancelling::Due, "end nothing was done"),
            (2_000, OpProgress::Waiting, away, Cancelling::Due, "end nothing was done"),
            (2_000, OpProgress::Sent(one), here, Cancelling::Due, "ask"),
            (2_000, OpProgress::Taken(one), here, Cancelling::Due, "ask"),
            (2_000, OpProgress::Taken(one), here, asked, "wait 12000"),
            (12_000, OpProgress::Taken(one), here, asked, "end did not say how far"),
            (2_000, OpProgress::Taken(one), Presence::Connected(two), asked, "ask"),
            (2_000, OpProgress::Taken(one), away, asked, "end is not known"),
            (2_000, OpProgress::Sent(one), here, Cancelling::Unsupported, "end too old"),
        ] {
            let said = match cancel(BootTime(now), &op(progress), presence, cancelling, "0:10.0.0.1") {
                CancelStep::Ask => "ask".to_owned(),
                CancelStep::Wait { until } => format!("wait {}", until.0),
                CancelStep::End(outcome) => {
                    assert_eq!(outcome.code, Code::Cancelled);
                    assert!(outcome.message.starts_with("cancelled"), "{}", outcome.message);
                    let words = expected.strip_prefix("end ").unwrap_or("another step");
                    assert!(outcome.message.contains(words), "{} {expected}", outcome.message);
                    expected.to_owned()
                }
            };
            assert_eq!(said, expected, "{now} {progress:?} {presence:?} {cancelling:?}");
        }
    }

    #[test]
    fn an_op_that_a_dismissed_agent_may_have_begun_is_not_reported_as_never_sent() {
        for (progress, code) in [
            (OpProgress::Waiting, Code::NoAgent),
            (OpProgress::Sent(Epoch(1)), Code::Interrupted),
            (OpProgress::Taken(Epoch(1)), Code::Interrupted),
        ] {
            let outcome = dismissed(&op(progress), "0:10.0.0.1", "was revoked");
            assert_eq!(outcome.code, code);
            assert!(outcome.message.contains("0:10.0.0.1: its agent was revoked; "), "{}", outcome.message);
        }
    }

    #[test]
    fn every_case_has_its_decision() {
        let (one, two) = (Epoch(1), Epoch(2));
        check(2_000, OpProgress::Waiting, Presence::Connected(one), "send");
        check(60_000, OpProgress::Waiting, Presence::Connected(one), "end 120");
        check(2_000, OpProgress::Sent(one), Presence::Connected(one), "wait 100000");
        check(2_000, OpProgress::Sent(one), Presence::Connected(two), "send");
        check(2_000, OpProgress::Taken(one), Presence::Connected(two), "send");
        check(2_000, OpProgress::Waiting, Presence::Unknown, "end 117");
        check(2_000, OpProgress::Waiting, Presence::Away { back_by: BootTime(500) }, "wait 6000");
        check(2_000, OpProgress::Waiting, Presence::Away { back_by: BootTime(9_000) }, "wait 9000");
        check(6_000, OpProgress::Waiting, Presence::Away { back_by: BootTime(500) }, "end 117");
        check(6_000, OpProgress::Sent(one), Presence::Away { back_by: BootTime(500) }, "wait 100000");
        check(6_000, OpProgress::Taken(one), Presence::Away { back_by: BootTime(500) }, "wait 100000");
        for progress in [OpProgress::Waiting, OpProgress::Sent(one), OpProgress::Taken(one)] {
            check(100_000, progress, Presence::Connected(one), "end 120");
            check(100_000, progress, Presence::Away { back_by: BootTime(200_000) }, "end 120");
            check(100_000, progress, Presence::Unknown, "end 117");
        }
    }
}
