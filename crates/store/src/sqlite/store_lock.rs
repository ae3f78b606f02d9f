//! Keeps two servers from using one store.

use super::connection::create;
use crate::StoreError;
use procfleet_sqlite::beside;
use std::fs::{File, TryLockError};
use std::path::Path;

/// Held while the store may be written. The kernel releases it when the process ends.
#[derive(Debug)]
pub struct StoreLock {
    file: File,
}

impl Drop for StoreLock {
    /// Unlocks explicitly: a forked child shares the file description until its `execve`, so closing this
    /// descriptor would not release the lock.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Keeps other servers away from the data folder of the store at this path, also if the store itself is
/// elsewhere.
pub fn lock(path: &Path) -> Result<StoreLock, StoreError> {
    let path_of_lock = beside(path, ".lock");
    let failed = |source| StoreError::File { doing: "locking", path: path_of_lock.clone(), source };
    let file = create(&path_of_lock).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(StoreLock { file }),
        Err(TryLockError::WouldBlock) => {
            let folder = path.parent().unwrap_or(path);
            Err(StoreError::InUse { store: format!("the data folder {}", folder.display()) })
        }
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_free_again_while_a_forked_child_has_its_lock_file_open() {
        let folder = tempfile::tempdir().expect("a temp folder");
        let path = folder.path().join("store.db");
        let held = lock(&path).expect("nobody has it");
        let of_child = held.file.try_clone().expect("a copy of the descriptor");
        drop(held);
        lock(&path).expect("free again");
        drop(of_child);
    }
}
