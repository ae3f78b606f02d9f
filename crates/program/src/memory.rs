//! Settings of the allocator for programs that idle for months.
//!
//! glibc gives each thread its own arena and keeps freed memory. A burst of a thousand starts or results
//! would leave megabytes that the program does not need again for a long time. With another libc these
//! functions do nothing.

#![expect(unsafe_code, reason = "mallopt and malloc_trim have no safe wrapper")]

/// Sets one arena and small thresholds. Call it before there are other threads.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    {
        // Setting the threshold also stops glibc from raising it by itself.
        let large = 128 * 1024;
        // A setting that glibc refuses costs memory and nothing else.
        let _ = glibc::mallopt(glibc::M_ARENA_MAX, 1);
        let _ = glibc::mallopt(glibc::M_MMAP_THRESHOLD, large);
        let _ = glibc::mallopt(glibc::M_TRIM_THRESHOLD, large);
        let _ = glibc::mallopt(glibc::M_TOP_PAD, large / 2);
    }
}

/// Limits the number of arenas, among which threads are distributed. By default glibc makes up to eight for
/// each core, and what is freed in one is of no use to the threads of another. Call it before there are many
/// threads.
pub fn limit_arenas(most: usize) {
    #[cfg(target_env = "gnu")]
    {
        let _ = glibc::mallopt(glibc::M_ARENA_MAX, i32::try_from(most).unwrap_or(i32::MAX));
    }
}

/// Limits the free bytes that the allocator keeps at the end of each arena, and allocates blocks above this
/// size apart, so that they are returned when they are freed.
pub fn limit_kept(bytes: i32) {
    #[cfg(target_env = "gnu")]
    {
        let _ = glibc::mallopt(glibc::M_TRIM_THRESHOLD, bytes);
        let _ = glibc::mallopt(glibc::M_MMAP_THRESHOLD, bytes);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = bytes;
}

/// Returns free heap pages to the kernel (`malloc_trim`). Call it after a burst of work.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    {
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

    // SAFETY: these are the signatures in <malloc.h>. Both functions take the allocator's lock, take no
    // pointer and do not touch memory that is in use.
    unsafe extern "C" {
        pub(super) safe fn mallopt(setting: c_int, value: c_int) -> c_int;
        pub(super) safe fn malloc_trim(pad: usize) -> c_int;
    }
}
