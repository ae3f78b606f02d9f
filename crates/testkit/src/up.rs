//! `procfleet up` in its own folder.

use crate::client::Client;
use crate::disk::Disk;
use crate::machine::setting;
use crate::postgres::Cluster;
use crate::proc::Proc;
use crate::process::{self, kill};
use crate::program::{Finished, Program, Stdin, sessions};
use crate::wait::{EVERY, PATIENCE, ask_again, wait_for, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// How long `up` may take to end at the end of a test before it is killed.
const END: Duration = Duration::from_secs(5);
/// A port on which nothing listens.
const NO_PROXY: &str = "http://127.0.0.1:9";
/// How much of a log a failed test shows.
const LOG_SHOWN: usize = 12_000;

/// A server and an agent for this host. Dropping it ends both and every process of its namespace.
#[derive(Debug)]
pub struct Up {
    binary: PathBuf,
    program: Program,
    /// Arguments other than its addresses and folder.
    flags: Vec<String>,
    /// The address of the agents' link.
    link_address: Ipv4Addr,
    /// Different for every `Up` on this machine: the mark that the agent leaves in processes holds it.
    pub namespace: String,
    pub client: Client,
    logs: Vec<String>,
    /// How many sessions agents of this life of `up` had before the last one was ended.
    sessions_before: AtomicUsize,
    // Last, so that it outlives the programs that use it.
    folder: TempDir,
}

/// `postgres`: every `up` has a PostgreSQL database of its own instead of the SQLite file.
const ENGINE: &str = "PROCFLEET_TEST_ENGINE";

impl Up {
    /// Starts it and waits until it is ready.
    #[track_caller]
    pub fn start(binary: impl AsRef<Path>) -> Up {
        Up::start_with(binary, &[])
    }

    /// As [`Up::start`], with more flags, which it keeps when it is started again.
    #[track_caller]
    pub fn start_with(binary: impl AsRef<Path>, flags: &[&str]) -> Up {
        Up::start_on(binary, flags, None, |_| {})
    }

    /// As [`Up::start`], with the logs of server and agent going there. [`Up::stderr`] cannot read them then.
    #[track_caller]
    pub fn start_logging_to(binary: impl AsRef<Path>, stderr: OwnedFd) -> Up {
        Up::start_on(binary, &[], Some(stderr), |_| {})
    }

    /// As [`Up::start`], with its data folder on a disk of this size. `None`: PROCFLEET_TESTS_WITHOUT
    /// excludes it.
    #[track_caller]
    pub fn start_on_disk(binary: impl AsRef<Path>, size: &str) -> Option<(Up, Disk)> {
        let mut disk = None;
        let up = Up::start_on(binary, &[], None, |data| disk = Disk::mount(data, size));
        Some((up, disk?))
    }

    #[track_caller]
    fn start_on(
        binary: impl AsRef<Path>,
        flags: &[&str],
        stderr: Option<OwnedFd>,
        make_data: impl FnOnce(&Path),
    ) -> Up {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let folder = tempfile::Builder::new().prefix("procfleet-").tempdir().expect("a temp dir");
        // Commands may run as another user.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("our own folder");
        make_data(&folder.path().join("data"));
        let binary = binary.as_ref().to_owned();
        let mut flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        if setting(ENGINE).is_some_and(|engine| engine == "postgres")
            && !flags.iter().any(|flag| flag == "--store")
        {
            flags.extend(["--store".to_owned(), Cluster::shared().database()]);
        }
        let link = format!("{}:0", own_address(serial));
        let mut program = program(&binary, folder.path(), &link, &flags);
        if let Some(stderr) = stderr {
            program = program.stderr_to(stderr);
        }
        let mut up = Up {
            binary,
            program,
            flags,
            link_address: own_address(serial),
            namespace: format!("e2e-{}-{serial}", std::process::id()),
            client: Client::new("", "", ""),
            logs: Vec::new(),
            sessions_before: AtomicUsize::new(0),
            folder,
        };
        up.begin();
        up
    }

    #[track_caller]
    fn begin(&mut self) {
        self.program.start();
        let program = &mut self.program;
        let url = wait_for(PATIENCE, "procfleet up is ready", || {
            assert!(program.is_running(), "procfleet up has ended: {}", program.stderr());
            let said = program.stdout();
            let line = said.lines().find(|line| line.starts_with("procfleet is ready"))?;
            line.split(' ').find(|word| word.starts_with("http")).map(str::to_owned)
        });
        let admin = self.admin();
        let field = |name: &str| admin[name].as_str().expect("admin.json holds texts").to_owned();
        let is_outdated = self.program.stderr().contains("admin.json cannot be updated on the full disk");
        assert!(is_outdated || field("url") == url, "admin.json and the ready line name one url");
        self.client = Client::new(&url, &field("bk_app_code"), &field("bk_app_secret"));
        self.sessions_before.store(0, Ordering::Relaxed);
        // On a busy machine `up` is ready before its agent is. The agents of some tests cannot connect.
        if self.stderr().contains("the agent has not connected yet") {
            ask_again(EVERY, PATIENCE, || self.is_agent_connected().then_some(()));
        }
    }

    /// Starts it again on the same data, after it has ended.
    #[track_caller]
    pub fn again(&mut self) {
        assert!(!self.program.is_running(), "it still runs");
        self.logs.push(self.program.stderr());
        let link = format!("{}:0", self.link_address);
        self.program = program(&self.binary, self.folder.path(), &link, &self.flags);
        self.begin();
    }

    /// As [`Up::again`], where agents that have joined find it.
    #[track_caller]
    pub fn again_with_the_same_link(&mut self) {
        assert!(!self.program.is_running(), "it still runs");
        let link = self.link();
        self.logs.push(self.program.stderr());
        let link = link.strip_prefix("https://").expect("the link is https");
        self.program = program(&self.binary, self.folder.path(), link, &self.flags);
        self.begin();
    }

    /// Adds flags for the next start.
    pub fn add_flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    /// Tells it to end, and says with which code it did.
    #[track_caller]
    pub fn end(&mut self, signal: Signal) -> Option<i32> {
        let agent = self.agent_pid();
        let (status, _) = self.program.end(signal, PATIENCE);
        wait_until(PATIENCE, "the agent has ended too", || !process::is_running(agent));
        status.code()
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub fn finish(&mut self) -> Finished {
        self.program.finish(PATIENCE)
    }

    /// `kill -9` of server and agent at the same moment.
    #[track_caller]
    pub fn kill_all(&mut self) {
        let agent = self.agent_pid();
        kill(agent, Signal::KILL);
        self.program.end(Signal::KILL, PATIENCE);
        wait_until(PATIENCE, "the agent has ended too", || !process::is_running(agent));
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A folder for files of the test.
    pub fn folder(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        fs::create_dir_all(&folder).expect("our own folder");
        folder
    }

    pub fn admin(&self) -> Value {
        let text = fs::read(self.data().join("admin.json")).expect("up writes admin.json");
        serde_json::from_slice(&text).expect("admin.json is JSON")
    }

    pub fn binary(&self) -> &Path {
        &self.binary
    }

    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    pub fn stdout(&self) -> String {
        self.program.stdout()
    }

    pub fn stderr(&self) -> String {
        self.program.stderr()
    }

    /// The agent that it keeps running.
    #[track_caller]
    pub fn agent_pid(&self) -> u32 {
        wait_for(PATIENCE, "up has an agent", || self.agent_pid_now())
    }

    fn agent_pid_now(&self) -> Option<u32> {
        process::children(self.pid()).into_iter().next().map(process::remember)
    }

    /// `kill -9` of the agent; waits until the next one is connected. Says the pid of the dead one.
    #[track_caller]
    pub fn kill_agent(&self) -> u32 {
        let agent = self.take_agent_away();
        self.wait_for_agent();
        agent
    }

    /// As [`Up::kill_agent`], and there may be no other agent yet. An op that is sent now ends with 117 where
    /// the machine takes more than 5 s to start one.
    #[track_caller]
    pub fn take_agent_away(&self) -> u32 {
        let agent = self.agent_pid();
        kill(agent, Signal::KILL);
        wait_until(PATIENCE, "the agent is dead", || !process::is_running(agent));
        // Every later connection is its successor's.
        self.sessions_before.store(self.sessions(), Ordering::Relaxed);
        agent
    }

    /// Tells the agent to re-execute its program file (SIGHUP), and waits until the agent is connected again.
    #[track_caller]
    pub fn renew_agent(&self) {
        self.wait_for_agent();
        self.sessions_before.store(self.sessions(), Ordering::Relaxed);
        kill(self.agent_pid(), Signal::HUP);
        self.wait_for_agent();
    }

    /// Waits until this host's agent is connected: the present one, and not a killed one in whose session the
    /// server believes for a while.
    #[track_caller]
    pub fn wait_for_agent(&self) {
        wait_until(PATIENCE, "the agent is connected", || self.is_agent_connected());
    }

    fn is_agent_connected(&self) -> bool {
        let is_listed = || {
            let agents = self.client.data("/api/v1/agents");
            agents.as_array().is_some_and(|agents| agents.iter().any(|agent| agent["connected"] == true))
        };
        self.sessions() > self.sessions_before.load(Ordering::Relaxed) && is_listed()
    }

    /// The number of sessions in the logs of this run of `up`.
    fn sessions(&self) -> usize {
        sessions(&self.stderr())
    }

    /// The address of the agents' link.
    #[track_caller]
    pub fn link(&self) -> String {
        let log = self.stderr();
        let line =
            log.lines().find(|line| line.contains("server is up")).expect("the log names the addresses");
        let address =
            line.split(' ').find_map(|word| word.strip_prefix("link=")).expect("the log names the link");
        format!("https://{address}")
    }

    /// A proc of this host with its own folder.
    pub fn proc(&self, name: &str) -> Proc {
        Proc::new(self.client.clone(), &self.namespace, name, self.folder(&format!("procs/{name}")))
    }

    /// A client verb, with the credentials of `admin.json`.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> Finished {
        self.cli_program(args).run()
    }

    #[track_caller]
    pub fn cli_with_stdin(&self, args: &[&str], stdin: &str) -> Finished {
        self.cli_program(args).stdin(Stdin::Text(stdin)).run()
    }

    fn cli_program(&self, args: &[&str]) -> Program {
        let folder = self.folder("cli");
        Program::new(&self.binary)
            .args(args)
            .env("PROCFLEET_DATA", self.data())
            .env("ALL_PROXY", NO_PROXY)
            .current_dir(&folder)
    }

    /// A join token, as `procfleet token create` prints it.
    #[track_caller]
    pub fn token(&self, flags: &[&str]) -> String {
        let made = self.cli(&[&["token", "create"], flags].concat());
        assert_eq!(made.code, Some(0), "{made:?}");
        made.stdout.trim().to_owned()
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.logs.push(self.program.stderr());
            for log in &self.logs {
                let from = log.len().saturating_sub(LOG_SHOWN);
                let from = (from..=log.len()).find(|at| log.is_char_boundary(*at)).unwrap_or(0);
                eprintln!("---- the end of up's log ----\n{}", &log[from..]);
            }
        }
        if self.program.is_running() {
            let agent = self.agent_pid_now();
            kill(self.pid(), Signal::TERM);
            let began = std::time::Instant::now();
            while self.program.is_running() && began.elapsed() < END {
                crate::wait::pause();
            }
            if self.program.is_running() {
                kill(self.pid(), Signal::KILL);
            }
            agent
                .filter(|agent| process::is_running(*agent))
                .into_iter()
                .for_each(|agent| kill(agent, Signal::KILL));
        }
        // An agent whose `up` was killed may still be ending.
        process::kill_with_argument(&self.data().join("agent"));
        // Only now, because a living agent would restart hosted processes.
        process::kill_marked(&self.namespace);
        process::kill_working_in(self.folder.path());
    }
}

/// A loopback address that no other `up` of this machine uses, and no connection. So a port of it can be
/// bound again after its release.
fn own_address(serial: u32) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    let [.., last] = serial.to_be_bytes();
    // 127.0.0.0/10 is for the hosts of tests.
    Ipv4Addr::new(127, 64 | (high & 0x3f), low, last)
}

fn program(binary: &Path, folder: &Path, link: &str, flags: &[String]) -> Program {
    Program::new(binary)
        .args(["up", "--listen", "127.0.0.1:0", "--link", link, "--data"])
        .args([folder.join("data")])
        .args(flags)
        .current_dir(folder)
        // Requests that went through a proxy of the environment would fail: nothing listens there.
        .env("ALL_PROXY", NO_PROXY)
        .env("http_proxy", NO_PROXY)
        // The agent of `up` is on the server's host and uses no proxy at all.
        .env("PROCFLEET_PROXY", NO_PROXY)
}
