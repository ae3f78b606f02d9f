//! The servers that share the store: lists and drains them.

use super::{AppError, Caller, OwnServer, Services, audit};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::servers::{DrainServer, ServerRow};
use procfleet_store::{DrainOutcome, Lease, ServerId, ServerRecord, ServerState, WakeMode};

/// The living servers and those that ended last, by name.
pub async fn list(services: &Services) -> Result<Vec<ServerRow>, AppError> {
    let membership = services.store.membership();
    let mut servers = match membership.is_shared() {
        true => services.store.servers().await?,
        false => vec![alone(services)],
    };
    servers.sort_by(|one, other| (&one.intro.name, one.id).cmp(&(&other.intro.name, other.id)));
    let own = membership.run();
    Ok(servers.into_iter().map(|server| row(server, own)).collect())
}

/// Lets a server send its agents to the others, or take agents again. Idempotent.
pub async fn drain(
    services: &Services,
    caller: &Caller,
    wanted: DrainServer,
) -> Result<Vec<ServerRow>, AppError> {
    let DrainServer { name, drain } = wanted;
    let detail = if drain { "drain" } else { "take agents again" };
    let record = audit::entry(services, caller, "server_drain", &name, detail.to_owned());
    let outcome = match services.store.membership().is_shared() {
        true => services.store.drain_server(&name, drain, record).await?,
        false => match (name == services.own.intro.name, drain) {
            (false, _) => DrainOutcome::Unknown,
            (true, true) => DrainOutcome::Last,
            (true, false) => DrainOutcome::Done,
        },
    };
    match outcome {
        DrainOutcome::Done => list(services).await,
        DrainOutcome::Unknown => {
            Err(Faults::one("name", format!("no server that is up has the name {name:?}")).into())
        }
        DrainOutcome::Last => {
            let reason = format!(
                "{name:?} is the last server that takes agents; start another one, or let another one take agents again"
            );
            Err(Faults::one("name", reason).into())
        }
    }
}

/// The only server of an embedded store.
fn alone(services: &Services) -> ServerRecord {
    let membership = services.store.membership();
    let OwnServer { intro, started_at } = &*services.own;
    ServerRecord {
        id: membership.run(),
        intro: intro.clone(),
        state: ServerState::Up,
        drains: false,
        started_at: *started_at,
        load: membership.load(),
        // The only server needs no notification.
        wakes: WakeMode::Notified,
        leases: Lease::ALL.map(|lease| lease.name().to_owned()).into(),
    }
}

fn row(server: ServerRecord, own: ServerId) -> ServerRow {
    let state = match (server.state, server.drains) {
        (ServerState::Up, false) => "up",
        (ServerState::Up, true) => "draining",
        (ServerState::Left, _) => "left",
        (ServerState::Dead, _) => "dead",
    };
    let wakeups = match server.wakes {
        WakeMode::Notified => "notified",
        WakeMode::Polling => "polling",
    };
    ServerRow {
        name: server.intro.name,
        state: state.to_owned(),
        url: server.intro.advertise,
        version: server.intro.version,
        started_at: server.started_at / 1000,
        agents: server.load.agents,
        open_ops: server.load.open_ops,
        leases: server.leases,
        wakeups: wakeups.to_owned(),
        answering: server.id == own,
    }
}
