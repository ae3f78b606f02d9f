//! Which CA holds.

/// The CA and its successor, by the SHA-256 of their certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaPins {
    pub current: [u8; 32],
    pub next: Option<[u8; 32]>,
}

/// The join tokens at a change of the CA. A token names the CA by which its agent knows the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokensOfCa {
    Keep,
    /// Tokens that were created until this time name the retired CA.
    RevokeUntil(i64),
}
