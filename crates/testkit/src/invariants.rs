//! Invariants of every PostgreSQL store at the end of a test, whatever happened before.
//!
//! The servers should still run: their end would close what they have left open.

use crate::wait::{EVERY, PATIENCE, ask_again};

pub(crate) const OPEN_OPS: &str =
    "SELECT count(*) FROM ops LEFT JOIN outcomes USING (task, idx) WHERE code IS NULL";

/// Each fault in the stored rows, and the SQL that counts it.
const STORED: [(&str, &str); 3] = [
    (
        "tasks are counted wrongly",
        "SELECT count(*) FROM task_counts JOIN tasks USING (number) WHERE open + succeeded + failed <> total \
         OR is_open OR succeeded + failed <> (SELECT count(*) FROM outcomes WHERE task = number)",
    ),
    // A generation skips numbers on purpose.
    (
        "event numbers are missing",
        "SELECT (SELECT last FROM event_counter) - (SELECT count(*) FROM events) \
         - (SELECT coalesce(sum(events_from - events_before), 0) FROM generations)",
    ),
    ("deadlocks", "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"),
];

/// Things that connections hold for moments only. One that stays was left behind.
const PASSING: [(&str, &str); 2] = [
    (
        "transactions are left open",
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND state LIKE 'idle in transaction%'",
    ),
    (
        "advisory locks are left",
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' \
         AND datname = current_database()",
    ),
];

/// The invariants that a store breaks, and how often. Every op must have ended. `count` runs SQL that selects
/// one number.
pub fn broken_invariants(count: impl Fn(&str) -> i64) -> Vec<(i64, &'static str)> {
    let left = |sql: &str| {
        let gone = ask_again(EVERY, PATIENCE, || (count(sql) == 0).then_some(()));
        if gone.is_some() { 0 } else { count(sql) }
    };
    let stored = STORED.map(|(what, sql)| (count(sql), what));
    let passing = PASSING.map(|(what, sql)| (left(sql), what));
    stored.into_iter().chain(passing).filter(|(found, _)| *found != 0).collect()
}
