//! Servers and some agents in processes of their own, the ways between them, and a workload.

use crate::any_server::AnyServer;
use crate::database::SharedDatabase;
use crate::history::{self, Runs, Sent, Verdict};
use crate::overtake;
use crate::short_lived;
use procfleet_testkit::{
    Client, FaultyProxy, Op, PATIENCE, Proc, Program, Signal, ask_again, kill_marked, wait_until,
};
use std::os::unix::fs::PermissionsExt;
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
/// How long a call may take before the caller calls another server. A server answers within 2 s, also without
/// its database.
const CALL: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(15);

/// Variables of a program's environment.
pub(crate) type Environment = Vec<(String, String)>;

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server(usize),
    Agent(usize),
}

/// The server, where there is only one, and the first of several.
pub(crate) const SERVER: Side = Side::Server(0);
/// The agent, where there is only one, and the first of several.
pub(crate) const AGENT: Side = Side::Agent(0);

/// An agent and its host.
#[derive(Debug)]
pub(crate) struct Host {
    program: Program,
    pub(crate) ip: String,
    pub(crate) data: PathBuf,
    /// More of its environment.
    pub(crate) environment: Environment,
}

impl Host {
    fn new(index: usize, data: PathBuf) -> Host {
        let ip = format!("127.0.0.{}", index + 2);
        Host { program: Program::new("/bin/true"), ip, data, environment: Environment::new() }
    }
}

/// One of the servers of the store, on the same addresses in every life.
#[derive(Debug)]
pub(crate) struct Replica {
    program: Program,
    pub(crate) data: PathBuf,
    /// More of its environment.
    pub(crate) environment: Environment,
    listen: String,
    pub(crate) link: String,
    /// The way of the agents to it.
    pub(crate) proxy: FaultyProxy,
    /// Its way to PostgreSQL. `None`: it has an embedded store.
    pub(crate) database: Option<FaultyProxy>,
}

impl Replica {
    fn new(data: PathBuf, environment: Environment, store: Option<&SharedDatabase>) -> Replica {
        let (listen, link) = ("127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned());
        let program = Program::new("/bin/true");
        let database = store.map(SharedDatabase::proxy);
        // The proxy leads to the link as soon as the server says where it is.
        Replica { program, data, environment, proxy: FaultyProxy::to(link.clone()), listen, link, database }
    }

    /// How it is told of the database that it shares.
    fn shared(&self, store: Option<&SharedDatabase>) -> Vec<String> {
        let (Some(store), Some(way)) = (store, &self.database) else { return Vec::new() };
        let advertised = format!("https://{}", self.proxy.address());
        vec!["--store".to_owned(), store.url_by(way), "--advertise".to_owned(), advertised]
    }
}

/// Longer than ops wait for one another on a loaded machine, and much shorter than the jump of a clock. A
/// jump that shortens a deadline shows as a timeout.
pub(crate) const LONG_OP_TIMEOUT: u64 = 600;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) servers: Vec<Replica>,
    /// `None`: the server has an embedded store.
    pub(crate) database: Option<SharedDatabase>,
    pub(crate) hosts: Vec<Host>,
    /// A client of the first server.
    pub(crate) client: Client,
    /// A client of all of them.
    pub(crate) any: AnyServer,
    pub(crate) namespace: String,
    /// Tasks that a fault has sent beside the workload.
    pub(crate) others: usize,
    /// Whether the server's wall clock went wrong, so that it cannot tell what was late.
    pub(crate) clock_jumped: bool,
    /// Of all procs, in seconds. Games with clocks that jump set [`LONG_OP_TIMEOUT`].
    pub(crate) op_timeout: u64,
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

    /// So many servers on one PostgreSQL database, and agents that know all of them.
    pub(crate) fn with_servers(servers: usize, agents: usize) -> World {
        World::on_database(SharedDatabase::new(), vec![Environment::new(); servers], agents)
    }

    /// As [`World::with_servers`], with a server for each environment.
    pub(crate) fn on_database(
        database: SharedDatabase,
        environments: Vec<Environment>,
        agents: usize,
    ) -> World {
        let folder = folder();
        let agents = (0..agents).map(|index| folder.path().join(format!("agent-{index}"))).collect();
        let servers = environments.into_iter().enumerate();
        let servers = servers.map(|(index, environment)| {
            Replica::new(folder.path().join(format!("server-{index}")), environment, Some(&database))
        });
        let servers = servers.collect();
        World::start_on(folder, servers, Some(database), agents)
    }

    /// The agents have these data folders, and the server has this in its environment.
    pub(crate) fn start_in(
        folder: TempDir,
        server_data: PathBuf,
        agents: Vec<PathBuf>,
        server_environment: Environment,
    ) -> World {
        let server = Replica::new(server_data, server_environment, None);
        World::start_on(folder, vec![server], None, agents)
    }

    fn start_on(
        folder: TempDir,
        servers: Vec<Replica>,
        database: Option<SharedDatabase>,
        agents: Vec<PathBuf>,
    ) -> World {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        std::fs::create_dir_all(folder.path().join("procs")).expect("our own folder");
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let hosts = agents.into_iter().enumerate().map(|(index, data)| Host::new(index, data));
        let mut world = World {
            servers,
            database,
            hosts: hosts.collect(),
            client: Client::new("", "", ""),
            any: AnyServer::new(Vec::new()),
            namespace: format!("chaos-{}-{serial}", std::process::id()),
            others: 0,
            clock_jumped: false,
            op_timeout: 60,
            logs: Vec::new(),
            folder,
        };
        let mut clients = Vec::new();
        for index in 0..world.servers.len() {
            if index > 0 {
                world.share_secrets(index);
            }
            world.start_server(index);
            let address = format!("http://{}", world.servers[index].listen);
            clients.push(world.client.of_server(&address, CALL));
        }
        world.any = AnyServer::new(clients);
        let token = world.token(world.hosts.len());
        for index in 0..world.hosts.len() {
            world.begin_agent(index, "", Some(&token));
        }
        world.wait_until_connected();
        world
    }

    /// Each further server has the first one's seal key and administrator's file.
    fn share_secrets(&self, index: usize) {
        let (from, to) = (&self.servers[0].data, &self.servers[index].data);
        std::fs::create_dir_all(to).expect("our own folder");
        std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700)).expect("our own folder");
        for file in ["seal.key", "admin.json"] {
            std::fs::copy(from.join(file), to.join(file)).expect("our own file");
        }
    }

    /// A token for this number of agents.
    pub(crate) fn token(&self, uses: usize) -> String {
        let made = Program::new(binary())
            .args(["token", "create", "--uses", &uses.to_string()])
            .env("PROCFLEET_DATA", &self.servers[0].data)
            .current_dir(self.folder.path())
            .run();
        assert_eq!(made.code, Some(0), "{made:?}");
        made.stdout.trim().to_owned()
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a server that has to come up. On a loaded machine it may not get its first connection to the
    /// database in time, and ends; then it is started again, as an operator's init system would do it.
    pub(crate) fn start_server(&mut self, index: usize) {
        let mut said = String::new();
        ask_again(LOOK, PATIENCE, || match self.try_start_server(index, "") {
            Ok(()) => Some(()),
            Err(log) => {
                said = log;
                None
            }
        })
        .unwrap_or_else(|| panic!("the server does not start: {said}"));
    }

    /// An error is what the server said before it ended.
    fn try_start_server(&mut self, index: usize, plan: &str) -> Result<(), String> {
        let began = Instant::now();
        let server = &mut self.servers[index];
        loop {
            self.logs.push(server.program.stderr());
            let mut program = Program::new(binary())
                .args(["server", "--listen", &server.listen, "--link", &server.link, "--data"])
                .args([&server.data])
                .args(server.shared(self.database.as_ref()))
                .env("PROCFLEET_FAILPOINTS", plan)
                .current_dir(self.folder.path());
            for (name, value) in &server.environment {
                program = program.env(name, value);
            }
            program.start();
            let said = ask_again(LOOK, PATIENCE, || {
                let said = program.stdout();
                let ready = said.lines().find(|line| line.starts_with("procfleet server is ready"));
                ready.map(str::to_owned).or_else(|| (!program.is_running()).then(String::new))
            });
            let said = said.expect("a server that starts says so, or ends");
            let log = program.stderr();
            server.program = program;
            if let Some((api, link)) = said.split_once(" (agents: https://") {
                let api = api.rsplit(' ').next().unwrap_or_default();
                server.listen = api.trim_start_matches("http://").to_owned();
                server.link = link.trim_end_matches(')').to_owned();
                server.proxy.lead_to(&server.link);
                if index == 0 {
                    let admin = std::fs::read(server.data.join("admin.json")).expect("it is written");
                    let admin: serde_json::Value = serde_json::from_slice(&admin).expect("it is JSON");
                    let field = |name: &str| admin[name].as_str().expect("a text").to_owned();
                    self.client = Client::new(api, &field("bk_app_code"), &field("bk_app_secret"));
                }
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
        let servers: Vec<String> =
            self.servers.iter().map(|server| format!("https://{}", server.proxy.address())).collect();
        let host = &mut self.hosts[index];
        self.logs.push(host.program.stderr());
        let mut agent = Program::new(binary())
            .args(["agent", "--server", &servers.join(","), "--ip", &host.ip, "--data"])
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
        let (any, hosts) = (self.any.clone(), &mut self.hosts);
        wait_until(PATIENCE * 4, "all agents are connected", || {
            for host in hosts.iter_mut() {
                let running = host.program.is_running();
                assert!(running, "the agent of {} has ended: {}", host.ip, host.program.stderr());
            }
            // For a while the server believes in a session of an agent that was killed.
            if hosts.iter().any(|host| !host.program.stderr().contains("connected epoch=")) {
                return false;
            }
            any.try_get("/api/v1/agents").is_ok_and(|answer| {
                let agents = answer.body["data"].as_array().cloned().unwrap_or_default();
                let is_there =
                    |ip: &str| agents.iter().any(|agent| agent["ip"] == ip && agent["connected"] == true);
                hosts.iter().all(|host| is_there(&host.ip))
            })
        });
    }

    fn program(&mut self, side: Side) -> &mut Program {
        match side {
            Side::Server(index) => &mut self.servers[index].program,
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
            Side::Server(index) => _ = self.try_start_server(index, plan),
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

    /// The text of a page of this server.
    pub(crate) fn page(&self, server: usize, path: &str) -> String {
        let address = format!("http://{}", self.servers[server].listen);
        self.client.of_server(&address, PATIENCE).page(path).text
    }

    /// A proc of the first host.
    pub(crate) fn proc(&self, name: &str) -> Proc {
        let folder = self.folder.path().join("procs");
        Proc::new(self.client.clone(), &self.namespace, name, folder)
            .on_host(&self.hosts[0].ip)
            .policy("op_timeout", self.op_timeout)
    }

    /// As [`World::proc`], with a folder of its own.
    pub(crate) fn own_proc(&self, name: &str) -> Proc {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).expect("our own folder");
        Proc::new(self.client.clone(), &self.namespace, name, folder)
            .on_host(&self.hosts[0].ip)
            .policy("op_timeout", self.op_timeout)
    }

    /// An op on all hosts, beside the workload.
    pub(crate) fn operate_aside(&mut self, proc: &Proc, op: Op) {
        let word = format!("aside.{}", self.others);
        let one = history::send_op(&self.any, proc, &self.addresses(), op, &word);
        wait_until(PATIENCE * 2, "it has an outcome", || one.has_ended(&self.any));
        self.others += 1;
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
        let mut verdict = history::judge(&self.any, sent, || self.runs());
        self.others += overtake::check(&mut verdict, &self.any, &self.namespace, sent);
        self.close(verdict)
    }

    /// Ends the server and checks its store.
    pub(crate) fn close(&mut self, mut verdict: Verdict) -> Verdict {
        if let Some(database) = &self.database {
            history::check_invariants(&mut verdict, database);
        }
        for server in &mut self.servers {
            server.program.end(Signal::TERM, PATIENCE);
        }
        match &self.database {
            Some(database) => history::check_database(&mut verdict, database, self.others),
            None => {
                let store = self.servers[0].data.join("server.db");
                history::check_store(&mut verdict, &store, self.others, self.clock_jumped);
            }
        }
        if !verdict.is_well() {
            self.keep_evidence();
        }
        verdict
    }

    /// Keeps logs and stores for the search for the cause.
    fn keep_evidence(&mut self) {
        self.logs.extend(self.servers.iter().map(|server| server.program.stderr()));
        self.logs.extend(self.hosts.iter().map(|host| host.program.stderr()));
        let kept =
            tempfile::Builder::new().prefix("procfleet-chaos-logs-").tempdir().expect("a folder").keep();
        for (number, log) in self.logs.iter().enumerate().filter(|(_, log)| !log.is_empty()) {
            let _ = std::fs::write(kept.join(format!("{number:04}.log")), log);
        }
        let _ = std::fs::copy(self.folder.path().join("procs/log"), kept.join("runs"));
        let _ = std::fs::copy(self.servers[0].data.join("server.db"), kept.join("server.db"));
        for host in &self.hosts {
            let _ = std::fs::copy(host.data.join("agent.db"), kept.join(format!("agent-{}.db", host.ip)));
        }
        eprintln!("the logs of {} are in {}", self.namespace, kept.display());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for index in 0..self.hosts.len() {
            self.kill(Side::Agent(index));
        }
        // Only now, because a living agent would restart hosted processes.
        kill_marked(&self.namespace);
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
            let (stop, sent, begun, any) = (stop.clone(), sent.clone(), begun.clone(), world.any.clone());
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
                    let one = history::send(&any, proc, &hosts, &format!("{caller}.{number}"), takes);
                    sent.lock().expect("nobody panics with it").push(one.clone());
                    ask_again(LOOK * 2, IMPATIENCE, || one.has_ended(&any).then_some(()));
                }
            })
        };
        let mut callers: Vec<JoinHandle<()>> = (0..CALLERS).map(caller).collect();
        let (stopped, all, begins, any) = (stop.clone(), sent.clone(), begun.clone(), world.any.clone());
        let slow = overtake::procs(world, addresses);
        callers.push(std::thread::spawn(move || {
            for (round, proc) in slow.iter().cycle().enumerate() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                begins.fetch_add(2, Ordering::SeqCst);
                let both = proc.play(&any, round, || {});
                all.lock().expect("nobody panics with it").extend(both);
            }
        }));
        let (stopped, all, begins, any) = (stop.clone(), sent.clone(), begun.clone(), world.any.clone());
        let (short, host) = (short_lived::proc(world), addresses[0].clone());
        callers.push(std::thread::spawn(move || {
            for round in 0.. {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                begins.fetch_add(1, Ordering::SeqCst);
                let start = short_lived::play(&any, &short, &host, round);
                all.lock().expect("nobody panics with it").push(start);
            }
        }));
        Workload { stop, sent, begun, callers }
    }

    /// How many were accepted.
    pub(crate) fn accepted(&self) -> usize {
        self.sent.lock().expect("nobody panics with it").len()
    }

    /// All that was accepted until now.
    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().expect("nobody panics with it").clone()
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
