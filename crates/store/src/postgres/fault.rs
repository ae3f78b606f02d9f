//! Errors inside a unit, and whether repeating the unit helps.

use crate::{DriverError, StoreError};
use deadpool_postgres::PoolError;
use tokio_postgres::error::SqlState;

/// An error inside a unit, without what the unit was doing.
#[derive(Debug)]
pub(super) enum PgFault {
    Sql(tokio_postgres::Error),
    /// The connection ended while the transaction was committed: whether it is, is not known.
    Uncertain(tokio_postgres::Error),
    /// The database stopped answering while the unit was under way. The unit goes on.
    Unanswered(String),
    /// There is no connection to be had.
    Connection(String),
    Unreadable {
        what: &'static str,
        reason: String,
    },
    Unwritable {
        what: &'static str,
        reason: String,
    },
    Known(StoreError),
    /// There is no partition for tasks of this number's day.
    NoPartition(i64),
}

/// The next step for a unit that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The unit lost a race and was rolled back.
    Conflict,
    /// Another version of the server has changed the tables: prepare the statements again.
    StaleStatement,
    /// Create the partition for this task number first.
    Partition(i64),
    /// The server at the other end is a standby now: drop all connections.
    Demoted,
    Never,
}

impl PgFault {
    /// For an error of COMMIT itself. An error that the database has sent is a rollback.
    pub(super) fn commit(error: tokio_postgres::Error) -> PgFault {
        match error.as_db_error() {
            Some(_) => PgFault::Sql(error),
            None => PgFault::Uncertain(error),
        }
    }

    pub(super) fn repeat(&self) -> Repeat {
        let error = match self {
            PgFault::Sql(error) => error,
            PgFault::NoPartition(number) => return Repeat::Partition(*number),
            PgFault::Uncertain(_)
            | PgFault::Unanswered(_)
            | PgFault::Connection(_)
            | PgFault::Unreadable { .. }
            | PgFault::Unwritable { .. }
            | PgFault::Known(_) => return Repeat::Never,
        };
        match error.code() {
            Some(
                &SqlState::T_R_SERIALIZATION_FAILURE
                | &SqlState::T_R_DEADLOCK_DETECTED
                | &SqlState::LOCK_NOT_AVAILABLE
                // Two units have inserted the same key at once; the repeated one sees the other's row.
                | &SqlState::UNIQUE_VIOLATION,
            ) => Repeat::Conflict,
            Some(&SqlState::FEATURE_NOT_SUPPORTED | &SqlState::INVALID_SQL_STATEMENT_NAME) => {
                Repeat::StaleStatement
            }
            Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Repeat::Demoted,
            _ => Repeat::Never,
        }
    }

    /// Whether the changes of the unit may be stored nevertheless.
    pub(super) fn is_uncertain(&self) -> bool {
        matches!(self, PgFault::Uncertain(_) | PgFault::Unanswered(_))
    }

    /// Whether the statement has waited for longer than `lock_timeout` or `statement_timeout`.
    pub(super) fn is_timeout(&self) -> bool {
        let PgFault::Sql(error) = self else { return false };
        matches!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::QUERY_CANCELED))
    }

    /// For a log line.
    pub(super) fn reason(self) -> String {
        chain(&self.during("the store"))
    }

    pub(super) fn during(self, doing: &'static str) -> StoreError {
        match self {
            PgFault::Sql(source) if is_away(&source) => {
                StoreError::Unavailable { doing, reason: chain(&source) }
            }
            PgFault::Sql(source) if is_of_values(&source) => {
                StoreError::BadValue { doing, source: DriverError::new(source) }
            }
            PgFault::Sql(source) => StoreError::Database { doing, source: DriverError::new(source) },
            PgFault::Uncertain(source) => StoreError::Uncertain { doing, source: DriverError::new(source) },
            PgFault::Unanswered(reason) | PgFault::Connection(reason) => {
                StoreError::Unavailable { doing, reason }
            }
            PgFault::Unreadable { what, reason } => StoreError::Unreadable { doing, what, reason },
            PgFault::Unwritable { what, reason } => StoreError::Unwritable { doing, what, reason },
            PgFault::Known(error) => error,
            PgFault::NoPartition(number) => StoreError::Unwritable {
                doing,
                what: "a task",
                reason: format!("no partition could be created for number {number}"),
            },
        }
    }
}

/// The database is not there, is not writable, or has no capacity left. It may be back soon.
fn is_away(error: &tokio_postgres::Error) -> bool {
    let Some(code) = error.code() else { return true };
    // Connection exceptions, insufficient resources, operator intervention, system errors.
    ["08", "53", "57", "58"].iter().any(|class| code.code().starts_with(class))
        || [&SqlState::READ_ONLY_SQL_TRANSACTION, &SqlState::LOCK_NOT_AVAILABLE].contains(&code)
}

/// Data exceptions: a character that the encoding of the database has not, or a number out of range.
fn is_of_values(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("22"))
}

/// An error with its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

impl From<tokio_postgres::Error> for PgFault {
    fn from(error: tokio_postgres::Error) -> Self {
        PgFault::Sql(error)
    }
}

impl From<PoolError> for PgFault {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => PgFault::Connection(chain(&error)),
            PoolError::Timeout(_) => {
                PgFault::Connection("no connection to the database within 1.5 s".to_owned())
            }
            PoolError::Closed => PgFault::Known(StoreError::Closed),
            other @ (PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_)) => {
                PgFault::Connection(chain(&other))
            }
        }
    }
}

impl From<StoreError> for PgFault {
    fn from(error: StoreError) -> Self {
        PgFault::Known(error)
    }
}
