//! The log of a proc's own, where its spec names a folder for it (`log_path`).
//!
//! What start_cmd and restart_cmd write then goes to `NAME.log` there, behind what is there already. The folder is the
//! account's business, so everything in it is done with the account's rights: a link that somebody laid there leads the agent
//! nowhere that the account could not go itself. The file is neither trimmed nor removed: whoever names a folder for logs
//! looks after it.

use super::output::escape;
use super::user::Account;
use procfleet_core::{ProcKey, Spec};
use rustix::fs::OFlags;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

/// As much of a name as fits a file name together with what is added.
const NAME_LIMIT: usize = 200;

/// A log that is open. What is in it before `from` was there before.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) file: File,
    pub(super) from: u64,
}

/// `None`: the spec names no folder for logs. An error says what is wrong with the folder that it names.
pub(super) fn open(spec: &Spec, key: &ProcKey, account: &Account) -> Result<Option<Log>, String> {
    let log_path = spec.identity.log_path.as_str();
    let folder = Path::new(log_path);
    let is_folder = log_path.ends_with('/') || fs::metadata(folder).is_ok_and(|data| data.is_dir());
    if log_path.is_empty() || !is_folder {
        return Ok(None);
    }
    if !folder.is_absolute() {
        return Err(format!("log_path {log_path:?} is not an absolute path"));
    }
    let path = folder.join(file_name(spec.instance(key)));
    let opened = account.with_its_rights(|| {
        match DirBuilder::new().mode(0o755).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        append_to(&path)
    });
    let refused = |error: io::Error| {
        format!("log_path {log_path:?} cannot be used by user {:?}: {error}", account.name)
    };
    opened.map_err(refused).map(Some)
}

fn append_to(path: &Path) -> io::Result<Log> {
    // Neither through a link nor into something that would have to be waited for.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(io::Error::other(format!("{path:?} is not a regular file")));
    }
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(Log { file, from: data.len() })
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
