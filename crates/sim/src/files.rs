//! How many agents fit: each needs a file descriptor.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For the program itself: its runtime, its files, and connections that are on their way out.
const RESERVED: u64 = 64;

/// Raises RLIMIT_NOFILE from the soft limit to the hard one and returns it. `None`: there is no limit.
pub fn take_all_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // If the kernel refuses, the soft limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current
}

/// How many agents may connect with this number of open files.
pub fn agents_for_files(files: Option<u64>) -> usize {
    files.map_or(usize::MAX, |files| usize::try_from(files.saturating_sub(RESERVED)).unwrap_or(usize::MAX))
}
