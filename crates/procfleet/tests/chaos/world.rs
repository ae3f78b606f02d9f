//! A server and some agents in processes of their own, a way between them, and a workload.

use crate::history::{self, Runs, Sent, Verdict};
use crate::overtake;
use crate::proxy::Proxy;
use crate::short_lived;
use procfleet_testkit::{Client, PATIENCE, Proc, Program, Signal, ask_again, wait_until};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How many agents there are where one is not enough.
pub(crate) const AGENTS: usize = 3;
/// How long a killed point may take to be passed.
const REACHED: Duration = Duration::from_secs(90);
/// How many callers there are, and how many procs each of them has.
const CALLERS: usize = 3;
const PROCS: u64 = 4;
/// How long a caller waits for an outcome before it sends the next task.
const IMPATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(15);

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Agent(usize),
}

/// The agent, where there is only one, and the first of several.
pub(crate) const AGENT: Side = Side::Agent(0);

/// An agent and its host.
#[derive(Debug)]
pub(crate) struct Host {
    program: Program,
    pub(crate) ip: String,
    pub(crate) data: PathBuf,
    /// More of its environment.
    pub(crate) environment: Vec<(String, String)>,
}

impl Host {
    fn new(index: usize, data: PathBuf) -> Host {
        let ip = format!("127.0.0.{}", index + 2);
        Host { program: Program::new("/bin/true"), ip, data, environment: Vec::new() }
    }
}

#[derive(Debug)]
pub(crate) struct World {
    server: Program,
    pub(crate) hosts: Vec<Host>,
    pub(crate) proxy: Proxy,
    pub(crate) client: Client,
    /// Where the API and the link are, in every life of the server.
    listen: String,
    pub(crate) link: String,
    pub(crate) namespace: String,
    pub(crate) server_data: PathBuf,
    /// More of the server's environment.
    pub(crate) server_environment: Vec<(String, String)>,
    /// Tasks that a fault has sent beside the workload.
    pub(crate) others: usize,
    /// Whether the server's wall clock went wrong, so that it cannot tell what was late.
    pub(crate) clock_jumped: bool,
    logs: Vec<String>,
    // Last, so that it outlives the programs.
    folder: TempDir,
}

impl World {
    /// With one agent.
    pub(crate) fn start() -> World {
        World::with_agents(1)
    }

    pub(crate) fn with_agents(agents: usize) -> World {
        let folder = folder();
        let server = folder.path().join("server");
        let agents = (0..agents).map(|index| folder.path().join(format!("agent-{index}"))).collect();
        World::start_in(folder, server, agents, Vec::new())
    }

    /// The agents have these data folders, and the server has this in its environment.
    pub(crate) fn start_in(
        folder: TempDir,
        server_data: PathBuf,
        agents: Vec<PathBuf>,
        server_environment: Vec<(String, String)>,
    ) -> World {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        std::fs::create_dir_all(folder.path().join("procs")).expect("our own folder");
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let hosts = agents.into_iter().enumerate().map(|(index, data)| Host::new(index, data));
        let mut world = World {
            server: Program::new("/bin/true"),
            hosts: hosts.collect(),
            // Until the server says where it is.
            proxy: Proxy::to("127.0.0.1:1".to_owned()),
            client: Client::new("", "", ""),
            listen: "127.0.0.1:0".to_owned(),
            link: "127.0.0.1:0".to_owned(),
            namespace: format!("chaos-{}-{serial}", std::process::id()),
            server_data,
            server_environment,
            others: 0,
            clock_jumped: false,
            logs: Vec::new(),
            folder,
        };
        world.start_server("");
        world.proxy = Proxy::to(world.link.clone());
        let token = world.token(world.hosts.len());
        for index in 0..world.hosts.len() {
            world.begin_agent(index, "", Some(&token));
        }
        world.wait_until_connected();
        world
    }

    /// A token for this number of agents.
    pub(crate) fn token(&self, uses: usize) -> String {
        let made = Program::new(binary())
            .args(["token", "create", "--uses", &uses.to_string()])
            .env("PROCFLEET_DATA", &self.server_data)
            .current_dir(self.folder.path())
            .run();
        assert_eq!(made.code, Some(0), "{made:?}");
        made.stdout.trim().to_owned()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn start_server(&mut self, plan: &str) {
        self.try_start_server(plan).unwrap_or_else(|said| panic!("the server does not start: {said}"));
    }

    /// An error is what the server said before it ended.
    pub(crate) fn try_start_server(&mut self, plan: &str) -> Result<(), String> {
        let began = Instant::now();
        loop {
            self.logs.push(self.server.stderr());
            let mut server = Program::new(binary())
                .args(["server", "--listen", &self.listen, "--link", &self.link, "--data"])
                .args([&self.server_data])
                .env("PROCFLEET_FAILPOINTS", plan)
                .current_dir(self.folder.path());
            for (name, value) in &self.server_environment {
                server = server.env(name, value);
            }
            server.start();
            let said = ask_again(LOOK, PATIENCE, || {
                let said = server.stdout();
                let ready = said.lines().find(|line| line.starts_with("procfleet server is ready"));
                ready.map(str::to_owned).or_else(|| (!server.is_running()).then(String::new))
            });
            let said = said.expect("a server that starts says so, or ends");
            let log = server.stderr();
            self.server = server;
            if let Some((api, link)) = said.split_once(" (agents: https://") {
                let api = api.rsplit(' ').next().unwrap_or_default();
                self.listen = api.trim_start_matches("http://").to_owned();
                self.link = link.trim_end_matches(')').to_owned();
                let admin = std::fs::read(self.server_data.join("admin.json")).expect("it is written");
                let admin: serde_json::Value = serde_json::from_slice(&admin).expect("it is JSON");
                let field = |name: &str| admin[name].as_str().expect("a text").to_owned();
                self.client = Client::new(api, &field("bk_app_code"), &field("bk_app_secret"));
                return Ok(());
            }
            // A connection of another program may use its port for a moment; and the plan may have ended the
            // server at once.
            if !log.contains("listening on") || began.elapsed() > PATIENCE {
                return Err(log);
            }
        }
    }

    fn begin_agent(&mut self, index: usize, plan: &str, token: Option<&str>) {
        let host = &mut self.hosts[index];
        self.logs.push(host.program.stderr());
        let server = format!("https://{}", self.proxy.address);
        let mut agent = Program::new(binary())
            .args(["agent", "--server", &server, "--ip", &host.ip, "--data"])
            .args([&host.data])
            .env("PROCFLEET_FAILPOINTS", plan)
            .current_dir(self.folder.path());
        if let Some(token) = token {
            agent = agent.env("PROCFLEET_TOKEN", token);
        }
        for (name, value) in &host.environment {
            agent = agent.env(name, value);
        }
        agent.start();
        host.program = agent;
    }

    pub(crate) fn wait_until_connected(&mut self) {
        let (client, hosts) = (self.client.clone(), &mut self.hosts);
        wait_until(PATIENCE * 4, "all agents are connected", || {
            for host in hosts.iter_mut() {
                let running = host.program.is_running();
                assert!(running, "the agent of {} has ended: {}", host.ip, host.program.stderr());
            }
            // For a while the server believes in a session of an agent that was killed.
            if hosts.iter().any(|host| !host.program.stderr().contains("connected epoch=")) {
                return false;
            }
            client.try_get("/api/v1/agents").is_ok_and(|answer| {
                let agents = answer.body["data"].as_array().cloned().unwrap_or_default();
                let is_there =
                    |ip: &str| agents.iter().any(|agent| agent["ip"] == ip && agent["connected"] == true);
                hosts.iter().all(|host| is_there(&host.ip))
            })
        });
    }

    fn program(&mut self, side: Side) -> &mut Program {
        match side {
            Side::Server => &mut self.server,
            Side::Agent(index) => &mut self.hosts[index].program,
        }
    }

    /// Ends it now, if a plan has not done so already.
    pub(crate) fn kill(&mut self, side: Side) {
        let program = self.program(side);
        if program.is_running() {
            program.end(Signal::KILL, PATIENCE);
        }
    }

    /// Tells it to end, and waits until it has.
    pub(crate) fn end(&mut self, side: Side) {
        self.program(side).end(Signal::TERM, PATIENCE);
    }

    /// Starts it again; the plan is for its next life.
    pub(crate) fn start_side(&mut self, side: Side, plan: &str) {
        match side {
            // A server that its plan ends while it starts has started all the same.
            Side::Server => _ = self.try_start_server(plan),
            Side::Agent(index) => self.begin_agent(index, plan, None),
        }
    }

    /// Waits until its plan has ended it. False: it was not.
    pub(crate) fn wait_until_ended(&mut self, side: Side) -> bool {
        let program = self.program(side);
        ask_again(LOOK, REACHED, || (!program.is_running()).then_some(())).is_some()
    }

    /// With which code it has ended. `None`: by a signal.
    pub(crate) fn exit_code(&mut self, side: Side) -> Option<i32> {
        self.program(side).finish(PATIENCE).code
    }

    /// Waits until its log has these words. False: it has not.
    pub(crate) fn wait_until_said(&mut self, side: Side, words: &str) -> bool {
        let program = self.program(side);
        ask_again(LOOK, REACHED, || program.stderr().contains(words).then_some(())).is_some()
    }

    pub(crate) fn is_running(&mut self, side: Side) -> bool {
        self.program(side).is_running()
    }

    pub(crate) fn pid(&mut self, side: Side) -> u32 {
        self.program(side).pid()
    }

    pub(crate) fn said(&mut self, side: Side) -> String {
        self.program(side).stderr()
    }

    /// A proc of the first host.
    pub(crate) fn proc(&self, name: &str) -> Proc {
        let folder = self.folder.path().join("procs");
        Proc::new(self.client.clone(), &self.namespace, name, folder).on_host(&self.hosts[0].ip)
    }

    /// As [`World::proc`], with a folder of its own.
    pub(crate) fn own_proc(&self, name: &str) -> Proc {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).expect("our own folder");
        Proc::new(self.client.clone(), &self.namespace, name, folder).on_host(&self.hosts[0].ip)
    }

    /// The addresses of all hosts.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.hosts.iter().map(|host| host.ip.clone()).collect()
    }

    pub(crate) fn workload(&self) -> Workload {
        Workload::start(self, &self.addresses())
    }

    /// On these hosts only.
    pub(crate) fn workload_on(&self, addresses: &[String]) -> Workload {
        Workload::start(self, addresses)
    }

    /// The runs that all commands on its hosts have logged.
    pub(crate) fn runs(&self) -> Runs {
        let name = |host: &Host| {
            let name = std::fs::read_to_string(host.data.join("output/.instance")).expect("its own name");
            (name.trim().to_owned(), host.ip.clone())
        };
        history::runs_in(&self.folder.path().join("procs/log"), &self.hosts.iter().map(name).collect())
    }

    /// With both running again: everything that was sent, looked at from all sides.
    pub(crate) fn judge(&mut self, sent: &[Sent]) -> Verdict {
        let mut verdict = history::judge(&self.client, sent, || self.runs());
        self.others += overtake::check(&mut verdict, &self.client, &self.namespace, sent);
        self.close(verdict)
    }

    /// Ends the server and checks its store.
    pub(crate) fn close(&mut self, mut verdict: Verdict) -> Verdict {
        self.server.end(Signal::TERM, PATIENCE);
        let store = self.server_data.join("server.db");
        history::check_store(&mut verdict, &store, self.others, self.clock_jumped);
        if !verdict.is_well() {
            self.keep_evidence();
        }
        verdict
    }

    /// Keeps logs and stores for the search for the cause.
    fn keep_evidence(&mut self) {
        self.logs.push(self.server.stderr());
        self.logs.extend(self.hosts.iter().map(|host| host.program.stderr()));
        let kept =
            tempfile::Builder::new().prefix("procfleet-chaos-logs-").tempdir().expect("a folder").keep();
        for (number, log) in self.logs.iter().enumerate().filter(|(_, log)| !log.is_empty()) {
            let _ = std::fs::write(kept.join(format!("{number:04}.log")), log);
        }
        let _ = std::fs::copy(self.folder.path().join("procs/log"), kept.join("runs"));
        let _ = std::fs::copy(self.server_data.join("server.db"), kept.join("server.db"));
        for host in &self.hosts {
            let _ = std::fs::copy(host.data.join("agent.db"), kept.join(format!("agent-{}.db", host.ip)));
        }
        eprintln!("the logs of {} are in {}", self.namespace, kept.display());
    }
}

pub(crate) fn folder() -> TempDir {
    tempfile::Builder::new().prefix("procfleet-chaos-").tempdir().expect("a temp dir")
}

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_procfleet"))
}

/// Callers that send one task after the other until the workload ends.
#[derive(Debug)]
pub(crate) struct Workload {
    stop: Arc<AtomicBool>,
    sent: Arc<Mutex<Vec<Sent>>>,
    begun: Arc<AtomicU64>,
    callers: Vec<JoinHandle<()>>,
}

impl Workload {
    fn start(world: &World, addresses: &[String]) -> Workload {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let begun = Arc::new(AtomicU64::new(0));
        let caller = |caller: usize| {
            let (stop, sent, begun, client) =
                (stop.clone(), sent.clone(), begun.clone(), world.client.clone());
            let hosts = addresses.to_vec();
            let procs: Vec<Proc> =
                (0..PROCS).map(|number| world.proc(&format!("caller-{caller}-{number}"))).collect();
            std::thread::spawn(move || {
                for (number, proc) in procs.iter().cycle().enumerate() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    // Some take a moment, so that they can be cut off in the middle.
                    let takes = if number % 3 == 2 { "; sleep 0.1" } else { "" };
                    begun.fetch_add(1, Ordering::SeqCst);
                    let one = history::send(&client, proc, &hosts, &format!("{caller}.{number}"), takes);
                    sent.lock().expect("nobody panics with it").push(one.clone());
                    ask_again(LOOK * 2, IMPATIENCE, || one.has_ended(&client).then_some(()));
                }
            })
        };
        let mut callers: Vec<JoinHandle<()>> = (0..CALLERS).map(caller).collect();
        let (stopped, all, begins, client) =
            (stop.clone(), sent.clone(), begun.clone(), world.client.clone());
        let slow = overtake::procs(world, addresses);
        callers.push(std::thread::spawn(move || {
            for (round, proc) in slow.iter().cycle().enumerate() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                begins.fetch_add(2, Ordering::SeqCst);
                let both = proc.play(&client, round, || {});
                all.lock().expect("nobody panics with it").extend(both);
            }
        }));
        let (stopped, all, begins, client) =
            (stop.clone(), sent.clone(), begun.clone(), world.client.clone());
        let (short, host) = (short_lived::proc(world), addresses[0].clone());
        callers.push(std::thread::spawn(move || {
            for round in 0.. {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                begins.fetch_add(1, Ordering::SeqCst);
                let start = short_lived::play(&client, &short, &host, round);
                all.lock().expect("nobody panics with it").push(start);
            }
        }));
        Workload { stop, sent, begun, callers }
    }

    /// How many were accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.sent.lock().expect("nobody panics with it").len()
    }

    /// Waits until this many more tasks were accepted.
    pub(crate) fn wait_for(&self, more: usize) {
        let wanted = self.accepted() + more;
        wait_until(PATIENCE * 4, "the workload goes on", || self.accepted() >= wanted);
    }

    /// All that was accepted. The server must be there.
    pub(crate) fn end(self) -> Vec<Sent> {
        self.stop.store(true, Ordering::SeqCst);
        for caller in self.callers {
            caller.join().expect("a caller sends until it is heard");
        }
        let sent = self.sent.lock().expect("nobody panics with it").clone();
        assert_eq!(sent.len() as u64, self.begun.load(Ordering::SeqCst), "each was accepted");
        sent
    }
}
