//! What follows when the store is a backup that somebody put back.

use crate::clock::Clock;
use crate::store::{Finished, NewAudit, Store, StoreError};
use procfleet_core::code::Code;
use procfleet_core::op::Outcome;
use tracing::warn;

/// How many ops are ended in one transaction.
const BATCH: usize = 2_000;
const UNKNOWN: &str = "the server's store was restored from a backup in which this operation was under way: \
                       whether it was carried out since is not known";

/// Ends the ops that were open in the backup. They may have been carried out since, and others after them: to
/// carry out an old stop now could end what was started later.
pub async fn settle(store: &Store, clock: Clock) -> Result<(), StoreError> {
    if !store.is_newly_restored().await? {
        return Ok(());
    }
    let now = clock.wall();
    let open = store.open_ops().await?;
    for rows in open.chunks(BATCH) {
        let ended = rows.iter().map(|row| Finished {
            op: row.op,
            agent: None,
            outcome: Outcome::without_agent(Code::Interrupted, UNKNOWN, row.kind),
            at: now,
        });
        store.finish_ops(ended.collect()).await?;
    }
    let audit = NewAudit {
        at: now,
        app: "procfleet-server".to_owned(),
        action: "store_restore".to_owned(),
        detail: format!("another store was put in the place of the last; {} open ops were ended", open.len()),
        ..NewAudit::default()
    };
    store.generation_began(now, audit).await?;
    warn!(
        ended_ops = open.len(),
        "this store is not the one that the last server used: a backup was restored. Agents that joined since are refused unless \
         they are readmitted (--readmit), and cursors of events of the lost time are refused"
    );
    Ok(())
}
