//! Why sessions end.

use crate::agent_limits::OversizedMessage;
use crate::session_channel::CutReason;
use procfleet_program::panics::Caught;
use procfleet_proto::link::BadMessage;
use procfleet_store::StoreError;
use std::time::Duration;
use tokio_tungstenite::tungstenite::error::{Error as WsError, ProtocolError};

/// Why a session ended or was refused. The text goes to the logs of both sides.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionEnd {
    #[error("{0}")]
    Refused(String),
    /// The store did not answer before the welcome, which says nothing about the agent.
    #[error("the server cannot read or change its store now")]
    Unchecked(#[from] StoreError),
    #[error("the agent sent a message that is not part of this protocol")]
    Protocol(#[from] BadMessage),
    #[error("the agent sent a message that is not part of this protocol")]
    Garbled(#[source] axum::Error),
    #[error("the agent sent a frame or a message above the size limit")]
    Oversized(#[source] axum::Error),
    #[error("{0}")]
    Excess(#[from] OversizedMessage),
    #[error("the connection broke")]
    Broken(#[source] axum::Error),
    #[error("the agent has been silent for {0:?}")]
    Silent(Duration),
    #[error("the agent closed the connection")]
    Closed,
    #[error("{0}")]
    Cut(CutReason),
    #[error("the server is stopping, or has closed the session")]
    Dropped,
    #[error(
        "the database has not confirmed a heartbeat of this server for 10 s; it may no longer send the operations in its write buffer"
    )]
    HeldBack,
    #[error(transparent)]
    Panicked(#[from] Caught),
}

impl SessionEnd {
    /// The label in the metrics, if the agent caused the end.
    pub(super) fn fault(&self) -> Option<&'static str> {
        match self {
            SessionEnd::Refused(_) => Some("refused"),
            SessionEnd::Protocol(_) | SessionEnd::Garbled(_) => Some("protocol"),
            SessionEnd::Oversized(_) | SessionEnd::Excess(_) => Some("oversized"),
            SessionEnd::Silent(_) => Some("silent"),
            SessionEnd::Cut(cause) => Some(cause.word()),
            SessionEnd::Broken(_) => Some("broken"),
            // A defect of the server, but a message of the agent triggered it.
            SessionEnd::Panicked(_) => Some("panicked"),
            SessionEnd::Closed | SessionEnd::Dropped | SessionEnd::HeldBack | SessionEnd::Unchecked(_) => {
                None
            }
        }
    }

    /// Maps an error of the WebSocket below the session.
    pub(super) fn of_socket(error: axum::Error) -> SessionEnd {
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(found) = cause {
            match found.downcast_ref::<WsError>() {
                Some(WsError::Capacity(_)) => return SessionEnd::Oversized(error),
                // A peer that disappears does not violate the protocol.
                Some(WsError::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => break,
                Some(WsError::Protocol(_) | WsError::Utf8(_) | WsError::AttackAttempt) => {
                    return SessionEnd::Garbled(error);
                }
                // After any other error the connection cannot be used any more.
                Some(_) => break,
                None => cause = found.source(),
            }
        }
        SessionEnd::Broken(error)
    }
}
