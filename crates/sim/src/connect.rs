//! Connections of simulated agents.

use procfleet_agent::config::ServerAddress;
use procfleet_agent::tls::{self, ConnectError, Socket};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;
use tokio_rustls::rustls::ClientConfig;

/// Where the connections of a simulated agent come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Wherever the kernel chooses.
    Any,
    /// A loopback address of its own. The kernel's search for a free port takes longer the more connections
    /// an address has to one server, and the server's limits for each address mean one agent, as with real
    /// hosts.
    Loopback(Ipv4Addr),
}

impl Source {
    /// The loopback address of an agent: each has another one, up to 16 million agents with consecutive
    /// addresses.
    pub(crate) fn loopback(agent: IpAddr) -> Source {
        let last = match agent {
            IpAddr::V4(ip) => ip.octets()[1..].to_vec(),
            IpAddr::V6(ip) => ip.octets()[13..].to_vec(),
        };
        Source::Loopback(Ipv4Addr::new(127, last[0], last[1], last[2]))
    }

    pub(crate) async fn connect(
        self,
        server: &ServerAddress,
        path: &str,
        tls: ClientConfig,
    ) -> Result<Socket, ConnectError> {
        match self {
            Source::Any => tls::connect(server, None, path, tls).await,
            Source::Loopback(from) => {
                let stream = tokio::time::timeout(tls::CONNECT, connect_from(from, server)).await;
                let stream = stream.map_err(|_| ConnectError::Silent(server.clone(), tls::CONNECT))?;
                let stream = stream.map_err(|error| ConnectError::Tcp(server.clone(), error))?;
                tls::open(server, path, tls, stream).await
            }
        }
    }
}

async fn connect_from(from: Ipv4Addr, server: &ServerAddress) -> io::Result<tokio::net::TcpStream> {
    let host: IpAddr = server.host.parse().map_err(io::Error::other)?;
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(SocketAddr::from((host, server.port))).await
}
