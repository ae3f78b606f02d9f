//! The files of a database.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

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

/// Replaces a small file by renaming, so that a crash leaves the old or the new content. The new content is
/// durable when this returns. Only the owner can read the file.
pub fn replace_file(file: &Path, content: impl AsRef<[u8]>) -> io::Result<()> {
    let draft = beside(file, ".new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut written = options.open(&draft)?;
    let done = written.write_all(content.as_ref()).and_then(|()| written.sync_all());
    if let Err(error) = done {
        let _ = std::fs::remove_file(&draft);
        return Err(error);
    }
    std::fs::rename(&draft, file)?;
    sync_folder(file)
}

/// The folder of a file.
pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
