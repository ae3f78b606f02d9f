//! Settings of an agent, checked once at its start.

use crate::AgentError;
use crate::exec::{Containment, Rotation};
use crate::path_walk::{self, PathTrust};
use procfleet_core::data_folder::{self, ExistingFolder, FolderOwner};
use procfleet_core::host_policy::Allow;
pub use procfleet_core::server_address::ServerAddress;
use procfleet_proto::link::token::JoinToken;
use procfleet_proto::tunnel::ProxyUrl;
use rustix::fs::{FileType, OFlags};
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// From the command line; at least one.
    pub servers: Vec<ServerAddress>,
    /// The way to the servers; `None`: directly.
    pub proxy: Option<ProxyUrl>,
    /// Needed once, to join.
    pub token: Option<JoinToken>,
    pub data: PathBuf,
    /// The address of the host; `None`: the one that the server sees.
    pub ip: Option<IpAddr>,
    /// The host owner's policy.
    pub allow: Allow,
    /// How the processes of a proc are tracked.
    pub containment: Containment,
    /// How much of the output of processes is kept.
    pub rotation: Rotation,
    /// The file that the agent executes, and re-executes.
    pub program: PathBuf,
}

/// The data folder, for the verbs of the agent itself.
#[derive(clap::Args, Clone, Debug)]
pub struct AgentFolder {
    /// Data folder of the agent: key, journal, output of commands. It must be empty, missing, or the data
    /// folder of an agent
    #[arg(long, env = "PROCFLEET_AGENT_DATA", default_value = "./procfleet-agent-data")]
    pub data: PathBuf,
}

/// The default path of a host's policy.
const POLICY: &str = "/etc/procfleet/policy.json";
/// Maximum size of a policy.
const LONGEST_POLICY: u64 = 1024 * 1024;

/// Why a policy cannot be used. The agent does not start then: it could violate the owner's policy.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("reading the policy {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the policy {} is not understood: {reason}", path.display())]
    Bad { path: PathBuf, reason: String },
    #[error(
        "the policy {} can be changed by others: {reason}; it and every folder and link on the way to it must belong to \
         root or the agent's account and be writable for nobody else (chown, chmod go-w)",
        path.display()
    )]
    Open { path: PathBuf, reason: String },
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    allow: Allow,
}

/// The policy in this file; without a name, the default one, if it exists.
pub fn read_policy(named: Option<PathBuf>) -> Result<Allow, PolicyError> {
    let path = named.clone().unwrap_or_else(|| PathBuf::from(POLICY));
    let failed = |source| PolicyError::Read { path: path.clone(), source };
    let way = match std::path::absolute(&path).and_then(|path| path_walk::walk(&path)) {
        Ok(way) => way,
        Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => {
            return Ok(Allow::default());
        }
        Err(error) => return Err(failed(error)),
    };
    if let Some(doubt) = way.doubt(&PathTrust::agent()) {
        return Err(PolicyError::Open { path, reason: doubt.to_string() });
    }
    if !way.is(FileType::RegularFile) {
        return Err(failed(io::Error::other("it is not a regular file")));
    }
    let mut text = String::new();
    let file = way.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(failed)?;
    file.take(LONGEST_POLICY).read_to_string(&mut text).map_err(failed)?;
    let bad = |reason: String| PolicyError::Bad { path: path.clone(), reason };
    let PolicyFile { allow } = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    match allow.paths.iter().flatten().find(|folder| !folder.is_absolute()) {
        Some(folder) => Err(bad(format!("allow.paths: {} is not an absolute path", folder.display()))),
        None => Ok(allow),
    }
}

/// Creates the data folder, which only its owner may enter. An existing one is accepted only if it is empty
/// or an agent's.
pub(crate) fn make_data_folder(path: &Path) -> Result<(), AgentError> {
    let failed = |source| AgentError::Folder { path: path.to_owned(), source };
    match std::fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(entries) => {
            let data = std::fs::metadata(path).map_err(failed)?;
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            let folder = ExistingFolder { names: names.collect(), owner: data.uid(), mode: data.mode() };
            let us = rustix::process::geteuid().as_raw();
            data_folder::judge(&folder, FolderOwner::Agent, us)
                .map_err(|reason| AgentError::FolderRefused { path: path.to_owned(), reason })?;
        }
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_understood_whole_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("policy.json");
        let read = |text: &str, mode: u32| {
            std::fs::write(&path, text).expect("our own folder");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("our own file");
            read_policy(Some(path.clone())).map_err(|error| error.to_string())
        };
        let good = r#"{"allow": {"users": ["www"], "paths": ["/srv"], "ops": ["start", "query"]}}"#;
        let allow = read(good, 0o644).expect("a good policy");
        assert_eq!(allow.users, Some(["www".to_owned()].into()));
        assert_eq!(read(r#"{"allow": {}}"#, 0o600), Ok(Allow::default()));
        for (text, mode, reason) in [
            (good, 0o664, "can be changed by others"),
            (r#"{"allow": {"user": []}}"#, 0o644, "unknown field `user`"),
            (r#"{}"#, 0o644, "missing field `allow`"),
            (r#"{"allow": {"ops": ["begin"]}}"#, 0o644, "unknown variant `begin`"),
            (r#"{"allow": {"paths": ["srv"]}}"#, 0o644, "srv is not an absolute path"),
            ("", 0o644, "EOF"),
        ] {
            let error = read(text, mode).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(read_policy(Some(folder.path().join("missing"))).is_err(), "named, but not there");
        assert!(read_policy(Some(folder.path().to_owned())).is_err(), "a folder");
        let open = |path: &std::path::Path, mode: u32| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("our own")
        };
        read(good, 0o644).expect("a good policy");
        open(folder.path(), 0o777);
        let refused = read_policy(Some(path.clone())).expect_err("anybody may exchange it").to_string();
        assert!(refused.contains("anybody may write the folder"), "{refused}");
        open(folder.path(), 0o755);
        if !procfleet_testkit::has(procfleet_testkit::Need::Root, nix::unistd::geteuid().is_root()) {
            return;
        }
        let nobody =
            nix::unistd::User::from_name("nobody").expect("accounts").expect("there is a nobody").uid;
        std::os::unix::fs::chown(&path, Some(nobody.as_raw()), None).expect("root may");
        let refused = read_policy(Some(path.clone())).expect_err("it is nobody's").to_string();
        assert!(refused.contains("it belongs to account \"nobody\""), "{refused}");
        std::os::unix::fs::chown(&path, Some(0), None).expect("root may");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("our own folder");
        read_policy(Some(link.clone())).expect("a link of ours");
        std::os::unix::fs::lchown(&link, Some(nobody.as_raw()), None).expect("root may");
        let refused = read_policy(Some(link)).expect_err("the link is nobody's").to_string();
        assert!(refused.contains("the link "), "{refused}");
    }
}
