//! Users and their login tokens.

use std::fmt;

/// A user that apps may act for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserRow {
    pub name: String,
    pub created_at: i64,
    pub disabled_at: Option<i64>,
    /// Number of tokens that have not expired.
    pub tokens: u64,
}

/// The hash of a token.
#[derive(Clone, PartialEq, Eq)]
pub struct NewUserToken {
    pub user: String,
    pub token_hash: [u8; 32],
    pub created_at: i64,
    pub expires_at: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserChange {
    /// Since this time.
    Disable(i64),
    Enable,
    /// All tokens of the user are refused from then on.
    RevokeTokens,
}

/// The user of a token, and whether the token is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenHolder {
    Valid(String),
    Expired(String),
    Disabled(String),
    Unknown,
}

// The hash stays out of logs: it allows an offline attack on the token.
impl fmt::Debug for NewUserToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewUserToken")
            .field("user", &self.user)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}
