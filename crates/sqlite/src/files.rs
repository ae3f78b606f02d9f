//! The files of a database, looked at without SQLite.

use crate::wal::{WalDamage, wal_damage};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// What is at the path of a database that SQLite may open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseFile {
    Missing,
    Empty,
    Present,
}

/// Why SQLite must not open a file.
#[derive(Debug, thiserror::Error)]
pub enum FileFault {
    #[error("it is a folder")]
    Folder,
    #[error("it is not a regular file")]
    NotRegular,
    #[error(transparent)]
    AlteredLog(#[from] WalDamage),
    #[error(transparent)]
    Io(io::Error),
}

/// Looks at the files of a database before SQLite opens them: opening creates a missing database, and replays
/// an altered log up to the damage.
pub fn inspect(database: &Path) -> Result<DatabaseFile, FileFault> {
    match std::fs::metadata(database) {
        Ok(data) if data.is_dir() => Err(FileFault::Folder),
        Ok(data) if !data.is_file() => Err(FileFault::NotRegular),
        Ok(data) if data.len() == 0 => Ok(DatabaseFile::Empty),
        Ok(_) => wal_damage(database).map_or(Ok(DatabaseFile::Present), |damage| Err(damage.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(DatabaseFile::Missing),
        Err(error) => Err(FileFault::Io(error)),
    }
}

/// The path with an ending appended, such as `-wal`.
pub fn beside(database: &Path, ending: &str) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// Makes creations and renames in the folder of a file durable.
pub fn sync_folder(file: &Path) -> io::Result<()> {
    File::open(folder_of(file))?.sync_all()
}

/// The folder of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
