//! Join tokens.

use super::NewAudit;
use procfleet_core::{BusinessId, CloudId, Host};
use std::fmt;

/// A join token for new agents.
#[derive(Clone, PartialEq, Eq)]
pub struct NewToken {
    pub id: String,
    pub secret_hash: [u8; 32],
    /// The CA that the token names. If servers present another one, the token is not created
    /// ([`StoreError::CaChanged`](crate::StoreError::CaChanged)). `None`: not checked.
    pub ca: Option<[u8; 32]>,
    /// The cloud area of its agents.
    pub cloud: CloudId,
    /// The business of its agents, until they are assigned to another.
    pub business: BusinessId,
    pub created_at: i64,
    pub expires_at: i64,
    pub uses: u32,
    pub replaces: Replaces,
    /// Written together with the token.
    pub audit: Option<NewAudit>,
}

/// Which existing agent of a host a token may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces {
    /// An agent that was revoked, has never connected, or has been away for a day.
    LostAgents,
    AnyAgent,
}

/// A token without its secret, for administrators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRecord {
    pub id: String,
    pub cloud: CloudId,
    pub business: BusinessId,
    pub created_at: i64,
    pub expires_at: i64,
    pub uses_left: u32,
    pub replaces: Replaces,
    pub revoked_at: Option<i64>,
}

/// A token that an agent presents.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenUse {
    pub id: String,
    pub secret_hash: [u8; 32],
}

/// The reason is sent to the host that presents the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinTokenRefusal {
    /// No such token, or the secret is wrong.
    #[error("the token is not known here")]
    Unknown,
    #[error("the token has expired")]
    Expired,
    #[error("the token has been used as often as it may")]
    UsedUp,
    #[error("the token was revoked")]
    Revoked,
    /// The agent of the host is healthy, and the token may have leaked.
    #[error(
        "host {0} has an agent that is connected, or was within the last day; only a token that was made with --replace \
         (procfleet token create --replace) lets another take its place"
    )]
    HostInUse(Host),
    /// The host has an agent of another business.
    #[error("the host belongs to business {0}, and the token is for another; use a token for that business")]
    HostOf(BusinessId),
}

// The hashes stay out of logs: they allow an offline attack on the secrets.

impl fmt::Debug for NewToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewToken {
            id,
            secret_hash: _,
            ca: _,
            cloud,
            business,
            created_at,
            expires_at,
            uses,
            replaces,
            audit: _,
        } = self;
        f.debug_struct("NewToken")
            .field("id", id)
            .field("cloud", cloud)
            .field("business", business)
            .field("created_at", created_at)
            .field("expires_at", expires_at)
            .field("uses", uses)
            .field("replaces", replaces)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TokenUse { id, secret_hash: _ } = self;
        f.debug_struct("TokenUse").field("id", id).finish_non_exhaustive()
    }
}

/// Cloud area and business of a token's agents.
pub(crate) struct Belonging {
    pub(crate) cloud: CloudId,
    pub(crate) business: BusinessId,
    pub(crate) replaces: Replaces,
}
