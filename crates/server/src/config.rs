//! What a server is told at its start. Plain data, checked once.

use crate::ServerError;
use crate::backlog::Load;
use crate::login_service::LoginUrl;
use crate::peer::AddressBlock;
use procfleet_core::data_folder::{self, ExistingFolder, FolderOwner};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub data: PathBuf,
    /// The API and the console.
    pub listen: SocketAddr,
    /// The agents' link.
    pub link: SocketAddr,
    /// How long tasks with their results, and audit records, are kept.
    pub keep: Duration,
    /// How much may be accepted and not ended; beyond it, callers wait and are refused then.
    pub most_open: Load,
    /// How long an agent's certificate is good; it is renewed at two thirds of it.
    pub agent_certificate: Duration,
    /// For how long from the start agents are let back in that a restored store does not know.
    pub readmit: Option<Duration>,
    /// Make a CA in place of one that was lost.
    pub new_ca: bool,
    /// Whom to ask about a `bk_token` that is none of ours.
    pub login_url: Option<LoginUrl>,
    /// `None`: the API is served without TLS.
    pub tls: Option<TlsSource>,
    /// Where the administrator's app may come from; empty: anywhere.
    pub admin_from: Vec<AddressBlock>,
}

/// Where the API's certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// The built-in CA makes one for these names, beside the port's own address and loopback.
    BuiltIn {
        names: Vec<String>,
    },
}

/// Makes the data folder, which only its owner may enter. One that exists is taken only if it is empty or a
/// server's.
pub(crate) fn make_data_folder(path: &Path) -> Result<(), ServerError> {
    let failed = |source| ServerError::Folder { path: path.to_owned(), source };
    match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(entries) => {
            let data = std::fs::metadata(path).map_err(failed)?;
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            let folder = ExistingFolder { names: names.collect(), owner: data.uid(), mode: data.mode() };
            let us = rustix::process::geteuid().as_raw();
            data_folder::judge(&folder, FolderOwner::Server, us)
                .map_err(|reason| ServerError::FolderRefused { path: path.to_owned(), reason })?;
        }
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(failed)
}
