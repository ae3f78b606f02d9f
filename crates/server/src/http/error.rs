//! Errors of a call, and their one translation to codes and HTTP statuses.
//!
//! GSE's callers expect HTTP 200 with `result: false` for everything that the API itself refuses; other
//! statuses make some of their clients raise before they read the message. JOB's callers know other numbers
//! for a few of the errors.

use super::family::CallFamily;
use super::idempotency;
use crate::backlog::{self, Full, FullOf};
use crate::ended_ops::EndedOpsLimitExceeded;
use crate::usecase::AppError;
use axum::http::StatusCode;
use procfleet_core::code::Code;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::job::Permission;
use procfleet_store::StoreError;
use std::time::Duration;
use tracing::error;

#[derive(Debug)]
pub(super) enum CallError {
    /// The body is not JSON; the text says where.
    Json(String),
    TooLarge {
        limit: usize,
    },
    /// The values of the body would take too much memory; an estimate, in bytes.
    TooManyValues {
        size: usize,
        limit: usize,
    },
    /// There are too many large bodies at once.
    Crowded,
    /// The body arrived so slowly that its share was given to another.
    TooSlow,
    Faults(Faults),
    /// There is no login, or it is malformed.
    NoLogin(String),
    /// The app or its secret is wrong.
    AppDenied(String),
    /// The user that the app names is wrong.
    UserDenied(String),
    NoSuchApi(String),
    /// The path exists, but not with this method.
    WrongMethod {
        method: String,
        path: String,
    },
    App(AppError),
    Internal,
}

impl From<Faults> for CallError {
    fn from(faults: Faults) -> Self {
        CallError::Faults(faults)
    }
}

impl From<AppError> for CallError {
    fn from(error: AppError) -> Self {
        CallError::App(error)
    }
}

impl CallError {
    /// The missing grants that denied the call, in the form for JOB's callers.
    pub(super) fn permission(&self) -> Option<Permission> {
        match self {
            CallError::App(AppError::Denied { missing, .. }) => Permission::of_missing(missing),
            _ => None,
        }
    }

    /// Whether the login was accepted, and a grant is missing: the code is that of a wrong secret.
    pub(super) fn lacks_grant(&self) -> bool {
        matches!(self, CallError::App(AppError::Denied { .. }))
    }

    /// When the same call may succeed. `None`: repeating it does not help.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            CallError::App(
                AppError::Full(_)
                | AppError::Store(
                    StoreError::Unavailable { .. }
                    | StoreError::Uncertain { .. }
                    | StoreError::TaskUncertain { .. }
                    | StoreError::Fenced,
                ),
            )
            | CallError::Crowded => Some(backlog::RETRY_AFTER),
            CallError::App(AppError::EndedOpsLimitExceeded(EndedOpsLimitExceeded(wait))) => {
                Some(whole_seconds(*wait))
            }
            _ => None,
        }
    }

    /// The status, the code and the message for the caller. Details that are only for the operator are logged
    /// here.
    pub(super) fn answer(&self, family: CallFamily) -> (StatusCode, u32, String) {
        let (status, code, message) = match self {
            CallError::Json(reason) => {
                (StatusCode::OK, Code::JsonInvalid, format!("the body is not usable JSON: {reason}"))
            }
            CallError::TooLarge { limit } => (
                StatusCode::OK,
                Code::BeyondLimit,
                format!("the body is too large: at most {limit} bytes are read"),
            ),
            CallError::TooManyValues { size, limit } => (
                StatusCode::OK,
                Code::BeyondLimit,
                format!(
                    "the body has too many values: they would take about {} MiB of memory, at most {} MiB are allowed; \
                     send fewer in one call",
                    size >> 20,
                    limit >> 20
                ),
            ),
            CallError::Crowded => (
                StatusCode::OK,
                Code::BeyondLimit,
                "too many large requests came at once; nothing of this one was done, send it again"
                    .to_owned(),
            ),
            CallError::TooSlow => (
                StatusCode::OK,
                Code::BeyondLimit,
                "the body came too slowly while others waited; nothing of it was done, send it again"
                    .to_owned(),
            ),
            CallError::App(AppError::Faults(faults)) => {
                (StatusCode::OK, Code::BadRequest, faults.to_string())
            }
            CallError::App(AppError::Denied { reason, .. }) => {
                (StatusCode::OK, Code::AppDenied, reason.clone())
            }
            CallError::Faults(faults) if faults.only_unknown_op() => {
                (StatusCode::OK, Code::UnknownOp, faults.to_string())
            }
            CallError::Faults(faults) => (StatusCode::OK, Code::BadRequest, faults.to_string()),
            CallError::NoLogin(reason) | CallError::AppDenied(reason) => {
                (StatusCode::OK, Code::AppDenied, reason.clone())
            }
            CallError::UserDenied(reason) => (StatusCode::OK, Code::UserDenied, reason.clone()),
            CallError::NoSuchApi(path) => {
                (StatusCode::NOT_FOUND, Code::NoSuchApi, format!("no such API: {path}"))
            }
            CallError::WrongMethod { method, path } => {
                (StatusCode::METHOD_NOT_ALLOWED, Code::NoSuchApi, format!("{path} does not take {method}"))
            }
            CallError::App(AppError::NoTask(task)) => {
                let reason = "nobody issued this task id, or it is so old that it was deleted";
                (StatusCode::OK, Code::NoTask, format!("no such task {task:?}: {reason}"))
            }
            CallError::App(AppError::NoSuchAgents) => {
                (StatusCode::OK, Code::NoSuchAgents, "no agent is known by any of these ids".to_owned())
            }
            CallError::App(AppError::KeyTaken(task)) => {
                let header = idempotency::KEY;
                let reason = format!(
                    "{header}: this key was sent with another request, which is task {task}; nothing was run. Send a key \
                     of its own with each request"
                );
                (StatusCode::OK, Code::BadRequest, reason)
            }
            CallError::App(AppError::Store(
                StoreError::Unavailable { .. } | StoreError::Uncertain { .. },
            )) => {
                let reason = "the database does not answer now. If the call changes something, it is not known whether it was \
                              stored: send it again under the same Idempotency-Key, or look for it in the list of tasks";
                (StatusCode::SERVICE_UNAVAILABLE, Code::SystemError, reason.to_owned())
            }
            CallError::App(AppError::Store(StoreError::TaskUncertain { task, .. })) => {
                let reason = format!(
                    "the database does not answer now, and it is not known whether the call was stored. If it was, it is task \
                     {task}: ask for this task when the database answers again, or send the call again under the same \
                     Idempotency-Key"
                );
                (StatusCode::SERVICE_UNAVAILABLE, Code::SystemError, reason)
            }
            CallError::App(AppError::Store(StoreError::Fenced)) => {
                let reason = "other servers have declared this server dead because it did not reach the database; it is rejoining \
                              under a new id. Nothing was changed: send the call again";
                (StatusCode::SERVICE_UNAVAILABLE, Code::SystemError, reason.to_owned())
            }
            CallError::App(AppError::Store(source)) => {
                error!(
                    error = source as &dyn std::error::Error,
                    "the store failed and a call was refused; check /readyz, and the disk of the data folder or the database"
                );
                let reason = "the store cannot be read or written now; nothing was changed".to_owned();
                (StatusCode::OK, Code::SystemError, reason)
            }
            CallError::App(AppError::DiskFull(kind)) => {
                error!(
                    kind = kind.verb(),
                    "the disk of the data folder is full and a call was refused; free disk space, until then only stop, kill, reload, unhost, unregister and query are accepted"
                );
                let reason = format!(
                    "the disk of the server's data folder is full: until there is room, only stop, kill, reload, unhost, \
                     unregister and query are taken, and not {}; nothing was changed",
                    kind.verb()
                );
                (StatusCode::OK, Code::SystemError, reason)
            }
            CallError::App(AppError::Pki(source)) => {
                error!(
                    error = source as &dyn std::error::Error,
                    "changing the CA failed and the call was refused; check that the CA files in the data folder are complete and writable"
                );
                let reason =
                    "the CA cannot be changed now; nothing was changed, and the log says why".to_owned();
                (StatusCode::OK, Code::SystemError, reason)
            }
            CallError::App(AppError::Unanswered { code, reason }) => (StatusCode::OK, *code, reason.clone()),
            CallError::App(AppError::Full(Full { of, open, most })) => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::BeyondLimit,
                format!(
                    "too many ops {} are open: {} (at most {}, and {} MiB of specs); nothing of this request was stored, \
                     send it again in {} s",
                    match of {
                        FullOf::App => "of this app, which may have three quarters of all,",
                        FullOf::All => "of all apps",
                    },
                    open.ops,
                    most.ops,
                    most.bytes.div_ceil(1 << 20),
                    backlog::RETRY_AFTER.as_secs()
                ),
            ),
            CallError::App(AppError::EndedOpsLimitExceeded(EndedOpsLimitExceeded(wait))) => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::BeyondLimit,
                format!(
                    "too many ops of this app ended without reaching an agent: their hosts have no agent, or belong to \
                     other businesses; nothing of this request was stored. Leave out such hosts, or send it again in {} s",
                    whole_seconds(*wait).as_secs()
                ),
            ),
            CallError::App(AppError::Ending) => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::SystemError,
                "the server is ending; try again".to_owned(),
            ),
            CallError::Internal | CallError::App(AppError::Panicked(_)) => (
                StatusCode::OK,
                Code::SystemError,
                "something inside procfleet failed; its log says what".to_owned(),
            ),
        };
        (status, of_family(family, code).external(), message)
    }
}

/// Rounded up: a call that comes early is refused again.
fn whole_seconds(wait: Duration) -> Duration {
    Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0))
}

fn of_family(family: CallFamily, code: Code) -> Code {
    match (family, code) {
        (CallFamily::Gse, code) => code,
        (CallFamily::Job, Code::BadRequest | Code::UnknownOp | Code::JsonInvalid) => Code::JobIllegalParam,
        (CallFamily::Job, Code::SystemError) => Code::JobFailure,
        // Logins, grants, tasks and limits have the same codes in both families.
        (CallFamily::Job, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::id::TaskId;

    /// A gateway and a caller try it again, at another server or a moment later.
    #[test]
    fn a_call_at_a_server_that_was_declared_dead_can_be_sent_again() {
        let error = CallError::App(AppError::Store(StoreError::Fenced));
        let (status, _, message) = error.answer(CallFamily::Gse);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(message.contains("Nothing was changed"), "{message}");
        assert!(error.retry_after().is_some());
    }

    #[test]
    fn the_error_of_a_call_that_may_be_stored_names_its_task() {
        let task = TaskId { stamp: 20_261_115_203_000, number: 7 };
        let away = StoreError::Unavailable { doing: "creating a task", reason: "no answer".to_owned() };
        let error: CallError =
            CallError::App(AppError::Store(StoreError::TaskUncertain { task, source: Box::new(away) }));
        let (status, _, message) = error.answer(CallFamily::Gse);
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(message.contains(&task.to_string()), "{message}");
        assert!(error.retry_after().is_some());
    }
}
