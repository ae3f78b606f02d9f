//! A TCP proxy that can be broken: bytes wait, are lost, or connections are cut.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How often a connection that waits looks whether it still should.
const LOOK: Duration = Duration::from_millis(20);

/// The state of the connections through a [`FaultyProxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Way {
    Open = 0,
    /// Nothing arrives and no connection is closed. Data that was sent arrives later.
    Stalled = 1,
    /// Half of the data never arrives.
    Lossy = 2,
    /// Connections are closed, and so are new ones.
    Cut = 3,
    Ended = 4,
}

/// A proxy on loopback. Its connections end when it is dropped.
#[derive(Debug)]
pub struct FaultyProxy {
    address: SocketAddr,
    server: Arc<Mutex<String>>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    way: AtomicU8,
    /// How many pieces were lost.
    lost: AtomicU64,
    inspector: Box<dyn Inspector>,
}

/// Looks at what clients send.
pub(crate) trait Inspector: std::fmt::Debug + Send + Sync {
    /// May change the bytes in place.
    fn inspect(&self, piece: &mut [u8]) -> Passage;

    /// Whether an answer on a connection that was marked with [`Passage::Mark`] arrives.
    fn passes_answer(&self) -> bool {
        true
    }
}

/// How the proxy treats a piece of data that a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    Pass,
    /// The connection is cut, and the piece does not arrive.
    Cut,
    /// The piece arrives. The connection is cut when the server answers, and the answer does not arrive.
    CutAtReply,
    /// The piece arrives. From now on the inspector is asked about each answer on this connection.
    Mark,
}

/// How the proxy treats a piece of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carriage {
    Arrives,
    /// It is lost, and the connection stays.
    Vanishes,
    Cut,
}

/// A connection, as seen by both of its directions.
#[derive(Debug, Default)]
struct Marks {
    cuts_reply: AtomicBool,
    is_marked: AtomicBool,
}

/// Lets everything pass.
#[derive(Debug)]
struct NoInspector;

impl Inspector for NoInspector {
    fn inspect(&self, _: &mut [u8]) -> Passage {
        Passage::Pass
    }
}

impl FaultyProxy {
    /// A proxy to this `HOST:PORT`.
    pub fn to(server: String) -> FaultyProxy {
        FaultyProxy::inspected(server, NoInspector)
    }

    pub(crate) fn inspected(server: String, inspector: impl Inspector + 'static) -> FaultyProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(Shared {
            way: AtomicU8::new(Way::Open as u8),
            lost: AtomicU64::new(0),
            inspector: Box::new(inspector),
        });
        let server = Arc::new(Mutex::new(server));
        let (seen, leads_to) = (shared.clone(), server.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                match seen.now() {
                    Way::Ended => return,
                    Way::Cut => continue,
                    Way::Open | Way::Stalled | Way::Lossy => {}
                }
                // A server that is away is a connection that ends at once.
                let server = leads_to.lock().expect("nobody panics with it").clone();
                let Ok(server) = TcpStream::connect(server) else { continue };
                let (Ok(to_client), Ok(from_server)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                let (there, back) = (seen.clone(), seen.clone());
                let marks = Arc::new(Marks::default());
                let seen_by_server = marks.clone();
                std::thread::spawn(move || {
                    there.carry(client, server, |piece| there.client_sends(piece, &marks));
                });
                std::thread::spawn(move || {
                    back.carry(from_server, to_client, |_| back.server_answers(&seen_by_server));
                });
            }
        });
        FaultyProxy { address, server, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to this address from now on.
    pub fn lead_to(&self, server: &str) {
        server.clone_into(&mut self.server.lock().expect("nobody panics with it"));
    }

    pub fn set(&self, way: Way) {
        self.shared.way.store(way as u8, Ordering::SeqCst);
    }

    /// How many pieces were lost.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.set(Way::Ended);
        // Its listener hears of it with the next connection.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn now(&self) -> Way {
        match self.way.load(Ordering::SeqCst) {
            0 => Way::Open,
            1 => Way::Stalled,
            2 => Way::Lossy,
            3 => Way::Cut,
            _ => Way::Ended,
        }
    }

    fn client_sends(&self, piece: &mut [u8], marks: &Marks) -> Carriage {
        match self.inspector.inspect(piece) {
            Passage::Pass => {}
            Passage::Cut => return Carriage::Cut,
            Passage::CutAtReply => marks.cuts_reply.store(true, Ordering::SeqCst),
            Passage::Mark => marks.is_marked.store(true, Ordering::SeqCst),
        }
        Carriage::Arrives
    }

    fn server_answers(&self, marks: &Marks) -> Carriage {
        if marks.cuts_reply.load(Ordering::SeqCst) {
            return Carriage::Cut;
        }
        match marks.is_marked.load(Ordering::SeqCst) && !self.inspector.passes_answer() {
            true => Carriage::Vanishes,
            false => Carriage::Arrives,
        }
    }

    /// Carries bytes in one direction until the connection ends or `judge` cuts it.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream, judge: impl Fn(&mut [u8]) -> Carriage) {
        let mut bytes = [0; 4096];
        let _ = from.set_read_timeout(Some(LOOK));
        let _ = to.set_nodelay(true);
        let mut pieces = 0_u64;
        loop {
            match self.now() {
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
            if self.now() == Way::Lossy && pieces.is_multiple_of(2) {
                self.lost.fetch_add(1, Ordering::SeqCst);
                continue;
            }
            let piece = &mut bytes[..count];
            match judge(piece) {
                Carriage::Arrives if to.write_all(piece).is_ok() => {}
                Carriage::Vanishes => {}
                Carriage::Arrives | Carriage::Cut => break,
            }
        }
        for stream in [from, to] {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the way is stalled for as long as the test says")]
fn pause() {
    std::thread::sleep(LOOK);
}
