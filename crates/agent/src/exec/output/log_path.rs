//! A log in a folder that the spec names (`log_path`).
//!
//! Output of start_cmd and restart_cmd is appended to `NAME.log` there. All file access in the folder uses
//! the account's rights, so a planted link leads the agent nowhere that the account could not go itself. The
//! account may be root, so no third account may control the path to the folder (`path_walk`), and links in
//! the folder are not followed. The log is rotated like any other; see `proc_log`.

use crate::exec::output::command_output::escape;
use crate::exec::user::Account;
use crate::path_walk::{self, PathTrust, Walked};
use procfleet_core::{ProcKey, Spec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum length of a name that fits a file name with its extension.
const NAME_LIMIT: usize = 200;
/// O_APPEND: no writer overwrites another. O_NONBLOCK: opening a FIFO does not block.
const APPEND: OFlags =
    OFlags::RDWR.union(OFlags::APPEND).union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// The path of the proc's log. `None`: the spec names no folder. The error does not disclose what is there
/// instead of a folder: the account may not be allowed to know.
pub(in crate::exec) fn path(spec: &Spec, key: &ProcKey) -> Result<Option<PathBuf>, String> {
    let log_path = spec.identity.log_path.as_str();
    let folder = Path::new(log_path);
    if log_path.is_empty() {
        return Ok(None);
    }
    if !folder.is_absolute() {
        return Err(format!("log_path {log_path:?} is not an absolute path"));
    }
    if !log_path.ends_with('/') && !fs::metadata(folder).is_ok_and(|data| data.is_dir()) {
        return Err(format!("log_path {log_path:?} is no folder (one that ends in a slash is made)"));
    }
    Ok(Some(folder.join(file_name(spec.instance(key)))))
}

/// The error says why the folder of the spec cannot be used.
pub(in crate::exec) fn open(path: &Path, account: &Account) -> Result<File, String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let opened = account.with_rights_of(|| {
        let folder = make_folder(folder, account)?;
        let file = open_in(&folder, path.file_name().unwrap_or_default(), APPEND | OFlags::CREATE)?;
        only_name(&file, path, &folder, account)?;
        Ok(file)
    });
    opened.map_err(|error| {
        format!("log_path {:?} cannot be used by user {:?}: {error}", folder.display(), account.name)
    })
}

/// Fails if a third account can redirect the path to the log's folder. A missing folder is not an error.
pub(in crate::exec) fn check_way(path: &Path, account: &Account) -> io::Result<()> {
    match path_walk::walk(path.parent().unwrap_or(Path::new("/"))) {
        Ok(way) => undoubted(way, account).map(|_| ()),
        Err(_) => Ok(()),
    }
}

/// The folder, which is made if only it is missing.
fn make_folder(folder: &Path, account: &Account) -> io::Result<Walked> {
    match path_walk::walk(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        walked => return undoubted(walked?, account),
    }
    let (Some(above), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let above = undoubted(path_walk::walk(above)?, account)?;
    match rustix::fs::mkdirat(&above, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => undoubted(path_walk::walk(folder)?, account),
        Err(error) => Err(error.into()),
    }
}

/// The owner of the folder itself does not matter, because no link in it is followed.
fn undoubted(way: Walked, account: &Account) -> io::Result<Walked> {
    match way.doubted_way(&trust(account)) {
        Some(doubt) => Err(io::Error::other(doubt.to_string())),
        None => Ok(way),
    }
}

fn trust(account: &Account) -> PathTrust {
    PathTrust::agent().and([account.uid.as_raw()])
}

/// The log that is there already, under the conditions of [`open`].
pub(in crate::exec) fn open_existing(path: &Path, account: &Account) -> io::Result<File> {
    account.with_rights_of(|| {
        let folder = undoubted(path_walk::walk(path.parent().unwrap_or(Path::new("/")))?, account)?;
        let file = open_in(&folder, path.file_name().unwrap_or_default(), APPEND)?;
        only_name(&file, path, &folder, account)?;
        Ok(file)
    })
}

/// The regular file that this process writes to, opened with `O_PATH`: a process may have any file as its
/// output, also one that it could not open itself, and opening a device has side effects.
pub(in crate::exec) fn stdout_of(pid: u32) -> io::Result<File> {
    let path = format!("/proc/{pid}/fd/1");
    let file: File = rustix::fs::open(path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into();
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(not_regular(Path::new(&path))),
    }
}

/// Opens a file of [`stdout_of`] as a log, as far as the account could open it itself.
pub(in crate::exec) fn open_stdout(stdout: &File, account: &Account) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", stdout.as_raw_fd());
    account.with_rights_of(|| {
        let file = rustix::fs::open(path.as_str(), APPEND, Mode::empty())?;
        regular(file.into(), Path::new(&path))
    })
}

/// Follows no symbolic link, and does not block on a FIFO.
fn open_in(folder: &Walked, name: &OsStr, flags: OFlags) -> io::Result<File> {
    let file = rustix::fs::openat(folder, name, flags | OFlags::NOFOLLOW, Mode::from_raw_mode(0o640))?;
    regular(file.into(), Path::new(name))
}

/// Another account may have created the name as a hard link to a file that it cannot write itself.
fn only_name(file: &File, path: &Path, folder: &Walked, account: &Account) -> io::Result<()> {
    if file.metadata()?.nlink() > 1 && folder.doubt(&trust(account)).is_some() {
        return Err(io::Error::other(format!("{path:?} has another name, too (a hard link)")));
    }
    Ok(())
}

fn not_regular(path: &Path) -> io::Error {
    io::Error::other(format!("{path:?} is not a regular file"))
}

fn regular(file: File, path: &Path) -> io::Result<File> {
    if !file.metadata()?.is_file() {
        return Err(not_regular(path));
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
