//! The store at its boundary, on real files. Each test has its own folder.

mod full_disk;
mod group_commit;
mod lifecycle;
mod lists;
mod retention;
mod submissions;

use super::SqliteStore as Store;
use super::*;
use crate::types::*;
use procfleet_core::grants::GrantScope;
use procfleet_core::op::{Instance, ProcStatus};
use procfleet_core::request::Target;
use procfleet_core::{
    AgentId, BusinessId, CloudId, Code, Content, Host, OpId, OpKind, Outcome, ProcKey, Spec, TaskId,
};
use std::path::PathBuf;
use tempfile::TempDir;

const STAMP: u64 = 20_261_115_203_000;
const SECRET: [u8; 32] = [7; 32];

struct Fixture {
    folder: TempDir,
    store: Store,
}

async fn fixture() -> Fixture {
    let folder = tempfile::tempdir().expect("a temp folder");
    let store = Store::open(&path(&folder)).await.expect("a new store opens");
    Fixture { folder, store }
}

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

/// A store with a token for `names.len()` agents, which are on hosts 1, 2, ...
async fn fixture_with_agents(names: &[&str]) -> Fixture {
    let fixture = fixture().await;
    fixture.store.create_token(token(100)).await.expect("a token");
    for (last, name) in (1..).zip(names) {
        let joined = fixture.store.join(shown(), joining(name, last), 1_500).await.expect("no error");
        assert!(joined.is_ok(), "{name}: {joined:?}");
    }
    fixture
}
