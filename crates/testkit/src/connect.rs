//! Connections from another address of this host: all of 127.0.0.0/8 is loopback.

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

/// Connects to a server as if from another host.
#[track_caller]
pub fn connect_from(source: &str, to: &str) -> TcpStream {
    let source: IpAddr = source.parse().expect("an address");
    let to: SocketAddr = to.parse().expect("an address and a port");
    // Programs that other tests start at the same time must not inherit the socket: with many of them, a
    // server with a low RLIMIT_NOFILE has no descriptor left.
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.expect("a socket");
    bind(&socket, &SocketAddr::new(source, 0)).expect("an address of this host");
    connect(&socket, &to).expect("the server listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket of ours");
    stream
}
