//! `admin.json`: the login that the server writes to its data folder for its operator.
//!
//! It names the server that gets a secret, so it is used only if no other user can have written it. The file
//! must belong to the caller or to root and be inaccessible to others. Every folder and symbolic link of its
//! path must belong to one of these two and must not be writable by others (a sticky folder such as /tmp is
//! allowed: its entries are checked).

use crate::login::Secret;
use nix::unistd::{Uid, User, geteuid};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o002;
const OPEN_TO_OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;
/// Maximum number of symbolic links, as in the kernel.
const LINKS: usize = 40;

#[derive(serde::Deserialize)]
pub(crate) struct Admin {
    pub(crate) url: String,
    pub(crate) bk_app_code: String,
    pub(crate) bk_app_secret: Secret,
    /// The SHA-256 of the server's certificate or of its CA's, in hexadecimal digits.
    #[serde(default)]
    pub(crate) tls_sha256: Option<String>,
}

pub(crate) struct AdminFile {
    pub(crate) path: PathBuf,
    pub(crate) content: Result<Admin, Unusable>,
}

/// The texts contain nothing of the file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Missing,
    Unreadable(String),
    /// Another user may have written the file or read its secret.
    Untrusted(String),
}

impl AdminFile {
    pub(crate) fn of(data: &Path) -> AdminFile {
        let path = data.join("admin.json");
        let content = read(&path);
        AdminFile { path, content }
    }
}

fn read(path: &Path) -> Result<Admin, Unusable> {
    let failed = |fault: std::io::Error| match fault.kind() {
        ErrorKind::NotFound => Unusable::Missing,
        _ => Unusable::Unreadable(format!("it cannot be read: {fault}")),
    };
    let path = std::path::absolute(path).map_err(failed)?;
    let me = geteuid();
    let found = resolve(&path, me).map_err(|fault| match fault {
        AdminFileFault::Io(fault) => failed(fault),
        AdminFileFault::Untrusted(why) => Unusable::Untrusted(why),
    })?;
    // Checked before it is opened, because it might be a pipe of another user, and again after it was opened.
    check_file(&found.symlink_metadata().map_err(failed)?, me)?;
    let mut file = std::fs::File::open(&found).map_err(failed)?;
    check_file(&file.metadata().map_err(failed)?, me)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(failed)?;
    // serde's message may quote the secret, so only the position is reported.
    serde_json::from_slice(&bytes).map_err(|fault: serde_json::Error| {
        Unusable::Unreadable(format!(
            "it cannot be understood at line {} column {}",
            fault.line(),
            fault.column()
        ))
    })
}

fn check_file(about: &Metadata, me: Uid) -> Result<(), Unusable> {
    if !is_trusted(about, me) {
        return Err(Unusable::Untrusted(format!(
            "it belongs to {}, and not to you or root; run this as its owner, or give --url, --app-code and --app-secret",
            name(about.uid())
        )));
    }
    if !about.is_file() {
        return Err(Unusable::Untrusted("it is no regular file".to_owned()));
    }
    if about.mode() & OPEN_TO_OTHERS != 0 {
        return Err(Unusable::Untrusted(format!(
            "others may read or write it (mode {:04o}); make it private with chmod 600",
            about.mode() & 0o7777
        )));
    }
    Ok(())
}

enum AdminFileFault {
    Io(std::io::Error),
    Untrusted(String),
}

impl From<std::io::Error> for AdminFileFault {
    fn from(fault: std::io::Error) -> AdminFileFault {
        AdminFileFault::Io(fault)
    }
}

/// The target of an absolute path that no other user can redirect.
fn resolve(path: &Path, me: Uid) -> Result<PathBuf, AdminFileFault> {
    let mut rest: VecDeque<OsString> = parts(path);
    let mut here = PathBuf::from("/");
    let mut links = 0;
    check_folder(&here, &here.symlink_metadata()?, me)?;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&part);
        let about = next.symlink_metadata()?;
        if about.is_symlink() {
            if !is_trusted(&about, me) {
                let owner = name(about.uid());
                return Err(AdminFileFault::Untrusted(format!(
                    "the symbolic link {} on the way to it belongs to {owner}",
                    next.display()
                )));
            }
            links += 1;
            if links > LINKS {
                return Err(AdminFileFault::Untrusted(
                    "there are too many symbolic links on the way to it".to_owned(),
                ));
            }
            let target = next.read_link()?;
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            for part in parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
            continue;
        }
        if about.is_dir() {
            check_folder(&next, &about, me)?;
        }
        here = next;
    }
    Ok(here)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components().filter_map(|component| match component {
        Component::Normal(part) => Some(part.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    parts.collect()
}

fn check_folder(folder: &Path, about: &Metadata, me: Uid) -> Result<(), AdminFileFault> {
    if !is_trusted(about, me) {
        let owner = name(about.uid());
        return Err(AdminFileFault::Untrusted(format!(
            "the folder {} belongs to {owner}, and not to you or root",
            folder.display()
        )));
    }
    let mode = about.mode();
    // With user private groups, the owner is the only member of the group.
    let by_group = mode & WRITABLE_BY_GROUP != 0 && about.gid() != about.uid();
    if (by_group || mode & WRITABLE_BY_OTHERS != 0) && mode & STICKY == 0 {
        return Err(AdminFileFault::Untrusted(format!(
            "others may write to the folder {} (mode {:04o})",
            folder.display(),
            mode & 0o7777
        )));
    }
    Ok(())
}

fn is_trusted(about: &Metadata, me: Uid) -> bool {
    about.uid() == me.as_raw() || about.uid() == 0
}

fn name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    const FILE: &str = r#"{"url":"http://127.0.0.1:1","bk_app_code":"a","bk_app_secret":"s"}"#;

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
    }

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let outer = tempfile::tempdir().expect("a temp dir");
        let data = outer.path().join("data");
        std::fs::create_dir(&data).expect("our own folder");
        std::fs::write(data.join("admin.json"), FILE).expect("a file in it");
        mode(&data.join("admin.json"), 0o600);
        (outer, data)
    }

    #[track_caller]
    fn check(data: &Path, why: Option<&str>) {
        match (AdminFile::of(data).content.err(), why) {
            (None, None) => {}
            (Some(Unusable::Untrusted(said)), Some(why)) => assert!(said.contains(why), "{said}"),
            (other, _) => panic!("{other:?}, not {why:?}"),
        }
    }

    #[test]
    fn an_admin_file_that_others_can_read_or_change_is_not_used() {
        let (outer, data) = folder();
        check(&data, None);
        for open in [0o644, 0o620, 0o602, 0o660, 0o601] {
            mode(&data.join("admin.json"), open);
            check(&data, Some("others may read or write it"));
        }
        mode(&data.join("admin.json"), 0o600);
        mode(&data, 0o777);
        check(&data, Some("others may write to the folder"));
        mode(&data, 0o1777);
        check(&data, None);
        mode(&data, 0o700);
        mode(outer.path(), 0o707);
        check(&data, Some("others may write to the folder"));
    }

    #[test]
    fn own_symlinks_are_followed_and_their_targets_are_checked() {
        let (outer, data) = folder();
        let link = outer.path().join("link");
        symlink("data", &link).expect("our own folder");
        check(&link, None);
        symlink(&data, outer.path().join("absolute")).expect("our own folder");
        check(&outer.path().join("absolute/../absolute"), None);
        mode(&data, 0o777);
        check(&link, Some("others may write to the folder"));
        symlink("loop", outer.path().join("loop")).expect("our own folder");
        check(&outer.path().join("loop"), Some("too many symbolic links"));
    }

    #[test]
    fn a_folder_is_refused_and_an_absent_file_is_reported_as_missing() {
        let (_outer, data) = folder();
        std::fs::remove_file(data.join("admin.json")).expect("our own file");
        assert_eq!(AdminFile::of(&data).content.err(), Some(Unusable::Missing));
        std::fs::create_dir(data.join("admin.json")).expect("our own folder");
        check(&data, Some("no regular file"));
    }
}
