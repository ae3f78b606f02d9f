//! Other agents on the same machine.
//!
//! Each agent listens on an abstract Unix socket that bears the name of its instance, for as long as it
//! lives. No data is exchanged: a successful connection shows that the agent lives, and `SO_PEERCRED` shows
//! its account. Anybody can bind such a name, so only an agent of root, of our own account or of the account
//! of the process in question counts. Any account can fill the accept queue, and `connect` then fails with
//! EAGAIN. In that case the account of the process that holds the listening socket is checked. An agent in
//! another network namespace is not seen, and neither is one that is being restarted at that moment.

use crate::exec::procfs;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// How many connections may wait to be accepted. Beyond them a connection fails with EAGAIN.
const QUEUE: i32 = 256;

/// The flags of a listening socket in `/proc/net/unix`.
const LISTENING: &str = "00010000";

/// Shows other agents that this one is alive, until it is dropped.
#[derive(Debug)]
pub(in crate::exec) struct AgentPresence {
    instance: String,
    /// `None`: the name is taken, as any account can do.
    socket: Mutex<Option<OwnedFd>>,
}

impl AgentPresence {
    pub(in crate::exec) fn announce(instance: &str) -> AgentPresence {
        let listening = listen(instance);
        if let Err(error) = &listening {
            tracing::warn!(%error, "cannot listen on the presence socket; other agents on this host may take its processes for their own; trying again");
        }
        AgentPresence { instance: instance.to_owned(), socket: Mutex::new(listening.ok()) }
    }

    /// Closes pending connections, and tries again to listen where that failed. Call it periodically.
    pub(in crate::exec) fn drain(&self) {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        if socket.is_none() {
            *socket = listen(&self.instance).ok();
            if socket.is_some() {
                tracing::info!("listening on the presence socket; other agents on this host see this one");
            }
        }
        let Some(socket) = &*socket else { return };
        while net::accept_with(socket, SocketFlags::CLOEXEC).is_ok() {}
    }
}

fn listen(instance: &str) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    net::bind(&socket, &address(instance)?)?;
    net::listen(&socket, QUEUE)?;
    Ok(socket)
}

/// Whether the agent of this instance is alive and runs under a trusted account.
pub(in crate::exec) fn is_alive(instance: &str, is_believed: impl Fn(u32) -> bool) -> bool {
    let Ok(socket) = socket() else { return false };
    let Ok(address) = address(instance) else { return false };
    match net::connect(&socket, &address) {
        Ok(()) => net::sockopt::socket_peercred(&socket).is_ok_and(|peer| is_believed(peer.uid.as_raw())),
        Err(Errno::AGAIN) => holders(instance).into_iter().any(is_believed),
        Err(_) => false,
    }
}

/// The accounts of the processes that have the listening socket open, as far as we may look into them.
fn holders(instance: &str) -> Vec<u32> {
    let name = format!("@{}", name(instance));
    let sockets = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let inodes = sockets.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        (fields.get(3) == Some(&LISTENING) && fields.get(7) == Some(&&*name)).then(|| fields[6].to_owned())
    });
    let links: Vec<String> = inodes.map(|inode| format!("socket:[{inode}]")).collect();
    let is_it = |link: io::Result<PathBuf>| {
        link.is_ok_and(|link| link.to_str().is_some_and(|link| links.iter().any(|one| one == link)))
    };
    let holds = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.map(|file| fs::read_link(file.path())).any(is_it)
    };
    if links.is_empty() {
        return Vec::new();
    }
    let holders = procfs::pids().into_iter().filter(holds);
    holders.filter_map(|pid| procfs::owners(pid).map(|[real, _]| real)).collect()
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn address(instance: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name(instance).as_bytes())
}

fn name(instance: &str) -> String {
    format!("procfleet-agent/{instance}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_testkit::{PATIENCE, wait_until};

    #[test]
    fn a_name_that_another_account_has_held_is_taken_when_it_is_free() {
        let instance = format!("held-{}", std::process::id());
        let held = socket().expect("a socket");
        net::bind(&held, &address(&instance).expect("a name")).expect("the name is free");
        let presence = AgentPresence::announce(&instance);
        presence.drain();
        assert!(!is_alive(&instance, |_| true), "the holder does not listen");
        drop(held);
        // A command that another test starts has a copy of the socket until its exec.
        wait_until(PATIENCE, "the agent is seen", || {
            presence.drain();
            is_alive(&instance, |_| true)
        });
    }

    #[test]
    fn a_living_agent_is_detected_if_its_account_is_trusted() {
        let instance = format!("test-{}", std::process::id());
        let us = rustix::process::geteuid().as_raw();
        let ours = |uid: u32| uid == us;
        assert!(!is_alive(&instance, ours));
        let presence = AgentPresence::announce(&instance);
        assert!(is_alive(&instance, ours));
        assert!(!is_alive(&instance, |uid| uid == us + 1), "anybody can bind the name");
        for _ in 0..1_000 {
            assert!(is_alive(&instance, ours), "also if nobody has accepted for long");
        }
        assert!(!is_alive(&instance, |uid| uid == us + 1), "anybody can fill the queue");
        presence.drain();
        assert!(is_alive(&instance, ours));
        drop(presence);
        // A command that another test starts has a copy of the socket until its exec.
        wait_until(PATIENCE, "the socket is closed", || !is_alive(&instance, ours));
    }
}
