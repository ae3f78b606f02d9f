//! Keeping a log within its size while others write to it.
//!
//! A process holds its log open and nobody can make it let go, so the file that it writes to stays, and its
//! beginning is taken out of it: copied to a file of its own up to the end of a line, made durable there, and
//! then cut off in place. Writers append, and the kernel lets no write and no cut happen at the same time, so
//! nothing is lost and nothing is overwritten.
//!
//! Every byte has a place: how many bytes were written to the log before it. A copy is named by the place of
//! its first byte, and a note says where the file as it is now begins. What was begun and not finished when
//! the agent was cut off is finished by the next one that looks ([`RotationNote::settle`]): each step is
//! written down before it, and may be done twice.
//!
//! ```text
//! copy to .NAME.part -> rename to NAME.PLACE -> note: taken up to here -> hole -> note: collapsing -> collapse -> note
//! ```
//!
//! Where the filesystem can make holes but not collapse them, the file keeps its length and takes no room for
//! what is gone. Where it can do neither, all is copied and the file is emptied: what is written in that very
//! moment is lost.

#[cfg(test)]
mod tests;

use crate::exec::output::log_accounts::LogAccounts;
use rustix::fs::{FallocateFlags, SeekFrom};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// How much is looked at or copied at once.
const BLOCK: usize = 128 * 1024;
/// How often one look goes on with a writer that is faster than the copying.
const ROUNDS: u64 = 4;

/// How much of a proc's output is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// A log that holds more bytes is rotated.
    pub size: u64,
    /// How many copies stay.
    pub keep: u64,
    pub(in crate::exec) means: Means,
}

impl Rotation {
    pub const DEFAULT_SIZE: u64 = 10 * 1024 * 1024;
    pub const DEFAULT_KEEP: u64 = 4;
    /// Less would be more copying than writing, and less than a block cannot be given back.
    pub const LEAST: u64 = 64 * 1024;

    pub fn new(size: u64, keep: u64) -> Rotation {
        Rotation { size: size.max(Rotation::LEAST), keep, means: Means::Collapse }
    }
}

impl Default for Rotation {
    fn default() -> Self {
        Rotation::new(Rotation::DEFAULT_SIZE, Rotation::DEFAULT_KEEP)
    }
}

/// The best that may be tried to take bytes out of a file. What the filesystem cannot do is done by the next
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum Means {
    Collapse,
    #[cfg_attr(not(test), expect(dead_code, reason = "that there is no collapsing is found out by trying"))]
    Hole,
    Empty,
}

/// Where a file that is written to begins, and what is being done to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::exec) struct RotationNote {
    id: FileId,
    /// What the file was called when it was first seen.
    log: PathBuf,
    /// The place of the first byte of the file, whether it is still there or not.
    base: u64,
    /// The place up to which everything is in copies, or gone.
    pub(in crate::exec) taken: u64,
    step: RotationStep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum RotationStep {
    Settled,
    /// What is taken is to be cut out of the file.
    Cutting,
    /// So many bytes, all of them a hole, are to be taken off the file's beginning.
    Collapsing(u64),
}

/// Which file it is, whatever it is called. A number is given again when a file is gone, but not with the
/// same time of birth.
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

/// A file that is written to, for all who rotate or read it. Several procs may write to the same.
#[derive(Debug)]
pub(in crate::exec) struct Tracked {
    pub(in crate::exec) id: FileId,
    note_path: PathBuf,
    /// Who wrote what is in it and in its copies.
    pub(in crate::exec) accounts: LogAccounts,
    note: Mutex<RotationNote>,
    /// Whoever copies: the note is locked only for the moment in which something is taken out, so that nobody
    /// has to wait for a copy.
    rotating: Mutex<()>,
}

impl Tracked {
    /// `folder` is where the notes are.
    pub(in crate::exec) fn new(folder: &Path, data: &fs::Metadata, log: &Path) -> Tracked {
        let id = FileId::of(data);
        let note_path = folder.join(id.file_name());
        let known = RotationNote::load(&note_path).filter(|note| note.id == id);
        let note = known.unwrap_or_else(|| {
            // Behind what an earlier file of that name left.
            let begin = copies(log).last().map_or(0, |copy| copy.place + copy.length);
            RotationNote { id, log: log.to_owned(), base: begin, taken: begin, step: RotationStep::Settled }
        });
        let accounts = LogAccounts::load(folder, id, log);
        Tracked { id, note_path, accounts, note: Mutex::new(note), rotating: Mutex::new(()) }
    }

    /// The note, with nothing left undone.
    pub(in crate::exec) fn note(&self, file: &File) -> io::Result<MutexGuard<'_, RotationNote>> {
        let mut note = self.note.lock().unwrap_or_else(PoisonError::into_inner);
        note.settle(file, &self.note_path)?;
        Ok(note)
    }

    pub(in crate::exec) fn note_path(&self) -> &Path {
        &self.note_path
    }

    fn alone(&self) -> MutexGuard<'_, ()> {
        self.rotating.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the notes of files that are no more, as far as their names tell. `is_used` knows those that
/// somebody looks after.
pub(in crate::exec) fn forget_lost(folder: &Path, is_used: impl Fn(&FileId) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let Some(note) = RotationNote::load(&path) else { continue };
        let is_there = fs::symlink_metadata(&note.log).is_ok_and(|data| FileId::of(&data) == note.id);
        if !is_there && !is_used(&note.id) {
            let _ = fs::remove_file(path);
        }
    }
}

impl RotationNote {
    /// `None`: there is none, or it cannot be read.
    fn load(path: &Path) -> Option<RotationNote> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(in crate::exec) fn save(&self, path: &Path) -> io::Result<()> {
        let draft = path.with_extension("new");
        let mut file = File::create(&draft)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(draft, path)
    }

    /// Where in the file the first byte is that is in no copy.
    pub(in crate::exec) fn start(&self) -> u64 {
        self.taken - self.base
    }

    pub(in crate::exec) fn place_of(&self, offset: u64) -> u64 {
        self.base + offset
    }

    pub(in crate::exec) fn offset_of(&self, place: u64) -> u64 {
        place.saturating_sub(self.base)
    }

    /// Finishes what was begun. Afterwards the file holds what is not taken, behind a hole or a few NUL
    /// bytes.
    fn settle(&mut self, file: &File, path: &Path) -> io::Result<()> {
        match self.step {
            RotationStep::Settled => {
                // Somebody emptied the file: it begins anew, behind what it held.
                let length = file.metadata()?.len();
                if length < self.start() || (self.start() > 0 && !begins_with_nothing(file, self.start())?) {
                    self.base = self.taken;
                    self.save(path)?;
                }
                Ok(())
            }
            RotationStep::Cutting => self.cut_out(file, path, Means::Collapse),
            RotationStep::Collapsing(bytes) => {
                // Where it is done already, the hole is gone.
                if leading_hole(file)? < bytes || collapse(file, bytes).is_ok() {
                    self.base += bytes;
                }
                self.step = RotationStep::Settled;
                self.save(path)
            }
        }
    }

    /// Everything before this place is in a copy, or is to go: takes it out of the file.
    pub(in crate::exec) fn take(
        &mut self,
        file: &File,
        up_to: u64,
        path: &Path,
        means: Means,
    ) -> io::Result<()> {
        (self.taken, self.step) = (up_to, RotationStep::Cutting);
        self.save(path)?;
        self.cut_out(file, path, means)
    }

    fn cut_out(&mut self, file: &File, path: &Path, means: Means) -> io::Result<()> {
        let start = self.start();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if means == Means::Empty || rustix::fs::fallocate(file, hole, 0, start.max(1)).is_err() {
            // Neither is possible. What is behind the cut is lost: `Rotator` sees to it that there is as
            // little as can be.
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
        if whole > 0 && means == Means::Collapse {
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

/// One log, and where its copies go.
#[derive(Debug)]
pub(in crate::exec) struct Rotator<'a> {
    pub(in crate::exec) file: &'a File,
    /// What the log is called, or was when it was opened: copies are called so with a place behind it.
    pub(in crate::exec) path: &'a Path,
    pub(in crate::exec) tracked: &'a Tracked,
    pub(in crate::exec) rotation: Rotation,
}

/// What a rotation came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) struct Rotated {
    pub(in crate::exec) copies: u64,
    /// Bytes that were too many to be copied: they would have been in a copy that is gone by now.
    pub(in crate::exec) dropped: u64,
}

impl Rotator<'_> {
    /// Copies what is too much and takes it out. To be called with the rights of whoever owns the folder.
    pub(in crate::exec) fn rotate(&self) -> io::Result<Rotated> {
        if self.rotation.means != Means::Empty && !self.makes_holes()? {
            return Rotator { rotation: Rotation { means: Means::Empty, ..self.rotation }, ..*self }.rotate();
        }
        let _alone = self.tracked.alone();
        let mut rotated = Rotated::default();
        let Rotation { size, keep, .. } = self.rotation;
        // So that a copy can be told to be of this file.
        self.tracked.note(self.file)?.save(self.tracked.note_path())?;
        self.finish()?;
        for _ in 0..keep + ROUNDS {
            let (start, taken) = {
                let note = self.tracked.note(self.file)?;
                (note.start(), note.taken)
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

    /// Whether this filesystem can. It is tried on a file that nobody writes to: a hole in the wrong place of
    /// the log would be a loss.
    fn makes_holes(&self) -> io::Result<bool> {
        let part = self.part();
        let file = self.create(&part)?;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let made = rustix::fs::fallocate(&file, hole, 0, 4096).is_ok();
        fs::remove_file(part)?;
        Ok(made)
    }

    /// Everything before this place is in a copy, or is to go.
    fn take(&self, up_to: u64) -> io::Result<()> {
        let mut note = self.tracked.note(self.file)?;
        note.take(self.file, up_to, self.tracked.note_path(), self.rotation.means)
    }

    /// A copy that is there and not noted yet was finished: what it holds is taken. One that is not finished
    /// is not there.
    fn finish(&self) -> io::Result<()> {
        let (taken, start) = {
            let note = self.tracked.note(self.file)?;
            (note.taken, note.start())
        };
        let held = self.file.metadata()?.len().saturating_sub(start);
        match fs::symlink_metadata(self.path_of(taken)) {
            Ok(copy) if copy.is_file() && copy.len() > 0 && copy.len() <= held => {
                self.take(taken + copy.len())
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Where a copy ends: behind the last line that fits, else behind the first one that does not. A line
    /// that is longer than twice the size is cut through, between two characters. `None`: it is to be waited
    /// for.
    fn cut(&self, start: u64, length: u64) -> io::Result<Option<u64>> {
        if self.rotation.means == Means::Empty {
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

    /// Whole and durable, or not there at all.
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

    /// A file of our own, whatever was there before.
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
            // A disk that is full gets its room back.
            let _ = fs::remove_file(part);
        }
        written
    }

    fn path_of(&self, place: u64) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!("{name}.{place:015}"))
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

/// A copy of what a log held once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::exec) struct Copied {
    pub(in crate::exec) place: u64,
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
            let place = entry.file_name().to_str()?.strip_prefix(name)?.strip_prefix('.')?.to_owned();
            let is_place = place.len() >= 15 && place.bytes().all(|byte| byte.is_ascii_digit());
            let data = entry.metadata().ok().filter(|data| is_place && data.is_file())?;
            Some(Copied { place: place.parse().ok()?, length: data.len(), path: entry.path() })
        })
        .collect();
    found.sort_by_key(|copy| copy.place);
    found
}

/// As much as is there, from this place in the file on. Its position is left alone, for it may be the
/// writer's too.
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

/// How many bytes of the file's beginning are a hole. Those who append make none.
fn leading_hole(file: &File) -> io::Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(0)) {
        Ok(first) => Ok(first),
        // There is nothing but a hole.
        Err(rustix::io::Errno::NXIO) => Ok(file.metadata()?.len()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the file's first bytes, up to this one, are what a cut leaves. Some of them tell it.
fn begins_with_nothing(file: &File, start: u64) -> io::Result<bool> {
    let mut bytes = [0; 4096];
    let wanted = usize::try_from(start).unwrap_or(bytes.len()).min(bytes.len());
    let count = read_at(file, &mut bytes[..wanted], 0)?;
    Ok(bytes[..count].iter().all(|byte| *byte == 0))
}
