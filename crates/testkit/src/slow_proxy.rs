//! A slow link to the server: bytes of the agent pass at a limited rate, those of the server at once.

use rustix::net::sockopt::set_socket_recv_buffer_size;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The receive buffer. A larger one would hide the slow link from the agent.
const BUFFER: usize = 4096;
/// Bytes that pass at once.
const PIECE: usize = 512;

/// A proxy on loopback. Its connections end when it is dropped.
#[derive(Debug)]
pub struct SlowProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes a second; 0: as fast as they come.
    rate: AtomicU64,
    passed: AtomicU64,
    ended: AtomicBool,
}

impl SlowProxy {
    /// A proxy to this link (`https://HOST:PORT`). It is fast until [`SlowProxy::slow_down`].
    #[track_caller]
    pub fn to(link: &str) -> SlowProxy {
        let server = link.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        set_socket_recv_buffer_size(&listener, BUFFER).expect("a socket of ours");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        std::thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                if seen.ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = TcpStream::connect(&server) else { continue };
                let (Ok(back), Ok(to_agent)) = (server.try_clone(), agent.try_clone()) else { continue };
                let seen = seen.clone();
                std::thread::spawn(move || carry(agent, server, |count| seen.pass(count)));
                std::thread::spawn(move || carry(back, to_agent, |_| true));
            }
        });
        SlowProxy { address, shared }
    }

    /// The address that an agent uses as its server.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub fn slow_down(&self, bytes_per_second: u64) {
        self.shared.rate.store(bytes_per_second, Ordering::SeqCst);
    }

    /// How many bytes of agents have passed.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::SeqCst)
    }
}

impl Drop for SlowProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        // The listener learns of it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Lets this many bytes pass at the set rate. False: the proxy has ended.
    fn pass(&self, count: usize) -> bool {
        let (count, rate) = (count as u64, self.rate.load(Ordering::SeqCst));
        if let Some(micros) = (count * 1_000_000).checked_div(rate) {
            wait(Duration::from_micros(micros));
        }
        self.passed.fetch_add(count, Ordering::SeqCst);
        !self.ended.load(Ordering::SeqCst)
    }
}

pub(crate) fn carry(mut from: TcpStream, mut to: TcpStream, mut pass: impl FnMut(usize) -> bool) {
    let mut bytes = [0; PIECE];
    let _ = to.set_nodelay(true);
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !pass(count) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[expect(clippy::disallowed_methods, reason = "the link is as slow as the test says")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}
