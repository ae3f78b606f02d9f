//! The settings of a server at its start. Plain data, checked once.

use crate::ServerError;
use crate::backlog::Load;
use crate::login_service::LoginUrl;
use crate::peer::AddressBlock;
use procfleet_core::data_folder::{self, ExistingFolder, FolderOwner};
use procfleet_core::server_address::ServerAddress;
use procfleet_core::server_name::ServerName;
use procfleet_store::StoreUrl;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub data: PathBuf,
    pub store: StoreLocation,
    /// Address of the API and the console.
    pub listen: SocketAddr,
    /// Address of the agents' link.
    pub link: SocketAddr,
    /// The name by which operators know this server.
    pub name: ServerName,
    /// The link as agents and other servers reach it. `None`: by its address, unless that is unspecified.
    pub advertise: Option<ServerAddress>,
    /// Retention of tasks with their results, and of audit records.
    pub keep: Duration,
    /// Maximum number of accepted ops that have not ended, and bytes of their requests; beyond it callers
    /// wait and are then refused.
    pub most_open: Load,
    /// Lifetime of an agent's certificate; it is renewed at two thirds of it.
    pub agent_certificate: Duration,
    /// For how long after the start agents that a restored store does not know are readmitted.
    pub readmit: Option<Duration>,
    /// Files of the seal keys: the first one seals, all open. Unused with the embedded store.
    pub seal_keys: Vec<PathBuf>,
    /// Create a CA to replace one that was lost.
    pub new_ca: bool,
    /// The login service to ask about a `bk_token` that this server did not issue.
    pub login_url: Option<LoginUrl>,
    /// `None`: the API is served without TLS.
    pub tls: Option<TlsSource>,
    /// Addresses from which the administrator's app may call; empty: any.
    pub admin_from: Vec<AddressBlock>,
    /// Addresses of proxies, whose connections to both ports begin with a PROXY header.
    pub proxy_from: Vec<AddressBlock>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum StoreLocation {
    /// One SQLite file in the data folder.
    Embedded,
    Postgres(StoreUrl),
}

/// The source of the API's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// The built-in CA signs one for these names, and for the port's own address and loopback.
    BuiltIn {
        names: Vec<String>,
    },
}

/// The name of a server that was given none: that of its machine.
pub fn default_name() -> ServerName {
    ServerName::of_host(&rustix::system::uname().nodename().to_string_lossy())
}

/// Creates the data folder, which only its owner may enter. An existing folder is accepted only if it is
/// empty or belongs to a server.
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
