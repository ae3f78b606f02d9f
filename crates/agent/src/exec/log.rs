//! The log of a proc's own, where its spec names a folder for it (`log_path`).
//!
//! What start_cmd and restart_cmd write then goes to `NAME.log` there, behind what is there already. The folder is the
//! account's business, so everything in it is done with the account's rights: a link that somebody laid there leads the agent
//! nowhere that the account could not go itself. It is rotated like any other log; see `sink`.

use super::output::escape;
use super::user::Account;
use procfleet_core::{ProcKey, Spec};
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// As much of a name as fits a file name together with what is added.
const NAME_LIMIT: usize = 200;

/// What the proc's log is called. `None`: the spec names no folder for logs.
pub(super) fn path(spec: &Spec, key: &ProcKey) -> Result<Option<PathBuf>, String> {
    let log_path = spec.identity.log_path.as_str();
    let folder = Path::new(log_path);
    let is_folder = log_path.ends_with('/') || fs::metadata(folder).is_ok_and(|data| data.is_dir());
    if log_path.is_empty() || !is_folder {
        return Ok(None);
    }
    if !folder.is_absolute() {
        return Err(format!("log_path {log_path:?} is not an absolute path"));
    }
    Ok(Some(folder.join(file_name(spec.instance(key)))))
}

/// An error says what is wrong with the folder that the spec names.
pub(super) fn open(path: &Path, account: &Account) -> Result<File, String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let opened = account.with_its_rights(|| {
        match DirBuilder::new().mode(0o755).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        append_to(path)
    });
    opened.map_err(|error| {
        format!("log_path {:?} cannot be used by user {:?}: {error}", folder.display(), account.name)
    })
}

/// The file that this process writes to, as far as the account could open it itself.
pub(super) fn of_process(pid: u32, account: &Account) -> io::Result<File> {
    account.with_its_rights(|| open_regular(Path::new(&format!("/proc/{pid}/fd/1")), OFlags::empty()))
}

fn append_to(path: &Path) -> io::Result<File> {
    // Neither through a link nor into something that would have to be waited for.
    open_regular(path, OFlags::NOFOLLOW | OFlags::CREATE)
}

fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .mode(0o640)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{path:?} is not a regular file")));
    }
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

/// `web.log`, and `web.2.log` for the second instance.
fn file_name((proc, instance): (ProcKey, u32)) -> String {
    let mut name = escape(&proc.name);
    name.truncate(NAME_LIMIT);
    match instance {
        1 => format!("{name}.log"),
        more => format!("{name}.{more}.log"),
    }
}
