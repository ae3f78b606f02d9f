//! A proc's log: where what its start_cmd and restart_cmd start writes to, kept within its size, and read.
//!
//! Without a folder of the spec's (`log`), it is `out.log` in the proc's folder below the agent's own. It
//! goes on over all runs of the proc. The agent finds it again by its name, or, where it was renamed, by
//! asking the process what it writes to. Places in it are counted from the first byte that was ever written,
//! so a reader can go on where it was, whatever was rotated meanwhile.

use crate::exec::output::command_output::{self, TAIL};
use crate::exec::output::log_accounts::{self, Stretch};
use crate::exec::output::log_path;
use crate::exec::output::rotate::{self, Copied, FileId, Rotated, Rotation, RotationNote, Rotator, Tracked};
use crate::exec::procfs::Id;
use crate::exec::user::Account;
use procfleet_core::grants::GrantScope;
use procfleet_core::{ProcKey, Spec};
use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

/// What the log in the agent's folder is called.
const OWN: &str = "out.log";
/// The file that says since when the proc is forgotten.
const FORGOTTEN: &str = "forgotten";
/// Where the notes are about what was taken out of logs. No proc's folder begins with a dot, unless its
/// namespace does, and then it has a plus sign.
const NOTES: &str = ".rotation";
/// How long the output of a forgotten proc stays, for whoever wants to know why it was given up.
const KEPT_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// How far back the beginning of the last lines is looked for.
const LOOK_BACK: u64 = 32 * 1024 * 1024;
/// How much is looked at at once.
const BLOCK: u64 = 64 * 1024;

/// The logs of all procs.
#[derive(Debug)]
pub(in crate::exec) struct Sinks {
    folder: PathBuf,
    pub(in crate::exec) rotation: Rotation,
    by_stem: Mutex<HashMap<String, Weak<ProcLog>>>,
    tracked: Mutex<HashMap<FileId, Weak<Tracked>>>,
}

impl Sinks {
    pub(in crate::exec) fn new(folder: &Path) -> Sinks {
        Sinks {
            // Notes and people are told the whole path.
            folder: std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()),
            rotation: Rotation::default(),
            by_stem: Mutex::default(),
            tracked: Mutex::default(),
        }
    }

    /// The one of this proc: there is never a second one.
    pub(in crate::exec) fn of(&self, key: &ProcKey) -> Arc<ProcLog> {
        self.at(&command_output::stem(key))
    }

    fn at(&self, stem: &str) -> Arc<ProcLog> {
        let mut by_stem = lock(&self.by_stem);
        if let Some(sink) = by_stem.get(stem).and_then(Weak::upgrade) {
            return sink;
        }
        let sink = Arc::new(ProcLog { folder: self.folder.join(stem), inner: Mutex::default() });
        by_stem.insert(stem.to_owned(), Arc::downgrade(&sink));
        sink
    }

    fn track(&self, file: &File, log: &Path) -> io::Result<Arc<Tracked>> {
        let data = file.metadata()?;
        let id = FileId::of(&data);
        let mut tracked = lock(&self.tracked);
        if let Some(known) = tracked.get(&id).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let new = Arc::new(Tracked::new(&self.notes(), &data, log));
        tracked.insert(id, Arc::downgrade(&new));
        Ok(new)
    }

    fn notes(&self) -> PathBuf {
        self.folder.join(NOTES)
    }

    /// Makes what the logs need beside themselves, and puts what agents of the first version wrote where it
    /// belongs. Once, when the agent begins.
    pub(in crate::exec) fn prepare(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(self.notes())?;
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
        // The newest is most likely the one that a running process writes to.
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

    /// Rotates what has become too large. True: something was, so it is worth looking again soon.
    pub(in crate::exec) fn tend(&self) -> bool {
        let sinks: Vec<Arc<ProcLog>> = lock(&self.by_stem).values().filter_map(Weak::upgrade).collect();
        sinks.iter().filter(|sink| sink.tend(self)).count() > 0
    }

    /// Looks after what no proc uses any more: the output of forgotten procs stays for a day, and within its
    /// size.
    pub(in crate::exec) fn tend_forgotten(&self) {
        lock(&self.by_stem).retain(|_, sink| sink.strong_count() > 0);
        lock(&self.tracked).retain(|_, tracked| tracked.strong_count() > 0);
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Some(stem) = name.to_str().filter(|name| name.contains('+') && path.is_dir()) else {
                continue;
            };
            let changed = |file: &str| fs::metadata(path.join(file)).and_then(|data| data.modified());
            let Ok(since) = changed(FORGOTTEN) else { continue };
            self.at(stem).tend(self);
            // Its process may go on, and write.
            let since = changed(OWN).map_or(since, |written| written.max(since));
            if SystemTime::now().duration_since(since).is_ok_and(|age| age > KEPT_AFTER) {
                tracing::info!(folder = %path.display(), "removed the output of an unregistered proc");
                let _ = fs::remove_dir_all(path);
            }
        }
        let used = |id: &FileId| lock(&self.tracked).get(id).is_some_and(|one| one.strong_count() > 0);
        rotate::forget_lost(&self.notes(), used);
        log_accounts::forget_lost(&self.notes(), used);
    }
}

/// The log of one proc.
#[derive(Debug)]
pub(in crate::exec) struct ProcLog {
    folder: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None`: nobody has looked yet.
    live: Option<Arc<LiveLog>>,
    /// The process that should write to it.
    process: Option<Id>,
    /// The output of the last commands that are not there to become the process, oldest first.
    others: VecDeque<PathBuf>,
}

/// A log as it is now.
#[derive(Debug)]
pub(in crate::exec) struct LiveLog {
    /// What it is called, or was until somebody renamed it.
    path: PathBuf,
    place: LogLocation,
    tracked: Arc<Tracked>,
}

/// Whose folder it is in.
#[derive(Debug)]
enum LogLocation {
    /// The agent's.
    Own,
    /// The account's. The file is kept open, for it may be called otherwise tomorrow.
    Theirs { account: Account, file: File },
}

/// A log that a run is to write to.
#[derive(Debug)]
pub(in crate::exec) struct OpenedLog {
    pub(in crate::exec) live: Arc<LiveLog>,
    /// For the run: it appends.
    pub(in crate::exec) file: File,
    /// The place of the first byte that the run will write.
    pub(in crate::exec) from: u64,
}

impl ProcLog {
    pub(in crate::exec) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens the log for a run. The text says what is wrong with the folder that the spec names, so that it
    /// is the agent's.
    pub(in crate::exec) fn open(
        &self,
        sinks: &Sinks,
        spec: &Spec,
        key: &ProcKey,
        account: &Account,
    ) -> (io::Result<OpenedLog>, Option<String>) {
        let theirs = log_path::path(spec, key).and_then(|path| {
            path.map(|path| log_path::open(&path, account).map(|file| (path, file))).transpose()
        });
        let (opened, wrong) = match theirs {
            Ok(Some((path, file))) => {
                let place =
                    file.try_clone().map(|file| LogLocation::Theirs { account: account.clone(), file });
                (place.map(|place| (path, place, file)), None)
            }
            Ok(None) => (self.open_own(), None),
            Err(reason) => (self.open_own(), Some(reason)),
        };
        let begun = opened.and_then(|(path, place, file)| {
            let live = Arc::new(LiveLog { tracked: sinks.track(&file, &path)?, path, place });
            let from = {
                let note = live.tracked.note(&file)?;
                note.place_of(file.metadata()?.len())
            };
            if let Err(error) = live.tracked.accounts.begin(&account.name, from) {
                // Nobody but apps with all accounts can read it then; the process is started all the same.
                tracing::warn!(log = %live.path.display(), %error, "cannot record the account of a run; only apps that may use all accounts can read its lines");
            }
            lock(&self.inner).live = Some(live.clone());
            Ok(OpenedLog { live, file, from })
        });
        (begun, wrong)
    }

    fn open_own(&self) -> io::Result<(PathBuf, LogLocation, File)> {
        make_folder(&self.folder)?;
        let path = self.folder.join(OWN);
        // All that is started appends: nobody overwrites anybody.
        let file = OpenOptions::new().read(true).append(true).create(true).mode(0o640).open(&path)?;
        let _ = fs::remove_file(self.folder.join(FORGOTTEN));
        Ok((path, LogLocation::Own, file))
    }

    /// Which process should write here, and, after a life of the agent, where it really does.
    pub(in crate::exec) fn belongs_to(&self, process: Id, spec: &Spec, key: &ProcKey, sinks: &Sinks) {
        let mut inner = lock(&self.inner);
        inner.process = Some(process);
        let Ok(Some(path)) = log_path::path(spec, key) else { return };
        if inner.live.is_some() {
            return;
        }
        // What the agent's own folder has is found by its name.
        let own = fs::metadata(self.folder.join(OWN)).map(|data| (data.dev(), data.ino())).ok();
        let theirs = fs::metadata(format!("/proc/{}/fd/1", process.pid)).map(|data| (data.dev(), data.ino()));
        if own.is_some() && theirs.ok() == own {
            return;
        }
        let Ok(account) = Account::of(&spec.identity.user) else { return };
        let Ok(file) = log_path::of_process(process.pid, &account) else { return };
        let Ok(tracked) = sinks.track(&file, &path) else { return };
        inner.live = Some(Arc::new(LiveLog { path, place: LogLocation::Theirs { account, file }, tracked }));
    }

    /// `None`: nothing was ever written.
    pub(in crate::exec) fn live(&self, sinks: &Sinks) -> Option<Arc<LiveLog>> {
        let mut inner = lock(&self.inner);
        if inner.live.is_none() {
            let path = self.folder.join(OWN);
            let file = File::open(&path).ok()?;
            let tracked = sinks.track(&file, &path).ok()?;
            inner.live = Some(Arc::new(LiveLog { path, place: LogLocation::Own, tracked }));
        }
        inner.live.clone()
    }

    /// What was there is gone.
    pub(in crate::exec) fn look_again(&self) {
        lock(&self.inner).live = None;
    }

    /// The process writes somewhere else: what it is called.
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

    /// The file of a command that is not there to become the process: it must not fill the host either.
    pub(in crate::exec) fn also_keeps(&self, path: PathBuf) {
        let mut inner = lock(&self.inner);
        inner.others.push_back(path);
        if inner.others.len() > command_output::KEPT {
            inner.others.pop_front();
        }
    }

    /// The proc is not remembered any more; its output is, for a while.
    pub(in crate::exec) fn forget(&self) {
        if self.folder.is_dir() {
            let _ = File::create(self.folder.join(FORGOTTEN));
        }
    }

    fn tend(&self, sinks: &Sinks) -> bool {
        let others: Vec<PathBuf> = lock(&self.inner).others.iter().cloned().collect();
        others.iter().for_each(|path| command_output::trim(path));
        let Some(live) = self.live(sinks) else { return false };
        match live.rotate(sinks.rotation) {
            Ok(rotated) if rotated == Rotated::default() => false,
            Ok(Rotated { copies, dropped }) => {
                tracing::info!(log = %live.path.display(), copies, dropped, "log rotated");
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Somebody removed it. The next run makes another.
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
    /// So many lines before the end.
    Last(u32),
    /// This place.
    At(u64),
}

/// A piece of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::exec) struct Passage {
    /// The place of its first byte.
    pub(in crate::exec) begin: u64,
    pub(in crate::exec) bytes: Vec<u8>,
    /// The place behind the last byte of the log.
    pub(in crate::exec) end: u64,
    /// How many bytes between what was asked for and the beginning are gone.
    pub(in crate::exec) skipped: u64,
}

impl LiveLog {
    pub(in crate::exec) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is in the agent's folder.
    pub(in crate::exec) fn is_own(&self) -> bool {
        matches!(self.place, LogLocation::Own)
    }

    /// The account of the run that writes to it now, or was the last to do so. `None`: nobody knows.
    pub(in crate::exec) fn writer(&self) -> Option<String> {
        self.tracked.accounts.last()
    }

    /// The place behind its last byte.
    pub(in crate::exec) fn end(&self) -> io::Result<u64> {
        let file = self.file()?;
        let note = self.tracked.note(&file)?;
        Ok(note.place_of(file.metadata()?.len()))
    }

    /// The last of what was written from this place on, as text.
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

    /// At most so many bytes, and only what these accounts wrote.
    pub(in crate::exec) fn read(
        &self,
        start: Start,
        most: usize,
        readers: &GrantScope<String>,
    ) -> io::Result<Passage> {
        let file = self.file()?;
        // Nothing is taken out while we read.
        let note = self.tracked.note(&file)?;
        let end = note.place_of(file.metadata()?.len());
        // What is behind the end was never written: the log was removed, and this is another.
        let start = match start {
            Start::At(place) if place > end => Start::At(0),
            start => start,
        };
        let (accounts, taken) = (&self.tracked.accounts, note.taken);
        let shown = match (readers, start) {
            (GrantScope::All, _) => Some(Stretch { from: 0, until: end }),
            (GrantScope::Only(_), Start::Last(_)) => accounts.last_stretch(readers, taken, end),
            (GrantScope::Only(_), Start::At(place)) => accounts.stretch_from(place, readers, taken, end),
        };
        let Some(shown) = shown else { return Ok(Passage { begin: end, end, ..Passage::default() }) };
        let pieces = Pieces { file: &file, note: &note, end, shown, copies: Vec::new() };
        let needs_copies = match start {
            Start::Last(_) => true,
            Start::At(place) => place < note.taken,
        };
        let copies =
            if needs_copies { self.as_owner(|| Ok(rotate::copies(&self.path)))? } else { Vec::new() };
        self.as_owner(|| Pieces { copies, ..pieces }.read(start, most))
    }

    fn rotate(&self, rotation: Rotation) -> io::Result<Rotated> {
        let length = match &self.place {
            LogLocation::Own => fs::metadata(&self.path)?.len(),
            LogLocation::Theirs { file, .. } => file.metadata()?.len(),
        };
        // Without holes that were not collapsed, this says that there is nothing to be done, and mostly there
        // is not.
        if length <= rotation.size {
            return Ok(Rotated::default());
        }
        let file = self.file()?;
        let rotator = Rotator { file: &file, path: &self.path, tracked: &self.tracked, rotation };
        let held = length.saturating_sub(self.tracked.note(&file)?.start());
        if held <= rotation.size {
            return Ok(Rotated::default());
        }
        self.as_owner(|| rotator.rotate())
    }

    /// The very file, opened anew where that is possible.
    fn file(&self) -> io::Result<File> {
        match &self.place {
            LogLocation::Own => {
                let file = OpenOptions::new().read(true).append(true).open(&self.path)?;
                match FileId::of(&file.metadata()?) == self.tracked.id {
                    true => Ok(file),
                    false => Err(io::ErrorKind::NotFound.into()),
                }
            }
            LogLocation::Theirs { file, .. } => file.try_clone(),
        }
    }

    fn as_owner<T: Send>(&self, act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match &self.place {
            LogLocation::Own => act(),
            LogLocation::Theirs { account, .. } => account.with_its_rights(|| {
                log_path::check_way(&self.path, account)?;
                act()
            }),
        }
    }
}

/// Copies and file in a row, as one text.
struct Pieces<'a> {
    file: &'a File,
    note: &'a RotationNote,
    /// The place behind the last byte.
    end: u64,
    /// What the reader may see.
    shown: Stretch,
    copies: Vec<Copied>,
}

impl Pieces<'_> {
    fn read(&self, start: Start, most: usize) -> io::Result<Passage> {
        let wanted = match start {
            Start::Last(lines) => self.last_lines(lines)?,
            Start::At(place) => place,
        };
        let begin = self.first_from(wanted.max(self.shown.from));
        let most = usize::try_from(self.shown.until.saturating_sub(begin)).unwrap_or(most).min(most);
        let mut bytes = vec![0; most];
        let mut filled = 0;
        while filled < most {
            let place = begin + filled as u64;
            // A gap ends a passage: the next one tells of it.
            if self.first_from(place) != place {
                break;
            }
            match self.read_at(place, &mut bytes[filled..])? {
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

    /// The first place from this one on that is still there.
    fn first_from(&self, place: u64) -> u64 {
        if place >= self.note.taken {
            return place;
        }
        let behind = self.copies.iter().find(|copy| copy.place + copy.length > place);
        behind.map_or(self.note.taken, |copy| copy.place.max(place)).min(self.note.taken)
    }

    fn read_at(&self, place: u64, buffer: &mut [u8]) -> io::Result<usize> {
        if place >= self.note.taken {
            return rotate::read_at(self.file, buffer, self.note.offset_of(place));
        }
        let holds = |copy: &&Copied| copy.place <= place && place < copy.place + copy.length;
        let Some(copy) = self.copies.iter().find(holds) else { return Ok(0) };
        // What is in a copy that reaches further than what is taken is in the file too.
        let left = (copy.place + copy.length).min(self.note.taken) - place;
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(&copy.path)?;
        rotate::read_at(&file, &mut buffer[..most], place - copy.place)
    }

    /// Where the last so many lines begin. One that has no end yet counts, too.
    fn last_lines(&self, lines: u32) -> io::Result<u64> {
        let mut block = vec![0; usize::try_from(BLOCK).unwrap_or_default()];
        let (mut left, mut reached) = (lines, self.end);
        let live = (self.note.taken, self.end);
        let copies = self.copies.iter().rev();
        let copies = copies.map(|copy| (copy.place, (copy.place + copy.length).min(self.note.taken)));
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
