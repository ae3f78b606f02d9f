//! Which CA holds, and the keys of CAs that an engine stores sealed.

use crate::NewAudit;

/// The CA and its successor, by the SHA-256 of their certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaPins {
    pub current: [u8; 32],
    pub next: Option<[u8; 32]>,
}

impl CaPins {
    /// The CA that signs certificates of agents.
    pub fn signing(&self) -> [u8; 32] {
        self.next.unwrap_or(self.current)
    }

    pub fn contains(&self, sha256: &[u8; 32]) -> bool {
        self.current == *sha256 || self.next.as_ref() == Some(sha256)
    }
}

/// The random identity of a store, made with its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreId(pub [u8; 16]);

/// A CA whose private key is sealed. The store cannot open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedCa {
    /// The SHA-256 of the certificate, by which pins name it.
    pub sha256: [u8; 32],
    /// DER.
    pub certificate: Vec<u8>,
    pub sealed_key: Vec<u8>,
}

/// The CAs of a store that keeps their keys, seen at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCas {
    pub store: StoreId,
    /// `None`: the store is new.
    pub pins: Option<CaPins>,
    /// A CA that the pins name may be missing: its key is a file of an earlier server then.
    pub cas: Vec<SealedCa>,
}

/// Sealed CAs to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealing {
    /// The id of the key under which they are sealed. Every other server must be able to open it.
    pub key: String,
    pub cas: Vec<SealedCa>,
}

/// A change of the CA: compare-and-swap on the pins that the caller saw.
#[derive(Clone, Debug)]
pub struct CaChange {
    pub seen: Option<CaPins>,
    pub to: CaPins,
    /// Added or replaced. `None` where the keys are files. CAs that `to` does not name are deleted.
    pub sealing: Option<Sealing>,
    pub old: OldCa,
    pub audit: Option<NewAudit>,
}

/// What a change does to the CA that the server presents until then. Join tokens name that CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldCa {
    /// The CA stays, or it is lost. Join tokens are left alone.
    Keep,
    /// The CA is retired at this time, if no agent and no join token needs it.
    RetireIfUnneeded { at: i64 },
    /// The CA is retired at this time, and all join tokens are revoked.
    Retire { at: i64 },
}

/// Why a change of the CA was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaRefusal {
    /// Another change was faster: these pins hold.
    Changed(Option<CaPins>),
    /// So many agents and join tokens need the CA that was to be retired.
    Needed { agents: u64, tokens: u64 },
    /// These servers cannot open what is sealed under the key of the change.
    NoKeyAt(Vec<String>),
}
