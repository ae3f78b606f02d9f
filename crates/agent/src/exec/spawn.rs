//! Starting a command: `/bin/sh -c COMMAND`, in its own session, as its user, in its folder, with a clean environment.

#![expect(unsafe_code, reason = "what a child does between fork and exec cannot be written without it")]

use super::procfs::MARK;
use super::user::Account;
use procfleet_core::{Code, Spec};
use rustix::fs::Mode;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(super) const SHELL: &str = "/bin/sh";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a command could not be started, for the caller who wrote the spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotStarted {
    pub(super) code: Code,
    pub(super) reason: String,
}

impl NotStarted {
    pub(super) fn new(code: Code, reason: impl Into<String>) -> NotStarted {
        NotStarted { code, reason: reason.into() }
    }
}

/// A command whose spec was checked against this host, ready to be started.
#[derive(Debug)]
pub(super) struct Launch {
    mark: String,
    command: String,
    folder: CString,
    account: Account,
}

impl Launch {
    pub(super) fn prepare(mark: &str, command: &str, spec: &Spec) -> Result<Launch, NotStarted> {
        let refuse = |reason: &str| Err(NotStarted::new(Code::ArgsInvalid, reason));
        if command.contains('\0') {
            return refuse("the command contains a NUL byte");
        }
        if mark.contains('\0') {
            return refuse("the name of the process contains a NUL byte");
        }
        let folder = folder(&spec.identity.setup_path)?;
        let account = Account::of(&spec.identity.user)?;
        Ok(Launch { mark: mark.to_owned(), command: command.to_owned(), folder, account })
    }

    pub(super) fn command(&self) -> &str {
        &self.command
    }

    /// Starts it, writing to `output`; `None` throws its output away. When this returns, the shell is running.
    pub(super) fn start(self, output: Option<File>) -> Result<Child, NotStarted> {
        let Launch { mark, command, folder, account } = self;
        let failed = |user: &str, error: io::Error| {
            let reason = format!("starting {SHELL} in setup_path {folder:?} as user {user:?}: {error}");
            NotStarted::new(Code::SystemError, reason)
        };
        let (out, err) = match output {
            Some(file) => {
                // A program that opens /dev/stdout anew needs the file to be its own.
                if let Err(error) = rustix::fs::fchown(&file, Some(account.uid), Some(account.gid)) {
                    tracing::debug!(%error, "an output file stays the agent's own");
                }
                let twin = file.try_clone().map_err(|error| failed(&account.name, error))?;
                (Stdio::from(file), Stdio::from(twin))
            }
            None => (Stdio::null(), Stdio::null()),
        };
        #[expect(clippy::disallowed_methods, reason = "this is the one place that makes processes")]
        let mut shell = Command::new(SHELL);
        shell.arg("-c").arg(command).stdin(Stdio::null()).stdout(out).stderr(err);
        shell.env_clear().env("PATH", PATH).env("LANG", "C.UTF-8").env(MARK, mark);
        shell.env("HOME", &account.home).env("SHELL", &account.shell);
        shell.env("USER", &account.name).env("LOGNAME", &account.name);
        let (name, cwd) = (account.name.clone(), folder.clone());
        let enter = move || {
            rustix::process::setsid()?;
            rustix::process::umask(Mode::from_raw_mode(0o022));
            close_on_exec();
            account.become_it()?;
            // Only now, so that the folder's permissions are those for this user.
            rustix::process::chdir(cwd.as_c_str())?;
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes plain system calls only. It takes no lock and allocates
        // nothing: what it needs was made before the fork and is borrowed.
        unsafe { shell.pre_exec(enter) };
        shell.spawn().map_err(|error| failed(&name, error))
    }
}

/// Keeps everything but the three standard descriptors from the new program. The agent's own are so marked from the
/// beginning; those that it got from whoever started it (a terminal, a lock, an ssh connection) may not be.
fn close_on_exec() {
    // SAFETY: the call takes three numbers and touches no memory of ours. Descriptors are only marked here, and closed by
    // the exec, so nothing that is in use goes away. Where the kernel does not know the call, all stays as it was.
    unsafe { nix::libc::syscall(nix::libc::SYS_close_range, 3, u32::MAX, nix::libc::CLOSE_RANGE_CLOEXEC) };
}

/// `setup_path`, if it is a folder that can be entered.
fn folder(setup_path: &str) -> Result<CString, NotStarted> {
    if !Path::new(setup_path).is_absolute() {
        let reason = format!("setup_path {setup_path:?} is not an absolute path");
        return Err(NotStarted::new(Code::ArgsInvalid, reason));
    }
    let unusable = |why: &str| NotStarted::new(Code::FileInvalid, format!("setup_path {setup_path:?} {why}"));
    let c_path = CString::new(setup_path).map_err(|_| unusable("contains a NUL byte"))?;
    match fs::metadata(setup_path) {
        Ok(metadata) if metadata.is_dir() => {}
        Ok(_) => return Err(unusable("is not a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(unusable("does not exist")),
        Err(error) => return Err(unusable(&format!("cannot be used: {error}"))),
    }
    match rustix::fs::access(c_path.as_c_str(), rustix::fs::Access::EXEC_OK) {
        Ok(()) => Ok(c_path),
        Err(error) => Err(unusable(&format!("cannot be entered: {}", io::Error::from(error)))),
    }
}
