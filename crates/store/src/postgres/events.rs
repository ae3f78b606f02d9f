//! Events of procs, and webhooks that receive them.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{agent, host, integer, natural, plain};
use super::conditions::{Conditions, Value};
use super::fault::PgFault;
use crate::{EventFilter, EventPage, EventRecord, NewAudit, NewEvent, StoreError, Webhook};
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, BusinessId, ProcKey};
use std::collections::HashSet;
use tokio_postgres::Row;

/// The counter is locked after the new events are known, and until the commit: numbers have no gaps, and
/// grow in the order of the commits. An event that another unit stores at the same time violates the unique
/// key, and the unit is repeated. OFFSET 0 keeps the lookup of each event from becoming a join, which
/// might read all events of the agent.
const ADD: &str = "\
    WITH sender AS MATERIALIZED ( \
        SELECT retired_at IS NULL AS may FROM sessions JOIN agents USING (agent_id) \
        WHERE agent_id = $1 FOR NO KEY UPDATE \
    ), new AS MATERIALIZED ( \
        SELECT journal, journal_number, at, namespace, name, kind, message, details, report_id, proc_name, \
            account, place, row_number() OVER (ORDER BY place) AS nth \
        FROM unnest($3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], \
            $10::text[], $11::bigint[], $12::text[], $13::text[]) WITH ORDINALITY \
            AS reported (journal, journal_number, at, namespace, name, kind, message, details, report_id, \
            proc_name, account, place) \
        WHERE EXISTS (SELECT 1 FROM sender WHERE may) AND NOT EXISTS ( \
            SELECT 1 FROM events WHERE events.agent = $1 AND events.journal = reported.journal \
            AND events.journal_number = reported.journal_number OFFSET 0) \
    ), counter AS ( \
        UPDATE event_counter SET last = last + (SELECT count(*) FROM new) \
        WHERE id = 1 AND EXISTS (SELECT 1 FROM new) RETURNING last \
    ), stored AS ( \
        INSERT INTO events (number, agent, journal, journal_number, at, received_at, namespace, name, kind, \
            message, details, report_id, proc_name, account) \
        SELECT counter.last - (SELECT count(*) FROM new) + nth, $1, journal, journal_number, at, $2, \
            namespace, name, kind, message, details, report_id, proc_name, account \
        FROM new CROSS JOIN counter \
    ) \
    SELECT EXISTS (SELECT 1 FROM sender WHERE may), ARRAY(SELECT place FROM new ORDER BY place)";

/// Servers receive events at once, so the event that came first need not have the lowest number. It is
/// looked for among so many that came next.
const RECEIVED_AT_ONCE: i64 = 10_000;

impl PgStore {
    pub(crate) async fn add_events(
        &self,
        from: &AgentId,
        events: Vec<NewEvent>,
        received_at: i64,
    ) -> Result<Vec<NewEvent>, StoreError> {
        let mut seen = HashSet::new();
        let is_first = |event: &NewEvent| seen.insert((plain(&event.journal), integer(event.journal_number)));
        let mut events = events;
        events.retain(is_first);
        self.write(
            "storing events",
            (from.clone(), events, received_at),
            |tx, (from, events, received_at)| {
                Box::pin(async move {
                    let texts = |text: fn(&NewEvent) -> &str| -> Vec<String> {
                        events.iter().map(|event| plain(text(event))).collect()
                    };
                    let numbers =
                        |number: fn(&NewEvent) -> i64| -> Vec<i64> { events.iter().map(number).collect() };
                    let statement = tx.prepare_cached(ADD).await?;
                    let row = tx
                        .query_one(
                            &statement,
                            &[
                                &from.as_str(),
                                received_at,
                                &texts(|event| &event.journal),
                                &numbers(|event| integer(event.journal_number)),
                                &numbers(|event| event.at),
                                &texts(|event| &event.proc.namespace),
                                &texts(|event| &event.proc.name),
                                &texts(|event| &event.kind),
                                &texts(|event| &event.message),
                                &texts(|event| &event.details),
                                &numbers(|event| event.report_id),
                                &texts(|event| &event.proc_name),
                                &texts(|event| &event.account),
                            ],
                        )
                        .await?;
                    if !row.try_get::<_, bool>(0)? {
                        return Err(StoreError::NoSuchAgent(from.clone()).into());
                    }
                    let places: Vec<i64> = row.try_get(1)?;
                    let new: HashSet<i64> = places.into_iter().collect();
                    let new = (1..).zip(events).filter(|(place, _)| new.contains(place));
                    Ok(new.map(|(_, event)| event.clone()).collect())
                })
            },
        )
        .await
    }

    pub(crate) async fn events(
        &self,
        filter: EventFilter,
        within: &GrantScope<BusinessId>,
        page: EventPage,
    ) -> Result<Vec<EventRecord>, StoreError> {
        const DOING: &str = "reading events";
        let (after, limit, order) = match page {
            EventPage::Newest(limit) => (0, limit, "DESC"),
            EventPage::After(after, limit) => (after, limit, "ASC"),
        };
        let mut conditions = conditions(filter, within);
        conditions.add("number > ?", [integer(after)]);
        let sql = format!(
            "SELECT number, agent, cloud_id, ip, received_at, journal, journal_number, at, namespace, name, kind, \
             message, details, report_id, proc_name, account \
             FROM events JOIN agents ON agent_id = agent {} ORDER BY number {order} LIMIT ?",
            conditions.filter()
        );
        let values = conditions.into_values([Value::Int(i64::from(limit))]);
        let rows = self.rows(DOING, &sql, &values).await?;
        let mut records = self.converted(DOING, &rows, record)?;
        if matches!(page, EventPage::Newest(_)) {
            records.reverse();
        }
        Ok(records)
    }

    pub(crate) async fn count_events(
        &self,
        filter: EventFilter,
        within: &GrantScope<BusinessId>,
    ) -> Result<u64, StoreError> {
        let conditions = conditions(filter, within);
        let sql = format!("SELECT count(*) FROM events {}", conditions.filter());
        self.count("counting events", &sql, conditions.values()).await
    }

    pub(crate) async fn last_event(&self) -> Result<u64, StoreError> {
        const DOING: &str = "reading the last event";
        let rows = self.rows(DOING, "SELECT coalesce(max(number), 0) FROM events", &[]).await?;
        let last = self.converted(DOING, &rows, |row| Ok(natural(row.try_get(0)?)))?;
        Ok(last.into_iter().next().unwrap_or(0))
    }

    pub(crate) async fn add_webhook(
        &self,
        url: String,
        created_at: i64,
        audit: NewAudit,
    ) -> Result<Option<Webhook>, StoreError> {
        self.write("storing a webhook", (plain(&url), created_at, audit), |tx, (url, created_at, audit)| {
            Box::pin(async move {
                let sql = "INSERT INTO webhooks (url, created_at, delivered) \
                           VALUES ($1, $2, (SELECT coalesce(max(number), 0) FROM events)) \
                           ON CONFLICT DO NOTHING RETURNING id, url, created_at, delivered";
                let added = tx.query_opt(sql, &[url, created_at]).await?;
                if added.is_some() {
                    insert_audit(tx, audit).await?;
                }
                added.as_ref().map(webhook).transpose()
            })
        })
        .await
    }

    pub(crate) async fn remove_webhook(&self, id: u64, audit: NewAudit) -> Result<bool, StoreError> {
        self.write("removing a webhook", (integer(id), audit), |tx, (id, audit)| {
            Box::pin(async move {
                let removed = tx.execute("DELETE FROM webhooks WHERE id = $1", &[id]).await? > 0;
                if removed {
                    insert_audit(tx, audit).await?;
                }
                Ok(removed)
            })
        })
        .await
    }

    pub(crate) async fn webhooks(&self) -> Result<Vec<Webhook>, StoreError> {
        const DOING: &str = "reading webhooks";
        let sql = "SELECT id, url, created_at, delivered FROM webhooks ORDER BY id";
        let rows = self.rows(DOING, sql, &[]).await?;
        self.converted(DOING, &rows, webhook)
    }

    pub(crate) async fn webhook_delivered(&self, id: u64, up_to: u64) -> Result<(), StoreError> {
        let arguments = (integer(id), integer(up_to));
        self.write("storing what a webhook has taken", arguments, |tx, (id, up_to)| {
            Box::pin(async move {
                let sql = "UPDATE webhooks SET delivered = $2 WHERE id = $1 AND delivered < $2";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[id, up_to]).await?;
                Ok(())
            })
        })
        .await
    }
}

fn record(row: &Row) -> Result<EventRecord, PgFault> {
    Ok(EventRecord {
        number: natural(row.try_get(0)?),
        agent: agent(row, 1)?,
        host: host(row, 2)?,
        received_at: row.try_get(4)?,
        event: NewEvent {
            journal: row.try_get(5)?,
            journal_number: natural(row.try_get(6)?),
            at: row.try_get(7)?,
            proc: ProcKey { namespace: row.try_get(8)?, name: row.try_get(9)? },
            kind: row.try_get(10)?,
            message: row.try_get(11)?,
            details: row.try_get(12)?,
            report_id: row.try_get(13)?,
            proc_name: row.try_get(14)?,
            account: row.try_get(15)?,
        },
    })
}

fn webhook(row: &Row) -> Result<Webhook, PgFault> {
    Ok(Webhook {
        id: natural(row.try_get(0)?),
        url: row.try_get(1)?,
        created_at: row.try_get(2)?,
        delivered: natural(row.try_get(3)?),
    })
}

fn conditions(filter: EventFilter, businesses: &GrantScope<BusinessId>) -> Conditions {
    let mut conditions = Conditions::default();
    conditions.namespaces("namespace", &filter.within);
    conditions.equals("namespace", filter.namespace.as_deref().map(plain));
    conditions.equals("name", filter.name.as_deref().map(plain));
    conditions.equals("kind", filter.kind.as_deref().map(plain));
    conditions.equals("agent", filter.agent.map(|agent| agent.to_string()));
    if let Some(since) = filter.since {
        // An event cannot come before it happened, so older rows need not be read; a host whose clock is
        // ahead cannot make its events newer than they are.
        let first = "number >= (SELECT min(number) FROM \
                     (SELECT number FROM events WHERE received_at >= ? ORDER BY received_at LIMIT ?) AS first)";
        conditions.add(first, [since, RECEIVED_AT_ONCE]);
        conditions.add("at >= ?", [since]);
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
    conditions
}
