//! Keeps a log within its size while processes write to it.
//!
//! A process holds its log open, so the file stays and its beginning is removed: it is copied to another file
//! up to the end of a line, made durable, and then cut off in place. Writers use O_APPEND, and the kernel
//! serialises writes and `fallocate`, so nothing is lost or overwritten.
//!
//! The offset of a byte is the number of bytes that were written to the log before it. A copy is named by the
//! offset of its first byte, and a state file stores the offset at which the file now begins. A rotation that
//! a crash interrupted is finished by the next one ([`RotationState::settle`]): each step is recorded first
//! and is idempotent.
//!
//! ```text
//! copy to .NAME.part -> rename to NAME.OFFSET -> state: taken up to here -> hole -> state: collapsing -> collapse -> state
//! ```
//!
//! Where the filesystem can punch holes but not collapse ranges, the file keeps its length without using disk
//! space. Where it can do neither, the whole file is copied and truncated; output that is written in between
//! is lost.

#[cfg(test)]
mod tests;

use crate::exec::output::file_id::FileId;
use crate::exec::output::log_accounts::LogAccounts;
use rustix::fs::{FallocateFlags, SeekFrom};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Block size of scans and copies.
const BLOCK: usize = 128 * 1024;
/// Maximum number of rounds with a writer that is faster than the copying.
const ROUNDS: u64 = 4;

/// How much of a proc's output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A log that holds more bytes is rotated.
    pub size: u64,
    /// Number of copies.
    pub keep: u64,
    pub(in crate::exec) method: CutMethod,
}

impl Rotation {
    pub const DEFAULT_SIZE: u64 = 10 * 1024 * 1024;
    pub const DEFAULT_KEEP: u64 = 4;
    /// Less would be more copying than writing, and less than a block cannot be given back.
    pub const LEAST: u64 = 64 * 1024;

    pub fn new(size: u64, keep: u64) -> Rotation {
        Rotation { size: size.max(Rotation::LEAST), keep, method: CutMethod::Collapse }
    }
}

impl Default for Rotation {
    fn default() -> Self {
        Rotation::new(Rotation::DEFAULT_SIZE, Rotation::DEFAULT_KEEP)
    }
}

/// The best method to remove bytes from a file that may be tried. If the filesystem refuses it, the next one
/// is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum CutMethod {
    Collapse,
    #[cfg_attr(not(test), expect(dead_code, reason = "that there is no collapsing is found out by trying"))]
    Hole,
    Empty,
}

/// The offset at which a log file begins, and the pending step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::exec) struct RotationState {
    id: FileId,
    /// The name of the file when it was first seen.
    log: Arc<Path>,
    /// The offset of the first byte of the file, even if it is in a hole.
    base: u64,
    /// The offset up to which everything is in copies, or deleted.
    pub(in crate::exec) taken: u64,
    step: RotationStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum RotationStep {
    Settled,
    /// The taken bytes must be cut out of the file.
    Cutting,
    /// This many bytes, all of them a hole, must be removed from the file's beginning.
    Collapsing(u64),
}

/// A log file, shared by all that rotate or read it. Several procs may write to the same file.
#[derive(Debug)]
pub(in crate::exec) struct Tracked {
    pub(in crate::exec) id: FileId,
    /// The folder of the states, shared by all logs.
    folder: Arc<Path>,
    /// The accounts that wrote the file and its copies.
    pub(in crate::exec) accounts: LogAccounts,
    state: Mutex<RotationState>,
    /// Serialises rotations. The state is locked only while bytes are removed, so readers do not wait for a
    /// copy.
    rotating: Mutex<()>,
}

impl Tracked {
    /// `folder` is the folder of the states.
    pub(in crate::exec) fn new(folder: &Arc<Path>, data: &fs::Metadata, log: &Arc<Path>) -> Tracked {
        let id = FileId::of(data);
        let state_path = folder.join(id.file_name());
        let known = RotationState::load(&state_path).filter(|state| state.id == id);
        let state = known.unwrap_or_else(|| {
            // After the copies of an earlier file of that name.
            let begin = copies(log).last().map_or(0, |copy| copy.offset + copy.length);
            RotationState { id, log: log.clone(), base: begin, taken: begin, step: RotationStep::Settled }
        });
        let accounts = LogAccounts::load(folder, id, log);
        Tracked { id, folder: folder.clone(), accounts, state: Mutex::new(state), rotating: Mutex::new(()) }
    }

    /// The state, after any interrupted step was finished.
    pub(in crate::exec) fn state(&self, file: &File) -> io::Result<MutexGuard<'_, RotationState>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.settle(file, &self.state_path())?;
        Ok(state)
    }

    pub(in crate::exec) fn state_path(&self) -> PathBuf {
        self.folder.join(self.id.file_name())
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.rotating.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the states of files that no longer exist under their names. `is_used` knows the files in use.
pub(in crate::exec) fn forget_lost(folder: &Path, is_used: impl Fn(&FileId) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(state) = RotationState::load(&path) else { continue };
        let is_there = fs::symlink_metadata(&state.log).is_ok_and(|data| FileId::of(&data) == state.id);
        if !is_there && !is_used(&state.id) {
            let _ = fs::remove_file(path);
        }
    }
}

impl RotationState {
    /// `None`: there is none, or it cannot be read.
    fn load(path: &Path) -> Option<RotationState> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(in crate::exec) fn save(&self, path: &Path) -> io::Result<()> {
        let draft = path.with_extension("new");
        let mut file = File::create(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(draft, path)
    }

    /// The position in the file of the first byte that is in no copy.
    pub(in crate::exec) fn start(&self) -> u64 {
        self.taken - self.base
    }

    pub(in crate::exec) fn offset_of(&self, position: u64) -> u64 {
        self.base + position
    }

    pub(in crate::exec) fn position_of(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.base)
    }

    /// Finishes an interrupted step. Afterwards the file holds the bytes that are not taken, after a hole or
    /// a few NUL bytes.
    fn settle(&mut self, file: &File, path: &Path) -> io::Result<()> {
        match self.step {
            RotationStep::Settled => {
                // The file was truncated by another program: its first byte now has the offset after its old
                // content.
                let length = file.metadata()?.len();
                if length < self.start() || (self.start() > 0 && !begins_with_nothing(file, self.start())?) {
                    self.base = self.taken;
                    self.save(path)?;
                }
                Ok(())
            }
            RotationStep::Cutting => self.cut_out(file, path, CutMethod::Collapse),
            RotationStep::Collapsing(bytes) => {
                // If the collapse has happened already, there is no hole.
                if leading_hole(file)? < bytes || collapse(file, bytes).is_ok() {
                    self.base += bytes;
                }
                self.step = RotationStep::Settled;
                self.save(path)
            }
        }
    }

    /// Removes all bytes before this offset from the file.
    pub(in crate::exec) fn take(
        &mut self,
        file: &File,
        up_to: u64,
        path: &Path,
        method: CutMethod,
    ) -> io::Result<()> {
        (self.taken, self.step) = (up_to, RotationStep::Cutting);
        self.save(path)?;
        self.cut_out(file, path, method)
    }

    fn cut_out(&mut self, file: &File, path: &Path, method: CutMethod) -> io::Result<()> {
        let start = self.start();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if method == CutMethod::Empty || rustix::fs::fallocate(file, hole, 0, start.max(1)).is_err() {
            // Truncation loses bytes after the cut; `Rotator` keeps them as few as possible.
            let length = file.metadata()?.len();
            file.set_len(0)?;
            (self.base, self.taken) = (self.base + length, self.base + length);
            self.step = RotationStep::Settled;
            return self.save(path);
        }
        let block = rustix::fs::fstatvfs(file)?.f_bsize.max(1);
        let mut whole = start / block * block;
        if whole >= file.metadata()?.len() {
            // Something must be left of a file that is collapsed.
            whole = whole.saturating_sub(block);
        }
        self.step = RotationStep::Settled;
        if whole > 0 && method == CutMethod::Collapse {
            self.step = RotationStep::Collapsing(whole);
            self.save(path)?;
            if collapse(file, whole).is_ok() {
                self.base += whole;
            }
            self.step = RotationStep::Settled;
        }
        self.save(path)
    }
}

/// One log, and the folder of its copies.
#[derive(Debug)]
pub(in crate::exec) struct Rotator<'a> {
    pub(in crate::exec) file: &'a File,
    /// The name of the log when it was opened. Copies have an offset appended.
    pub(in crate::exec) path: &'a Path,
    pub(in crate::exec) tracked: &'a Tracked,
    pub(in crate::exec) rotation: Rotation,
}

/// The result of a rotation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) struct Rotated {
    pub(in crate::exec) copies: u64,
    /// Bytes deleted without a copy, because `keep` copies cannot hold them.
    pub(in crate::exec) dropped: u64,
}

impl Rotator<'_> {
    /// Copies the excess and removes it. Call it with the rights of the folder's owner.
    pub(in crate::exec) fn rotate(&self) -> io::Result<Rotated> {
        if self.rotation.method != CutMethod::Empty && !self.makes_holes()? {
            return Rotator { rotation: Rotation { method: CutMethod::Empty, ..self.rotation }, ..*self }
                .rotate();
        }
        let _alone = self.tracked.alone();
        let mut rotated = Rotated::default();
        let Rotation { size, keep, .. } = self.rotation;
        // Saved first, so that a copy can be matched with this file.
        self.tracked.state(self.file)?.save(&self.tracked.state_path())?;
        self.finish()?;
        for _ in 0..keep + ROUNDS {
            let (start, taken) = {
                let state = self.tracked.state(self.file)?;
                (state.start(), state.taken)
            };
            let length = self.file.metadata()?.len();
            let held = length.saturating_sub(start);
            if held <= size {
                break;
            }
            let most = size.saturating_mul(keep + 1);
            if held > most.saturating_add(size) || keep == 0 {
                let from = length - if keep == 0 { size / 2 } else { most };
                let Some(cut) = newline_after(self.file, from, length)? else { break };
                rotated.dropped += cut - start;
                self.take(taken + (cut - start))?;
                continue;
            }
            let Some(cut) = self.cut(start, length)? else { break };
            self.copy(start, cut, &self.path_of(taken))?;
            self.take(taken + (cut - start))?;
            rotated.copies += 1;
        }
        if rotated.copies > 0 {
            self.prune();
        }
        Ok(rotated)
    }

    /// Whether this filesystem can punch holes. The test uses another file: a wrong hole in the log would
    /// lose data.
    fn makes_holes(&self) -> io::Result<bool> {
        let part = self.part();
        let file = self.create(&part)?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let made = rustix::fs::fallocate(&file, hole, 0, 4096).is_ok();
        fs::remove_file(part)?;
        Ok(made)
    }

    /// Removes all bytes before this offset.
    fn take(&self, up_to: u64) -> io::Result<()> {
        let mut state = self.tracked.state(self.file)?;
        state.take(self.file, up_to, &self.tracked.state_path(), self.rotation.method)
    }

    /// A complete copy that is not recorded yet is taken. An incomplete one has another name.
    fn finish(&self) -> io::Result<()> {
        let (taken, start) = {
            let state = self.tracked.state(self.file)?;
            (state.taken, state.start())
        };
        let held = self.file.metadata()?.len().saturating_sub(start);
        match fs::symlink_metadata(self.path_of(taken)) {
            Ok(copy) if copy.is_file() && copy.len() > 0 && copy.len() <= held => {
                self.take(taken + copy.len())
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The end of a copy: after the last line that fits, else after the first line. A line longer than twice
    /// the size is cut between two characters. `None`: wait for more.
    fn cut(&self, start: u64, length: u64) -> io::Result<Option<u64>> {
        if self.rotation.method == CutMethod::Empty {
            return Ok(Some(length));
        }
        let size = self.rotation.size;
        let full = start + size;
        if let Some(cut) = newline_before(self.file, start, full)? {
            return Ok(Some(cut));
        }
        if let Some(cut) = newline_after(self.file, full, length.min(full + size))? {
            return Ok(Some(cut));
        }
        if length - start <= 2 * size {
            return Ok(None);
        }
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, full)?;
        let whole = bytes.iter().position(|byte| byte & 0xC0 != 0x80).unwrap_or(0);
        Ok(Some(full + whole as u64))
    }

    /// The copy is complete and durable, or does not exist.
    fn copy(&self, from: u64, to: u64, copy: &Path) -> io::Result<()> {
        let part = self.part();
        self.copy_to(from, to, &part)?;
        fs::rename(&part, copy)?;
        let folder = copy.parent().unwrap_or(Path::new("/"));
        File::open(folder).and_then(|folder| folder.sync_all())
    }

    pub(in crate::exec) fn part(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.part"))
    }

    /// A new file of our own, replacing any other.
    fn create(&self, part: &Path) -> io::Result<File> {
        match fs::remove_file(part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mode = self.file.metadata()?.permissions().mode() & 0o777;
        OpenOptions::new().write(true).create_new(true).mode(mode).open(part)
    }

    fn copy_to(&self, from: u64, to: u64, part: &Path) -> io::Result<()> {
        let mut copy = self.create(part)?;
        let written = copy_range(self.file, from, to, &mut copy).and_then(|()| copy.sync_all());
        if written.is_err() {
            // Frees the space again on a full disk.
            let _ = fs::remove_file(part);
        }
        written
    }

    fn path_of(&self, offset: u64) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{name}.{offset:015}"))
    }

    fn prune(&self) {
        let copies = copies(self.path);
        let surplus = copies.len().saturating_sub(usize::try_from(self.rotation.keep).unwrap_or(usize::MAX));
        for copy in &copies[..surplus] {
            if let Err(error) = fs::remove_file(&copy.path) {
                tracing::debug!(file = %copy.path.display(), %error, "cannot remove an old copy of a log");
            }
        }
    }
}

/// A copy of earlier content of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::exec) struct Copied {
    pub(in crate::exec) offset: u64,
    pub(in crate::exec) length: u64,
    pub(in crate::exec) path: PathBuf,
}

/// The copies of a log, oldest first.
pub(in crate::exec) fn copies(log: &Path) -> Vec<Copied> {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<Copied> = entries
        .flatten()
        .filter_map(|entry| {
            let offset = entry.file_name().to_str()?.strip_prefix(name)?.strip_prefix('.')?.to_owned();
            let is_offset = offset.len() >= 15 && offset.bytes().all(|byte| byte.is_ascii_digit());
            let data = entry.metadata().ok().filter(|data| is_offset && data.is_file())?;
            Some(Copied { offset: offset.parse().ok()?, length: data.len(), path: entry.path() })
        })
        .collect();
    found.sort_by_key(|copy| copy.offset);
    found
}

/// Reads up to `buffer.len()` bytes from this position. `pread` keeps the file position, which the writer may
/// share.
pub(in crate::exec) fn read_at(file: &File, buffer: &mut [u8], from: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn copy_range(file: &File, mut from: u64, to: u64, copy: &mut File) -> io::Result<()> {
    let mut block = vec![0; BLOCK];
    while from < to {
        let wanted = usize::try_from(to - from).unwrap_or(BLOCK).min(BLOCK);
        let count = read_at(file, &mut block[..wanted], from)?;
        if count == 0 {
            return Err(io::Error::other("the log became shorter while it was copied"));
        }
        copy.write_all(&block[..count])?;
        from += count as u64;
    }
    Ok(())
}

/// Behind the last newline from `start` to `end`.
fn newline_before(file: &File, start: u64, end: u64) -> io::Result<Option<u64>> {
    let mut block = vec![0; BLOCK];
    let mut end = end;
    while end > start {
        let begin = start.max(end.saturating_sub(BLOCK as u64));
        let wanted = usize::try_from(end - begin).unwrap_or(BLOCK);
        let count = read_at(file, &mut block[..wanted], begin)?;
        if let Some(at) = block[..count].iter().rposition(|byte| *byte == b'\n') {
            return Ok(Some(begin + at as u64 + 1));
        }
        end = begin;
    }
    Ok(None)
}

/// Behind the first newline from `start` to `end`.
fn newline_after(file: &File, start: u64, end: u64) -> io::Result<Option<u64>> {
    let mut block = vec![0; BLOCK];
    let mut begin = start;
    while begin < end {
        let wanted = usize::try_from(end - begin).unwrap_or(BLOCK).min(BLOCK);
        let count = read_at(file, &mut block[..wanted], begin)?;
        if count == 0 {
            return Ok(None);
        }
        if let Some(at) = block[..count].iter().position(|byte| *byte == b'\n') {
            return Ok(Some(begin + at as u64 + 1));
        }
        begin += count as u64;
    }
    Ok(None)
}

fn collapse(file: &File, bytes: u64) -> rustix::io::Result<()> {
    rustix::fs::fallocate(file, FallocateFlags::COLLAPSE_RANGE, 0, bytes)
}

/// Length of the hole at the file's beginning. O_APPEND writers create none.
fn leading_hole(file: &File) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(0)) {
        Ok(first) => Ok(first),
        // There is nothing but a hole.
        Err(rustix::io::Errno::NXIO) => Ok(file.metadata()?.len()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the file begins with NUL bytes up to `start`, as a cut leaves it. Samples a few of them.
fn begins_with_nothing(file: &File, start: u64) -> io::Result<bool> {
    let mut bytes = [0; 4096];
    let wanted = usize::try_from(start).unwrap_or(bytes.len()).min(bytes.len());
    let count = read_at(file, &mut bytes[..wanted], 0)?;
    Ok(bytes[..count].iter().all(|byte| *byte == 0))
}
