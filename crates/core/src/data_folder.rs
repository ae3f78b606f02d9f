//! Whether a folder may become, or is, the data folder of a server or an agent.
//!
//! A data folder is made private (0700), which would lock everybody else out of a folder that is used for
//! anything else. So an existing folder is taken only if it is empty or has been taken before.

/// The owner of a data folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderOwner {
    Server,
    Agent,
}

impl FolderOwner {
    /// Files that show that a folder belongs to this program. The first one is created before all others.
    /// `admin.json` is not among them, because other programs use that name.
    fn marker_files(self) -> &'static [&'static str] {
        match self {
            // An operator copies `seal.key` to the folder before the first start of another server.
            FolderOwner::Server => &["server.db.lock", "server.db.id", "ca.key.pem", "seal.key"],
            FolderOwner::Agent => &["agent.lock", "agent.id"],
        }
    }
}

/// A folder that exists.
#[derive(Clone, Debug)]
pub struct ExistingFolder {
    pub names: Vec<String>,
    pub owner: u32,
    pub mode: u32,
}

/// Why a folder cannot be used. It was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FolderRefusal {
    #[error(
        "it holds {name:?} and nothing of this program's; name an empty folder, or one that does not exist yet"
    )]
    Foreign { name: String },
    #[error("it is shared by all accounts (sticky); name another folder")]
    Shared,
    #[error(
        "it belongs to the account with uid {0}, and this program runs as another; chown the folder, or name another one"
    )]
    AnotherAccounts(u32),
}

const STICKY: u32 = 0o1000;
/// The contents of the root of an empty file system.
const ALWAYS_THERE: &str = "lost+found";

/// Whether the program, which runs as account `us`, may use the folder.
pub fn judge(folder: &ExistingFolder, program: FolderOwner, us: u32) -> Result<(), FolderRefusal> {
    if folder.mode & STICKY != 0 {
        return Err(FolderRefusal::Shared);
    }
    let markers = program.marker_files();
    let mut foreign = folder.names.iter().filter(|name| *name != ALWAYS_THERE);
    let is_ours = folder.names.iter().any(|name| markers.contains(&name.as_str()));
    match foreign.next() {
        Some(name) if !is_ours => Err(FolderRefusal::Foreign { name: name.clone() }),
        _ if folder.owner != us => Err(FolderRefusal::AnotherAccounts(folder.owner)),
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_if_it_is_empty_or_ours() {
        let foreign = |name: &str| Err(FolderRefusal::Foreign { name: name.to_owned() });
        let (server, agent) = (FolderOwner::Server, FolderOwner::Agent);
        type Row = (&'static [&'static str], u32, u32, FolderOwner, Result<(), FolderRefusal>);
        let rows: &[Row] = &[
            (&[], 0o755, 0, server, Ok(())),
            (&[], 0o777, 0, agent, Ok(())),
            (&["lost+found"], 0o755, 0, server, Ok(())),
            (&["server.db.lock", "notes.txt"], 0o700, 0, server, Ok(())),
            (&["server.db"], 0o700, 0, server, foreign("server.db")),
            (&["ca.key.pem", "agent"], 0o755, 0, server, Ok(())),
            (&["admin.json"], 0o755, 0, server, foreign("admin.json")),
            (&["admin.json", "seal.key"], 0o755, 0, server, Ok(())),
            (&["seal.key"], 0o755, 0, agent, foreign("seal.key")),
            (&["server.db.lock"], 0o700, 0, server, Ok(())),
            (&["agent.lock"], 0o700, 0, agent, Ok(())),
            (&["output", "agent.id"], 0o700, 0, agent, Ok(())),
            (&["agent.db"], 0o700, 0, agent, foreign("agent.db")),
            (&["dpkg", "systemd"], 0o755, 0, server, foreign("dpkg")),
            (&["lost+found", "home"], 0o755, 0, agent, foreign("home")),
            // Each has its own folder.
            (&["server.db"], 0o700, 0, agent, foreign("server.db")),
            (&["agent.lock", "ca.cert.der"], 0o700, 0, server, foreign("agent.lock")),
            (&[], 0o1777, 0, agent, Err(FolderRefusal::Shared)),
            (&["server.db.lock"], 0o1777, 0, server, Err(FolderRefusal::Shared)),
            (&[], 0o755, 7, agent, Err(FolderRefusal::AnotherAccounts(7))),
            (&["agent.lock"], 0o700, 7, agent, Err(FolderRefusal::AnotherAccounts(7))),
            (&["home"], 0o700, 7, agent, foreign("home")),
        ];
        for (names, mode, owner, program, expected) in rows {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            let folder = ExistingFolder { names, owner: *owner, mode: *mode };
            assert_eq!(judge(&folder, *program, 0), *expected, "{folder:?} {program:?}");
        }
    }
}
