//! Other agents on the same machine.
//!
//! Each agent listens on an abstract Unix socket that bears the name of its instance, for as long as it
//! lives. Nothing is said there: a connection shows that the agent lives, and `SO_PEERCRED` shows whose it
//! is. Anybody can bind such a name, so only an agent of root, of our own account or of the account of the
//! process in question counts. An agent in another network namespace is not seen, and neither is one that is
//! being restarted at that moment.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that nobody has accepted yet. Beyond them a connection fails in a way that shows a living
/// agent, too.
const QUEUE: i32 = 64;

/// Tells other agents that this one lives, until it is dropped.
#[derive(Debug)]
pub(in crate::exec) struct AgentPresence(Option<OwnedFd>);

impl AgentPresence {
    pub(in crate::exec) fn announce(instance: &str) -> AgentPresence {
        let listen = || {
            let socket = socket()?;
            net::bind(&socket, &address(instance)?)?;
            net::listen(&socket, QUEUE)?;
            Ok::<OwnedFd, Errno>(socket)
        };
        let listening = listen();
        if let Err(error) = &listening {
            tracing::warn!(%error, "cannot listen on the presence socket; other agents on this host may take its processes for their own");
        }
        AgentPresence(listening.ok())
    }

    /// Closes the connections of those that have asked; to be called now and then.
    pub(in crate::exec) fn drain(&self) {
        let Some(socket) = &self.0 else { return };
        while net::accept_with(socket, SocketFlags::CLOEXEC).is_ok() {}
    }
}

/// Whether the agent of this instance lives, by the word of one of these accounts.
pub(in crate::exec) fn is_alive(instance: &str, is_believed: impl Fn(u32) -> bool) -> bool {
    let Ok(socket) = socket() else { return false };
    let Ok(address) = address(instance) else { return false };
    match net::connect(&socket, &address) {
        Ok(()) => net::sockopt::socket_peercred(&socket).is_ok_and(|peer| is_believed(peer.uid.as_raw())),
        Err(Errno::AGAIN) => true,
        Err(_) => false,
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

fn address(instance: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("procfleet-agent/{instance}").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_seen_while_it_lives_by_those_who_believe_it() {
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
        presence.drain();
        assert!(is_alive(&instance, ours));
        drop(presence);
        assert!(!is_alive(&instance, ours));
    }
}
