//! The contract of the store, on each engine: the same tests, the same answers.

mod agents;
mod apps;
mod at_once;
mod businesses;
mod ca;
mod certificates;
mod commits;
mod copy;
mod encoding;
mod events;
mod gate;
mod hosts;
mod lists;
mod pooler;
mod process_groups;
mod procs;
mod races;
mod readmit;
mod restore;
mod retention;
mod servers;
mod sessions;
mod submissions;
mod tasks;
mod tls;
mod upgrade;
mod users;

use procfleet_core::grants::GrantScope;
use procfleet_core::op::{Instance, ProcStatus};
use procfleet_core::request::Target;
use procfleet_core::{
    AgentId, BootTime, BusinessId, CloudId, Code, Content, Epoch, Host, OpId, OpKind, Outcome, ProcKey, Spec,
    TaskId,
};
use procfleet_store::*;
use procfleet_testkit::Cluster;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes a test for each engine from a function that takes the engine.
macro_rules! on_each_engine {
    ($test:ident) => {
        mod $test {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn sqlite() {
                super::$test(crate::TestEngine::Sqlite).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn postgres() {
                super::$test(crate::TestEngine::Postgres).await;
            }
        }
    };
}
use on_each_engine;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestEngine {
    Sqlite,
    Postgres,
}

/// The folder has what `reopen` needs: the database file, or the URL of the database.
struct Fixture {
    folder: TempDir,
    store: Store,
}

impl TestEngine {
    async fn fixture(self) -> Fixture {
        let folder = tempfile::tempdir().expect("a temp folder");
        if self == TestEngine::Postgres {
            let url = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
            std::fs::write(url_file(&folder), url).expect("a file");
        }
        let store = self.reopen(&folder).await.expect("a new store opens");
        Fixture { folder, store }
    }

    async fn reopen(self, folder: &TempDir) -> Result<Store, StoreError> {
        match self {
            TestEngine::Sqlite => Store::open(&path(folder)).await,
            TestEngine::Postgres => {
                let url = std::fs::read_to_string(url_file(folder)).expect("the url");
                Store::connect(&url.parse().expect("a url")).await
            }
        }
    }

    /// A store with a token for `names.len()` agents, which are on hosts 1, 2, ...
    async fn with_agents(self, names: &[&str]) -> Fixture {
        let fixture = self.fixture().await;
        fixture.store.create_token(token(100)).await.expect("a token");
        for (last, name) in (1..).zip(names) {
            let joined = fixture.store.join(shown(), joining(name, last), 1_500).await.expect("no error");
            assert!(joined.is_ok(), "{name}: {joined:?}");
        }
        fixture
    }
}

fn url_file(folder: &TempDir) -> PathBuf {
    folder.path().join("url")
}

/// A connection to the database of a store, beside the store's own.
async fn administrator(folder: &TempDir) -> tokio_postgres::Client {
    let url = std::fs::read_to_string(url_file(folder)).expect("the url");
    let (client, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// The epoch of an agent that has not connected yet.
const NEVER_CONNECTED: Epoch = Epoch(0);
const STAMP: u64 = 20_261_115_203_000;
const SECRET: [u8; 32] = [7; 32];

fn path(folder: &TempDir) -> PathBuf {
    folder.path().join("store.db")
}

fn host(last: u8) -> Host {
    Host { cloud: CloudId(3), ip: [10, 0, 0, last].into() }
}

fn agent(name: &str) -> AgentId {
    name.parse().expect("an agent id")
}

fn proc(name: &str) -> ProcKey {
    ProcKey { namespace: "web".to_owned(), name: name.to_owned() }
}

/// The report of an agent about a proc.
fn said(name: &str, revision: u64, status: &str) -> ProcRecord {
    ProcRecord { proc: proc(name), revision, status: status.to_owned(), listing: ProcListing::default() }
}

fn event(number: u64, kind: &str) -> NewEvent {
    NewEvent {
        journal: "j1".to_owned(),
        journal_number: number,
        at: 5,
        proc: proc("nginx"),
        kind: kind.to_owned(),
        message: "pid 7 was ended by signal 9".to_owned(),
        details: "{}".to_owned(),
        report_id: 0,
        proc_name: "nginx".to_owned(),
        account: "www".to_owned(),
    }
}

fn op(task: TaskId, index: u32) -> OpId {
    OpId { task, index }
}

/// A task with one op for each agent; the first op's target is a host, the others name their agent.
fn new_task(agents: &[&str]) -> NewTask {
    let mut spec = Spec::default();
    spec.identity.proc_name = "nginx".to_owned();
    spec.resource.cpu = Some(12.5);
    let ops = agents.iter().enumerate().map(|(place, name)| NewOp {
        request: 0,
        target: if place == 0 { Target::Host(host(1)) } else { Target::Agent(agent(name)) },
        agent: Some(agent(name)),
        start_by: 2_000,
        deadline: 3_000,
        ended: None,
    });
    NewTask {
        stamp: STAMP,
        created_at: 1_000,
        mark: None,
        app: "console".to_owned(),
        username: "admin".to_owned(),
        summary: "start web:nginx".to_owned(),
        requests: vec![RequestHead {
            proc: proc("nginx"),
            kind: OpKind::Start,
            spec: Some(Arc::new(spec)),
            accounts: GrantScope::All,
            within: GrantScope::All,
        }],
        ops: ops.collect(),
        retry_of: None,
        audit: None,
    }
}

fn every_proc() -> ProcFilter {
    ProcFilter { agents: AgentFilter::of(&GrantScope::All), within: GrantScope::All, ..ProcFilter::default() }
}

async fn newest(store: &Store, limit: u32) -> Vec<TaskRecord> {
    store.list_tasks(TaskFilter::default(), None, limit).await.expect("no error").tasks
}

fn finished(op: OpId, by: Option<&str>, code: Code) -> Finished {
    let status = ProcStatus {
        hosted: true,
        instance: Some(Instance { pid: 42, cpu_now: 0.25, ..Instance::default() }),
        ..ProcStatus::default()
    };
    let outcome = Outcome::new(code, "said so", Content::Status(Box::new(status)));
    Finished {
        op,
        by: by.map_or(EndedBy::Server(None), |name| EndedBy::Agent(agent(name))),
        outcome,
        at: 2_500,
    }
}

fn token(uses: u32) -> NewToken {
    NewToken {
        id: "t1".to_owned(),
        secret_hash: SECRET,
        ca: None,
        cloud: CloudId(3),
        business: BusinessId::DEFAULT,
        created_at: 1_000,
        expires_at: 2_000,
        uses,
        replaces: Replaces::AnyAgent,
        audit: None,
    }
}

fn new_app(code: &str) -> NewApp {
    NewApp { code: code.to_owned(), secret_hash: SECRET, trust: AppTrust::Itself, created_at: 1 }
}

fn shown() -> TokenUse {
    TokenUse { id: "t1".to_owned(), secret_hash: SECRET }
}

fn joining(name: &str, last: u8) -> JoiningAgent {
    JoiningAgent {
        agent: agent(name),
        ip: host(last).ip,
        certificate: CertificateRecord { sha256: [9; 32], ca: None, issued_at: None, expires_at: None },
        version: "0.1.0".to_owned(),
        from: host(last).ip,
    }
}
