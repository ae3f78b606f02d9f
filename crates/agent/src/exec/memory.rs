//! The agent's own memory: it should be small, for it runs on every host, and all that is forked begins with a copy of its tables.
//!
//! glibc is made for programs that want to be quick with many threads: it gives each thread a heap of its own, and keeps what
//! was freed. The agent's work is done by one thread, and what a burst of a thousand starts needed is not needed for months.

#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "the allocator's settings have no safe wrapper")
)]

/// Settles how memory is taken from the kernel; to be called before there are other threads.
pub fn use_little_memory() {
    #[cfg(target_env = "gnu")]
    {
        // What is larger than this comes from the kernel and goes back there. Said once, it does not grow by itself any more.
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
}

#[cfg(target_env = "gnu")]
mod glibc {
    use std::ffi::c_int;

    pub(super) const M_TRIM_THRESHOLD: c_int = -1;
    pub(super) const M_TOP_PAD: c_int = -2;
    pub(super) const M_MMAP_THRESHOLD: c_int = -3;
    pub(super) const M_ARENA_MAX: c_int = -8;

    // SAFETY: these are their signatures in <malloc.h>. Both take the allocator's lock, take no pointer and leave alone what is
    // in use, so they may be called at any time.
    unsafe extern "C" {
        pub(super) safe fn mallopt(setting: c_int, value: c_int) -> c_int;
        pub(super) safe fn malloc_trim(pad: usize) -> c_int;
    }
}
