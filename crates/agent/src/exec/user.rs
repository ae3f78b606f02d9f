//! The OS account that a command runs as.

use super::spawn::NotStarted;
use nix::unistd::{User, getgrouplist};
use procfleet_core::Code;
use rustix::process::geteuid;
use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_groups, set_thread_uid};
use std::ffi::{CString, OsString};
use std::io;

#[derive(Debug)]
pub(super) struct Account {
    pub(super) name: String,
    pub(super) uid: Uid,
    pub(super) gid: Gid,
    pub(super) home: OsString,
    pub(super) shell: OsString,
    /// The groups to take on. `None`: it is the agent's own account, and nothing is to be changed.
    groups: Option<Vec<Gid>>,
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

    /// Turns the calling thread, and it alone, into this account. For a child between fork and exec: these are plain
    /// system calls, and nothing is allocated. The groups go first, for afterwards we may not change them any more.
    pub(super) fn become_it(&self) -> io::Result<()> {
        let Some(groups) = &self.groups else { return Ok(()) };
        set_thread_groups(groups)?;
        set_thread_gid(self.gid)?;
        set_thread_uid(self.uid)?;
        Ok(())
    }
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
}
