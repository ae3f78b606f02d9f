//! The answer to a call about an agent whose server cannot be asked.

use crate::peers::PeerFault;
use crate::usecase::AppError;
use procfleet_core::code::Code;
use procfleet_core::id::Host;
use tracing::warn;

/// `host`: the host of the agent.
pub(crate) fn of_peer(host: Host, fault: &PeerFault) -> AppError {
    let code = match fault {
        PeerFault::Busy(_) => Code::Busy,
        // Nothing can be asked of the agent through this server now, as if the agent were away. Callers that
        // follow a log try again.
        PeerFault::Unknown(_)
        | PeerFault::NoAddress(_)
        | PeerFault::Certificate(..)
        | PeerFault::Unreachable(..)
        | PeerFault::NotConnected(..)
        | PeerFault::Silent(_)
        | PeerFault::Broken(..)
        | PeerFault::Garbled(..)
        | PeerFault::Refused(..) => Code::NoAgent,
    };
    warn!(
        %host,
        error = fault as &dyn std::error::Error,
        "asking the server that holds an agent failed; the call was refused"
    );
    let reason = fault.with_causes();
    AppError::Unanswered {
        code,
        reason: format!(
            "the agent of host {host} is connected to another server, which cannot be asked now: {reason}"
        ),
    }
}
