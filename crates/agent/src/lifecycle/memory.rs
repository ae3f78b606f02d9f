//! The agent's own memory: it should be small, for it runs on every host, and all that is forked begins with
//! a copy of its tables.
//!
//! glibc is made for programs that want to be quick with many threads: it gives each thread a heap of its
//! own, and keeps what was freed. The agent's work is done by one thread, and what a burst of a thousand
//! starts needed is not needed for months.

//!
//! Of the program itself, what was needed once (reading arguments, joining, opening the journal) stays
//! mapped, with all that lies around it. It is in the kernel's cache in any case, where the agent finds again
//! what it needs.

#![expect(unsafe_code, reason = "neither the allocator nor the kernel can be told without it")]

use nix::libc;
use std::fs;
use std::ops::Range;
use std::ptr;

/// Settles how memory is taken from the kernel; to be called before there are other threads.
pub fn use_little_memory() {
    #[cfg(target_env = "gnu")]
    {
        // What is larger than this comes from the kernel and goes back there. Said once, it does not grow by
        // itself any more.
        let large = 128 * 1024;
        // A setting that is not taken costs memory and nothing else.
        let _ = glibc::mallopt(glibc::M_ARENA_MAX, 1);
        let _ = glibc::mallopt(glibc::M_MMAP_THRESHOLD, large);
        let _ = glibc::mallopt(glibc::M_TRIM_THRESHOLD, large);
        let _ = glibc::mallopt(glibc::M_TOP_PAD, large / 2);
    }
}

/// Gives back to the kernel what is free; to be called when a burst of work is over.
pub fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    {
        // Whether there was something to give is of no interest.
        let _ = glibc::malloc_trim(0);
    }
    for part in unchanged(&fs::read_to_string("/proc/self/smaps").unwrap_or_default()) {
        // SAFETY: the part is of a file, it is not writable, and there is nothing in it that is not in the
        // file. Whoever reads it next gets the same from there.
        let _ = unsafe {
            libc::madvise(ptr::with_exposed_provenance_mut(part.start), part.len(), libc::MADV_DONTNEED)
        };
    }
}

/// The parts of this process's memory that are as the files are that they came from, and will be.
fn unchanged(smaps: &str) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut last = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match (words.next(), last.take()) {
            (Some("Anonymous:"), Some(part)) if words.next() == Some("0") => parts.push(part),
            (Some("Anonymous:"), _) => {}
            (Some(word), before) if word.ends_with(':') => last = before,
            (Some(word), _) => last = program_part(word, words),
            (None, _) => {}
        }
    }
    parts
}

/// `55d0c0a00000-55d0c0b00000 r-xp 00100000 fe:00 1234 /usr/bin/procfleet`
fn program_part<'a>(addresses: &str, mut rest: impl Iterator<Item = &'a str>) -> Option<Range<usize>> {
    let may = rest.next()?;
    let file = rest.nth(3)?;
    let (start, end) = addresses.split_once('-')?;
    let address = |hex| usize::from_str_radix(hex, 16).ok();
    (matches!(may, "r-xp" | "r--p") && file.starts_with('/')).then_some(address(start)?..address(end)?)
}

#[cfg(target_env = "gnu")]
mod glibc {
    use std::ffi::c_int;

    pub(super) const M_TRIM_THRESHOLD: c_int = -1;
    pub(super) const M_TOP_PAD: c_int = -2;
    pub(super) const M_MMAP_THRESHOLD: c_int = -3;
    pub(super) const M_ARENA_MAX: c_int = -8;

    // SAFETY: these are their signatures in <malloc.h>. Both take the allocator's lock, take no pointer and
    // leave alone what is in use, so they may be called at any time.
    unsafe extern "C" {
        pub(super) safe fn mallopt(setting: c_int, value: c_int) -> c_int;
        pub(super) safe fn malloc_trim(pad: usize) -> c_int;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_as_in_its_file_is_given_back() {
        let part = |head: &str, anonymous: u32| {
            format!("{head}\nSize: 4 kB\nRss: 4 kB\nAnonymous: {anonymous} kB\nVmFlags: rd mr mw me\n")
        };
        let smaps = [
            part("1000-2000 r--p 00000000 fe:00 1234    /usr/bin/procfleet", 0),
            part("2000-3000 r-xp 00001000 fe:00 1234    /usr/bin/procfleet", 0),
            part("3000-4000 r--p 00002000 fe:00 1234    /usr/bin/procfleet", 4),
            part("4000-5000 rw-p 00003000 fe:00 1234    /usr/bin/procfleet", 0),
            part("5000-6000 r--p 00000000 00:00 0 ", 0),
            part("6000-7000 r-xp 00000000 00:00 0       [vdso]", 0),
            part("7000-8000 r--s 00000000 fe:00 99      /var/agent.db-shm", 0),
            part("8000-9000 r-xp 00000000 fe:00 77      /usr/lib/libc.so.6", 0),
        ];
        assert_eq!(unchanged(&smaps.concat()), [0x1000..0x2000, 0x2000..0x3000, 0x8000..0x9000]);
        assert!(unchanged("nonsense\nAnonymous: 0 kB\n").is_empty());
        give_memory_back();
        assert!(!unchanged(&fs::read_to_string("/proc/self/smaps").expect("it is there")).is_empty());
    }
}
