//! A program that a test starts: the only code that makes processes. It is killed when it is dropped.

use crate::wait::{PATIENCE, wait_for};
use rustix::process::{Pid, Signal};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The text for standard input.
#[derive(Clone, Copy, Debug)]
pub enum Stdin<'a> {
    Nothing,
    Text(&'a str),
}

#[derive(Debug)]
pub struct Program {
    command: Command,
    child: Option<Child>,
    /// The folder of its output files: with files, no thread has to read pipes.
    folder: TempDir,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    pub pid: u32,
    /// `None`: a signal ended it.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Program {
    /// The program gets only the environment variables that every program needs.
    #[expect(clippy::disallowed_methods, reason = "end-to-end tests run the built program")]
    pub fn new(program: impl AsRef<Path>) -> Program {
        let folder = tempfile::tempdir().expect("a folder for output");
        let mut command = Command::new(program.as_ref());
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("LANG", "C.UTF-8");
        command.stdin(Stdio::null()).stdout(file(&folder, "stdout")).stderr(file(&folder, "stderr"));
        Program { command, child: None, folder }
    }

    pub fn args<S: AsRef<std::ffi::OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Program {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Program {
        self.command.env(name, value);
        self
    }

    pub fn current_dir(mut self, folder: &Path) -> Program {
        self.command.current_dir(folder);
        self
    }

    pub fn stdin(mut self, stdin: Stdin<'_>) -> Program {
        if let Stdin::Text(text) = stdin {
            let path = self.folder.path().join("stdin");
            fs::write(&path, text).expect("our own folder");
            self.command.stdin(File::open(path).expect("our own file"));
        }
        self
    }

    /// Redirects standard output, instead of to a file that the test reads.
    pub fn stdout_to(mut self, stdout: impl Into<Stdio>) -> Program {
        self.command.stdout(stdout);
        self
    }

    /// Redirects standard error, instead of to a file that the test reads.
    pub fn stderr_to(mut self, stderr: impl Into<Stdio>) -> Program {
        self.command.stderr(stderr);
        self
    }

    pub fn start(&mut self) {
        self.child = Some(self.command.spawn().expect("the program can be started"));
    }

    /// Starts it and waits for its end.
    #[track_caller]
    pub fn run(mut self) -> Finished {
        self.start();
        self.finish(PATIENCE)
    }

    /// Waits for its end.
    #[track_caller]
    pub fn finish(&mut self, deadline: Duration) -> Finished {
        let (status, _) = self.wait(deadline);
        Finished { pid: self.pid(), code: status.code(), stdout: self.stdout(), stderr: self.stderr() }
    }

    /// Signals the program, and waits for its end.
    #[track_caller]
    pub fn end(&mut self, signal: Signal, deadline: Duration) -> (ExitStatus, Duration) {
        // A child that has not ended, or was not waited for, still has its pid.
        if self.is_running() {
            let child = self.child.as_ref().expect("it is running");
            let _ = rustix::process::kill_process(Pid::from_child(child), signal);
        }
        self.wait(deadline)
    }

    #[track_caller]
    fn wait(&mut self, deadline: Duration) -> (ExitStatus, Duration) {
        let began = Instant::now();
        let what = format!("{:?} ends", self.command.get_program());
        let child = self.child.as_mut().expect("it was started");
        let status = wait_for(deadline, &what, || child.try_wait().expect("our own child"));
        (status, began.elapsed())
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it was started").id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("our own child").is_none())
    }

    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.path(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child
            && !matches!(child.try_wait(), Ok(Some(_)))
        {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The number of sessions in an agent's log.
pub(crate) fn sessions(log: &str) -> usize {
    log.matches("connected epoch=").count()
}

fn file(folder: &TempDir, name: &str) -> File {
    File::create(folder.path().join(name)).expect("a file for output")
}
