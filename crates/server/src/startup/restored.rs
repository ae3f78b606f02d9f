//! Steps after the store was restored from a backup.

use crate::clock::Clock;
use procfleet_core::code::Code;
use procfleet_core::op::Outcome;
use procfleet_store::{EndedBy, Finished, NewAudit, OpScope, Store, StoreError};
use tracing::warn;

/// How many ops are ended in one transaction.
const BATCH: usize = 2_000;
const UNKNOWN: &str = "the server's store was restored from a backup in which this operation was under way: \
                       whether it was carried out since is not known";

/// Ends the ops that were open in the backup. They may have been carried out since, and others after them: an
/// old stop could end a process that was started later.
pub async fn settle(store: &Store, clock: Clock) -> Result<(), StoreError> {
    if !store.is_newly_restored().await? {
        return Ok(());
    }
    let now = clock.wall();
    let open = store.open_ops(OpScope::All).await?;
    for rows in open.chunks(BATCH) {
        let ended = rows.iter().map(|row| Finished {
            op: row.op,
            by: EndedBy::Server(None),
            outcome: Outcome::without_status(Code::Interrupted, UNKNOWN, row.request.kind),
            at: now,
        });
        store.finish_ops(ended.collect()).await?;
    }
    let detail =
        format!("a backup of the store was restored; {} open ops ended as interrupted (805)", open.len());
    let audit = NewAudit::of_server(now, "store_restore", String::new(), detail);
    store.generation_began(now, audit).await?;
    warn!(
        ended_ops = open.len(),
        "this store is not the one that the last server used: a backup was restored. Agents that joined since are refused unless \
         they are readmitted (--readmit), and cursors of events of the lost time are refused"
    );
    Ok(())
}
