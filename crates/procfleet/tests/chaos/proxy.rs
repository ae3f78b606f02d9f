//! The way between server and agent, which can be broken: bytes wait, are lost, or the connection is cut.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a connection that waits looks whether it still should.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Way {
    Open = 0,
    /// Nothing arrives and no connection is closed. Data that was sent arrives later.
    Stalled = 1,
    /// Half of the data never arrives.
    Lossy = 2,
    /// Connections are closed, and so are new ones.
    Cut = 3,
    Ended = 4,
}

#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    server: Arc<Mutex<String>>,
    way: Arc<AtomicU8>,
    /// How many pieces were lost.
    lost: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) fn to(server: String) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let (way, lost) = (Arc::new(AtomicU8::new(Way::Open as u8)), Arc::new(AtomicU64::new(0)));
        let server = Arc::new(Mutex::new(server));
        let (seen, counted, leads_to) = (way.clone(), lost.clone(), server.clone());
        std::thread::spawn(move || {
            for agent in listener.incoming().flatten() {
                match now(&seen) {
                    Way::Ended => return,
                    Way::Cut => continue,
                    Way::Open | Way::Stalled | Way::Lossy => {}
                }
                // A server that is away is a connection that ends at once.
                let server = leads_to.lock().expect("nobody panics with it").clone();
                let Ok(server) = TcpStream::connect(server) else { continue };
                let both = [(agent.try_clone(), server.try_clone()), (Ok(server), Ok(agent))];
                for (from, to) in both {
                    let (Ok(from), Ok(to)) = (from, to) else { continue };
                    let (seen, counted) = (seen.clone(), counted.clone());
                    std::thread::spawn(move || carry(from, to, &seen, &counted));
                }
            }
        });
        Proxy { address, server, way, lost }
    }

    /// Connects to this address from now on.
    pub(crate) fn lead_to(&self, server: &str) {
        server.clone_into(&mut self.server.lock().expect("nobody panics with it"));
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.store(way as u8, Ordering::SeqCst);
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(Way::Ended);
        // Its listener hears of it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn now(way: &AtomicU8) -> Way {
    match way.load(Ordering::SeqCst) {
        0 => Way::Open,
        1 => Way::Stalled,
        2 => Way::Lossy,
        3 => Way::Cut,
        _ => Way::Ended,
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, way: &AtomicU8, lost: &AtomicU64) {
    let mut bytes = [0; 4096];
    let _ = from.set_read_timeout(Some(LOOK));
    let _ = to.set_nodelay(true);
    let mut pieces = 0_u64;
    loop {
        match now(way) {
            Way::Cut | Way::Ended => break,
            Way::Stalled => {
                pause();
                continue;
            }
            Way::Open | Way::Lossy => {}
        }
        let count = match from.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            Err(_) => break,
        };
        pieces += 1;
        if now(way) == Way::Lossy && pieces.is_multiple_of(2) {
            lost.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

#[expect(clippy::disallowed_methods, reason = "the way is stalled for as long as the test says")]
fn pause() {
    std::thread::sleep(LOOK);
}
