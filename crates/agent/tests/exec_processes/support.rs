//! A proc with a folder of its own, whose processes are all ended when the test is.

#![expect(clippy::disallowed_methods, reason = "strangers are made here, which exec must leave alone")]

use procfleet_agent::exec::{Containment, ExecContext, ProcExecutor};
use procfleet_agent::inbox::{Inbox, inbox};
use procfleet_core::process::Cause;
use procfleet_core::supervise::{CommandEnd, EffectAnswer, Input, Leader, LookScope, ProcNotice, RunId};
use procfleet_core::{Exit, ProcKey, Process, Sighting, Spec};
use procfleet_testkit::remember;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Long enough for a loaded machine; nobody waits for it unless something is wrong.
const DEADLINE: Duration = Duration::from_secs(120);

/// A number that the kernel has given to somebody else since does not count.
pub(crate) use procfleet_testkit::is_running;

pub(crate) struct Proc {
    pub(crate) folder: TempDir,
    containment: Containment,
    pub(crate) spec: Spec,
    pub(crate) key: ProcKey,
    pub(crate) context: Arc<ExecContext>,
    pub(crate) executor: ProcExecutor,
    inputs: Inbox,
    /// Inputs that came before anybody asked for them.
    backlog: Vec<Input>,
    runs: u64,
}

impl Proc {
    /// A proc named `name` whose program is `web`. The name must be used by one test only: it is the mark.
    pub(crate) fn new(name: &str) -> Proc {
        Proc::contained(name, Containment::Auto)
    }

    pub(crate) fn contained(name: &str, containment: Containment) -> Proc {
        let folder = tempfile::tempdir().expect("a temp dir");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("our folder");
        let host = Arc::new(ExecContext::open(folder.path().join("output"), containment).expect("a host"));
        let key = ProcKey { namespace: "exec-test".to_owned(), name: name.to_owned() };
        let (send, inputs) = inbox(4);
        let executor = ProcExecutor::new(host.clone(), key.clone(), send);
        let mut spec = Spec::default();
        spec.identity.proc_name = "web".to_owned();
        spec.identity.setup_path = folder.path().to_str().expect("a plain path").to_owned();
        spec.identity.user = me();
        install("/bin/sleep", &folder.path().join("web"));
        Proc { folder, containment, spec, key, context: host, executor, inputs, backlog: Vec::new(), runs: 0 }
    }

    pub(crate) fn with_pid_file(name: &str) -> Proc {
        let mut proc = Proc::new(name);
        proc.spec.identity.pid_path = proc.path("web.pid").to_str().expect("a plain path").to_owned();
        proc
    }

    /// The same proc in the executor of an agent that has just started.
    pub(crate) fn forget(&mut self) {
        let (send, inputs) = inbox(4);
        self.inputs = inputs;
        self.backlog.clear();
        self.executor = ProcExecutor::new(self.context.clone(), self.key.clone(), send);
    }

    /// As [`Proc::forget`], and the agent has its host anew too.
    pub(crate) fn forget_with_a_new_host(&mut self) {
        self.context = Arc::new(ExecContext::open(self.path("output"), self.containment).expect("a host"));
        self.forget();
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    pub(crate) fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(file), text).expect("our own folder can be written");
    }

    pub(crate) fn script(&self, file: &str, text: &str) {
        let draft = format!("{file}.draft");
        self.write(&draft, format!("#!/bin/sh\n{text}"));
        install(self.path(&draft), &self.path(file));
    }

    /// A program in the proc's folder that sleeps.
    pub(crate) fn program(&self, file: &str) {
        install("/bin/sleep", &self.path(file));
    }

    pub(crate) fn fifo(&self, file: &str) -> PathBuf {
        let path = self.path(file);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a fifo");
        path
    }

    pub(crate) fn run(&mut self, command: &str) -> RunId {
        self.runs += 1;
        self.executor.run(RunId(self.runs), command, &self.spec);
        RunId(self.runs)
    }

    /// Runs a command to its end.
    pub(crate) async fn output_of(&mut self, command: &str) -> (Exit, String) {
        let run = self.run(command);
        match self.end_of(run).await {
            CommandEnd::Exited { exit, output } => (exit, output),
            CommandEnd::NotStarted { reason, .. } => panic!("{command}: {reason}"),
        }
    }

    pub(crate) async fn end_of(&mut self, run: RunId) -> CommandEnd {
        self.input(|input| match input {
            Input::Answer(EffectAnswer::CommandEnded { run: ended, end }) if *ended == run => {
                Some(end.clone())
            }
            _ => None,
        })
        .await
    }

    pub(crate) async fn exit_of(&mut self, process: Process) -> Exit {
        self.input(|input| match input {
            Input::Notice(ProcNotice::Exited { process: gone, exit }) if gone.is(&process) => Some(*exit),
            _ => None,
        })
        .await
    }

    async fn input<T>(&mut self, wanted: impl Fn(&Input) -> Option<T>) -> T {
        if let Some(index) = self.backlog.iter().position(|input| wanted(input).is_some()) {
            return wanted(&self.backlog.remove(index)).expect("it was there a moment ago");
        }
        let search = async {
            loop {
                let input = *self.inputs.recv().await.expect("the executor are alive");
                if let Some(found) = wanted(&input) {
                    return found;
                }
                self.backlog.push(input);
            }
        };
        tokio::time::timeout(DEADLINE, search).await.expect("the input comes")
    }

    /// Nothing has been reported that nobody asked for.
    pub(crate) fn assert_silent(&mut self) {
        self.backlog.extend(std::iter::from_fn(|| self.inputs.try_recv().map(|input| *input)));
        assert_eq!(self.backlog, []);
    }

    pub(crate) fn settled(&mut self) -> Sighting {
        self.executor.look(LookScope::Settled, &self.spec)
    }

    /// As if the spec named no pid file.
    pub(crate) fn settled_without_file(&mut self) -> Sighting {
        let mut spec = self.spec.clone();
        spec.identity.pid_path.clear();
        self.executor.look(LookScope::Settled, &spec)
    }

    pub(crate) fn launched(&mut self, run: RunId, leader: Leader) -> Sighting {
        self.executor.look(LookScope::Launch { run, leader }, &self.spec)
    }

    pub(crate) fn recovered(&mut self, last: Option<Process>) -> Sighting {
        self.executor.look(LookScope::Recovery { last }, &self.spec)
    }

    /// Looks among what the run started until it finds the process with this pid.
    pub(crate) async fn found(&mut self, run: RunId, pid: u32) -> Process {
        until("the process is found", || match self.launched(run, Leader::Refuse) {
            Sighting::Running(process) if process.pid == pid => Some(process),
            Sighting::Running(_) | Sighting::Absent(_) => None,
        })
        .await
    }

    /// The pid that a script writes into this file.
    pub(crate) async fn pid_in(&self, file: &str) -> u32 {
        let path = self.path(file);
        until(&format!("a pid is in {file}"), || {
            let text = fs::read_to_string(&path).ok()?;
            text.strip_suffix('\n')?.trim().parse().ok().map(remember)
        })
        .await
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let mark = format!("PROCFLEET_PROC={}", self.context.mark(&self.key));
        for _ in 0..5 {
            for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
                let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
                if environ.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes()) {
                    kill(entry.file_name().to_str().and_then(|pid| pid.parse().ok()).unwrap_or(0));
                }
            }
        }
    }
}

/// A process that is none of ours, with a death of its own at the end of the test.
pub(crate) struct Stranger(Child);

impl Stranger {
    pub(crate) fn start(program: impl AsRef<Path>, folder: &Path) -> Stranger {
        Stranger::start_as(program, folder, &[])
    }

    pub(crate) fn start_as(
        program: impl AsRef<Path>,
        folder: &Path,
        environment: &[(&str, &str)],
    ) -> Stranger {
        let mut command = Command::new(program.as_ref());
        command.arg("1000").current_dir(folder).env_clear().envs(environment.iter().copied());
        Stranger::spawn(&mut command)
    }

    pub(crate) fn spawn(command: &mut Command) -> Stranger {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let stranger = Stranger(command.spawn().expect("a stranger"));
        // `spawn` returns while the kernel still lays out the new program: for a moment it has no arguments.
        // The pid may have been another process's before, so `is_running` would not mean this one; and the
        // test may want it unreaped.
        let of_child = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", stranger.pid()));
        let is_dead = || of_child("stat").is_ok_and(|stat| stat.contains(") Z "));
        while !is_dead() && of_child("cmdline").is_ok_and(|arguments| arguments.is_empty()) {
            std::thread::yield_now();
        }
        stranger
    }

    /// A stranger with this very pid.
    pub(crate) fn with_pid(pid: u32, command: &mut Command) -> std::io::Result<Option<Stranger>> {
        procfleet_testkit::with_pid(pid, || Stranger::spawn(command), Stranger::pid)
    }

    /// A shell that waits for somebody to type something.
    pub(crate) fn shell(folder: &Path, arguments: &[&str]) -> Stranger {
        let mut command = Command::new("/bin/sh");
        command.args(arguments).current_dir(folder).env_clear();
        Stranger::spawn(&mut command)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn assert_ended(&mut self) {
        self.0.wait().expect("our own child");
    }

    pub(crate) fn assert_unharmed(&mut self) {
        assert_eq!(self.0.try_wait().expect("our own child"), None, "the stranger was ended");
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Copies a program in a process of its own. Written by us, it would be open in whatever another test forks
/// at that moment, and a file that is open for writing cannot be executed.
pub(crate) fn install(program: impl AsRef<Path>, to: &Path) {
    let install = Command::new("install").args(["-m", "755"]).arg(program.as_ref()).arg(to).status();
    assert!(install.expect("install runs").success());
}

/// Asks again and again until there is an answer.
pub(crate) async fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < DEADLINE, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) async fn until_gone(pid: u32) {
    until(&format!("{pid} is gone"), || (!is_running(pid)).then_some(())).await;
}

pub(crate) async fn until_called(pid: u32, name: &str) {
    until(&format!("{pid} is {name}"), || (comm(pid) == name).then_some(())).await;
}

pub(crate) fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

pub(crate) fn state_of(pid: u32) -> Option<char> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// What `exec` would call this process.
pub(crate) fn process(pid: u32) -> Process {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is running");
    let rest = stat.rsplit_once(") ").expect("a stat line").1;
    let start_ticks = rest.split(' ').nth(19).expect("a start time").parse().expect("a number");
    let evidence = procfleet_core::process::Evidence::default();
    Process { pid, start_ticks, found: procfleet_core::process::Found::PidFile, evidence }
}

pub(crate) fn running(sighting: Sighting) -> Process {
    match sighting {
        Sighting::Running(process) => {
            remember(process.pid);
            process
        }
        Sighting::Absent(absence) => panic!("not running: {}", absence.cause),
    }
}

pub(crate) fn cause(sighting: Sighting) -> Cause {
    match sighting {
        Sighting::Absent(absence) => absence.cause,
        Sighting::Running(process) => panic!("{process:?} is running"),
    }
}

pub(crate) fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// The account that the tests run as.
pub(crate) fn me() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid())
        .ok()
        .flatten()
        .map_or_else(String::new, |user| user.name)
}
