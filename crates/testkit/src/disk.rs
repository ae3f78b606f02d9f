//! A small file system that a test can fill, or make read-only.

use crate::machine::{Need, need};
use crate::program::Program;
use std::fs;
use std::path::{Path, PathBuf};

/// Block sizes of `dd`, down to a byte, so that nothing is left free.
const FILLERS: [&str; 3] = ["64k", "4k", "1"];

/// Unmounted on drop.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// `None`: PROCFLEET_TESTS_WITHOUT excludes it.
    #[track_caller]
    pub fn mount(at: &Path, size: &str) -> Option<Disk> {
        fs::create_dir_all(at).expect("our own folder");
        let options = format!("size={size},mode=755");
        let mounted = Program::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).args([at]).run();
        let mounted = match mounted.code {
            Some(0) => Ok(Disk(at.to_owned())),
            Some(_) | None => Err(mounted.stderr),
        };
        need(Need::Mount, mounted)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn fill(&self) {
        for size in FILLERS {
            let of = format!("of={}", self.filler(size).display());
            Program::new("dd").args(["if=/dev/zero", &of, &format!("bs={size}")]).run();
        }
    }

    /// Leaves this many bytes free.
    #[track_caller]
    pub fn fill_except(&self, bytes: u64) {
        self.fill();
        let filler = fs::OpenOptions::new().write(true).open(self.filler(FILLERS[0])).expect("our own file");
        let length = filler.metadata().expect("our own file").len();
        filler.set_len(length.checked_sub(bytes).expect("a larger disk")).expect("our own file");
    }

    pub fn free(&self) {
        for size in FILLERS {
            let _ = fs::remove_file(self.filler(size));
        }
    }

    /// Mounts the file system over itself, read-only, until the guard is dropped. Files that are already open
    /// stay writable: a file system with writers cannot be remounted.
    #[track_caller]
    pub fn mount_read_only(&self) -> ReadOnly<'_> {
        for options in [["--bind"].as_slice(), &["-o", "remount,bind,ro"]] {
            let mounted = Program::new("mount").args(options).args([&self.0, &self.0]).run();
            assert_eq!(mounted.code, Some(0), "{mounted:?}");
        }
        ReadOnly(self)
    }

    fn filler(&self, size: &str) -> PathBuf {
        self.0.join(format!("filler-{size}"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Program::new("umount").args(["-l"]).args([&self.0]).run();
    }
}

/// A read-only mount over a [`Disk`]. Unmounted on drop.
#[derive(Debug)]
pub struct ReadOnly<'a>(&'a Disk);

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        Program::new("umount").args(["-l"]).args([self.0.path()]).run();
    }
}
