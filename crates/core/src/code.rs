//! The one table of error codes.
//!
//! GSE's internal codes have three digits (and 65535); at the top level of a reply they are increased by
//! 1,000,000. JOB and the gateway have their own codes, which are not increased. No number is written outside
//! this file.

use serde::{Deserialize, Serialize};

/// The result of an op or a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Success.
    Success,
    /// Something inside procfleet failed; the log has the details.
    SystemError,
    /// A file or folder that the spec names does not exist or cannot be used.
    FileInvalid,
    /// A value in the spec cannot be used on this host.
    ArgsInvalid,
    /// The body is not JSON.
    JsonInvalid,
    /// Accepted and not finished: ask again.
    Handling,
    /// No agent is connected for this host.
    NoAgent,
    /// No outcome by the op's deadline.
    Timeout,
    /// More than is allowed: a body, a queue.
    BeyondLimit,
    /// The OS account does not exist on the host or may not be used.
    InvalidUser,
    /// The agent knows no spec for this proc, and none was sent.
    NoSpec,
    /// Too many ops wait for this proc.
    Busy,
    /// The agent or its host went down in the middle of the op.
    Interrupted,
    /// The task id does not exist.
    NoTask,
    /// A field of the request is missing or wrong.
    BadRequest,
    /// A command ran longer than `op_timeout`.
    CommandTimeout,
    /// A later order overtook this op, or its task was cancelled.
    Cancelled,
    /// The spec has no command for this operation.
    NoCommand,
    /// The process is already running.
    AlreadyRunning,
    /// The process is not running.
    NotRunning,
    /// No such operation.
    UnknownOp,
    /// The proc is registered already.
    AlreadyRegistered,
    /// The process is not as it should be after the command.
    PostCheck,
    /// Not allowed: the host is outside the app's businesses, the host's policy forbids the op, or an OS
    /// account is involved that the app may not use.
    NotAllowed,
    /// A command ended with a status other than 0.
    CommandFailed,
    /// None of the agents that were asked for is known.
    NoSuchAgents,
    /// (JOB) Something inside procfleet failed; the log has the details.
    JobFailure,
    /// (JOB) A field of the request is missing or wrong.
    JobIllegalParam,
    /// (gateway) The named user may not do this.
    UserDenied,
    /// (gateway) The app is unknown or disabled, its secret is wrong, or it lacks the rights.
    AppDenied,
    /// (gateway) No such API.
    NoSuchApi,
}

/// Every code with its number. The order is that of the numbers.
const TABLE: &[(Code, u32)] = &[
    (Code::Success, 0),
    (Code::SystemError, 101),
    (Code::FileInvalid, 104),
    (Code::ArgsInvalid, 106),
    (Code::JsonInvalid, 112),
    (Code::Handling, 115),
    (Code::NoAgent, 117),
    (Code::Timeout, 120),
    (Code::BeyondLimit, 121),
    (Code::InvalidUser, 122),
    (Code::NoSpec, 801),
    (Code::Busy, 802),
    (Code::Interrupted, 805),
    (Code::NoTask, 806),
    (Code::BadRequest, 811),
    (Code::CommandTimeout, 822),
    (Code::Cancelled, 826),
    (Code::NoCommand, 827),
    (Code::AlreadyRunning, 828),
    (Code::NotRunning, 829),
    (Code::UnknownOp, 832),
    (Code::PostCheck, 836),
    (Code::NotAllowed, 837),
    (Code::AlreadyRegistered, 850),
    (Code::CommandFailed, 65_535),
    (Code::NoSuchAgents, 1_011_003),
    (Code::JobFailure, 1_210_001),
    (Code::JobIllegalParam, 1_241_002),
    (Code::UserDenied, 1_306_402),
    (Code::AppDenied, 1_306_403),
    (Code::NoSuchApi, 1_306_404),
];

/// Added to GSE's internal codes at the top level of a reply.
const EXTERNAL: u32 = 1_000_000;

impl Code {
    pub fn all() -> impl Iterator<Item = Code> {
        TABLE.iter().map(|(code, _)| *code)
    }

    /// The number inside a result: `error_code`.
    pub fn number(self) -> u32 {
        TABLE
            .iter()
            .find(|(code, _)| *code == self)
            .map(|(_, number)| *number)
            .expect("every code is in TABLE")
    }

    /// The number at the top of a reply: `code`.
    pub fn external(self) -> u32 {
        match self.number() {
            0 => 0,
            gateway if gateway >= EXTERNAL => gateway,
            internal => EXTERNAL + internal,
        }
    }

    pub fn from_number(number: u32) -> Option<Code> {
        TABLE.iter().find(|(_, n)| *n == number).map(|(code, _)| *code)
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u32(self.number())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let number = u32::deserialize(from)?;
        Code::from_number(number).ok_or_else(|| serde::de::Error::custom(format!("unknown code {number}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_ordered_and_read_back() {
        assert!(TABLE.windows(2).all(|pair| pair[0].1 < pair[1].1));
        for code in Code::all() {
            assert_eq!(Code::from_number(code.number()), Some(code));
        }
    }

    #[test]
    fn the_top_level_shifts_only_internal_codes() {
        assert_eq!(Code::Success.external(), 0);
        assert_eq!(Code::Handling.external(), 1_000_115);
        assert_eq!(Code::NoTask.external(), 1_000_806);
        assert_eq!(Code::AppDenied.external(), 1_306_403);
    }
}
