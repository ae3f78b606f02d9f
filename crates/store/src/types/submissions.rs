//! Keys under which callers submit requests, so that a repeated call creates one task.

use crate::clock::ClockReading;
use procfleet_core::{OpKind, ProcKey, TaskId};
use serde::Deserialize;

/// The scope of a caller's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// For one request: a different request under the same key is refused.
    Idempotency,
    /// For a chain of calls: a caller may send several different requests under it.
    RequestId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionKey {
    pub kind: KeyKind,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    pub key: SubmissionKey,
    /// Equal for equal requests.
    pub request_hash: [u8; 32],
    /// Ignore submissions older than this.
    pub since: ClockReading,
}

/// The result of a submission. Keys are scoped to the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submitted {
    New(TaskId),
    /// An equal request has created this task before. Nothing was stored.
    Before(TaskId),
    /// A different request under the key has created this task. Nothing was stored.
    OtherRequest(TaskId),
}

/// The part of a stored request that shows whether a later task has overtaken it.
#[derive(Deserialize)]
pub(crate) struct StoredTarget {
    pub(crate) proc: ProcKey,
    pub(crate) kind: OpKind,
}
