//! Output files of commands, and their tails.
//!
//! A command writes to a file, never to a pipe: a pipe breaks when the agent ends, and SIGPIPE would end the
//! process. A start command writes to the proc's log (`proc_log`). Each run of another command has a file in
//! the proc's folder, `STAMP-RUN.out`, where the stamp is the wall-clock millisecond, so that names do not
//! repeat after a restart of the agent. The newest few are kept for people to read.

use procfleet_core::ProcKey;
use procfleet_core::supervise::RunId;
use rustix::fs::FallocateFlags;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// As much of a command's output as its outcome carries.
pub(in crate::exec) const TAIL: u64 = 4096;
/// Number of files of one proc's other commands that are kept.
pub(in crate::exec) const KEPT: usize = 4;
/// A longer name is cut, and a hash of the whole keeps it unique.
const NAME_LIMIT: usize = 100;

/// A file that uses more disk space than this is trimmed to this much of its end.
const TRIMMED_ABOVE: u64 = 16 * 1024 * 1024;
const TRIMMED_TO: u64 = 1024 * 1024;

/// The output files of one proc's other commands.
#[derive(Debug, Default)]
pub(in crate::exec) struct Outputs {
    /// Oldest first. `None`: the folder has not been read yet.
    files: Option<Vec<PathBuf>>,
}

impl Outputs {
    /// Creates the file of a new run in the proc's folder, and removes old ones except those `in_use`. A
    /// process that still writes to a removed file is not affected.
    pub(in crate::exec) fn create(
        &mut self,
        folder: &Path,
        run: RunId,
        stamp: u64,
        in_use: impl Fn(&Path) -> bool,
    ) -> io::Result<(PathBuf, File)> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let path = folder.join(format!("{stamp}-{}.out", run.0));
        // O_APPEND for the agent and all descendants of the command: no writer overwrites another.
        let file = OpenOptions::new().append(true).create_new(true).mode(0o640).open(&path)?;
        let files = self.files.get_or_insert_with(|| existing(folder));
        if !files.contains(&path) {
            files.push(path.clone());
        }
        let mut surplus = files.len().saturating_sub(KEPT);
        files.retain(|old| {
            if surplus == 0 || *old == path || in_use(old) {
                return true;
            }
            surplus -= 1;
            if let Err(error) = fs::remove_file(old) {
                tracing::debug!(file = %old.display(), %error, "cannot remove an old output file");
            }
            false
        });
        Ok((path, file))
    }
}

/// The file of a probe: one for each of its kind, which only the last one has written to.
pub(in crate::exec) fn of_probe(folder: &Path, key: &ProcKey, what: &str) -> io::Result<(PathBuf, File)> {
    let path = folder.join(format!("{}.{what}.probe", stem(key)));
    let file = OpenOptions::new().append(true).create(true).mode(0o640).open(&path)?;
    file.set_len(0)?;
    Ok((path, file))
}

/// Extension of the file that records the process of a probe.
const RUNNING: &str = ".running";

/// The file that records the process of a running probe.
pub(in crate::exec) fn record_of_probe(folder: &Path, key: &ProcKey, what: &str) -> PathBuf {
    folder.join(format!("{}.{what}{RUNNING}", stem(key)))
}

/// The records of all probes.
pub(in crate::exec) fn records_of_probes(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let records =
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(|n| n.ends_with(RUNNING)));
    records.map(|entry| entry.path()).collect()
}

/// The first line of the file, as far as it is short.
pub(in crate::exec) fn first_line(path: &Path) -> String {
    let mut bytes = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(TAIL).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    text.lines().next().unwrap_or_default().to_owned()
}

/// The end of the file as text. Empty if the file is gone.
pub(in crate::exec) fn tail(path: &Path) -> String {
    let bytes = File::open(path).and_then(|file| tail_of(&file));
    String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
}

fn tail_of(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    let begin = length.saturating_sub(TAIL);
    let mut bytes = vec![0; usize::try_from(length - begin).unwrap_or_default()];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], begin + filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    bytes.truncate(filled);
    if begin > 0 {
        drop_cut_character(&mut bytes);
    }
    Ok(bytes)
}

/// A cut may go through a character: its remains are left out.
pub(in crate::exec) fn drop_cut_character(bytes: &mut Vec<u8>) {
    let whole = bytes.iter().take(4).position(|byte| byte & 0xC0 != 0x80).unwrap_or(0);
    bytes.drain(..whole);
}

/// Frees disk space of old output if the file is too large: a command that prints for ever must not fill the
/// disk. The file keeps its length and its end, and its writer is not affected.
pub(in crate::exec) fn trim(path: &Path) {
    let Ok(data) = fs::metadata(path) else { return };
    // `st_blocks` counts 512 bytes each.
    if !data.is_file() || data.blocks() * 512 <= TRIMMED_ABOVE {
        return;
    }
    let trimmed = OpenOptions::new().write(true).open(path).and_then(|file| {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&file, hole, 0, data.len().saturating_sub(TRIMMED_TO)) {
            Ok(()) => Ok(()),
            // A filesystem without holes: all of it goes. Writers append, so they go on at the new end.
            Err(_) => file.set_len(0),
        }
    });
    match trimmed {
        Ok(()) => tracing::info!(file = %path.display(), bytes = data.len(), "output file trimmed"),
        Err(error) => tracing::warn!(file = %path.display(), %error, "cannot trim an output file"),
    }
}

/// Files that earlier agent processes left, oldest first.
fn existing(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let (stamp, run) = name.to_str()?.strip_suffix(".out")?.split_once('-')?;
            Some((stamp.parse::<u64>().ok()?, run.parse::<u64>().ok()?, entry.path()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, _, path)| path).collect()
}

/// A file name for any key. The plus sign never comes out of `escape`, so two keys never share a name.
pub(in crate::exec) fn stem(key: &ProcKey) -> String {
    let whole = format!("{}+{}", escape(&key.namespace), escape(&key.name));
    if whole.len() <= NAME_LIMIT {
        return whole;
    }
    // FNV-1a: it need not be secret, only the same in every build.
    let hash = whole.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{}+{hash:016x}", &whole[..NAME_LIMIT - 17])
}

pub(in crate::exec) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-' => escaped.push(char::from(byte)),
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn key(namespace: &str, name: &str) -> ProcKey {
        ProcKey { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    #[test]
    fn any_key_is_one_safe_and_unique_file_name() {
        assert_eq!(stem(&key("gse", "nginx")), "gse+nginx");
        assert_eq!(stem(&key("../a", "b/c%d +")), "..%2Fa+b%2Fc%25d%20%2B");
        assert_ne!(stem(&key("a+b", "c")), stem(&key("a", "b+c")));
        let (one, other) = (stem(&key("x", &"长".repeat(60))), stem(&key("x", &"长".repeat(61))));
        assert_ne!(one, other);
        assert!(one.len() <= NAME_LIMIT && other.len() <= NAME_LIMIT);
    }

    #[test]
    fn the_tail_is_cut_between_characters() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("x.out");
        fs::write(&path, "é".repeat(3000) + "x").expect("writable");
        assert_eq!(tail(&path), "é".repeat(2047) + "x");
        fs::write(&path, [0x80_u8; 10]).expect("writable");
        assert_eq!(tail(&path), "\u{fffd}".repeat(10));
        assert_eq!(tail(&folder.path().join("none")), "");
    }

    #[test]
    fn a_file_that_grew_too_large_keeps_only_its_end() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let (large, small) = (folder.path().join("large.out"), folder.path().join("small.out"));
        fs::write(&large, vec![b'x'; 20 * 1024 * 1024]).expect("writable");
        fs::write(&small, "short").expect("writable");
        let mut writer = OpenOptions::new().append(true).open(&large).expect("writable");
        trim(&large);
        trim(&small);
        writer.write_all(b"the end").expect("a writer notices nothing");
        assert!(tail(&large).ends_with("the end"));
        assert!(fs::metadata(&large).expect("there").blocks() * 512 <= 2 * TRIMMED_TO);
        assert_eq!(tail(&small), "short");
    }

    #[test]
    fn old_files_go_and_used_ones_stay() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let other = folder.path().join("out.log");
        fs::write(&other, "").expect("writable");
        let mut paths = Vec::new();
        for run in 0..3 {
            let mut outputs = Outputs::default();
            paths.push(outputs.create(folder.path(), RunId(run), 10, |_| false).expect("a new file").0);
        }
        let mut outputs = Outputs::default();
        for run in 0..3 {
            let (path, mut file) =
                outputs.create(folder.path(), RunId(run), 11, |path| path == paths[1]).expect("a new file");
            file.write_all(b"x").expect("writable");
            paths.push(path);
        }
        let left: Vec<bool> = paths.iter().map(|path| path.exists()).collect();
        assert_eq!(left, [false, true, false, true, true, true]);
        assert!(other.exists(), "the log");
        assert!(outputs.create(folder.path(), RunId(2), 11, |_| false).is_err(), "a name is used once");
    }
}
