//! Why an agent that a restored store does not know is not readmitted.

use procfleet_core::Host;

/// Why an agent is not readmitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadmitRefusal {
    #[error("host {host} is that of agent {agent}: revoke that one, or join again with a token")]
    HostTaken { host: Host, agent: String },
    #[error("its certificate is older than one that is known: join again with a token")]
    OldCertificate,
    #[error("it was retired or revoked: join again with a token")]
    Dismissed,
}
