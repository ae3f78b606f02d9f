//! A FIFO that blocks its reader: a program that reads the file at its start waits until the test releases
//! it.

use crate::wait::{PATIENCE, wait_for};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A named pipe.
#[derive(Debug)]
pub struct Fifo {
    path: PathBuf,
}

/// The pipe's other end, once a program has opened it to read.
#[derive(Debug)]
pub struct HeldReader {
    path: PathBuf,
    writer: File,
}

impl Fifo {
    pub fn make(path: &Path) -> Fifo {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("our own folder");
        Fifo { path: path.to_owned() }
    }

    /// Waits until a program reads the file. It gets nothing, and no end, until [`HeldReader::release`].
    #[track_caller]
    pub fn wait_for_reader(self) -> HeldReader {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        // Without a reader, the kernel refuses (ENXIO).
        let open = || OpenOptions::new().write(true).custom_flags(flags).open(&self.path).ok();
        let writer = wait_for(PATIENCE, &format!("a program reads {}", self.path.display()), open);
        HeldReader { path: self.path, writer }
    }
}

impl HeldReader {
    /// Sends this text to the reader. Later readers find an ordinary file with the same text.
    pub fn release(mut self, text: &str) {
        let draft = self.path.with_extension("draft");
        fs::write(&draft, text).expect("our own folder");
        fs::rename(&draft, &self.path).expect("our own folder");
        self.writer.write_all(text.as_bytes()).expect("the reader still reads");
    }
}
