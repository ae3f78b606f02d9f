//! Events of procs, and webhooks that receive them.

use super::agents::require;
use super::audit::insert_audit;
use super::columns::{agent, host, integer, natural};
use super::conditions::Conditions;
use super::{QueryFault, SqliteStore};
use crate::{EventFilter, EventPage, EventRecord, NewAudit, NewEvent, StoreError, Webhook};
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, BusinessId, ProcKey};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

impl SqliteStore {
    pub(crate) async fn add_events(
        &self,
        from: &AgentId,
        events: Vec<NewEvent>,
        received_at: i64,
    ) -> Result<Vec<NewEvent>, StoreError> {
        const DOING: &str = "storing events";
        let from = from.clone();
        let spare_space = self.inner.spare_space.clone();
        self.write(DOING, move |db| {
            require(db, &from)?;
            if !spare_space.take(written(&events)) {
                return Err(StoreError::NoSpace { doing: DOING }.into());
            }
            // INSERT OR IGNORE would use up a number for each event that is known.
            let sql = "INSERT INTO events (agent, journal, journal_number, at, received_at, namespace, name, \
                       kind, message, details, report_id, proc_name, account) \
                       SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13 WHERE NOT EXISTS \
                       (SELECT 1 FROM events WHERE agent = ?1 AND journal = ?2 AND journal_number = ?3)";
            let mut insert = db.prepare_cached(sql)?;
            let mut new = Vec::new();
            for event in events {
                let inserted = insert.execute(params![
                    from.as_str(),
                    event.journal,
                    integer(event.journal_number),
                    event.at,
                    received_at,
                    event.proc.namespace,
                    event.proc.name,
                    event.kind,
                    event.message,
                    event.details,
                    event.report_id,
                    event.proc_name,
                    event.account
                ])?;
                if inserted > 0 {
                    new.push(event);
                }
            }
            Ok(new)
        })
        .await
    }

    pub(crate) async fn events(
        &self,
        filter: EventFilter,
        within: &GrantScope<BusinessId>,
        page: EventPage,
    ) -> Result<Vec<EventRecord>, StoreError> {
        let within = within.clone();
        let (after, limit, order) = match page {
            EventPage::Newest(limit) => (0, limit, "DESC"),
            EventPage::After(after, limit) => (after, limit, "ASC"),
        };
        self.read("reading events", move |db| {
            let mut conditions = conditions(filter, db, &within)?;
            conditions.add("number > ?", [integer(after)]);
            let sql = format!(
                "SELECT number, agent, cloud_id, ip, received_at, journal, journal_number, at, namespace, name, kind, \
                 message, details, report_id, proc_name, account \
                 FROM events JOIN agents ON agent_id = agent {} ORDER BY number {order} LIMIT ?",
                conditions.sql()
            );
            let values = conditions.into_values([Value::from(i64::from(limit))]);
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params_from_iter(values))?;
            let mut records = Vec::new();
            while let Some(row) = rows.next()? {
                records.push(record(row)?);
            }
            if matches!(page, EventPage::Newest(_)) {
                records.reverse();
            }
            Ok(records)
        })
        .await
    }

    pub(crate) async fn count_events(
        &self,
        filter: EventFilter,
        within: &GrantScope<BusinessId>,
    ) -> Result<u64, StoreError> {
        let within = within.clone();
        self.read("counting events", move |db| {
            let conditions = conditions(filter, db, &within)?;
            let sql = format!("SELECT count(*) FROM events {}", conditions.sql());
            let values = params_from_iter(conditions.values());
            Ok(natural(db.prepare_cached(&sql)?.query_row(values, |row| row.get(0))?))
        })
        .await
    }

    pub(crate) async fn last_event(&self) -> Result<u64, StoreError> {
        self.read("reading the last event", |db| {
            let sql = "SELECT coalesce(max(number), 0) FROM events";
            Ok(natural(db.prepare_cached(sql)?.query_row([], |row| row.get(0))?))
        })
        .await
    }

    pub(crate) async fn add_webhook(
        &self,
        url: String,
        created_at: i64,
        audit: NewAudit,
    ) -> Result<Option<Webhook>, StoreError> {
        self.write("storing a webhook", move |db| {
            let sql = "INSERT OR IGNORE INTO webhooks (url, created_at, delivered) \
                       VALUES (?1, ?2, (SELECT coalesce(max(number), 0) FROM events)) \
                       RETURNING id, url, created_at, delivered";
            let added = db
                .prepare_cached(sql)?
                .query_row(params![url, created_at], |row| Ok(webhook(row)))
                .optional()?;
            if added.is_some() {
                insert_audit(db, &audit)?;
            }
            added.transpose()
        })
        .await
    }

    pub(crate) async fn remove_webhook(&self, id: u64, audit: NewAudit) -> Result<bool, StoreError> {
        self.write("removing a webhook", move |db| {
            let removed = db.prepare_cached("DELETE FROM webhooks WHERE id = ?")?.execute([integer(id)])? > 0;
            if removed {
                insert_audit(db, &audit)?;
            }
            Ok(removed)
        })
        .await
    }

    pub(crate) async fn webhooks(&self) -> Result<Vec<Webhook>, StoreError> {
        self.read("reading webhooks", |db| {
            let mut statement =
                db.prepare_cached("SELECT id, url, created_at, delivered FROM webhooks ORDER BY id")?;
            let mut rows = statement.query([])?;
            let mut webhooks = Vec::new();
            while let Some(row) = rows.next()? {
                webhooks.push(webhook(row)?);
            }
            Ok(webhooks)
        })
        .await
    }

    pub(crate) async fn webhook_delivered(&self, id: u64, up_to: u64) -> Result<(), StoreError> {
        self.write("storing what a webhook has taken", move |db| {
            let sql = "UPDATE webhooks SET delivered = max(delivered, ?2) WHERE id = ?1";
            db.prepare_cached(sql)?.execute([integer(id), integer(up_to)])?;
            Ok(())
        })
        .await
    }
}

/// Bytes that storing these events writes: their rows, and for each agent some pages of the indices.
fn written(events: &[NewEvent]) -> usize {
    const COLUMNS: usize = 300;
    const PAGES: usize = 4 * 4096;
    let texts = events.iter().map(
        |NewEvent { journal, proc, kind, message, details, proc_name, account, .. }| {
            let texts = [journal, &proc.namespace, &proc.name, kind, message, details, proc_name, account];
            COLUMNS + texts.into_iter().map(String::len).sum::<usize>()
        },
    );
    PAGES + texts.sum::<usize>()
}

fn record(row: &Row<'_>) -> Result<EventRecord, QueryFault> {
    Ok(EventRecord {
        number: natural(row.get(0)?),
        agent: agent(row, 1)?,
        host: host(row, 2)?,
        received_at: row.get(4)?,
        event: NewEvent {
            journal: row.get(5)?,
            journal_number: natural(row.get(6)?),
            at: row.get(7)?,
            proc: ProcKey { namespace: row.get(8)?, name: row.get(9)? },
            kind: row.get(10)?,
            message: row.get(11)?,
            details: row.get(12)?,
            report_id: row.get(13)?,
            proc_name: row.get(14)?,
            account: row.get(15)?,
        },
    })
}

fn webhook(row: &Row<'_>) -> Result<Webhook, QueryFault> {
    Ok(Webhook {
        id: natural(row.get(0)?),
        url: row.get(1)?,
        created_at: row.get(2)?,
        delivered: natural(row.get(3)?),
    })
}

fn conditions(
    filter: EventFilter,
    db: &Connection,
    businesses: &GrantScope<BusinessId>,
) -> Result<Conditions, QueryFault> {
    let mut conditions = Conditions::default();
    conditions.namespaces("namespace", &filter.within);
    conditions.equals("namespace", filter.namespace);
    conditions.equals("name", filter.name);
    conditions.equals("kind", filter.kind);
    conditions.equals("agent", filter.agent.map(|agent| agent.to_string()));
    if let Some(since) = filter.since {
        // An event cannot come before it happened, so older rows need not be read; a host whose clock is
        // ahead cannot make its events newer than they are.
        let sql = "SELECT min(number) FROM events WHERE received_at >= ?";
        let first: Option<i64> = db.prepare_cached(sql)?.query_row([since], |row| row.get(0))?;
        conditions.add("number >= ? AND at >= ?", [first.unwrap_or(i64::MAX), since]);
    }
    if let GrantScope::Only(_) = businesses {
        let mut allowed = Conditions::default();
        allowed.businesses("business_id", businesses);
        conditions.within("agent", "SELECT agent_id FROM agents", allowed);
    }
    if !filter.select.is_empty() {
        let mut selected = Conditions::default();
        selected.select(&filter.select);
        conditions.within("agent", "SELECT agent_id FROM agents", selected);
    }
    Ok(conditions)
}
