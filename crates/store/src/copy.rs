//! `procfleet store copy`: moves an embedded store to PostgreSQL.
//!
//! ```text
//! Snapshot (sqlite) --rows--> BEGIN, TRUNCATE, COPY BINARY, compare each row, COMMIT (postgres)
//! ```
//!
//! One transaction replaces what an earlier copy has left, so an interrupted or failed copy changes nothing.
//! The rows are compared before the commit: what is committed is the same as the snapshot.
//!
//! The CA's keys are files in the data folder and no part of a store, so they are not copied.

use crate::copied_tables::{COPIED_TABLES, CopiedTable, CopyRow, RowDigest};
use crate::postgres::{CopyTarget, CopyTransaction, DAY_BITS};
use crate::sqlite::Snapshot;
use crate::{CopyReport, CopySource, StoreError, StoreUrl, TableComparison};

/// Copies a store to a PostgreSQL store that no server has used. `compared` is called for each table that is
/// the same in both stores, before the copy is committed.
pub async fn copy(
    from: CopySource,
    to: &StoreUrl,
    mut compared: impl FnMut(TableComparison),
) -> Result<CopyReport, StoreError> {
    // Before the snapshot: a target that cannot be used is refused at once.
    let mut target = CopyTarget::open(to).await?;
    let snapshot = tokio::task::spawn_blocking(move || match &from {
        CopySource::Store(path) => Snapshot::of_store(path),
        CopySource::Backup(file) => Snapshot::of_backup(file),
    });
    let snapshot = snapshot.await??;
    let transaction = target.begin().await?;
    transaction.create_partitions(&snapshot.task_days(DAY_BITS)?).await?;
    for table in COPIED_TABLES {
        let copied = transaction.fill(table, snapshot.rows(table)).await;
        copied.map_err(|error| in_table(table, error))?;
    }
    transaction.end_sessions().await?;
    transaction.continue_above(snapshot.used_numbers()?).await?;
    let mut rows = 0;
    for table in COPIED_TABLES {
        let comparison = compare(&snapshot, &transaction, table).await?;
        rows += comparison.rows;
        compared(comparison);
    }
    transaction.commit().await?;
    let replaced_texts = snapshot.replaced_texts;
    Ok(CopyReport { origin: snapshot.origin, tables: COPIED_TABLES.len(), rows, replaced_texts })
}

/// Reads a table from both stores, row by row.
async fn compare(
    snapshot: &Snapshot,
    copy: &CopyTransaction<'_>,
    table: &'static CopiedTable,
) -> Result<TableComparison, StoreError> {
    let failed = |error| in_table(table, error);
    let (mut originals, mut copies) = (snapshot.rows(table), copy.rows(table).await.map_err(failed)?);
    let (mut of_originals, mut of_copies) = (RowDigest::new(), RowDigest::new());
    loop {
        let original = originals.next().await.map_err(failed)?;
        let copied = copies.next().await.map_err(failed)?;
        if original.is_none() && copied.is_none() {
            break;
        }
        original.iter().for_each(|row| of_originals.add(row));
        copied.iter().for_each(|row| of_copies.add(row));
        if original != copied {
            let difference = difference(table, original, copied);
            return Err(StoreError::CopyDiffers {
                store: copy.store().to_owned(),
                table: table.name,
                difference,
            });
        }
    }
    let (rows, sha256) = of_originals.finish();
    assert_eq!((rows, sha256), of_copies.finish(), "equal rows have equal digests");
    Ok(TableComparison { table: table.name, rows, sha256 })
}

/// Names the first row that differs. Values are left out: they may be secret.
fn difference(table: &CopiedTable, original: Option<CopyRow>, copied: Option<CopyRow>) -> String {
    let key = |row: &CopyRow| table.key_of(row);
    match (original, copied) {
        (Some(original), Some(copied)) if key(&original) == key(&copied) => {
            let columns = table.columns.iter().zip(original.iter().zip(&copied));
            let columns = columns.filter(|(_, (one, other))| one != other).map(|((name, _), _)| *name);
            let columns = columns.collect::<Vec<_>>().join(", ");
            format!("the row with {} has another {columns}", key(&original))
        }
        (Some(original), Some(copied)) => {
            format!("the row with {} is in the place of the row with {}", key(&copied), key(&original))
        }
        (Some(original), None) => format!("the row with {} is missing", key(&original)),
        (None, Some(copied)) => format!("the row with {} is not in the original", key(&copied)),
        (None, None) => "none".to_owned(),
    }
}

fn in_table(table: &CopiedTable, error: StoreError) -> StoreError {
    StoreError::CopyTable { table: table.name, source: Box::new(error) }
}
