//! Which file a log is, whatever its name. Rotation states and records of accounts are kept by it.

use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Identifies a file independent of its name. An inode number is reused, but not with the same time of birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::exec) struct FileId {
    device: u64,
    inode: u64,
    /// Nanoseconds since 1970; 0 where the filesystem does not know.
    born: u64,
}

impl FileId {
    pub(in crate::exec) fn of(data: &fs::Metadata) -> FileId {
        let born = data.created().unwrap_or(SystemTime::UNIX_EPOCH).duration_since(UNIX_EPOCH);
        let born = born.map_or(0, |born| u64::try_from(born.as_nanos()).unwrap_or_default());
        FileId { device: data.dev(), inode: data.ino(), born }
    }

    pub(in crate::exec) fn file_name(&self) -> String {
        format!("{:x}-{}.json", self.device, self.inode)
    }
}
