//! Libraries that are loaded before libc (`LD_PRELOAD`): a wall clock that a game sets, and syncs that fail.

use crate::world::Environment;
use procfleet_testkit::Program;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// An hour, in seconds.
pub(crate) const HOUR: i64 = 3_600;

/// A wall clock that a game sets while its programs run: a preloaded library adds an offset to the kernel's
/// time.
#[derive(Debug)]
pub(crate) struct WallClock {
    library: PathBuf,
    off: PathBuf,
}

impl WallClock {
    /// Any account may use it that can reach the folder.
    pub(crate) fn new(folder: &Path, name: &str) -> WallClock {
        let text = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long off(void) {
    static volatile long *at;
    if (!at) {
        const char *name = getenv("WALL_CLOCK_OFF");
        int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(0, sizeof(long), PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        if (map == MAP_FAILED) return 0;
        at = map;
    }
    return *at;
}
int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && id == CLOCK_REALTIME) at->tv_sec += off();
    return failed;
}
int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    to->tv_sec = at.tv_sec;
    to->tv_usec = at.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (to) *to = at.tv_sec;
    return at.tv_sec;
}
"#;
        let off = folder.join(format!("{name}-off"));
        fs::write(&off, 0_i64.to_ne_bytes()).expect("our own folder");
        let library = library(folder, name, text);
        for (file, mode) in [(&off, 0o644), (&library, 0o755)] {
            fs::set_permissions(file, fs::Permissions::from_mode(mode)).expect("our own file");
        }
        WallClock { library, off }
    }

    /// Seconds ahead of the kernel's clock.
    pub(crate) fn set(&self, off: i64) {
        // Written in place, because the programs have mapped this very file.
        let file = fs::OpenOptions::new().write(true).open(&self.off).expect("our own file");
        std::os::unix::fs::FileExt::write_all_at(&file, &off.to_ne_bytes(), 0).expect("eight bytes");
    }

    pub(crate) fn environment(&self) -> Environment {
        let text = |path: &Path| path.display().to_string();
        vec![("LD_PRELOAD".to_owned(), text(&self.library)), ("WALL_CLOCK_OFF".to_owned(), text(&self.off))]
    }
}

/// A library that lets the Nth sync of a database's log fail, as on a disk with a bad sector.
pub(crate) fn failing_sync(folder: &Path) -> PathBuf {
    let text = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static int fails(int fd) {
    static int synced;
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, name, sizeof name);
    if (size < 4 || memcmp(name + size - 4, "-wal", 4)) return 0;
    const char *nth = getenv("FAILING_SYNC");
    if (!nth || __sync_add_and_fetch(&synced, 1) != atoi(nth)) return 0;
    errno = EIO;
    return 1;
}
int fsync(int fd) { return fails(fd) ? -1 : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return fails(fd) ? -1 : (int)syscall(SYS_fdatasync, fd); }
"#;
    library(folder, "sync", text)
}

/// Loaded before all others.
fn library(folder: &Path, name: &str, text: &str) -> PathBuf {
    let (source, library) = (folder.join(format!("{name}.c")), folder.join(format!("{name}.so")));
    fs::write(&source, text).expect("our own folder");
    let made = Program::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).run();
    assert_eq!(made.code, Some(0), "{made:?}");
    library
}
