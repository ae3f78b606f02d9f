//! The certificates of agents, and revoked agents.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateRecord {
    pub sha256: [u8; 32],
    /// The SHA-256 of its CA's certificate. `None`: issued before CAs could be rotated.
    pub ca: Option<[u8; 32]>,
    /// `None`: only the certificate itself has it.
    pub issued_at: Option<i64>,
    pub expires_at: Option<i64>,
}

/// The reason of revocation of a forgotten agent.
pub const FORGOTTEN: &str = "it was forgotten";
