//! A proxy in front of PostgreSQL that knows two of its statements: COMMIT and LISTEN.
//!
//! It reads the protocol without TLS, and expects each of the two in one piece: the store sends them alone,
//! as simple queries.

use crate::faulty_proxy::{FaultyProxy, Inspector, Passage, Way};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A simple query: its tag, its length, its text.
const COMMIT: &[u8] = b"Q\0\0\0\x0bCOMMIT\0";
const LISTEN: &[u8] = b"LISTEN procfleet\0";
/// A channel on which nobody notifies.
const SWALLOWED: &[u8] = b"LISTEN swallowed\0";

/// On loopback, like the database. Its connections end when it is dropped.
#[derive(Debug)]
pub struct DatabaseProxy {
    proxy: FaultyProxy,
    url: String,
    faults: Arc<StatementFaults>,
}

/// Where the connection of a COMMIT is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitCut {
    /// The database never gets the COMMIT.
    Before,
    /// The database has committed, and its reply is lost.
    After,
}

/// How the proxy treats LISTEN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Listening {
    Works = 0,
    /// It succeeds, and no notification arrives, as with a pooler that shares connections. Connections that
    /// listen already go on.
    Swallowed = 1,
    /// Nothing arrives on connections that listen, old or new, and they stay open.
    Silent = 2,
}

#[derive(Debug, Default)]
struct StatementFaults {
    /// For the next COMMIT of any connection.
    cut: Mutex<Option<CommitCut>>,
    listening: AtomicU8,
    swallowed: AtomicU64,
    silenced: AtomicU64,
}

impl DatabaseProxy {
    /// A proxy to the database of this URL (`postgres://USER@HOST:PORT/NAME`).
    pub fn to(url: &str) -> DatabaseProxy {
        let database = url.split(['@', '/']).nth(3).expect("host and port");
        let faults = Arc::new(StatementFaults::default());
        let proxy = FaultyProxy::inspected(database.to_owned(), Watcher(faults.clone()));
        let url = url.replace(database, &proxy.address().to_string());
        DatabaseProxy { proxy, url, faults }
    }

    /// The URL of the database, through the proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn set(&self, way: Way) {
        self.proxy.set(way);
    }

    /// Cuts the connection that sends the next COMMIT, also that of a read in a snapshot.
    pub fn cut_next_commit(&self, cut: CommitCut) {
        *self.faults.cut() = Some(cut);
    }

    pub fn set_listening(&self, listening: Listening) {
        self.faults.listening.store(listening as u8, Ordering::SeqCst);
    }

    /// How many LISTEN were swallowed.
    pub fn swallowed(&self) -> u64 {
        self.faults.swallowed.load(Ordering::SeqCst)
    }

    /// How many answers on listening connections did not arrive.
    pub fn silenced(&self) -> u64 {
        self.faults.silenced.load(Ordering::SeqCst)
    }
}

impl StatementFaults {
    fn cut(&self) -> std::sync::MutexGuard<'_, Option<CommitCut>> {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listening(&self) -> Listening {
        match self.listening.load(Ordering::SeqCst) {
            0 => Listening::Works,
            1 => Listening::Swallowed,
            _ => Listening::Silent,
        }
    }
}

#[derive(Debug)]
struct Watcher(Arc<StatementFaults>);

impl Inspector for Watcher {
    fn inspect(&self, piece: &mut [u8]) -> Passage {
        if let Some(at) = find(piece, LISTEN) {
            if self.0.listening() != Listening::Swallowed {
                return Passage::Mark;
            }
            piece[at..at + SWALLOWED.len()].copy_from_slice(SWALLOWED);
            self.0.swallowed.fetch_add(1, Ordering::SeqCst);
        }
        if find(piece, COMMIT).is_none() {
            return Passage::Pass;
        }
        match self.0.cut().take() {
            None => Passage::Pass,
            Some(CommitCut::Before) => Passage::Cut,
            Some(CommitCut::After) => Passage::CutAtReply,
        }
    }

    fn passes_answer(&self) -> bool {
        let is_silent = self.0.listening() == Listening::Silent;
        if is_silent {
            self.0.silenced.fetch_add(1, Ordering::SeqCst);
        }
        !is_silent
    }
}

fn find(piece: &[u8], words: &[u8]) -> Option<usize> {
    piece.windows(words.len()).position(|window| window == words)
}
