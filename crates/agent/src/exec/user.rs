//! The OS account that a command runs as.

use crate::exec::error::NotStarted;
use crate::exec::procfs;
use crate::path_walk::{self, PathTrust};
use nix::unistd::{User, getgrouplist, setfsgid, setfsuid};
use procfleet_core::Code;
use procfleet_core::supervise::OtherAccount;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};
use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

#[derive(Clone, Debug)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) gid: Gid,
    pub(super) home: OsString,
    pub(super) shell: OsString,
    /// The groups to set. `None`: it is the agent's own account, and nothing changes.
    groups: Option<Vec<Gid>>,
}

/// Why a file was not opened for an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOpened {
    Missing,
    /// The account may not read it.
    Denied,
    Other(String),
}

/// Opens a regular file for reading, with the rights of this account, and through no link of a third party.
pub fn open_as(user: &str, path: &str) -> Result<File, NotOpened> {
    let account = Account::of(user).map_err(|refused| NotOpened::Other(refused.reason))?;
    let trust = PathTrust::agent().and([account.uid.as_raw()]);
    let opened = account.with_rights_of(|| {
        let way = path_walk::walk(Path::new(path))?;
        if let Some(doubt) = way.doubted_links(&trust) {
            return Err(io::Error::other(doubt.to_string()));
        }
        // Opening a device can have side effects.
        if !way.is(FileType::RegularFile) {
            return Err(io::Error::other("it is not a regular file"));
        }
        way.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)
    });
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => NotOpened::Missing,
        io::ErrorKind::PermissionDenied => NotOpened::Denied,
        _ => NotOpened::Other(error.to_string()),
    })
}

impl Account {
    pub(super) fn of(name: &str) -> Result<Account, NotStarted> {
        if name.is_empty() {
            return Err(NotStarted::new(Code::ArgsInvalid, "user is empty"));
        }
        let failed = |error: nix::Error| {
            NotStarted::new(
                Code::SystemError,
                format!("looking up user {name:?}: {}", io::Error::from(error)),
            )
        };
        let unknown =
            || NotStarted::new(Code::InvalidUser, format!("user {name:?} does not exist on this host"));
        let c_name = CString::new(name).map_err(|_| unknown())?;
        // Some name services answer "no such user" with one of these instead of with nothing.
        let user = match User::from_name(name) {
            Ok(user) => user.ok_or_else(unknown)?,
            Err(nix::Error::ENOENT | nix::Error::ESRCH | nix::Error::EBADF | nix::Error::EPERM) => {
                return Err(unknown());
            }
            Err(error) => return Err(failed(error)),
        };
        let uid = Uid::from_raw(user.uid.as_raw());
        let groups = match uid == geteuid() {
            true => None,
            false if !geteuid().is_root() => {
                let reason = format!("user {name:?} cannot be used: the agent does not run as root");
                return Err(NotStarted::new(Code::InvalidUser, reason));
            }
            false => Some(getgrouplist(&c_name, user.gid).map_err(failed)?),
        };
        let raw = |group: nix::unistd::Gid| Gid::from_raw(group.as_raw());
        Ok(Account {
            name: user.name,
            uid,
            gid: raw(user.gid),
            home: user.dir.into_os_string(),
            shell: if user.shell.as_os_str().is_empty() {
                "/bin/sh".into()
            } else {
                user.shell.into_os_string()
            },
            groups: groups.map(|groups| groups.into_iter().map(raw).collect()),
        })
    }

    /// Accesses files with exactly the rights of this account, in its own thread: a thread that has dropped
    /// its rights cannot be reused. Only the filesystem uid and gid change, so the account cannot signal or
    /// trace the thread.
    pub(super) fn with_rights_of<T: Send>(
        &self,
        act: impl FnOnce() -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let Some(groups) = &self.groups else { return act() };
        let (uid, gid) = (self.uid.as_raw(), self.gid.as_raw());
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || {
                set_thread_groups(groups)?;
                setfsgid(gid.into());
                setfsuid(uid.into());
                // Neither call reports an error. With an invalid id both return the present value.
                let (user, group) = (setfsuid(u32::MAX.into()), setfsgid(u32::MAX.into()));
                if (user.as_raw(), group.as_raw()) != (uid, gid) {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                act()
            })?;
            thread.join().unwrap_or_else(|_| Err(io::Error::other("it broke off")))
        })
    }

    /// Whether it is not the agent's own account.
    pub(super) fn is_another(&self) -> bool {
        self.groups.is_some()
    }

    /// Switches the calling thread to this account. For a child between fork and exec: plain system calls, no
    /// allocations. Groups are set first, because the account may not change them afterwards.
    pub(super) fn become_account(&self) -> Result<(), Errno> {
        let Some(groups) = &self.groups else { return Ok(()) };
        set_thread_groups(groups)?;
        set_thread_gid(self.gid)?;
        set_thread_uid(self.uid)?;
        Ok(())
    }
}

/// Whether the account could signal this process itself, by the kernel's rules. The agent has more rights,
/// which the account must not gain. A spec without an account comes from a caller that may use all of them.
pub(super) fn may_signal(user: &str, pid: u32) -> bool {
    if user.is_empty() {
        return true;
    }
    let Ok(Some(account)) = User::from_name(user) else { return false };
    let uid = account.uid.as_raw();
    account.uid.is_root() || procfs::owners(pid).is_some_and(|owners| owners.contains(&uid))
}

/// Whether the process runs as the account, by its real uid; an empty name is the agent's account. Every user
/// of the host can run a program of the proc's name in the proc's folder. A process with no other evidence
/// must therefore belong to the account, even where the account is root and could signal every process. A
/// setuid program belongs to whoever started it, which its uid does not show.
pub(super) fn runs_as(user: &str, pid: u32) -> bool {
    let uid = uid_of(user);
    procfs::owners(pid).is_some_and(|[real, _]| Some(real) == uid) && !procfs::is_setuid(pid)
}

/// The number of an account; an empty name is the agent's account.
pub(super) fn uid_of(user: &str) -> Option<u32> {
    match user {
        "" => Some(geteuid().as_raw()),
        name => User::from_name(name).ok().flatten().map(|account| account.uid.as_raw()),
    }
}

/// The first of these processes whose real uid belongs to none of these accounts.
pub(super) fn other_than(accounts: &BTreeSet<String>, pids: Vec<u32>) -> Option<OtherAccount> {
    let number = |name: &String| User::from_name(name).ok().flatten().map(|account| account.uid.as_raw());
    let allowed: Vec<u32> = accounts.iter().filter_map(number).collect();
    pids.into_iter().find_map(|pid| {
        let [real, _] = procfs::owners(pid)?;
        (!allowed.contains(&real)).then(|| OtherAccount { pid, user: name_of(real) })
    })
}

/// The name of an account, or its number where it has none.
pub(super) fn name_of(uid: u32) -> String {
    let account = User::from_uid(uid.into()).ok().flatten();
    account.map_or_else(|| uid.to_string(), |account| account.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_is_not_there_is_named() {
        let refused = Account::of("no-such-user-here").expect_err("there is no such user");
        assert_eq!(refused.code, Code::InvalidUser);
        assert_eq!(refused.reason, "user \"no-such-user-here\" does not exist on this host");
        assert_eq!(Account::of("").expect_err("it is empty").code, Code::ArgsInvalid);
        assert_eq!(Account::of("a\0b").expect_err("no account has such a name").code, Code::InvalidUser);
    }

    #[test]
    fn files_made_with_an_accounts_rights_belong_to_it() {
        if !procfleet_testkit::has(procfleet_testkit::Need::Root, geteuid().is_root()) {
            return;
        }
        let nobody = Account::of("nobody").expect("there is a nobody");
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("file");
        let refused = nobody.with_rights_of(|| std::fs::write(&path, "")).expect_err("a folder of root's");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .expect("ours");
        nobody.with_rights_of(|| std::fs::write(&path, "")).expect("everybody may");
        let data = std::fs::metadata(&path).expect("it is there");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&data), nobody.uid.as_raw());
        std::fs::write(folder.path().join("another"), "").expect("this thread is as it was");
    }
}
