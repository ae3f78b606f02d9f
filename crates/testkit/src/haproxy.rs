//! haproxy from Debian as an ordinary process: a TCP proxy that sends PROXY headers.

use crate::program::Program;
use crate::wait::{PATIENCE, wait_until};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

const PROGRAM: &str = "/usr/sbin/haproxy";

/// Ends when it is dropped.
#[derive(Debug)]
pub struct Haproxy {
    program: Program,
    folder: TempDir,
}

impl Haproxy {
    /// Starts it with this configuration and waits until it listens.
    #[track_caller]
    pub fn start(configuration: &str) -> Haproxy {
        assert!(
            Path::new(PROGRAM).exists(),
            "{PROGRAM} is missing (Debian: haproxy); scripts/test installs it"
        );
        let folder = tempfile::Builder::new().prefix("procfleet-ha-").tempdir().expect("a temp folder");
        // A separate file, so that the given configuration is used unchanged.
        let own = format!("global\n  stats socket {}\n", socket(&folder).display());
        let paths = [("given.cfg", configuration), ("own.cfg", &own)].map(|(name, text)| {
            let path = folder.path().join(name);
            fs::write(&path, text).expect("our own folder");
            path
        });
        let mut program =
            Program::new(PROGRAM).args(["-db"]).args(paths.iter().flat_map(|path| [Path::new("-f"), path]));
        program.start();
        let mut haproxy = Haproxy { program, folder };
        // All sockets are bound before the first connection is accepted.
        wait_until(PATIENCE, "haproxy listens", || {
            assert!(haproxy.program.is_running(), "haproxy has ended: {}", haproxy.program.stderr());
            UnixStream::connect(socket(&haproxy.folder)).is_ok()
        });
        haproxy
    }

    pub fn stderr(&self) -> String {
        self.program.stderr()
    }

    /// A loopback address on which nothing else of this machine's tests listens: its ports are free.
    pub fn own_address() -> Ipv4Addr {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let [.., high, low] = std::process::id().to_be_bytes();
        let [.., last] = SERIAL.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        // 127.0.0.0/9 is for the hosts of tests and for `up`.
        Ipv4Addr::new(127, 128 | (high & 0x7f), low, last)
    }
}

fn socket(folder: &TempDir) -> PathBuf {
    folder.path().join("socket")
}
