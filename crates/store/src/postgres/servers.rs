//! The servers of the store, for operators.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::natural;
use super::schema;
use crate::{
    DrainOutcome, NewAudit, ServerId, ServerIntro, ServerLoad, ServerRecord, ServerState, StoreError,
    WakeMode,
};

/// The second of the two numbers of an advisory lock.
const DRAIN_LOCK: i32 = 4;

impl PgStore {
    pub(crate) async fn introduce(&self, intro: ServerIntro) -> Result<(), StoreError> {
        // Kept for `membership::enter`: a server that was declared dead enters again with this intro.
        self.membership().set_intro(intro.clone());
        let arguments = (intro, self.membership().run());
        self.write("introducing this server", arguments, |tx, (intro, run)| {
            Box::pin(async move {
                let sql = "UPDATE servers SET name = $2, advertise = $3, version = $4 WHERE id = $1";
                tx.execute(sql, &[&run.0, &intro.name, &intro.advertise, &intro.version]).await?;
                Ok(())
            })
        })
        .await
    }

    pub(crate) async fn servers(&self) -> Result<Vec<ServerRecord>, StoreError> {
        const DOING: &str = "reading the servers";
        // The living ones, and the last that have ended, unless they were started again.
        let sql = "WITH ended AS (SELECT id FROM servers WHERE state <> 'up' AND name <> '' \
                   AND NOT EXISTS (SELECT 1 FROM servers newer WHERE newer.name = servers.name AND newer.id > servers.id) \
                   ORDER BY id DESC LIMIT 10) \
                   SELECT id, name, advertise, version, state, drains, started_at, agents, open_ops, polling, \
                   ARRAY(SELECT leases.name FROM leases WHERE leases.server = id ORDER BY 1) \
                   FROM servers JOIN beats ON server = id \
                   WHERE state = 'up' OR id IN (SELECT id FROM ended) ORDER BY id";
        let rows = self.rows(DOING, sql, &[]).await?;
        self.converted(DOING, &rows, |row| {
            let state = match row.try_get(4)? {
                "up" => ServerState::Up,
                "left" => ServerState::Left,
                _ => ServerState::Dead,
            };
            let is_up = state == ServerState::Up;
            // The last figures of a server that has ended are stale.
            let load = match is_up {
                true => ServerLoad { agents: natural(row.try_get(7)?), open_ops: natural(row.try_get(8)?) },
                false => ServerLoad::default(),
            };
            Ok(ServerRecord {
                id: ServerId(row.try_get(0)?),
                intro: ServerIntro {
                    name: row.try_get(1)?,
                    advertise: row.try_get(2)?,
                    version: row.try_get(3)?,
                },
                state,
                drains: is_up && row.try_get(5)?,
                started_at: row.try_get(6)?,
                load,
                wakes: if row.try_get(9)? { WakeMode::Polling } else { WakeMode::Notified },
                leases: if is_up { row.try_get(10)? } else { Vec::new() },
            })
        })
    }

    pub(crate) async fn drain_server(
        &self,
        name: &str,
        drains: bool,
        audit: NewAudit,
    ) -> Result<DrainOutcome, StoreError> {
        let arguments = (name.to_owned(), drains, audit);
        self.write("draining a server", arguments, |tx, (name, drains, audit)| {
            Box::pin(async move {
                // Two servers that are drained at once must not both count on the other.
                tx.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&schema::LOCKS, &DRAIN_LOCK]).await?;
                // Agents cannot go to a server without an address.
                let sql = "SELECT name = $1, NOT drains AND advertise <> '' FROM servers \
                           JOIN beats ON server = id WHERE state = 'up'";
                let (mut known, mut others) = (false, false);
                for row in tx.query(sql, &[name]).await? {
                    let (is_named, takes_agents): (bool, bool) = (row.try_get(0)?, row.try_get(1)?);
                    known |= is_named;
                    others |= !is_named && takes_agents;
                }
                match (known, *drains && !others) {
                    (false, _) => return Ok(DrainOutcome::Unknown),
                    (true, true) => return Ok(DrainOutcome::Last),
                    (true, false) => {}
                }
                insert_audit(tx, audit).await?;
                let sql = "UPDATE beats SET drains = $2 FROM servers WHERE id = server AND name = $1 AND state = 'up'";
                tx.execute(sql, &[name, drains]).await?;
                Ok(DrainOutcome::Done)
            })
        })
        .await
    }
}
