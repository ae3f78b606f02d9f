//! A trace for measurements: a line for each op with the times at which it came, was reported and was
//! confirmed.
//!
//! The times are nanoseconds of the kernel's monotonic clock, which all programs of a machine share.

use procfleet_core::id::OpId;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Flushed periodically, and at the end.
#[derive(Debug)]
pub(crate) struct Trace {
    file: Mutex<BufWriter<File>>,
}

/// The times of one op.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) received: u64,
    pub(crate) reported: u64,
}

impl Trace {
    pub(crate) fn create(path: &Path) -> io::Result<Trace> {
        let mut file = BufWriter::with_capacity(1 << 16, File::create(path)?);
        writeln!(file, "op,received_ns,reported_ns,confirmed_ns")?;
        Ok(Trace { file: Mutex::new(file) })
    }

    pub(crate) fn confirmed(&self, op: OpId, times: Times) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // Best effort: on a full disk, lines are missing in the trace.
        let _ = writeln!(file, "{op},{},{},{}", times.received, times.reported, now_ns());
    }

    pub(crate) fn flush(&self) {
        let _ = self.file.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }
}

pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}
