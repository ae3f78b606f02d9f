//! Apps: the callers of the API, and their grants.

use procfleet_core::grants::Grants;
use std::fmt;

/// Whether an app may act for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppTrust {
    Itself,
    /// The app may name the user that it acts for.
    Users,
}

/// A new caller of the API.
#[derive(Clone, PartialEq, Eq)]
pub struct NewApp {
    pub code: String,
    pub secret_hash: [u8; 32],
    pub trust: AppTrust,
    pub created_at: i64,
}

/// A caller of the API.
#[derive(Clone, PartialEq, Eq)]
pub struct AppRow {
    pub code: String,
    pub secret_hash: [u8; 32],
    pub trust: AppTrust,
    pub created_at: i64,
    pub disabled_at: Option<i64>,
    pub grants: Grants,
}

/// A change of an app, other than of its grants.
#[derive(Clone, PartialEq, Eq)]
pub enum AppChange {
    /// The hash of a new secret. The old secret is refused from then on.
    Secret([u8; 32]),
    /// Since this time.
    Disable(i64),
    Enable,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantChange {
    Grant(Grants),
    Revoke(Grants),
}

// The hashes stay out of logs: they allow an offline attack on the secrets.

impl fmt::Debug for NewApp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NewApp { code, secret_hash: _, trust, created_at } = self;
        f.debug_struct("NewApp")
            .field("code", code)
            .field("trust", trust)
            .field("created_at", created_at)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AppRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AppRow { code, secret_hash: _, trust, created_at, disabled_at, grants } = self;
        f.debug_struct("AppRow")
            .field("code", code)
            .field("trust", trust)
            .field("created_at", created_at)
            .field("disabled_at", disabled_at)
            .field("grants", grants)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AppChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AppChange::Secret(_) => f.write_str("Secret(hidden)"),
            AppChange::Disable(at) => f.debug_tuple("Disable").field(at).finish(),
            AppChange::Enable => f.write_str("Enable"),
        }
    }
}
