//! Starts a command: directly if it consists of plain words, else through `/bin/sh -c COMMAND`. It runs in
//! its own session, as its user, in its folder, with a clean environment that includes fields of the spec.

use crate::exec::error::NotStarted;
use crate::exec::output::CommandOutput;
use crate::exec::procfs::{CONTROL_COMMAND, MARK, PROOF, RUN};
use crate::exec::scan::proc_mark::ProcMark;
use crate::exec::shell::{POWERSHELL_FLAGS, SHELL};
use crate::exec::spawn::argv;
use crate::exec::spawn::fork::{self, ExecTarget, SpawnRequest};
use crate::exec::user::Account;
use crate::exec::watch::children;
use crate::path_walk::{self, PathTrust};
use procfleet_core::spec::{Control, Identity, Shell};
use procfleet_core::{BootTime, Code, ProcKey, Spec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command whose spec was checked against this host, ready to be started.
#[derive(Debug)]
pub(in crate::exec) struct PreparedCommand {
    shell: Interpreter,
    command: String,
    environment: Vec<(&'static str, String)>,
    mark: ProcMark,
    folder: WorkingDir,
    account: Account,
}

/// `setup_path`, held open: the process enters the very folder that was checked.
#[derive(Debug)]
struct WorkingDir {
    given: String,
    real: PathBuf,
    fd: OwnedFd,
}

/// The interpreter of a command.
#[derive(Debug, PartialEq, Eq)]
enum Interpreter {
    Sh,
    /// PowerShell, and where it is.
    Powershell(PathBuf),
}

impl PreparedCommand {
    /// `mark` is an environment variable that all descendants of the command inherit.
    pub(in crate::exec) fn prepare(
        key: &ProcKey,
        mark: &ProcMark,
        command: &str,
        spec: &Spec,
    ) -> Result<PreparedCommand, NotStarted> {
        let refuse = |reason: &str| Err(NotStarted::new(Code::ArgsInvalid, reason));
        if command.contains('\0') {
            return refuse("the command contains a NUL byte");
        }
        if mark.name().contains('\0') {
            return refuse("the name of the process contains a NUL byte");
        }
        let shell = Interpreter::of(spec.control.shell, PATH)?;
        let (account, folder) = enter(&spec.identity)?;
        let mut environment = facts(key, spec);
        if let Some((name, _)) = environment.iter().find(|(_, value)| value.contains('\0')) {
            return refuse(&format!("{name} would contain a NUL byte"));
        }
        environment.push((MARK, mark.name().to_owned()));
        if is_control_command(command, &spec.control) {
            environment.push((CONTROL_COMMAND, "1".to_owned()));
        }
        let (command, mark) = (command.to_owned(), mark.clone());
        Ok(PreparedCommand { shell, command, environment, mark, folder, account })
    }

    /// Descendants of the command are recognised by its start time.
    #[must_use]
    pub(in crate::exec) fn beginning_at(mut self, began: BootTime) -> PreparedCommand {
        self.environment.push((RUN, began.0.to_string()));
        self.environment.push((PROOF, self.mark.proof(self.account.uid.as_raw(), began)));
        self
    }

    pub(in crate::exec) fn command(&self) -> &str {
        &self.command
    }

    pub(in crate::exec) fn account(&self) -> &Account {
        &self.account
    }

    /// `setup_path` without links.
    pub(in crate::exec) fn folder(&self) -> &Path {
        &self.folder.real
    }

    /// Starts it in this cgroup, writing to `output`. When this returns, the program or its shell is running.
    pub(in crate::exec) fn start(
        self,
        output: CommandOutput,
        group: Option<BorrowedFd<'_>>,
    ) -> Result<(u32, OwnedFd), NotStarted> {
        let failed = |error: io::Error| {
            let (shell, folder, user) =
                (self.shell.program().display(), &self.folder.given, &self.account.name);
            let reason = format!("starting {shell} in setup_path {folder:?} as user {user:?}: {error}");
            NotStarted::new(Code::SystemError, reason)
        };
        // A program that opens /dev/stdout by path needs to own the file.
        let give = |file: &File| {
            if let Err(error) = rustix::fs::fchown(file, Some(self.account.uid), Some(self.account.gid)) {
                tracing::debug!(%error, "cannot chown an output file; the agent keeps it");
            }
        };
        let file = match output {
            CommandOutput::Own { file, .. } => {
                give(&file);
                Some(file)
            }
            CommandOutput::Log { file, live, .. } => {
                if live.is_own() {
                    give(&file);
                }
                Some(file)
            }
            CommandOutput::Nowhere => None,
        };
        let nothing = nothing().map_err(failed)?;
        let output = file.map(above_standard).transpose().map_err(failed)?;
        let output = output.as_ref().map_or(nothing, |file| file.as_fd());
        let request = SpawnRequest {
            programs: self.programs(),
            environment: self.environment(),
            folder: self.folder.fd.as_fd(),
            account: &self.account,
            input: nothing,
            output,
            group,
        };
        children::make(|| fork::make(&request)).map_err(failed)
    }

    /// The program itself where no shell is needed, then the shell: it runs the other commands, and reports
    /// why a program cannot be executed.
    fn programs(&self) -> Vec<ExecTarget> {
        let shell = self.shell.program();
        let flags = self.shell.flags().iter().map(|flag| (*flag).to_owned());
        let arguments = [shell.to_string_lossy().into_owned()].into_iter().chain(flags);
        let shell = ExecTarget {
            file: c_string(shell.as_os_str().as_bytes()),
            arguments: arguments.chain([self.command.clone()]).map(c_string).collect(),
        };
        let direct = match self.shell {
            Interpreter::Sh => argv::plain(&self.command).and_then(|words| {
                let first = *words.first()?;
                // A path with a slash is relative to the command's folder, which the child has entered by
                // then.
                let file = match first.contains('/') {
                    true => PathBuf::from(first),
                    false => on_path(first, PATH)?,
                };
                let file = c_string(file.as_os_str().as_bytes());
                Some(ExecTarget { file, arguments: words.into_iter().map(c_string).collect() })
            }),
            Interpreter::Powershell(_) => None,
        };
        direct.into_iter().chain([shell]).collect()
    }

    fn environment(&self) -> Vec<CString> {
        let Account { name, home, shell, .. } = &self.account;
        let facts = self.environment.iter().map(|(name, value)| (*name, value.as_bytes()));
        let always = [
            ("PATH", PATH.as_bytes()),
            ("LANG", b"C.UTF-8"),
            ("HOME", home.as_bytes()),
            ("SHELL", shell.as_bytes()),
            ("USER", name.as_bytes()),
            ("LOGNAME", name.as_bytes()),
        ];
        let pair = |(name, value): (&str, &[u8])| c_string([name.as_bytes(), b"=", value].concat());
        always.into_iter().chain(facts).map(pair).collect()
    }
}

/// No text here has a NUL: text of callers was checked, and the rest comes from strings of the kernel and the
/// C library.
fn c_string(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Allocates what spawning needs. Call it before there are many open files.
pub(in crate::exec) fn reserve_resources() -> io::Result<()> {
    fork::reserve_resources(nothing()?)
}

/// `/dev/null`: standard input of commands, and the output of a command without a file.
fn nothing() -> io::Result<BorrowedFd<'static>> {
    static NOTHING: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(nothing) = NOTHING.get() {
        return Ok(nothing.as_fd());
    }
    let opened = above_standard(OpenOptions::new().read(true).write(true).open("/dev/null")?)?;
    Ok(NOTHING.get_or_init(|| opened).as_fd())
}

/// Moves the file to a descriptor above 2, because the child replaces 0 to 2 one by one.
fn above_standard(file: File) -> io::Result<OwnedFd> {
    match file.as_raw_fd() {
        0..3 => Ok(rustix::io::fcntl_dupfd_cloexec(&file, 3)?),
        _ => Ok(file.into()),
    }
}

impl Interpreter {
    /// The interpreter that the spec names, if this host has it.
    fn of(shell: Shell, path: &str) -> Result<Interpreter, NotStarted> {
        let without = |ext: &str, why: &str| {
            let reason = format!("this host cannot run {ext} scripts (cmd_shell_ext): {why}");
            NotStarted::new(Code::ArgsInvalid, reason)
        };
        match shell {
            Shell::Sh => Ok(Interpreter::Sh),
            Shell::Ps1 => on_path("pwsh", path)
                .map(Interpreter::Powershell)
                .ok_or_else(|| without("ps1", "it has no pwsh")),
            Shell::Bat => Err(without("bat", "it runs Linux, and they need Windows")),
        }
    }

    fn program(&self) -> &Path {
        match self {
            Interpreter::Sh => Path::new(SHELL),
            Interpreter::Powershell(path) => path,
        }
    }

    fn flags(&self) -> &'static [&'static str] {
        match self {
            Interpreter::Sh => &["-c"],
            Interpreter::Powershell(_) => &POWERSHELL_FLAGS,
        }
    }
}

/// The first file of this name on a search path that may be run.
fn on_path(name: &str, path: &str) -> Option<PathBuf> {
    let runs = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    };
    path.split(':').map(|folder| Path::new(folder).join(name)).find(runs)
}

/// Whether this command is there to end or reload the process, and not to become it: an agent that finds it
/// still at work after a restart of its own must not take it for the process.
fn is_control_command(command: &str, control: &Control) -> bool {
    let Control { start_cmd, restart_cmd, stop_cmd, kill_cmd, reload_cmd, .. } = control;
    let is_one_of = |commands: &[&String]| commands.iter().any(|one| *one == command);
    is_one_of(&[stop_cmd, kill_cmd, reload_cmd]) && !is_one_of(&[start_cmd, restart_cmd])
}

/// Fields of the spec as environment variables. Empty fields are left out.
fn facts(key: &ProcKey, spec: &Spec) -> Vec<(&'static str, String)> {
    let (proc, instance) = spec.instance(key);
    let (identity, job) = (&spec.identity, &spec.job);
    let mut facts = vec![
        ("PROCFLEET_NAMESPACE", proc.namespace),
        ("PROCFLEET_NAME", proc.name),
        ("PROCFLEET_INSTANCE", instance.to_string()),
        ("PROCFLEET_PROC_NAME", identity.proc_name.clone()),
        ("PROCFLEET_SETUP_PATH", identity.setup_path.clone()),
        ("PROCFLEET_PID_PATH", identity.pid_path.clone()),
        ("PROCFLEET_CONFIG_PATH", identity.config_path.clone()),
        ("PROCFLEET_LOG_PATH", identity.log_path.clone()),
        ("PROCFLEET_CONTACT", job.contact.clone()),
        ("PROCFLEET_FUNC_ID", job.func_id.clone()),
        ("PROCFLEET_INSTANCE_ID", job.instance_id.clone()),
        ("PROCFLEET_REPORT_ID", spec.report_id.map(|id| id.to_string()).unwrap_or_default()),
    ];
    facts.retain(|(_, value)| !value.is_empty());
    facts
}

/// `setup_path`, if the account can enter it and no link of a third account leads there.
fn enter(identity: &Identity) -> Result<(Account, WorkingDir), NotStarted> {
    let Identity { setup_path, user, .. } = identity;
    if !Path::new(setup_path).is_absolute() {
        let reason = format!("setup_path {setup_path:?} is not an absolute path");
        return Err(NotStarted::new(Code::ArgsInvalid, reason));
    }
    let unusable = |why: &str| NotStarted::new(Code::FileInvalid, format!("setup_path {setup_path:?} {why}"));
    if setup_path.contains('\0') {
        return Err(unusable("contains a NUL byte"));
    }
    let account = Account::of(user)?;
    let way = match account.with_rights_of(|| path_walk::walk(Path::new(setup_path))) {
        Ok(way) => way,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(unusable("does not exist")),
        Err(error) => return Err(unusable(&format!("cannot be entered by user {user:?}: {error}"))),
    };
    if !way.is(FileType::Directory) {
        return Err(unusable("is not a directory"));
    }
    if let Some(doubt) = way.doubted_links(&PathTrust::spec(user)) {
        return Err(unusable(&format!("cannot be used: {doubt}")));
    }
    let real = way.real().to_owned();
    Ok((account, WorkingDir { given: setup_path.clone(), real, fd: way.into_fd() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::spec::Instances;

    #[test]
    fn a_script_needs_what_reads_it() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let (empty, full) = (folder.path().join("empty"), folder.path().join("full"));
        fs::create_dir(&empty).expect("our folder");
        fs::create_dir(&full).expect("our folder");
        let path = format!("{}:{}", empty.display(), full.display());
        let check = |shell, expected: Result<Interpreter, &str>| {
            let found = Interpreter::of(shell, &path);
            let expected = expected.map_err(|reason| NotStarted::new(Code::ArgsInvalid, reason));
            assert_eq!(found, expected, "{shell:?}");
        };
        let no_pwsh = "this host cannot run ps1 scripts (cmd_shell_ext): it has no pwsh";
        let no_bat = "this host cannot run bat scripts (cmd_shell_ext): it runs Linux, and they need Windows";
        check(Shell::Sh, Ok(Interpreter::Sh));
        check(Shell::Bat, Err(no_bat));
        check(Shell::Ps1, Err(no_pwsh));
        let pwsh = full.join("pwsh");
        fs::write(&pwsh, "").expect("our folder");
        check(Shell::Ps1, Err(no_pwsh));
        fs::set_permissions(&pwsh, fs::Permissions::from_mode(0o755)).expect("our file");
        check(Shell::Ps1, Ok(Interpreter::Powershell(pwsh)));
    }

    #[test]
    fn a_command_learns_what_its_spec_says() {
        let key = ProcKey { namespace: "web".to_owned(), name: "nginx#3".to_owned() };
        let mut spec = Spec { report_id: Some(0), instances: Instances(3), ..Spec::default() };
        let names = |spec: &Spec| facts(&key, spec).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let always = ["PROCFLEET_NAMESPACE", "PROCFLEET_NAME", "PROCFLEET_INSTANCE", "PROCFLEET_REPORT_ID"];
        assert_eq!(names(&spec), always);
        for field in
            [&mut spec.identity.proc_name, &mut spec.identity.setup_path, &mut spec.identity.pid_path]
        {
            *field = "x".to_owned();
        }
        for field in [&mut spec.identity.config_path, &mut spec.identity.log_path, &mut spec.job.contact] {
            *field = "x".to_owned();
        }
        (spec.job.func_id, spec.job.instance_id) = ("x".to_owned(), "x".to_owned());
        assert_eq!(names(&spec).len(), 12);
        let value = |name| facts(&key, &spec).into_iter().find(|(known, _)| *known == name).expect("there").1;
        assert_eq!(
            (value("PROCFLEET_NAME"), value("PROCFLEET_INSTANCE")),
            ("nginx".to_owned(), "3".to_owned())
        );
        assert_eq!(value("PROCFLEET_REPORT_ID"), "0");
    }
}
