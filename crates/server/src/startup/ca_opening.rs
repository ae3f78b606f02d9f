//! How a server opens its CA, and why it does not start with that CA.

use crate::clock::Clock;
use crate::pki::{CaStart, PkiError};
use crate::seal::{self, OpenFault, SealKeyError, SealKeyId};
use procfleet_proto::link::token::hex;
use procfleet_store::{CaPins, NewAudit, StoreError};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::warn;

#[derive(Debug, thiserror::Error)]
pub enum CaStartError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Seal(#[from] SealStartError),
}

/// How to open the CA.
#[derive(Clone, Copy, Debug)]
pub struct CaOpening<'a> {
    /// The data folder.
    pub folder: &'a Path,
    /// Lifetime of agents' certificates.
    pub life: Duration,
    pub beginning: CaStart,
    /// Files of the seal keys, the sealing one first. Used if the store keeps the keys of CAs.
    pub seal_keys: &'a [PathBuf],
}

/// Why a server does not start with these seal keys. An operator has to act.
#[derive(Debug, thiserror::Error)]
pub enum SealStartError {
    #[error(transparent)]
    Key(#[from] SealKeyError),
    #[error(
        "{} does not exist. The CA's private key in the store is sealed under seal key {}; this server has: {}. Copy the file \
         from another server or from a backup. If the key is lost, one start with --new-ca makes a new CA: every host \
         must join again then",
        path.display(), seal::listed(needed), seal::listed(have)
    )]
    Missing { path: PathBuf, needed: Vec<SealKeyId>, have: Vec<SealKeyId> },
    #[error(
        "{} does not exist, and the store does not need it: the CA's private key is sealed under seal key {}; this server has: \
         {}. Remove the file from --seal-key. If it is to be a new seal key, make it first",
        path.display(), seal::listed(needed), seal::listed(have)
    )]
    Superfluous { path: PathBuf, needed: Vec<SealKeyId>, have: Vec<SealKeyId> },
    #[error(
        "the CA's private key in the store is sealed under seal key {}; this server has: {}. Copy the file from another \
         server or from a backup, and name it with --seal-key. If the key is lost, one start with --new-ca makes a new \
         CA: every host must join again then",
        seal::listed(needed),
        seal::listed(have)
    )]
    WrongKey { needed: Vec<SealKeyId>, have: Vec<SealKeyId> },
    #[error(
        "the store has CA {ca}, whose private key cannot be opened with the seal key that it names. Restore the database from a backup"
    )]
    Unusable {
        ca: String,
        #[source]
        fault: OpenFault,
    },
    #[error(
        "--new-ca was given, but no CA was lost: the store has it, and this server can open its key. Start without --new-ca"
    )]
    NotLost,
    #[error(
        "{} shows that this data folder belongs to the fleet of CA {ca}, which this store does not know. Correct --store, \
         or --data. To begin a new fleet with this data folder, move that certificate away; every host must then join again",
        path.display()
    )]
    OtherFleet { path: PathBuf, ca: String },
    #[error(
        "the key files ca.* in {} are those of CA {found}, but hosts have joined (now {hosts}) with CA {recorded}. Put the \
         files of that CA there. If they are lost, one start with --new-ca uses those that are there: every host must join \
         again then",
        folder.display()
    )]
    OtherCa { folder: PathBuf, found: String, recorded: String, hosts: u64 },
    #[error("a new CA would be sealed under seal key {key}, which these servers cannot open: {}. Stop them first", servers.join(", "))]
    NoKeyAt { key: String, servers: Vec<String> },
    #[error("other servers change the CA at the same time. Start this server again")]
    Unsettled,
}

/// The record of key files that are not those that the store knows.
pub(super) fn replaced(clock: Clock, old: CaPins, new: CaPins) -> NewAudit {
    let (old, new) = (hex(&old.current), hex(&new.current));
    warn!(
        old,
        new,
        "the CA key files in the data folder differ from the CA recorded in the store; using the key files"
    );
    let detail = format!("the key files are used; the store knew {old}");
    NewAudit::of_server(clock.wall(), "ca_replace", new, detail)
}
