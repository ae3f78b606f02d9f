//! Whether the files that a spec names (`configmap`) are as it says.
//!
//! A file is read again only when its stamp is another one. What is not as it should be is said in the proc's note, and in
//! the log once for every change.

use md5::{Digest, Md5};
use procfleet_core::id::ProcKey;
use procfleet_core::spec::{ConfigFile, Spec};
use rustix::fs::OFlags;
use std::collections::HashMap;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use tracing::info;

/// How much is read while somebody waits for the answer.
const SMALL: u64 = 1024 * 1024;
/// A tick of any file system's clock is shorter than this.
const TICK_SECS: i64 = 2;
/// How long a note about many files may be.
const LONGEST_NOTE: usize = 1_024;

/// How much may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Somebody waits: of a large file, what was known before will do.
    Small,
    Any,
}

/// What is known of the files of one proc.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: HashMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    finding: Finding,
    /// What was said about it last; empty where it is as it should be.
    said: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Finding {
    Missing,
    Unreadable { reason: String },
    Read { stamp: Stamp, trust: Trust, md5: String },
}

/// Whether the same stamp means the same content. A file that was written just before it was read may be written again
/// within the same tick of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Stamp,
    Nothing,
}

/// What changes with a file's content, or at least whenever it may have changed; and whose the file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    owner: u32,
    mode: u32,
}

impl Files {
    /// Looks at the files of the spec. Says what is wrong with them; nothing if all are as they should be.
    pub(super) fn check(&mut self, key: &ProcKey, spec: &Spec, effort: Effort) -> String {
        self.known.retain(|path, _| spec.configmap.iter().any(|file| file.path == *path));
        let mut notes = Vec::new();
        for file in &spec.configmap {
            let before = self.known.remove(&file.path);
            let Some(finding) = look(&file.path, before.as_ref().map(|known| &known.finding), effort) else {
                continue;
            };
            let said = finding.to_text(file, &spec.identity.user);
            match before.map_or_else(String::new, |known| known.said) {
                before if before == said => {}
                _ if said.is_empty() => info!(proc = %key, file = file.path, "a config is as expected again"),
                // The actor makes an event of the note.
                _ => {}
            }
            if !said.is_empty() {
                notes.push(said.clone());
            }
            self.known.insert(file.path.clone(), Known { finding, said });
        }
        let mut note = notes.join("; ");
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        note
    }
}

/// `None`: it would take too much effort, and nothing was known before.
fn look(path: &str, before: Option<&Finding>, effort: Effort) -> Option<Finding> {
    let found = std::fs::metadata(path).and_then(|data| match (before, Stamp::of(&data)?) {
        (Some(known @ Finding::Read { stamp: before, trust: Trust::Stamp, .. }), stamp)
            if *before == stamp =>
        {
            Ok(Some(known.clone()))
        }
        (before, stamp) if effort == Effort::Small && stamp.size > SMALL => Ok(before.cloned()),
        _ => read(path).map(Some),
    });
    found.unwrap_or_else(|error| {
        Some(match error.kind() {
            io::ErrorKind::NotFound => Finding::Missing,
            _ => Finding::Unreadable { reason: error.to_string() },
        })
    })
}

fn read(path: &str) -> io::Result<Finding> {
    // It may have become something that cannot be opened without waiting.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path)?;
    let stamp = Stamp::of(&file.metadata()?)?;
    let age = jiff::Timestamp::now().as_second() - stamp.changed.0;
    let trust = if age > TICK_SECS { Trust::Stamp } else { Trust::Nothing };
    Ok(Finding::Read { stamp, trust, md5: md5_of(file.take(stamp.size))? })
}

fn md5_of(mut file: io::Take<File>) -> io::Result<String> {
    let mut hash = Md5::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Stamp {
    fn of(data: &Metadata) -> io::Result<Stamp> {
        if !data.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(Stamp {
            device: data.dev(),
            inode: data.ino(),
            size: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
            owner: data.uid(),
            mode: data.mode(),
        })
    }

    /// Whether the account that the proc runs as could have found out the same. The agent may read everything, and callers
    /// may be allowed this account only.
    fn is_open_to(&self, user: &str) -> bool {
        let everybody = self.mode & 0o004 != 0;
        everybody
            || nix::unistd::User::from_name(user)
                .ok()
                .flatten()
                .is_some_and(|user| user.uid.as_raw() == self.owner || user.uid == nix::unistd::geteuid())
    }
}

impl Finding {
    fn to_text(&self, file: &ConfigFile, user: &str) -> String {
        let ConfigFile { path, md5: expected } = file;
        match self {
            Finding::Missing => format!("config {path} does not exist, expected md5 {expected}"),
            Finding::Unreadable { reason } => format!("config {path} cannot be read: {reason}"),
            Finding::Read { md5, .. } if md5.eq_ignore_ascii_case(expected) => String::new(),
            Finding::Read { md5, stamp, .. } if stamp.is_open_to(user) => {
                format!("config {path} has md5 {md5}, expected {expected}")
            }
            Finding::Read { .. } => format!("config {path} has another md5 than expected ({expected})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const HELLO: &str = "b1946ac92492d2347c6235b4d2611184";

    fn key() -> ProcKey {
        ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() }
    }

    #[test]
    fn a_file_that_is_not_as_expected_is_named() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("web.conf");
        let shown = path.display();
        let mut files = Files::default();
        let configmap = vec![ConfigFile { path: shown.to_string(), md5: HELLO.to_owned() }];
        let mut spec = Spec { configmap, ..Spec::default() };
        let mut check = |spec: &Spec| files.check(&key(), spec, Effort::Small);
        assert_eq!(check(&spec), format!("config {shown} does not exist, expected md5 {HELLO}"));
        fs::write(&path, "hello\n").expect("our folder");
        assert_eq!(check(&spec), "");
        fs::write(&path, "").expect("our folder");
        let other = "d41d8cd98f00b204e9800998ecf8427e";
        assert_eq!(check(&spec), format!("config {shown} has md5 {other}, expected {HELLO}"));
        assert_eq!(check(&spec), format!("config {shown} has md5 {other}, expected {HELLO}"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our file");
        spec.identity.user = "no-such-user".to_owned();
        assert_eq!(check(&spec), format!("config {shown} has another md5 than expected ({HELLO})"));
        spec.configmap[0].md5 = other.to_uppercase();
        assert_eq!(check(&spec), "");
        fs::remove_file(&path).expect("it is there");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a fifo");
        assert_eq!(check(&spec), format!("config {shown} cannot be read: it is not a regular file"));
        spec.configmap.clear();
        assert_eq!(check(&spec), "");
    }

    /// It is not read again, and nobody waits for a large one.
    #[test]
    fn a_file_is_read_when_its_stamp_is_new() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("large").to_str().expect("a plain path").to_owned();
        fs::write(&path, vec![0; 2 * 1024 * 1024]).expect("our folder");
        assert_eq!(look(&path, None, Effort::Small), None);
        let found = look(&path, None, Effort::Any).expect("it was read");
        assert!(matches!(&found, Finding::Read { md5, .. } if md5 == "b2d1236c286a3c0704224fe4105eca49"));
        assert_eq!(look(&path, Some(&found), Effort::Small), Some(found.clone()));
        let Finding::Read { stamp, trust: Trust::Nothing, .. } = found else { panic!("it is brand-new") };
        let remembered = Finding::Read { stamp, trust: Trust::Stamp, md5: "remembered".to_owned() };
        assert_eq!(look(&path, Some(&remembered), Effort::Any), Some(remembered.clone()));
        let doubtful = Finding::Read { stamp, trust: Trust::Nothing, md5: "remembered".to_owned() };
        assert_eq!(look(&path, Some(&doubtful), Effort::Any), Some(found));
        fs::write(&path, "other").expect("our folder");
        assert_ne!(look(&path, Some(&remembered), Effort::Small), Some(remembered));
    }
}
