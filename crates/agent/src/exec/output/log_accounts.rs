//! Records which OS account wrote which part of a log.
//!
//! A log continues over all runs of its proc, which may have different accounts. The beginning of a run and
//! its account are recorded in a small file beside the rotation states: a line of JSON for each change.
//! Offsets count from the first byte that was ever written, as in `proc_log`, so rotation does not change
//! them. A part without a record belongs to an unknown account, and only an app with all accounts may read
//! it.

use crate::exec::output::file_id::FileId;
use procfleet_core::grants::GrantScope;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const EXTENSION: &str = "accounts";
/// Number of changes of account that are kept. Parts of older ones belong to an unknown account.
const KEPT: usize = 256;

/// The accounts of one file.
#[derive(Debug)]
pub(in crate::exec) struct LogAccounts {
    id: FileId,
    /// The folder of the rotation states, shared by all logs.
    folder: Arc<Path>,
    log: Arc<Path>,
    spans: Mutex<Vec<AccountSpan>>,
}

/// From this offset on, up to the next span, the account wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AccountSpan {
    from: u64,
    account: String,
}

#[derive(Serialize, Deserialize)]
struct AccountLine {
    id: FileId,
    /// The name of the log.
    log: Arc<Path>,
    from: u64,
    account: String,
}

/// A part of a log, up to and without `until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) struct Stretch {
    pub(in crate::exec) from: u64,
    pub(in crate::exec) until: u64,
}

impl LogAccounts {
    /// `folder` is the folder of the rotation states.
    pub(in crate::exec) fn load(folder: &Arc<Path>, id: FileId, log: &Arc<Path>) -> LogAccounts {
        let ours = lines(&path_in(folder, id)).into_iter().filter(|line| line.id == id);
        let spans = ours.map(|line| AccountSpan { from: line.from, account: line.account }).collect();
        LogAccounts { id, folder: folder.clone(), log: log.clone(), spans: Mutex::new(spans) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<AccountSpan>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run of this account begins to write at this offset. Not synced: after a power failure the part
    /// belongs to an unknown account, which fewer readers may see.
    pub(in crate::exec) fn begin(&self, account: &str, from: u64) -> io::Result<()> {
        let mut spans = self.lock();
        // The file was truncated: later spans no longer apply.
        let known = spans.len();
        spans.retain(|span| span.from < from || (span.from == from && span.account == account));
        if known == spans.len() && spans.last().is_some_and(|last| last.account == account) {
            return Ok(());
        }
        let was_cut = known != spans.len() || spans.len() >= KEPT;
        if spans.len() >= KEPT {
            spans.drain(..KEPT / 2);
        }
        if spans.last().is_none_or(|last| last.account != account) {
            // Most logs have one account.
            spans.reserve_exact(1);
            spans.push(AccountSpan { from, account: account.to_owned() });
        }
        let written: &[AccountSpan] = if was_cut { &spans } else { &spans[spans.len() - 1..] };
        let mut text = Vec::new();
        for AccountSpan { from, account } in written {
            let line =
                AccountLine { id: self.id, log: self.log.clone(), from: *from, account: account.clone() };
            serde_json::to_writer(&mut text, &line)?;
            text.push(b'\n');
        }
        let mut file = OpenOptions::new()
            .create(true)
            .write(true)
            .append(!was_cut)
            .truncate(was_cut)
            .mode(0o600)
            .open(path_in(&self.folder, self.id))?;
        file.write_all(&text)
    }

    /// The account of the run at the end of the log. `None`: unknown.
    pub(in crate::exec) fn last(&self) -> Option<String> {
        self.lock().last().map(|span| span.account.clone())
    }

    /// The first part from `from` on that these accounts wrote, in a log that ends at `end` and is in copies
    /// before `taken`. `None`: there is none.
    pub(in crate::exec) fn stretch_from(
        &self,
        from: u64,
        readers: &GrantScope<String>,
        taken: u64,
        end: u64,
    ) -> Option<Stretch> {
        stretches(&self.present(taken, end), readers, end)
            .into_iter()
            .find(|stretch| stretch.until > from || stretch.until == end)
            .map(|stretch| Stretch { from: stretch.from.max(from), ..stretch })
    }

    /// The part at the end of the log that these accounts wrote.
    pub(in crate::exec) fn last_stretch(
        &self,
        readers: &GrantScope<String>,
        taken: u64,
        end: u64,
    ) -> Option<Stretch> {
        stretches(&self.present(taken, end), readers, end)
            .into_iter()
            .next_back()
            .filter(|last| last.until == end)
    }

    /// The spans of the present log. A span that begins after the end shows that the file was truncated: its
    /// content belongs to the last account.
    fn present(&self, taken: u64, end: u64) -> Vec<AccountSpan> {
        let mut spans = self.lock().clone();
        if spans.last().is_some_and(|last| last.from > end) {
            let last = spans.pop().map(|last| last.account).unwrap_or_default();
            spans.retain(|span| span.from < taken);
            // Most logs have one account.
            spans.reserve_exact(1);
            spans.push(AccountSpan { from: taken, account: last });
        }
        spans
    }
}

/// The parts that the readers may see, in order; adjacent ones are joined.
fn stretches(spans: &[AccountSpan], readers: &GrantScope<String>, end: u64) -> Vec<Stretch> {
    let ends = spans.iter().skip(1).map(|next| next.from).chain([end]);
    let mut found: Vec<Stretch> = Vec::new();
    for (span, until) in spans.iter().zip(ends).filter(|(span, _)| readers.allows(&span.account)) {
        match found.last_mut().filter(|before| before.until == span.from) {
            Some(before) => before.until = until,
            None => found.push(Stretch { from: span.from, until }),
        }
    }
    found
}

fn lines(path: &Path) -> Vec<AccountLine> {
    let text = fs::read(path).unwrap_or_default();
    // An incomplete line is ignored.
    text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

fn path_in(folder: &Path, id: FileId) -> PathBuf {
    folder.join(id.file_name()).with_extension(EXTENSION)
}

/// Whether a run was given this file as the log of this name. Every run records that in
/// [`LogAccounts::begin`], and the folder is the agent's alone.
pub(in crate::exec) fn has_recorded(folder: &Path, id: FileId, log: &Path) -> bool {
    lines(&path_in(folder, id)).iter().any(|line| line.id == id && *line.log == *log)
}

/// Removes the files of logs that no longer exist. `is_used` knows the files in use.
pub(in crate::exec) fn forget_lost(folder: &Path, is_used: impl Fn(&FileId) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let paths = entries.flatten().map(|entry| entry.path());
    for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)) {
        let Some(line) = lines(&path).pop() else { continue };
        let is_there = fs::symlink_metadata(&line.log).is_ok_and(|data| FileId::of(&data) == line.id);
        if !is_there && !is_used(&line.id) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(account: &str) -> GrantScope<String> {
        GrantScope::Only([account.to_owned()].into())
    }

    #[test]
    fn a_line_belongs_to_the_account_of_the_run_that_wrote_it() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let log: Arc<Path> = Arc::from(folder.path().join("out.log"));
        fs::write(&log, "").expect("our own folder");
        let id = FileId::of(&fs::metadata(&log).expect("it is there"));
        let accounts = LogAccounts::load(&Arc::from(folder.path()), id, &log);
        let www = only("www");
        assert_eq!(
            (accounts.last(), accounts.stretch_from(0, &www, 0, 50)),
            (None, None),
            "unknown is nobody's"
        );
        for (account, from) in [("root", 10), ("root", 20), ("www", 100), ("root", 200), ("www", 300)] {
            accounts.begin(account, from).expect("our own folder");
        }
        let accounts = LogAccounts::load(&Arc::from(folder.path()), id, &log);
        let stretch = |from, until| Some(Stretch { from, until });
        let first = |from| accounts.stretch_from(from, &www, 0, 350);
        assert_eq!(first(0), stretch(100, 200));
        assert_eq!(first(150), stretch(150, 200));
        assert_eq!(first(200), stretch(300, 350));
        assert_eq!(first(350), stretch(350, 350), "nothing was written yet");
        assert_eq!(accounts.last_stretch(&www, 0, 350), stretch(300, 350));
        assert_eq!(accounts.last_stretch(&only("root"), 0, 350), None);
        assert_eq!(accounts.last_stretch(&GrantScope::All, 0, 350), stretch(10, 350));
        assert_eq!(accounts.last_stretch(&GrantScope::default(), 0, 350), None);

        // After truncation it holds output of the last run.
        assert_eq!(accounts.stretch_from(0, &only("root"), 0, 20), None);
        assert_eq!(accounts.stretch_from(0, &www, 0, 20), stretch(0, 20));
        accounts.begin("root", 30).expect("our own folder");
        let accounts = LogAccounts::load(&Arc::from(folder.path()), id, &log);
        assert_eq!(
            accounts.stretch_from(0, &www, 0, 60),
            None,
            "what www wrote before is not known any more"
        );
        assert_eq!(accounts.last().as_deref(), Some("root"));

        forget_lost(folder.path(), |_| false);
        assert_eq!(LogAccounts::load(&Arc::from(folder.path()), id, &log).last().as_deref(), Some("root"));
        fs::remove_file(&log).expect("our own file");
        forget_lost(folder.path(), |_| true);
        assert!(LogAccounts::load(&Arc::from(folder.path()), id, &log).last().is_some());
        forget_lost(folder.path(), |_| false);
        assert_eq!(LogAccounts::load(&Arc::from(folder.path()), id, &log).last(), None);
    }

    #[test]
    fn the_oldest_changes_are_forgotten() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let log: Arc<Path> = Arc::from(folder.path().join("out.log"));
        fs::write(&log, "").expect("our own folder");
        let id = FileId::of(&fs::metadata(&log).expect("it is there"));
        let accounts = LogAccounts::load(&Arc::from(folder.path()), id, &log);
        for run in 0..1_000 {
            accounts.begin(["www", "root"][run % 2], run as u64 * 10).expect("our own folder");
        }
        let accounts = LogAccounts::load(&Arc::from(folder.path()), id, &log);
        assert!(accounts.lock().len() <= KEPT, "{}", accounts.lock().len());
        let first = accounts.stretch_from(0, &only("www"), 0, 10_000).expect("the newest are known");
        assert!(first.from > 5_000, "{first:?}");
    }
}
