//! Migrations: SQL scripts in order. `user_version` of a database is the number of scripts applied to it.
//!
//! A released script never changes.

use rusqlite::{Connection, Transaction};

#[derive(Clone, Copy, Debug)]
pub struct Migrations(pub &'static [&'static str]);

#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// A newer program has written the database.
    #[error("its format is {found}, the newest known here is {known}")]
    TooNew { found: i64, known: i64 },
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
}

impl Migrations {
    /// The newest version.
    pub fn known(&self) -> i64 {
        i64::try_from(self.0.len()).unwrap_or(i64::MAX)
    }

    /// The version of a database, 0 for a new one.
    pub fn version(&self, connection: &Connection) -> Result<i64, VersionError> {
        let found = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        let known = self.known();
        if found > known { Err(VersionError::TooNew { found, known }) } else { Ok(found) }
    }

    /// Applies the missing scripts. Writes nothing to a database that has the newest version.
    pub fn apply(&self, transaction: &Transaction<'_>) -> Result<(), VersionError> {
        let found = self.version(transaction)?;
        if found == self.known() {
            return Ok(());
        }
        for script in self.0.iter().skip(usize::try_from(found).unwrap_or_default()) {
            transaction.execute_batch(script)?;
        }
        Ok(transaction.pragma_update(None, "user_version", self.known())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "CREATE TABLE t (n)";
    const SECOND: &str = "INSERT INTO t VALUES (2)";

    #[test]
    fn each_script_is_applied_once_and_a_newer_database_is_refused() {
        let mut database = Connection::open_in_memory().expect("a database");
        let mut migrate = |migrations: Migrations| {
            let transaction = database.transaction().expect("a transaction");
            migrations.apply(&transaction)?;
            let rows = "SELECT count(*) FROM t";
            let rows: i64 = transaction.query_row(rows, [], |row| row.get(0)).expect("the table");
            transaction.commit().expect("writable");
            Ok::<i64, VersionError>(rows)
        };
        assert_eq!(migrate(Migrations(&[FIRST])).expect("the first script"), 0);
        for _ in 0..2 {
            assert_eq!(migrate(Migrations(&[FIRST, SECOND])).expect("the second script"), 1);
        }
        let refused = migrate(Migrations(&[FIRST])).expect_err("too new");
        assert!(matches!(refused, VersionError::TooNew { found: 2, known: 1 }), "{refused}");
    }
}
