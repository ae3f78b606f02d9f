//! A small file system that a test can fill.

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

    pub fn free(&self) {
        for size in FILLERS {
            let _ = fs::remove_file(self.filler(size));
        }
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
