//! Prints how fast the store is on this machine: `cargo run --release -p procfleet-store --example
//! store_bench`.
//!
//! Give a folder as the argument to measure another disk than that of the temp folder. `-- copy` measures
//! `procfleet store copy` instead, to a PostgreSQL cluster of its own, or to the database of a URL: `-- copy
//! postgres://…`.

#![expect(clippy::print_stdout, reason = "a benchmark may fail with its output")]

use procfleet_core::request::Target;
use procfleet_core::{
    AgentId, BusinessId, CloudId, Code, Content, Epoch, Host, OpId, OpKind, Outcome, ProcKey, Spec, TaskId,
};
use procfleet_store::{
    CertificateRecord, CopySource, EndedBy, Finished, JoiningAgent, NewEvent, NewOp, NewTask, NewToken,
    OpScope, ProcListing, ProcRecord, RequestHead, Store, StoreUrl, TokenUse,
};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const AGENTS: u32 = 100_000;
const HOSTS: u32 = 10_000;
const BATCH: usize = 1_000;
const SECRET: [u8; 32] = [1; 32];

type Outcomes = Result<(), Box<dyn std::error::Error>>;

#[tokio::main]
async fn main() -> Outcomes {
    let folder = match std::env::args_os().nth(1) {
        Some(word) if word == "copy" => return copies().await,
        Some(folder) => tempfile::tempdir_in(folder)?,
        None => tempfile::tempdir()?,
    };
    let store = Store::open(&folder.path().join("bench.db")).await?;
    join(&store, AGENTS).await?;
    resolve(&store).await?;
    for _ in 0..5 {
        one_task(&store).await?;
    }
    many_small_tasks(&store).await?;
    many_small_reports(&store).await?;
    let begun = Instant::now();
    store.close().await?;
    println!("close: {:?}", begun.elapsed());
    Ok(())
}

async fn join(store: &Store, agents: u32) -> Outcomes {
    let token = NewToken {
        id: "bench".to_owned(),
        secret_hash: SECRET,
        ca: None,
        cloud: CloudId(0),
        business: BusinessId::DEFAULT,
        created_at: 0,
        expires_at: i64::MAX,
        uses: agents,
        replaces: procfleet_store::Replaces::LostAgents,
        audit: None,
    };
    store.create_token(token).await?;
    let begun = Instant::now();
    let mut joins = tokio::task::JoinSet::new();
    for first in 0..500 {
        let store = store.clone();
        joins.spawn(async move {
            for number in (first..agents).step_by(500) {
                let joining = JoiningAgent {
                    agent: agent(number),
                    ip: ip(number).into(),
                    certificate: CertificateRecord {
                        sha256: [0; 32],
                        ca: None,
                        issued_at: None,
                        expires_at: None,
                    },
                    version: "0.1.0".to_owned(),
                    from: ip(number).into(),
                };
                let token = TokenUse { id: "bench".to_owned(), secret_hash: SECRET };
                let joined = store.join(token, joining, 1).await.expect("the store works");
                joined.expect("the token is good");
            }
        });
    }
    joins.join_all().await;
    say("join, 500 at a time", agents as usize, begun.elapsed());
    Ok(())
}

async fn resolve(store: &Store) -> Outcomes {
    let hosts: Vec<Target> = (0..AGENTS).map(target).collect();
    let ids: Vec<Target> = (0..AGENTS).map(|number| Target::Agent(agent(number))).collect();
    for (name, targets) in [("resolve by host", hosts), ("resolve by agent id", ids)] {
        let begun = Instant::now();
        let found = store.resolve(&targets).await?;
        say(name, found.iter().flatten().count(), begun.elapsed());
    }
    Ok(())
}

async fn one_task(store: &Store) -> Outcomes {
    let task = new_task(0..HOSTS);
    let begun = Instant::now();
    let id = store.create_task(task).await?;
    say("create_task, ops", HOSTS as usize, begun.elapsed());

    let begun = Instant::now();
    let open = store.open_ops(OpScope::All).await?;
    say("open_ops", open.len(), begun.elapsed());

    let reports: Vec<Finished> = (0..HOSTS).map(|index| report(id, index, index)).collect();
    let begun = Instant::now();
    for batch in reports.chunks(BATCH) {
        store.finish_ops(batch.to_vec()).await?;
    }
    say("finish_ops in batches of 1,000", reports.len(), begun.elapsed());

    let begun = Instant::now();
    let (_, ops) = store.task_results(id).await?.ok_or("the task is gone")?;
    say("task_results, ops", ops.len(), begun.elapsed());
    Ok(())
}

async fn many_small_tasks(store: &Store) -> Outcomes {
    let begun = Instant::now();
    let mut making = tokio::task::JoinSet::new();
    for host in 0..256 {
        let store = store.clone();
        making.spawn(async move {
            for _ in 0..100 {
                store.create_task(new_task(host..host + 1)).await.expect("the store works");
            }
        });
    }
    making.join_all().await;
    say("create_task with one op, 256 at a time", 25_600, begun.elapsed());

    let begun = Instant::now();
    for _ in 0..500 {
        store.create_task(new_task(0..1)).await?;
    }
    say("create_task with one op, one at a time", 500, begun.elapsed());
    Ok(())
}

async fn many_small_reports(store: &Store) -> Outcomes {
    let id = store.create_task(new_task(0..25_600)).await?;
    let begun = Instant::now();
    let mut reporting = tokio::task::JoinSet::new();
    for first in 0..256 {
        let store = store.clone();
        reporting.spawn(async move {
            for index in (first..25_600).step_by(256) {
                store.finish_ops(vec![report(id, index, index)]).await.expect("the store works");
            }
        });
    }
    reporting.join_all().await;
    say("finish_ops one by one, 256 at a time", 25_600, begun.elapsed());
    Ok(())
}

/// A copy of a store with 10,000 agents, 100,000 procs, 1,000 tasks of 100 ops each and 50,000 events, twice.
async fn copies() -> Outcomes {
    const FLEET: u32 = 10_000;
    let url = match std::env::args_os().nth(2) {
        Some(url) => url.into_string().map_err(|_| "the URL is no text")?,
        None => tokio::task::spawn_blocking(|| procfleet_testkit::Cluster::shared().database()).await?,
    };
    let url: StoreUrl = url.parse()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("server.db");
    let store = Store::open(&path).await?;
    join(&store, FLEET).await?;
    let begun = Instant::now();
    for number in 0..FLEET {
        store.put_procs(&agent(number), Epoch(0), (0..10).map(proc).collect(), Vec::new()).await?;
    }
    for number in 0..FLEET {
        store.add_events(&agent(number), (0..5).map(event).collect(), 1_763_240_000_000).await?;
    }
    for first in (0..FLEET).step_by(100).cycle().take(1_000) {
        let id = store.create_task(new_task(first..first + 100)).await?;
        store.finish_ops((0..100).map(|index| report(id, index, first + index)).collect()).await?;
    }
    println!("filled: {:?}, {} MiB", begun.elapsed(), std::fs::metadata(&path)?.len() >> 20);
    store.close().await?;
    // From now on, the kernel reports the peak since this moment.
    std::fs::write("/proc/self/clear_refs", "5")?;
    for what in ["copy", "copy again"] {
        let before = memory()?;
        let begun = Instant::now();
        let report = procfleet_store::copy(CopySource::Store(path.clone()), &url, |_| {}).await?;
        say(&format!("{what}, rows copied and compared"), report.rows as usize, begun.elapsed());
        println!("memory: {before} before, peak {}", memory()?);
    }
    Ok(())
}

/// The peak of the memory in use.
fn memory() -> Result<String, Box<dyn std::error::Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().to_owned())
}

fn proc(number: u32) -> ProcRecord {
    let status = format!("{{\"state\":\"running\",\"pid\":{number},\"text\":\"{}\"}}", "x".repeat(600));
    let listing = ProcListing { state: "running".to_owned(), started_at: 1_763_240_000, failed: false };
    let proc = ProcKey { namespace: "web".to_owned(), name: format!("nginx{number}") };
    ProcRecord { proc, revision: 1, status, listing }
}

fn event(number: u64) -> NewEvent {
    NewEvent {
        journal: "j1".to_owned(),
        journal_number: number,
        at: 1_763_240_000_000,
        proc: ProcKey { namespace: "web".to_owned(), name: "nginx1".to_owned() },
        kind: "exited".to_owned(),
        message: "pid 7 was ended by signal 9".to_owned(),
        details: "{\"exited\":{\"pid\":7,\"signal\":9}}".to_owned(),
        report_id: 0,
        proc_name: "nginx".to_owned(),
        account: "www".to_owned(),
    }
}

fn new_task(hosts: std::ops::Range<u32>) -> NewTask {
    let mut spec = Spec::default();
    spec.identity.proc_name = "nginx".to_owned();
    spec.control.start_cmd = "./start.sh".to_owned();
    let proc = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
    let ops = hosts.map(|number| NewOp {
        request: 0,
        target: target(number),
        agent: Some(agent(number)),
        start_by: 1_763_240_000_000,
        deadline: 1_763_240_060_000,
        ended: None,
    });
    NewTask {
        stamp: 20_261_115_000_000,
        created_at: 1_763_239_000_000,
        mark: None,
        app: "bench".to_owned(),
        username: "admin".to_owned(),
        summary: "start web:nginx".to_owned(),
        requests: vec![RequestHead {
            proc,
            kind: OpKind::Start,
            spec: Some(Arc::new(spec)),
            accounts: procfleet_core::grants::GrantScope::All,
            within: procfleet_core::grants::GrantScope::All,
        }],
        ops: ops.collect(),
        retry_of: None,
        audit: None,
    }
}

fn report(task: TaskId, index: u32, number: u32) -> Finished {
    let outcome = Outcome::new(
        Code::Success,
        "success",
        Content::Control { hosted: true, proc_name: String::new(), setup_path: String::new() },
    );
    Finished { op: OpId { task, index }, by: EndedBy::Agent(agent(number)), outcome, at: 1_763_240_001_000 }
}

fn agent(number: u32) -> AgentId {
    format!("0200000000525400f355781710390005{number:06}").parse().expect("an agent id")
}

fn ip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 + number)
}

fn target(number: u32) -> Target {
    Target::Host(Host { cloud: CloudId(0), ip: ip(number).into() })
}

fn say(what: &str, count: usize, took: Duration) {
    println!("{what}: {count} in {took:?}, {:.0}/s", count as f64 / took.as_secs_f64());
}
