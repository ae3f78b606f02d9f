//! The audit of refused calls: repeats are counted in one row, and the number of rows is bounded.
//!
//! Any peer that reaches the port can cause refusals. The first refusal of a kind is written
//! at once. Each further one within the window (an hour from the first) adds to that row's count, which is
//! written every few seconds, before the audit is read and when the server ends. A source (an address, or an
//! app that has logged in) has `OWN` rows in a window, and one more for all the rest; all addresses together
//! have `ALL`, and one more for the rest. All apps together have as many, so that wrong logins of strangers
//! do not hide what an app was denied.

use crate::clock::Clock;
use crate::peer::PeerNet;
use procfleet_failpoint::{Point, hit};
use procfleet_store::{AuditCount, NewAudit, Store};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

const WINDOW_MS: i64 = 3_600_000;
const OWN: usize = 16;
const ALL: usize = 512;
/// How often counts are written.
const EVERY: Duration = Duration::from_secs(5);
/// Maximum characters that a row keeps of each text of the caller.
const NAME: usize = 64;
const DETAIL: usize = 1_000;

/// On whose account a refusal is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RefusalSource {
    Peer(PeerNet),
    App(String),
}

#[derive(Clone, Debug)]
pub struct Refusals {
    store: Store,
    clock: Clock,
    open: Arc<Mutex<OpenWindows>>,
    /// One writer at a time, so that no row is inserted twice.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// The sources that share `ALL` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Share {
    Peers,
    Apps,
}

/// The open windows. `ALL` and the lengths of a row bound its size.
#[derive(Debug, Default)]
struct OpenWindows {
    rows: HashMap<RefusalKey, Row>,
    by_source: HashMap<RefusalSource, usize>,
    by_share: HashMap<Share, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RefusalKey {
    /// All fields of the record except its time.
    Refusal(Box<NewAudit>, RefusalSource),
    RestOf(RefusalSource),
    Rest(Share),
}

impl RefusalSource {
    fn share(&self) -> Share {
        match self {
            RefusalSource::Peer(_) => Share::Peers,
            RefusalSource::App(_) => Share::Apps,
        }
    }
}

impl RefusalKey {
    fn share(&self) -> Share {
        match self {
            RefusalKey::Refusal(_, source) | RefusalKey::RestOf(source) => source.share(),
            RefusalKey::Rest(share) => *share,
        }
    }
}

#[derive(Debug)]
struct Row {
    entry: NewAudit,
    count: AuditCount,
    /// Counted, but not written.
    dirty: bool,
}

/// Whether a refusal is the first of its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repetition {
    First,
    Again,
}

impl Refusals {
    pub fn new(store: Store, clock: Clock) -> Refusals {
        Refusals { store, clock, open: Arc::default(), writing: Arc::default() }
    }

    /// Records a refusal. The first of its kind is in the store when this returns.
    pub async fn record(&self, source: RefusalSource, mut entry: NewAudit) {
        for name in [&mut entry.app, &mut entry.username] {
            *name = name.chars().take(NAME).collect();
        }
        entry.detail = entry.detail.chars().take(DETAIL).collect();
        let seen = self.lock().count(source, entry.clone());
        if seen == Repetition::First {
            let NewAudit { app, origin, action, detail, .. } = &entry;
            warn!(%app, from = %origin, api = %action, reason = %detail, "a call was refused; repeats are only counted");
            self.write().await;
        }
    }

    /// Writes the new counts, and forgets the windows that are over.
    pub async fn write(&self) {
        let _one = self.writing.lock().await;
        let dirty: Vec<(RefusalKey, NewAudit, AuditCount)> = {
            let mut open = self.lock();
            let dirty = open.rows.iter_mut().filter(|(_, row)| row.dirty);
            dirty
                .map(|(key, row)| {
                    row.dirty = false;
                    (key.clone(), row.entry.clone(), row.count)
                })
                .collect()
        };
        if !dirty.is_empty() {
            let rows = dirty.iter().map(|(_, entry, count)| (entry.clone(), *count)).collect();
            match self.store.count_audit(rows).await {
                Ok(ids) => {
                    let mut open = self.lock();
                    for ((key, entry, _), id) in dirty.into_iter().zip(ids) {
                        // The next window may have begun meanwhile: it has its own row.
                        if let Some(row) = open.rows.get_mut(&key).filter(|row| row.entry.at == entry.at) {
                            row.count.row = Some(id);
                        }
                    }
                }
                Err(error) => {
                    warn!(
                        error = &error as &dyn std::error::Error,
                        "refused calls could not be audited; trying again"
                    );
                    let mut open = self.lock();
                    for (key, ..) in dirty {
                        open.rows.entry(key).and_modify(|row| row.dirty = true);
                    }
                }
            }
        }
        self.lock().forget(self.clock.wall());
    }

    /// Writes counts every few seconds, and the last ones at the end of the server.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        loop {
            hit(Point::ServerRefusals);
            let stopped = tokio::time::timeout(EVERY, stop.wait_for(|stop| *stop)).await.is_ok();
            self.write().await;
            if stopped {
                return;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, OpenWindows> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenWindows {
    fn count(&mut self, source: RefusalSource, entry: NewAudit) -> Repetition {
        let at = entry.at;
        let key = RefusalKey::Refusal(Box::new(NewAudit { at: 0, ..entry.clone() }), source.clone());
        let own = self.by_source.get(&source).copied().unwrap_or_default();
        let share = source.share();
        let has_room = self.by_share.get(&share).is_none_or(|rows| *rows < ALL);
        let (key, entry) = if self.holds(&key, at) || (own < OWN && has_room) {
            (key, entry)
        } else if self.holds(&RefusalKey::RestOf(source.clone()), at) || has_room {
            let (app, origin, detail) = match &source {
                RefusalSource::Peer(_) => (
                    String::new(),
                    entry.origin,
                    "further refused calls from here, with various apps, users or reasons",
                ),
                RefusalSource::App(_) => (
                    entry.app,
                    String::new(),
                    "further refused calls of this app, with various users, addresses or reasons",
                ),
            };
            let (code, detail) = (entry.code, detail.to_owned());
            let rest = NewAudit { at, app, origin, code, detail, ..NewAudit::default() };
            (RefusalKey::RestOf(source.clone()), NewAudit { action: "refused".to_owned(), ..rest })
        } else {
            let detail = match share {
                Share::Peers => "further refused calls, from various addresses",
                Share::Apps => "further refused calls, of various apps",
            };
            let rest = NewAudit { at, code: entry.code, detail: detail.to_owned(), ..NewAudit::default() };
            (RefusalKey::Rest(share), NewAudit { action: "refused".to_owned(), ..rest })
        };
        // Counts that are not written yet must not move to the next window.
        if let Some(row) = self.rows.get_mut(&key).filter(|row| row.dirty || is_open(row, at)) {
            row.count = AuditCount { times: row.count.times + 1, last_at: at, ..row.count };
            row.dirty = true;
            return Repetition::Again;
        }
        let count = AuditCount { row: None, times: 1, last_at: at };
        if !self.rows.contains_key(&key) {
            *self.by_share.entry(share).or_default() += 1;
            if matches!(key, RefusalKey::Refusal(..)) {
                *self.by_source.entry(source).or_default() += 1;
            }
        }
        self.rows.insert(key, Row { entry, count, dirty: true });
        Repetition::First
    }

    fn holds(&self, key: &RefusalKey, at: i64) -> bool {
        self.rows.get(key).is_some_and(|row| is_open(row, at))
    }

    fn forget(&mut self, now: i64) {
        self.rows.retain(|key, row| {
            let keep = row.dirty || is_open(row, now);
            if !keep && let Some(rows) = self.by_share.get_mut(&key.share()) {
                *rows -= 1;
            }
            if let (false, RefusalKey::Refusal(_, source)) = (keep, key)
                && let Some(own) = self.by_source.get_mut(source)
            {
                *own -= 1;
            }
            keep
        });
        self.by_source.retain(|_, own| *own > 0);
    }
}

/// The wall clock may have been set back: such a window is over, too.
fn is_open(row: &Row, now: i64) -> bool {
    (0..WINDOW_MS).contains(&(now - row.entry.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    fn source(number: u32) -> RefusalSource {
        RefusalSource::Peer(IpAddr::V4(Ipv4Addr::from_bits(number)).into())
    }

    fn entry(at: i64, app: &str) -> NewAudit {
        NewAudit { at, app: app.to_owned(), ..NewAudit::default() }
    }

    #[test]
    fn repeats_are_one_row_until_the_window_is_over() {
        let mut open = OpenWindows::default();
        assert_eq!(open.count(source(1), entry(10, "a")), Repetition::First);
        assert_eq!(open.count(source(1), entry(11, "a")), Repetition::Again);
        assert_eq!(open.count(source(1), entry(12, "b")), Repetition::First);
        assert_eq!(open.count(source(2), entry(12, "a")), Repetition::First);
        assert_eq!(open.count(source(1), entry(WINDOW_MS + 9, "a")), Repetition::Again);
        assert_eq!(
            open.count(source(1), entry(WINDOW_MS + 10, "a")),
            Repetition::Again,
            "it was not written yet"
        );
        open.rows.values_mut().for_each(|row| row.dirty = false);
        assert_eq!(open.count(source(1), entry(WINDOW_MS + 10, "a")), Repetition::First);
        open.rows.values_mut().for_each(|row| row.dirty = false);
        open.forget(3 * WINDOW_MS);
        assert!(open.rows.is_empty() && open.by_source.is_empty());
    }

    #[test]
    fn neither_one_source_nor_many_make_rows_without_end() {
        let mut open = OpenWindows::default();
        for number in 0..1_000 {
            open.count(source(1), entry(number, &format!("app{number}")));
        }
        assert_eq!(open.rows.len(), OWN + 1);
        let rest = &open.rows[&RefusalKey::RestOf(source(1))];
        assert_eq!((rest.count.times, rest.entry.at), (1_000 - 16, 16));
        for number in 0..100_000u32 {
            open.count(source(number), entry(1_000, "x"));
        }
        assert_eq!(open.rows.len(), ALL + 1);
        let counted: u64 = open.rows.values().map(|row| row.count.times).sum();
        assert_eq!(counted, 101_000, "none is lost");
    }

    #[test]
    fn wrong_logins_of_strangers_hide_no_denial_of_an_app() {
        let mut open = OpenWindows::default();
        for number in 0..10_000u32 {
            open.count(source(number), entry(1_000, "x"));
        }
        for app in 0..10 {
            for reason in 0..2 * OWN {
                let app = format!("app{app}");
                let denied = NewAudit { detail: format!("{reason}"), ..entry(1_000, &app) };
                open.count(RefusalSource::App(app), denied);
            }
        }
        assert_eq!(open.rows.len(), ALL + 1 + 10 * (OWN + 1));
        let rest = &open.rows[&RefusalKey::RestOf(RefusalSource::App("app7".to_owned()))];
        assert_eq!(
            (rest.entry.app.as_str(), rest.count.times),
            ("app7", OWN as u64),
            "the rest names its app"
        );
        for number in 0..10_000 {
            let app = format!("more{number}");
            open.count(RefusalSource::App(app.clone()), entry(1_000, &app));
        }
        assert_eq!(open.rows.len(), 2 * (ALL + 1), "apps are bounded, too");
        open.rows.values_mut().for_each(|row| row.dirty = false);
        open.forget(3 * WINDOW_MS);
        assert_eq!(open.by_share.values().sum::<usize>(), 0);
    }
}
