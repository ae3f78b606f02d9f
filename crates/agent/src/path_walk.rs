//! Resolves a path one component at a time, by file descriptor, and shows which accounts could have
//! redirected it.
//!
//! The agent often runs as root and gets paths in folders that others may write. `open` would follow any
//! symbolic link there. A walk opens each component with `O_PATH | O_NOFOLLOW` below the folder before it,
//! reads links itself, and records the owner and the mode of everything on the way. The caller checks them
//! against trusted accounts, and then uses the checked descriptor, so nothing can be replaced in between.
//!
//! In a sticky folder (`/tmp`) only the owner of an entry and the owner of the folder can replace the entry.
//! So the walk checks both owners and ignores that others may write the folder. Hard links are not trusted
//! there: any account may have created one.

use nix::unistd::{Group, User};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Maximum number of symbolic links, as in the kernel.
const LINKS: usize = 40;
const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const ANYBODY_WRITES: u32 = 0o002;

/// Accounts that may decide where a path leads.
#[derive(Clone, Debug)]
pub(crate) struct PathTrust {
    uids: Vec<u32>,
    /// Whether a folder or file may be writable for the group that is one of these accounts' own.
    own_groups: bool,
}

impl PathTrust {
    /// Root and the agent's own account, and none of their groups.
    pub(crate) fn agent() -> PathTrust {
        PathTrust { uids: vec![0, geteuid().as_raw()], own_groups: false }
    }

    /// Root, the agent's account, and the account of a spec. An unknown account adds none.
    pub(crate) fn spec(user: &str) -> PathTrust {
        let account = User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
        PathTrust { own_groups: true, ..PathTrust::agent() }.and(account)
    }

    #[must_use]
    pub(crate) fn and(mut self, uids: impl IntoIterator<Item = u32>) -> PathTrust {
        self.uids.extend(uids);
        self
    }

    fn holds(&self, uid: u32) -> bool {
        self.uids.contains(&uid)
    }

    /// Root's group, or the group of the same name that many systems give to each account.
    fn holds_group(&self, gid: u32) -> bool {
        let is_own = |uid: &u32| {
            let user = User::from_uid((*uid).into()).ok().flatten().filter(|user| user.gid.as_raw() == gid);
            let group = Group::from_gid(gid.into()).ok().flatten();
            user.zip(group).is_some_and(|(user, group)| user.name == group.name)
        };
        self.own_groups && (gid == 0 || self.uids.iter().any(is_own))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    Folder,
    Link,
    End,
}

#[derive(Debug)]
struct WalkStep {
    kind: StepKind,
    path: PathBuf,
    uid: u32,
    gid: u32,
    mode: u32,
    /// The file has other hard links.
    has_other_names: bool,
}

/// Why a path is not believed, in words that follow "is not believed: ".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubt {
    kind: StepKind,
    path: PathBuf,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    Owner(u32),
    Group(u32),
    Anybody,
    HardLink,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            StepKind::Folder => format!("the folder {}", self.path.display()),
            StepKind::Link => format!("the link {}", self.path.display()),
            StepKind::End => "it".to_owned(),
        };
        match self.why {
            Why::Owner(uid) => write!(f, "{what} belongs to account {:?}", account_name(uid)),
            Why::Group(gid) => {
                let group = Group::from_gid(gid.into()).ok().flatten();
                let group = group.map_or_else(|| gid.to_string(), |group| group.name);
                write!(f, "group {group:?} may write {what}")
            }
            Why::Anybody => write!(f, "anybody may write {what}"),
            Why::HardLink => write!(f, "{what} has another name, and anybody may have given it this one"),
        }
    }
}

/// The target of a path, and the components on the way.
#[derive(Debug)]
pub(crate) struct Walked {
    /// Opened with `O_PATH`.
    end: OwnedFd,
    stat: Stat,
    /// Without links.
    real: PathBuf,
    steps: Vec<WalkStep>,
}

/// Resolves an absolute path. Nothing is opened for reading, so pipes and devices are not affected.
pub(crate) fn walk(path: &Path) -> io::Result<Walked> {
    if !path.is_absolute() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path is not absolute"));
    }
    let mut at = root()?;
    let mut left: Vec<OsString> = Vec::new();
    push(&mut left, path);
    let mut steps = vec![];
    let mut links = 0;
    while let Some(name) = left.pop() {
        steps.push(step(StepKind::Folder, &at));
        if name == ".." {
            at = at.enter(OsStr::new(".."))?;
            continue;
        }
        let next = at.enter(&name)?;
        if !next.is(FileType::Symlink) {
            at = next;
            continue;
        }
        steps.push(step(StepKind::Link, &next));
        links += 1;
        if links > LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&next.fd, "", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            at = root()?;
        }
        push(&mut left, &target);
    }
    steps.push(step(StepKind::End, &at));
    Ok(Walked { end: at.fd, stat: at.stat, real: at.path, steps })
}

impl Walked {
    /// Another account that could have made a link on the way. `None`: there is none.
    pub(crate) fn doubted_links(&self, trust: &PathTrust) -> Option<Doubt> {
        let mut links = self.steps.iter().filter(|step| step.kind == StepKind::Link);
        links.find_map(|link| link.owner(trust))
    }

    /// Another account that could redirect the path: by a link, or by a folder of its own. Groups and the
    /// target itself are not checked.
    pub(crate) fn doubted_way(&self, trust: &PathTrust) -> Option<Doubt> {
        let mut way = self.steps.iter().filter(|step| step.kind != StepKind::End);
        way.find_map(|step| step.owner(trust).or_else(|| step.writers(ANYBODY_WRITES, trust)))
    }

    /// Another account that could have chosen the target of the path, or its content.
    pub(crate) fn doubt(&self, trust: &PathTrust) -> Option<Doubt> {
        let mut steps = self.steps.iter();
        let all = GROUP_WRITES | ANYBODY_WRITES;
        steps
            .find_map(|step| step.owner(trust).or_else(|| step.writers(all, trust)))
            .or_else(|| self.hard_link())
    }

    /// In a folder that any account may write, any account may have created this hard link.
    fn hard_link(&self) -> Option<Doubt> {
        let [.., folder, end] = self.steps.as_slice() else { return None };
        let anybody = folder.mode & (GROUP_WRITES | ANYBODY_WRITES) != 0;
        (anybody && self.is(FileType::RegularFile) && end.has_other_names).then(|| end.doubt(Why::HardLink))
    }

    pub(crate) fn is(&self, kind: FileType) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == kind
    }

    /// The path without links, as it was when it was walked.
    pub(crate) fn real(&self) -> &Path {
        &self.real
    }

    /// Opens the file that the walk found, with the rights that the caller has now.
    pub(crate) fn open(&self, flags: OFlags) -> io::Result<File> {
        let path = format!("/proc/self/fd/{}", self.end.as_raw_fd());
        Ok(rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.end
    }
}

impl AsFd for Walked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}

impl WalkStep {
    fn owner(&self, trust: &PathTrust) -> Option<Doubt> {
        (!trust.holds(self.uid)).then(|| self.doubt(Why::Owner(self.uid)))
    }

    /// A link has no mode, and an entry of a sticky folder is checked by itself.
    fn writers(&self, bits: u32, trust: &PathTrust) -> Option<Doubt> {
        let guarded =
            self.kind == StepKind::Link || (self.kind == StepKind::Folder && self.mode & STICKY != 0);
        let mode = if guarded { 0 } else { self.mode & bits };
        if mode & ANYBODY_WRITES != 0 {
            return Some(self.doubt(Why::Anybody));
        }
        (mode & GROUP_WRITES != 0 && !trust.holds_group(self.gid)).then(|| self.doubt(Why::Group(self.gid)))
    }

    fn doubt(&self, why: Why) -> Doubt {
        Doubt { kind: self.kind, path: self.path.clone(), why }
    }
}

struct At {
    fd: OwnedFd,
    stat: Stat,
    path: PathBuf,
}

impl At {
    fn enter(&self, name: &OsStr) -> io::Result<At> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |more| rustix::fs::openat(&self.fd, name, flags | more, Mode::empty());
        // As a folder first: otherwise a folder that is mounted on demand would be entered without being
        // mounted.
        let fd = match open(OFlags::DIRECTORY) {
            Err(Errno::NOTDIR | Errno::LOOP) if self.is(FileType::Directory) => open(OFlags::empty())?,
            opened => opened?,
        };
        let mut path = self.path.clone();
        match name == ".." {
            true => _ = path.pop(),
            false => path.push(name),
        }
        Ok(At { stat: rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?, fd, path })
    }

    fn is(&self, kind: FileType) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == kind
    }
}

fn root() -> io::Result<At> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/", flags, Mode::empty())?;
    Ok(At { stat: rustix::fs::statat(&fd, "", AtFlags::EMPTY_PATH)?, fd, path: PathBuf::from("/") })
}

fn step(kind: StepKind, at: &At) -> WalkStep {
    let Stat { st_uid: uid, st_gid: gid, st_mode: mode, st_nlink, .. } = at.stat;
    WalkStep { kind, path: at.path.clone(), uid, gid, mode, has_other_names: st_nlink > 1 }
}

/// The components of a path, so that the first one is popped first.
fn push(left: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().rev().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    left.extend(parts);
}

fn account_name(uid: u32) -> String {
    let account = User::from_uid(uid.into()).ok().flatten();
    account.map_or_else(|| uid.to_string(), |account| account.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
    }

    #[test]
    fn a_walk_ends_where_the_kernel_would() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let top = folder.path();
        fs::create_dir_all(top.join("a/b")).expect("our folder");
        fs::write(top.join("a/b/file"), "text").expect("our folder");
        symlink("a/b", top.join("relative")).expect("our folder");
        symlink(top.join("a"), top.join("absolute")).expect("our folder");
        symlink("../../absolute/b/../b/file", top.join("a/b/around")).expect("our folder");
        symlink("loop", top.join("loop")).expect("our folder");
        symlink("nothing", top.join("dangling")).expect("our folder");
        let real = fs::canonicalize(top.join("a/b/file")).expect("it is there");
        for path in ["a/b/file", "relative/file", "absolute/b/file", "a/b/around", "relative/../b/./file"] {
            let walked = walk(&top.join(path)).expect(path);
            assert_eq!(walked.real(), real, "{path}");
            let mut text = String::new();
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            walked.open(flags).expect(path).read_to_string(&mut text).expect(path);
            assert_eq!(text, "text", "{path}");
        }
        for path in ["loop", "dangling", "a/nothing", "a/b/file/x", "a/b/file/.."] {
            let expected = fs::metadata(top.join(path)).expect_err(path);
            let error = walk(&top.join(path)).expect_err(path);
            assert_eq!(error.raw_os_error(), expected.raw_os_error(), "{path}");
        }
        assert!(walk(top).expect("a folder").is(FileType::Directory));
        assert_eq!(walk(Path::new("/")).expect("a folder").real(), Path::new("/"));
        assert!(walk(Path::new("a")).is_err(), "there is nowhere to begin");
    }

    /// A walk along paths and links of random text ends where the kernel would. It also accepts some paths
    /// that the kernel refuses, such as a file with a slash behind it; these lead to that file.
    #[test]
    fn fuzzed_paths_and_links() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let top = fs::canonicalize(folder.path()).expect("it is there");
        fs::create_dir_all(top.join("a/b")).expect("our folder");
        fs::write(top.join("a/b/file"), "text").expect("our folder");
        symlink("../a", top.join("a/up")).expect("our folder");
        let good = ["a/b/file", "./a//up/b/../b/file", "link/../a/b", "../link", "a/b/file/..", "link/link"];
        let link = top.join("link");
        procfleet_testkit::fuzz::Fuzz::cases(3_000).text(&good, |text| {
            let (target, path) = text.split_at(text.floor_char_boundary(text.len() / 2));
            let _ = fs::remove_file(&link);
            // An empty text or one with a NUL cannot be a link; then there is none.
            let _ = symlink(target, &link);
            for path in [top.join("link"), top.join(format!("./{path}")), top.join(format!("./{text}"))] {
                match (walk(&path), fs::canonicalize(&path)) {
                    (Ok(walked), Ok(real)) => assert_eq!(walked.real(), real, "{path:?}"),
                    (Ok(walked), Err(_)) => {
                        let real = fs::canonicalize(walked.real()).expect("the walk has found it");
                        assert_eq!(walked.real(), real, "{path:?}");
                    }
                    (Err(error), Ok(real)) => panic!("{path:?} is {}, and {error}", real.display()),
                    (Err(_), Err(_)) => {}
                }
            }
        });
    }

    /// Changes after the walk have no effect.
    #[test]
    fn the_target_of_a_walk_cannot_be_replaced() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("file");
        fs::write(&path, "first").expect("our folder");
        let walked = walk(&path).expect("it is there");
        fs::remove_file(&path).expect("it is there");
        symlink("/dev/zero", &path).expect("our folder");
        let mut text = String::new();
        walked.open(OFlags::RDONLY).expect("it is held").read_to_string(&mut text).expect("a file");
        assert_eq!(text, "first");
    }

    #[test]
    fn an_account_that_could_redirect_a_path_is_named() {
        if !procfleet_testkit::has(procfleet_testkit::Need::Root, geteuid().is_root()) {
            return;
        }
        let account = |name: &str| User::from_name(name).expect("accounts").expect("it is there");
        let (nobody, daemon) = (account("nobody"), account("daemon"));
        let top = tempfile::tempdir().expect("a temp dir");
        let top = top.path();
        mode(top, 0o755);
        let (dir, file, link) = (top.join("dir"), top.join("dir/file"), top.join("link"));
        fs::create_dir(&dir).expect("our folder");
        fs::write(&file, "").expect("our folder");
        symlink("dir/file", &link).expect("our folder");
        let said = |trust: &PathTrust| {
            let walked = walk(&link).expect("it is there");
            let text = |doubt: Option<Doubt>| doubt.map(|doubt| doubt.to_string()).unwrap_or_default();
            [walked.doubted_links(trust), walked.doubted_way(trust), walked.doubt(trust)].map(text)
        };
        let (spec, agent) = (PathTrust::spec("nobody"), PathTrust::agent());
        assert_eq!(said(&spec), ["", "", ""]);
        assert_eq!(said(&agent), ["", "", ""]);

        let shown = |path: &Path| path.display().to_string();
        lchown(&link, Some(daemon.uid.as_raw()), None).expect("root may");
        let linked = format!("the link {} belongs to account \"daemon\"", shown(&link));
        assert_eq!(said(&spec), [linked.as_str(); 3]);
        assert_eq!(said(&PathTrust::spec("daemon")), ["", "", ""]);
        assert_eq!(said(&PathTrust::spec("nobody").and([daemon.uid.as_raw()])), ["", "", ""]);
        lchown(&link, Some(nobody.uid.as_raw()), None).expect("root may");
        assert_eq!(said(&spec), ["", "", ""]);
        assert!(said(&agent)[0].contains("nobody"));
        lchown(&link, Some(0), None).expect("root may");

        chown(&dir, Some(daemon.uid.as_raw()), None).expect("root may");
        let theirs = format!("the folder {} belongs to account \"daemon\"", shown(&dir));
        assert_eq!(said(&spec), ["", theirs.as_str(), theirs.as_str()]);
        chown(&dir, Some(0), Some(0)).expect("root may");
        mode(&dir, 0o777);
        let open = format!("anybody may write the folder {}", shown(&dir));
        assert_eq!(said(&spec), ["", open.as_str(), open.as_str()]);
        mode(&dir, 0o1777);
        assert_eq!(said(&spec), ["", "", ""], "what is in a sticky folder is its owner's");
        fs::hard_link(&file, top.join("other-name")).expect("our folder");
        assert_eq!(said(&spec)[2], "it has another name, and anybody may have given it this one");
        mode(&dir, 0o755);
        assert_eq!(said(&spec), ["", "", ""], "only root may make names there");
        mode(&dir, 0o775);
        assert_eq!(said(&agent)[2], format!("group \"root\" may write the folder {}", shown(&dir)));
        fs::remove_file(top.join("other-name")).expect("it is there");
        assert_eq!(said(&spec), ["", "", ""]);
        chown(&dir, None, Some(daemon.gid.as_raw())).expect("root may");
        assert_eq!(said(&spec)[2], format!("group \"daemon\" may write the folder {}", shown(&dir)));
        assert_eq!(said(&PathTrust::spec("daemon")), ["", "", ""], "it is that account's own group");
        mode(&dir, 0o755);

        mode(&file, 0o666);
        assert_eq!(said(&spec), ["", "", "anybody may write it"]);
        mode(&file, 0o644);
        chown(&file, Some(daemon.uid.as_raw()), None).expect("root may");
        assert_eq!(said(&spec)[2], "it belongs to account \"daemon\"");
        assert_eq!(fs::metadata(&file).expect("it is there").uid(), daemon.uid.as_raw());
    }
}
