//! Checks whether the files that a spec names (`configmap`) are as expected: with the given md5 or, without
//! one, present and unchanged since the last start of the process (or since the agent first saw them).
//!
//! A file is opened with the rights of the spec's account, so a caller learns nothing that the account could
//! not read itself. It is read again only when its stamp has changed, up to a limit, in a blocking thread,
//! and the read stops when the result is no longer awaited. Deviations are in the proc's note, and in the log
//! once for every change.

use crate::exec::{NotOpened, open_as};
use md5::{Digest, Md5};
use procfleet_core::id::ProcKey;
use procfleet_core::spec::{ConfigFile, Spec};
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tracing::info;

/// Maximum size that is read while a caller waits.
const SMALL: u64 = 1024 * 1024;
/// Larger files are not read: a config is written by people, and a special file may have no end.
const LARGEST: u64 = 64 * 1024 * 1024;
/// A tick of any file system's clock is shorter than this.
const TICK_SECS: i64 = 2;
/// Maximum length of a note about many files.
const LONGEST_NOTE: usize = 1_024;

/// Which files are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// For a large file, the last known result is used.
    Small,
    Any,
}

/// How much may be read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Effort<'a> {
    /// A caller waits, or the process does not run.
    Small,
    /// Any size, until this flag cancels the read.
    Any(&'a AtomicBool),
}

/// The known state of one proc's files.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: HashMap<String, KnownFile>,
}

#[derive(Debug)]
struct KnownFile {
    finding: Finding,
    /// The content of the file when it was first read after the start of the process, as a digest.
    first: Option<First>,
    /// The last note about it; empty if the file is as expected.
    text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct First {
    start: u64,
    md5: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    Missing,
    Denied,
    Unreadable { reason: String },
    TooLarge { size: u64 },
    Read { stamp: Stamp, trust: StampTrust, md5: String },
}

/// The read was cancelled.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cancelled;

/// Whether the same stamp means the same content. A file that was written just before it was read may be
/// written again within the same tick of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StampTrust {
    Stamp,
    Nothing,
}

/// Changes whenever a file's content may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Checks the files in a blocking thread: they may be large, and disks slow. Dropping the future cancels the
/// read.
pub(super) async fn look_at(
    files: Arc<Mutex<Files>>,
    key: ProcKey,
    spec: Arc<Spec>,
    start: u64,
    extent: Extent,
) -> Result<String, Cancelled> {
    struct CancelOnDrop(Arc<AtomicBool>);
    impl Drop for CancelOnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let cancelled = Arc::<AtomicBool>::default();
    let _cancel = CancelOnDrop(cancelled.clone());
    let look = move || {
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        let effort = match extent {
            Extent::Small => Effort::Small,
            Extent::Any => Effort::Any(&cancelled),
        };
        files.check(&key, &spec, start, effort)
    };
    tokio::task::spawn_blocking(look).await.unwrap_or(Err(Cancelled))
}

impl Files {
    /// Checks the files of the spec and returns a note; empty if all are as expected. `start` changes with
    /// every start of the process.
    pub(super) fn check(
        &mut self,
        key: &ProcKey,
        spec: &Spec,
        start: u64,
        effort: Effort<'_>,
    ) -> Result<String, Cancelled> {
        self.known.retain(|path, _| spec.configmap.iter().any(|file| file.path == *path));
        let user = &spec.identity.user;
        let mut notes = Vec::new();
        for file in &spec.configmap {
            let before = self.known.get(&file.path);
            let Some(finding) = look(&file.path, user, before.map(|known| &known.finding), effort)? else {
                continue;
            };
            let first = before.and_then(|known| known.first.clone()).filter(|first| first.start == start);
            let first = first.or_else(|| Some(First { start, md5: finding.md5()?.to_owned() }));
            let text = finding.to_text(file, first.as_ref(), user);
            match before.map_or("", |known| &known.text) {
                before if before == text => {}
                _ if text.is_empty() => info!(proc = %key, file = file.path, "configmap file matches again"),
                // The actor turns the note into an event.
                _ => {}
            }
            if !text.is_empty() {
                notes.push(text.clone());
            }
            self.known.insert(file.path.clone(), KnownFile { finding, first, text });
        }
        let mut note = notes.join("; ");
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        Ok(note)
    }
}

/// `None`: the file is too large for this check, and nothing is known about it.
fn look(
    path: &str,
    user: &str,
    before: Option<&Finding>,
    effort: Effort<'_>,
) -> Result<Option<Finding>, Cancelled> {
    let unreadable = |error: io::Error| Finding::Unreadable { reason: error.to_string() };
    let file = match open_as(user, path) {
        Ok(file) => file,
        Err(NotOpened::Missing) => return Ok(Some(Finding::Missing)),
        Err(NotOpened::Denied) => return Ok(Some(Finding::Denied)),
        Err(NotOpened::Other(reason)) => return Ok(Some(Finding::Unreadable { reason })),
    };
    let stamp = match file.metadata() {
        Ok(data) => Stamp::of(&data),
        Err(error) => return Ok(Some(unreadable(error))),
    };
    match (before, effort) {
        (Some(known @ Finding::Read { stamp: before, trust: StampTrust::Stamp, .. }), _)
            if *before == stamp =>
        {
            return Ok(Some(known.clone()));
        }
        _ if stamp.size > LARGEST => return Ok(Some(Finding::TooLarge { size: stamp.size })),
        (before, Effort::Small) if stamp.size > SMALL => return Ok(before.cloned()),
        _ => {}
    }
    let age = jiff::Timestamp::now().as_second() - stamp.changed.0;
    let trust = if age > TICK_SECS { StampTrust::Stamp } else { StampTrust::Nothing };
    Ok(Some(match md5_of(file.take(stamp.size), effort)? {
        Ok(md5) => Finding::Read { stamp, trust, md5 },
        Err(error) => unreadable(error),
    }))
}

fn md5_of(mut file: io::Take<File>, effort: Effort<'_>) -> Result<io::Result<String>, Cancelled> {
    let mut hash = Md5::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if let Effort::Any(cancelled) = effort
            && cancelled.load(Ordering::Relaxed)
        {
            return Err(Cancelled);
        }
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

impl Stamp {
    fn of(data: &Metadata) -> Stamp {
        Stamp {
            device: data.dev(),
            inode: data.ino(),
            size: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        }
    }
}

impl Finding {
    fn md5(&self) -> Option<&str> {
        match self {
            Finding::Read { md5, .. } => Some(md5),
            Finding::Missing | Finding::Denied | Finding::Unreadable { .. } | Finding::TooLarge { .. } => {
                None
            }
        }
    }

    fn to_text(&self, file: &ConfigFile, first: Option<&First>, user: &str) -> String {
        let ConfigFile { path, md5: expected } = file;
        match self {
            Finding::Missing if expected.is_empty() => format!("config {path} does not exist"),
            Finding::Missing => format!("config {path} does not exist, expected md5 {expected}"),
            Finding::Denied => format!("config {path} may not be read by user {user:?}"),
            Finding::Unreadable { reason } => format!("config {path} cannot be read: {reason}"),
            Finding::TooLarge { size } => {
                format!(
                    "config {path} is too large to check: it has {size} bytes, and at most {LARGEST} are read"
                )
            }
            Finding::Read { md5, .. } if expected.is_empty() => match first {
                Some(first) if first.md5 != *md5 => {
                    let before = &first.md5;
                    format!(
                        "config {path} has changed since the process was started: md5 {md5}, before {before}"
                    )
                }
                Some(_) | None => String::new(),
            },
            Finding::Read { md5, .. } if md5.eq_ignore_ascii_case(expected) => String::new(),
            Finding::Read { md5, .. } => format!("config {path} has md5 {md5}, expected {expected}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_testkit::{Need, has};
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    use std::task::{Context, Waker};

    const HELLO: &str = "b1946ac92492d2347c6235b4d2611184";

    fn key() -> ProcKey {
        ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() }
    }

    fn me() -> String {
        nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("accounts").expect("an account").name
    }

    fn spec(path: &str, md5: &str) -> Spec {
        let configmap = vec![ConfigFile { path: path.to_owned(), md5: md5.to_owned() }];
        let mut spec = Spec { configmap, ..Spec::default() };
        spec.identity.user = me();
        spec
    }

    #[test]
    fn a_file_that_is_not_as_expected_is_named() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("web.conf");
        let shown = path.display();
        let mut files = Files::default();
        let mut spec = spec(&shown.to_string(), HELLO);
        let mut check = |spec: &Spec| files.check(&key(), spec, 1, Effort::Small).expect("nobody cancels");
        assert_eq!(check(&spec), format!("config {shown} does not exist, expected md5 {HELLO}"));
        fs::write(&path, "hello\n").expect("our folder");
        assert_eq!(check(&spec), "");
        fs::write(&path, "").expect("our folder");
        let other = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(check(&spec), format!("config {shown} has md5 {other}, expected {HELLO}"));
        assert_eq!(check(&spec), format!("config {shown} has md5 {other}, expected {HELLO}"));
        spec.configmap[0].md5 = other.to_uppercase();
        assert_eq!(check(&spec), "");
        fs::File::create(&path).expect("our file").set_len(LARGEST + 1).expect("a sparse file");
        let large = format!(
            "config {shown} is too large to check: it has 67108865 bytes, and at most 67108864 are read"
        );
        assert_eq!(check(&spec), large);
        fs::remove_file(&path).expect("it is there");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a fifo");
        assert_eq!(check(&spec), format!("config {shown} cannot be read: it is not a regular file"));
        spec.configmap.clear();
        assert_eq!(check(&spec), "");
    }

    #[test]
    fn a_file_without_an_md5_is_watched_for_existence_and_change() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("web.conf");
        let shown = path.display();
        let (mut files, spec) = (Files::default(), spec(&shown.to_string(), ""));
        let mut check = |start| files.check(&key(), &spec, start, Effort::Small).expect("nobody cancels");
        assert_eq!(check(1), format!("config {shown} does not exist"));
        fs::write(&path, "hello\n").expect("our folder");
        assert_eq!(check(1), "");
        fs::write(&path, "").expect("our folder");
        let other = "d41d8cd98f00b204e9800998ecf8427e";
        let changed =
            format!("config {shown} has changed since the process was started: md5 {other}, before {HELLO}");
        assert_eq!(check(1), changed);
        fs::remove_file(&path).expect("it is there");
        assert_eq!(check(1), format!("config {shown} does not exist"));
        fs::write(&path, "").expect("our folder");
        assert_eq!(check(1), changed, "it is not forgotten with the file");
        assert_eq!(check(2), "", "the process was started with it");
        fs::write(&path, "hello\n").expect("our folder");
        assert_ne!(check(2), "");
    }

    /// The agent may be root, and callers may be allowed another account only: a guess is not confirmed.
    #[test]
    fn a_file_that_the_account_may_not_read_is_not_disclosed() {
        if !has(Need::Root, me() == "root") {
            return;
        }
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("secret").to_str().expect("a plain path").to_owned();
        fs::write(&path, "hello\n").expect("our folder");
        let mode = |path: &str, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
        };
        let top = folder.path().to_str().expect("a plain path").to_owned();
        let check = |user: &str, md5: &str| {
            let mut spec = spec(&path, md5);
            spec.identity.user = user.to_owned();
            Files::default().check(&key(), &spec, 1, Effort::Small).expect("nobody cancels")
        };
        let guesses = [HELLO.to_owned(), "0".repeat(32)];
        let denied = format!("config {path} may not be read by user \"nobody\"");
        for (folder_mode, file_mode) in [(0o700, 0o644), (0o755, 0o600)] {
            mode(&top, folder_mode);
            mode(&path, file_mode);
            guesses.iter().for_each(|md5| assert_eq!(check("nobody", md5), denied));
            assert_eq!(check("root", HELLO), "");
        }
        for user in ["no-such-user", ""] {
            assert!(check(user, HELLO).contains("cannot be read: user"), "{}", check(user, HELLO));
        }
        mode(&path, 0o644);
        assert_eq!(check("nobody", HELLO), "");
        // A link of a third party leads root to no file.
        let link = folder.path().join("link");
        symlink(&path, &link).expect("our folder");
        lchown(&link, Some(65_534), None).expect("root may");
        let spec = spec(link.to_str().expect("a plain path"), HELLO);
        let text = Files::default().check(&key(), &spec, 1, Effort::Small).expect("nobody cancels");
        assert!(text.contains("cannot be read: the link "), "{text}");
    }

    /// A large file is not read again, and no caller waits for it.
    #[test]
    fn a_file_is_read_when_its_stamp_is_new() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("large").to_str().expect("a plain path").to_owned();
        fs::write(&path, vec![0; 2 * 1024 * 1024]).expect("our folder");
        let wanted = AtomicBool::new(false);
        let look = |before, effort| look(&path, &me(), before, effort).expect("nobody cancels");
        assert_eq!(look(None, Effort::Small), None);
        let found = look(None, Effort::Any(&wanted)).expect("it was read");
        assert!(matches!(&found, Finding::Read { md5, .. } if md5 == "b2d1236c286a3c0704224fe4105eca49"));
        assert_eq!(look(Some(&found), Effort::Small), Some(found.clone()));
        let Finding::Read { stamp, trust: StampTrust::Nothing, .. } = found else {
            panic!("it is brand-new")
        };
        let remembered = Finding::Read { stamp, trust: StampTrust::Stamp, md5: "remembered".to_owned() };
        assert_eq!(look(Some(&remembered), Effort::Any(&wanted)), Some(remembered.clone()));
        let doubtful = Finding::Read { stamp, trust: StampTrust::Nothing, md5: "remembered".to_owned() };
        assert_eq!(look(Some(&doubtful), Effort::Any(&wanted)), Some(found.clone()));
        fs::write(&path, "other").expect("our folder");
        assert_ne!(look(Some(&remembered), Effort::Small), Some(remembered.clone()));
    }

    #[test]
    fn reading_a_file_stops_when_it_is_cancelled() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("file").to_str().expect("a plain path").to_owned();
        fs::write(&path, "hello\n").expect("our folder");
        let (mut files, spec) = (Files::default(), spec(&path, &"0".repeat(32)));
        let text = files.check(&key(), &spec, 1, Effort::Small).expect("nobody cancels");
        fs::write(&path, "hallo\n").expect("our folder");
        let cancelled = AtomicBool::new(true);
        assert_eq!(files.check(&key(), &spec, 1, Effort::Any(&cancelled)), Err(Cancelled));
        assert_eq!(files.known[&path].text, text, "what was known stays");
    }

    /// The reading thread sees the cancellation.
    #[tokio::test]
    async fn dropping_a_look_ends_the_reading() {
        let files = Arc::<Mutex<Files>>::default();
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("file").to_str().expect("a plain path").to_owned();
        fs::write(&path, "hello\n").expect("our folder");
        let spec = Arc::new(spec(&path, HELLO));
        {
            // The reading cannot begin before the look was dropped.
            let _held = files.lock().expect("nobody has it");
            let look = std::pin::pin!(look_at(files.clone(), key(), spec.clone(), 1, Extent::Any));
            let mut context = Context::from_waker(Waker::noop());
            assert!(look.poll(&mut context).is_pending());
        }
        let ended = async {
            while Arc::strong_count(&files) > 1 {
                tokio::time::sleep(std::time::Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(120), ended).await.expect("the thread ends");
        assert!(files.lock().expect("nobody has it").known.is_empty(), "it was read to its end");
        assert_eq!(look_at(files, key(), spec, 1, Extent::Any).await, Ok(String::new()));
    }
}
