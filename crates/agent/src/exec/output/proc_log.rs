//! A proc's log: the output of its start_cmd and restart_cmd, kept within its size, and read.
//!
//! Without `log_path` in the spec, the log is `out.log` in the proc's folder below the agent's data folder.
//! It continues over all runs of the proc. The agent finds it by name or, after a rename, through the
//! process's descriptor. Offsets count from the first byte that was ever written, so a reader can continue
//! after rotations.

use crate::exec::output::command_output::{self, TAIL};
use crate::exec::output::file_id::FileId;
use crate::exec::output::log_accounts::{self, Stretch};
use crate::exec::output::log_path;
use crate::exec::output::rotate::{self, Copied, Rotated, Rotation, RotationState, Rotator, Tracked};
use crate::exec::procfs::Id;
use crate::exec::user::Account;
use procfleet_core::grants::GrantScope;
use procfleet_core::{ProcKey, Spec};
use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

/// The name of the log in the agent's folder.
const OWN: &str = "out.log";
/// The file with the time at which the proc was unregistered.
const FORGOTTEN: &str = "forgotten";
/// The folder of rotation states. No proc's folder has this name: one that begins with a dot has a plus sign.
const ROTATION_DIR: &str = ".rotation";
/// How long the output of an unregistered proc is kept, for debugging.
const KEPT_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Maximum distance from the end to search for the beginning of the last lines.
const LOOK_BACK: u64 = 32 * 1024 * 1024;
/// Block size of that search.
const BLOCK: u64 = 64 * 1024;

/// The logs of all procs.
#[derive(Debug)]
pub(in crate::exec) struct ProcLogs {
    folder: Arc<Path>,
    /// The folder of rotation states.
    states: Arc<Path>,
    pub(in crate::exec) rotation: Rotation,
    by_stem: Mutex<HashMap<Arc<str>, Weak<ProcLog>>>,
    tracked: Mutex<HashMap<FileId, Weak<Tracked>>>,
}

impl ProcLogs {
    pub(in crate::exec) fn new(folder: &Path) -> ProcLogs {
        // Messages contain absolute paths.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        ProcLogs {
            states: Arc::from(folder.join(ROTATION_DIR)),
            folder: Arc::from(folder),
            rotation: Rotation::default(),
            by_stem: Mutex::default(),
            tracked: Mutex::default(),
        }
    }

    /// The log of this proc. All callers share one.
    pub(in crate::exec) fn of(&self, key: &ProcKey) -> Arc<ProcLog> {
        self.at(&command_output::stem(key))
    }

    fn at(&self, stem: &str) -> Arc<ProcLog> {
        let mut by_stem = lock(&self.by_stem);
        if let Some(log) = by_stem.get(stem).and_then(Weak::upgrade) {
            return log;
        }
        let stem: Arc<str> = Arc::from(stem);
        let log =
            Arc::new(ProcLog { root: self.folder.clone(), stem: stem.clone(), inner: Mutex::default() });
        by_stem.insert(stem, Arc::downgrade(&log));
        log
    }

    fn track(&self, file: &File, log: &Arc<Path>) -> io::Result<Arc<Tracked>> {
        let data = file.metadata()?;
        let id = FileId::of(&data);
        let mut tracked = lock(&self.tracked);
        if let Some(known) = tracked.get(&id).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let new = Arc::new(Tracked::new(&self.states, &data, log));
        tracked.insert(id, Arc::downgrade(&new));
        Ok(new)
    }

    /// Creates the folders for states, and moves output of the first version to where it belongs. Call it
    /// once at start.
    pub(in crate::exec) fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.states)?;
        let mut newest: HashMap<String, (u64, u64, PathBuf)> = HashMap::new();
        for entry in fs::read_dir(&self.folder)?.flatten() {
            let name = entry.file_name();
            let old = name.to_str().and_then(|name| {
                let (stem, run) = name.strip_suffix(".out")?.rsplit_once('.')?;
                let (stamp, run) = run.split_once('-')?;
                Some((stem.to_owned(), stamp.parse::<u64>().ok()?, run.parse::<u64>().ok()?))
            });
            let Some((stem, stamp, run)) = old else { continue };
            let this = (stamp, run, entry.path());
            let other = match newest.get(&stem) {
                Some(known) if *known > this => Some(this),
                Some(_) | None => newest.insert(stem, this),
            };
            if let Some((_, _, path)) = other {
                let _ = fs::remove_file(path);
            }
        }
        // The newest is most likely in use by a running process.
        for (stem, (_, _, path)) in newest {
            let folder = self.folder.join(stem);
            let moved = make_folder(&folder).and_then(|()| match folder.join(OWN).exists() {
                true => fs::remove_file(&path),
                false => fs::rename(&path, folder.join(OWN)),
            });
            if let Err(error) = moved {
                tracing::warn!(file = %path.display(), %error, "cannot move an output file into the proc's folder");
            }
        }
        Ok(())
    }

    /// Rotates logs that are too large. Returns true if there was one, so that the caller comes back soon.
    pub(in crate::exec) fn rotate_if_due(&self) -> bool {
        let proc_logs: Vec<Arc<ProcLog>> = lock(&self.by_stem).values().filter_map(Weak::upgrade).collect();
        proc_logs.iter().filter(|log| log.rotate_if_due(self)).count() > 0
    }

    /// Keeps the output of unregistered procs for a day, and within its size.
    pub(in crate::exec) fn rotate_forgotten(&self) {
        lock(&self.by_stem).retain(|_, log| log.strong_count() > 0);
        lock(&self.tracked).retain(|_, tracked| tracked.strong_count() > 0);
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(stem) = name.to_str().filter(|name| name.contains('+') && path.is_dir()) else {
                continue;
            };
            let changed = |file: &str| fs::metadata(path.join(file)).and_then(|data| data.modified());
            let Ok(since) = changed(FORGOTTEN) else { continue };
            self.at(stem).rotate_if_due(self);
            // The process may still run and write.
            let since = changed(OWN).map_or(since, |written| written.max(since));
            if SystemTime::now().duration_since(since).is_ok_and(|age| age > KEPT_AFTER) {
                tracing::info!(folder = %path.display(), "removed the output of an unregistered proc");
                let _ = fs::remove_dir_all(path);
            }
        }
        let used = |id: &FileId| lock(&self.tracked).get(id).is_some_and(|one| one.strong_count() > 0);
        rotate::forget_lost(&self.states, used);
        log_accounts::forget_lost(&self.states, used);
    }
}

/// The log of one proc.
#[derive(Debug)]
pub(in crate::exec) struct ProcLog {
    /// The parent of all procs' folders.
    root: Arc<Path>,
    /// The name of the proc's folder.
    stem: Arc<str>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None`: not looked up yet.
    live: Option<Arc<LiveLog>>,
    /// The process that should write to it.
    process: Option<Id>,
    /// The output files of the last stop, kill and reload commands, oldest first.
    others: VecDeque<PathBuf>,
}

/// A log as it is now.
#[derive(Debug)]
pub(in crate::exec) struct LiveLog {
    /// The name, or the last one known before a rename.
    path: Arc<Path>,
    location: LogLocation,
    tracked: Arc<Tracked>,
}

/// Which folder it is in.
#[derive(Debug)]
enum LogLocation {
    /// The agent's.
    Own,
    /// The account's folder. Boxed, because most logs are the agent's own.
    Theirs(Box<AccountFile>),
}

/// A log in a folder of its account. The file stays open, because it may be renamed.
#[derive(Debug)]
struct AccountFile {
    account: Account,
    file: File,
}

impl LogLocation {
    fn theirs(account: Account, file: File) -> LogLocation {
        LogLocation::Theirs(Box::new(AccountFile { account, file }))
    }
}

/// A log that a run is to write to.
#[derive(Debug)]
pub(in crate::exec) struct OpenedLog {
    pub(in crate::exec) live: Arc<LiveLog>,
    /// Opened with O_APPEND for the run.
    pub(in crate::exec) file: File,
    /// The offset of the first byte that the run will write.
    pub(in crate::exec) from: u64,
}

impl ProcLog {
    /// The proc's folder. Not stored: it would take memory for every proc.
    pub(in crate::exec) fn folder(&self) -> PathBuf {
        self.root.join(&*self.stem)
    }

    /// The name of the proc's folder, which is its own among all procs.
    pub(in crate::exec) fn stem(&self) -> &Arc<str> {
        &self.stem
    }

    /// Opens the log for a run. The text says why the log of the spec's folder cannot be used; then it is the
    /// agent's.
    pub(in crate::exec) fn open(
        &self,
        proc_logs: &ProcLogs,
        spec: &Spec,
        key: &ProcKey,
        account: &Account,
    ) -> (io::Result<OpenedLog>, Option<String>) {
        let theirs = log_path::path(spec, key).and_then(|path| {
            path.map(|path| log_path::open(&path, account).map(|file| (path, file))).transpose()
        });
        let (opened, wrong) = match theirs {
            Ok(Some((path, file))) => {
                let location = file.try_clone().map(|file| LogLocation::theirs(account.clone(), file));
                (location.map(|location| (path, location, file)), None)
            }
            Ok(None) => (self.open_own(), None),
            Err(reason) => (self.open_own(), Some(reason)),
        };
        let begun = opened.and_then(|(path, location, file)| {
            let path: Arc<Path> = Arc::from(path);
            let live = Arc::new(LiveLog { tracked: proc_logs.track(&file, &path)?, path, location });
            let from = {
                let state = live.tracked.state(&file)?;
                state.offset_of(file.metadata()?.len())
            };
            if let Err(error) = live.tracked.accounts.begin(&account.name, from) {
                // The process is started all the same.
                tracing::warn!(log = %live.path.display(), %error, "cannot record the account of a run; only apps that may use all accounts can read its lines");
            }
            lock(&self.inner).live = Some(live.clone());
            Ok(OpenedLog { live, file, from })
        });
        (begun, wrong)
    }

    fn open_own(&self) -> io::Result<(PathBuf, LogLocation, File)> {
        let folder = self.folder();
        make_folder(&folder)?;
        let path = folder.join(OWN);
        // O_APPEND: no writer overwrites another.
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o640).open(&path)?;
        let _ = fs::remove_file(folder.join(FORGOTTEN));
        Ok((path, LogLocation::Own, file))
    }

    /// The process that should write here. After a restart of the agent, this also finds the log again in the
    /// folder that the spec names.
    pub(in crate::exec) fn belongs_to(&self, process: Id, spec: &Spec, key: &ProcKey, proc_logs: &ProcLogs) {
        let mut inner = lock(&self.inner);
        inner.process = Some(process);
        let Ok(Some(path)) = log_path::path(spec, key) else { return };
        if inner.live.is_some() {
            return;
        }
        inner.live = self.written_by(process, path, spec, proc_logs);
    }

    /// The log of this path, if the process writes to it. The output of a process can be any file, and what
    /// counts as a log is cut: the file must have the name of the log, or be one that a run was given under
    /// this name and that was renamed since.
    fn written_by(
        &self,
        process: Id,
        path: PathBuf,
        spec: &Spec,
        proc_logs: &ProcLogs,
    ) -> Option<Arc<LiveLog>> {
        let stdout = log_path::stdout_of(process.pid).ok()?;
        let id = FileId::of(&stdout.metadata().ok()?);
        // A log in the agent's own folder is found by its name.
        if fs::metadata(self.folder().join(OWN)).is_ok_and(|own| FileId::of(&own) == id) {
            return None;
        }
        let account = Account::of(&spec.identity.user).ok()?;
        let is_it = |file: &File| file.metadata().is_ok_and(|data| FileId::of(&data) == id);
        let named = log_path::open_existing(&path, &account).ok().filter(is_it);
        let renamed = || {
            let was_it = log_accounts::has_recorded(&proc_logs.states, id, &path);
            was_it.then(|| log_path::open_stdout(&stdout, &account).ok()).flatten()
        };
        let file = named.or_else(renamed)?;
        let path: Arc<Path> = Arc::from(path);
        let tracked = proc_logs.track(&file, &path).ok()?;
        Some(Arc::new(LiveLog { path, location: LogLocation::theirs(account, file), tracked }))
    }

    /// `None`: there is no log yet.
    pub(in crate::exec) fn live(&self, proc_logs: &ProcLogs) -> Option<Arc<LiveLog>> {
        let mut inner = lock(&self.inner);
        if inner.live.is_none() {
            let path: Arc<Path> = Arc::from(self.folder().join(OWN));
            let file = File::open(&path).ok()?;
            let tracked = proc_logs.track(&file, &path).ok()?;
            inner.live = Some(Arc::new(LiveLog { path, location: LogLocation::Own, tracked }));
        }
        inner.live.clone()
    }

    /// Forgets the open file, which is gone.
    pub(in crate::exec) fn look_again(&self) {
        lock(&self.inner).live = None;
    }

    /// The name of the file that the process writes to, if it is another one.
    pub(in crate::exec) fn elsewhere(&self) -> Option<String> {
        let (process, live) = {
            let inner = lock(&self.inner);
            (inner.process?, inner.live.clone())
        };
        let stdout = format!("/proc/{}/fd/1", process.pid);
        let data = fs::metadata(&stdout).ok()?;
        let same = |live: Arc<LiveLog>| live.tracked.id == FileId::of(&data);
        if live.is_some_and(same) {
            return None;
        }
        Some(fs::read_link(stdout).map_or_else(|_| "nowhere".to_owned(), |at| at.display().to_string()))
    }

    /// Also limits the size of the output file of a stop, kill or reload command.
    pub(in crate::exec) fn also_keeps(&self, path: PathBuf) {
        let mut inner = lock(&self.inner);
        inner.others.push_back(path);
        if inner.others.len() > command_output::KEPT {
            inner.others.pop_front();
        }
    }

    /// The proc was unregistered; its output is kept for a while.
    pub(in crate::exec) fn forget(&self) {
        let folder = self.folder();
        if folder.is_dir() {
            let _ = File::create(folder.join(FORGOTTEN));
        }
    }

    fn rotate_if_due(&self, proc_logs: &ProcLogs) -> bool {
        let others: Vec<PathBuf> = lock(&self.inner).others.iter().cloned().collect();
        others.iter().for_each(|path| command_output::trim(path));
        let Some(live) = self.live(proc_logs) else { return false };
        match live.rotate(proc_logs.rotation) {
            Ok(rotated) if rotated == Rotated::default() => false,
            Ok(Rotated { copies, dropped }) => {
                tracing::info!(log = %live.path.display(), copies, dropped, "log rotated");
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The file was removed. The next run creates another.
                self.look_again();
                false
            }
            Err(error) => {
                tracing::warn!(log = %live.path.display(), %error, "cannot rotate a log");
                false
            }
        }
    }
}

/// From where a log is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// This many lines before the end.
    Last(u32),
    /// This offset.
    At(u64),
}

/// A piece of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) struct Passage {
    /// The offset of its first byte.
    pub(in crate::exec) begin: u64,
    pub(in crate::exec) bytes: Vec<u8>,
    /// The offset after the last byte of the log.
    pub(in crate::exec) end: u64,
    /// Number of requested bytes before `begin` that no longer exist.
    pub(in crate::exec) skipped: u64,
}

impl LiveLog {
    pub(in crate::exec) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is in the agent's folder.
    pub(in crate::exec) fn is_own(&self) -> bool {
        matches!(self.location, LogLocation::Own)
    }

    /// The account of the last run that wrote to it. `None`: unknown.
    pub(in crate::exec) fn writer(&self) -> Option<String> {
        self.tracked.accounts.last()
    }

    /// The offset after its last byte.
    pub(in crate::exec) fn end(&self) -> io::Result<u64> {
        let file = self.file()?;
        let state = self.tracked.state(&file)?;
        Ok(state.offset_of(file.metadata()?.len()))
    }

    /// The end of the output from this offset on, as text.
    pub(in crate::exec) fn tail(&self, from: u64) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let end = self.end()?;
            if end <= from {
                return Ok(Vec::new());
            }
            let begin = from.max(end.saturating_sub(TAIL));
            let passage =
                self.read(Start::At(begin), usize::try_from(TAIL).unwrap_or_default(), &GrantScope::All)?;
            let mut bytes = passage.bytes;
            if begin > from {
                command_output::drop_cut_character(&mut bytes);
            }
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// At most `most` bytes, and only output of these accounts.
    pub(in crate::exec) fn read(
        &self,
        start: Start,
        most: usize,
        readers: &GrantScope<String>,
    ) -> io::Result<Passage> {
        let file = self.file()?;
        // Locked, so that no rotation happens during the read.
        let state = self.tracked.state(&file)?;
        let end = state.offset_of(file.metadata()?.len());
        // An offset after the end belongs to a log that was removed.
        let start = match start {
            Start::At(offset) if offset > end => Start::At(0),
            start => start,
        };
        let (accounts, taken) = (&self.tracked.accounts, state.taken);
        let shown = match (readers, start) {
            (GrantScope::All, _) => Some(Stretch { from: 0, until: end }),
            (GrantScope::Only(_), Start::Last(_)) => accounts.last_stretch(readers, taken, end),
            (GrantScope::Only(_), Start::At(offset)) => accounts.stretch_from(offset, readers, taken, end),
        };
        let Some(shown) = shown else { return Ok(Passage { begin: end, end, ..Passage::default() }) };
        let pieces = Pieces { file: &file, state: &state, end, shown, copies: Vec::new() };
        let needs_copies = match start {
            Start::Last(_) => true,
            Start::At(offset) => offset < state.taken,
        };
        let copies =
            if needs_copies { self.as_owner(|| Ok(rotate::copies(&self.path)))? } else { Vec::new() };
        self.as_owner(|| Pieces { copies, ..pieces }.read(start, most))
    }

    fn rotate(&self, rotation: Rotation) -> io::Result<Rotated> {
        let length = match &self.location {
            LogLocation::Own => fs::metadata(&self.path)?.len(),
            LogLocation::Theirs(theirs) => theirs.file.metadata()?.len(),
        };
        // True for most logs, unless a hole could not be collapsed.
        if length <= rotation.size {
            return Ok(Rotated::default());
        }
        let file = self.file()?;
        let rotator = Rotator { file: &file, path: &self.path, tracked: &self.tracked, rotation };
        let held = length.saturating_sub(self.tracked.state(&file)?.start());
        if held <= rotation.size {
            return Ok(Rotated::default());
        }
        self.as_owner(|| rotator.rotate())
    }

    /// The same file, reopened where possible.
    fn file(&self) -> io::Result<File> {
        match &self.location {
            LogLocation::Own => {
                let file = OpenOptions::new().read(true).append(true).open(&self.path)?;
                match FileId::of(&file.metadata()?) == self.tracked.id {
                    true => Ok(file),
                    false => Err(io::ErrorKind::NotFound.into()),
                }
            }
            LogLocation::Theirs(theirs) => theirs.file.try_clone(),
        }
    }

    fn as_owner<T: Send>(&self, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match &self.location {
            LogLocation::Own => act(),
            LogLocation::Theirs(theirs) => theirs.account.with_rights_of(|| {
                log_path::check_way(&self.path, &theirs.account)?;
                act()
            }),
        }
    }
}

/// Copies and file in a row, as one text.
struct Pieces<'a> {
    file: &'a File,
    state: &'a RotationState,
    /// The offset after the last byte.
    end: u64,
    /// The part that the reader may see.
    shown: Stretch,
    copies: Vec<Copied>,
}

impl Pieces<'_> {
    fn read(&self, start: Start, most: usize) -> io::Result<Passage> {
        let wanted = match start {
            Start::Last(lines) => self.last_lines(lines)?,
            Start::At(offset) => offset,
        };
        let begin = self.first_from(wanted.max(self.shown.from));
        let most = usize::try_from(self.shown.until.saturating_sub(begin)).unwrap_or(most).min(most);
        let mut bytes = vec![0; most];
        let mut filled = 0;
        while filled < most {
            let offset = begin + filled as u64;
            // A gap ends a passage; the next passage reports it.
            if self.first_from(offset) != offset {
                break;
            }
            match self.read_at(offset, &mut bytes[filled..])? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        let skipped = match start {
            Start::Last(_) => 0,
            Start::At(_) => begin - wanted,
        };
        Ok(Passage { begin, bytes, end: self.end, skipped })
    }

    /// The first offset from this one on that still exists.
    fn first_from(&self, offset: u64) -> u64 {
        if offset >= self.state.taken {
            return offset;
        }
        let behind = self.copies.iter().find(|copy| copy.offset + copy.length > offset);
        behind.map_or(self.state.taken, |copy| copy.offset.max(offset)).min(self.state.taken)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if offset >= self.state.taken {
            return rotate::read_at(self.file, buffer, self.state.position_of(offset));
        }
        let holds = |copy: &&Copied| copy.offset <= offset && offset < copy.offset + copy.length;
        let Some(copy) = self.copies.iter().find(holds) else { return Ok(0) };
        // Bytes of a copy beyond `taken` are still in the file.
        let left = (copy.offset + copy.length).min(self.state.taken) - offset;
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&copy.path)?;
        rotate::read_at(&file, &mut buffer[..most], offset - copy.offset)
    }

    /// The offset of the last `lines` lines. An unfinished line counts.
    fn last_lines(&self, lines: u32) -> io::Result<u64> {
        let mut block = vec![0; usize::try_from(BLOCK).unwrap_or_default()];
        let (mut left, mut reached) = (lines, self.end);
        let live = (self.state.taken, self.end);
        let copies = self.copies.iter().rev();
        let copies = copies.map(|copy| (copy.offset, (copy.offset + copy.length).min(self.state.taken)));
        for (begin, end) in std::iter::once(live).chain(copies) {
            // Before a gap there is nothing that belongs to these lines.
            if end != reached {
                break;
            }
            while reached > begin && self.end - reached < LOOK_BACK {
                let from = begin.max(reached.saturating_sub(BLOCK));
                let wanted = usize::try_from(reached - from).unwrap_or_default();
                let count = self.read_at(from, &mut block[..wanted])?;
                for at in (0..count).rev().filter(|at| block[*at] == b'\n') {
                    let behind = from + at as u64 + 1;
                    // The newline that ends the last line begins none.
                    if behind == self.end {
                        continue;
                    }
                    if left <= 1 {
                        return Ok(behind);
                    }
                    left -= 1;
                }
                reached = from;
            }
        }
        Ok(reached)
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
