//! Events of procs, and webhooks that receive them.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{agent, host, integer, natural, plain};
use super::conditions::{Conditions, Value};
use super::fault::PgFault;
use super::group_commit::{ChangeGroup, ChangeReply, GroupChange, Locks};
use super::proc_reports::lock_enrolled;
use crate::{EventFilter, EventPage, EventRecord, NewAudit, NewEvent, StoreError, Webhook};
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::grants::GrantScope;
use procfleet_core::{AgentId, BusinessId, ProcKey};
use std::collections::{HashMap, HashSet};
use tokio_postgres::Row;

/// The counter is locked after the new events are known, and until the commit: numbers have no gaps, and
/// grow in the order of the commits. An event that another unit stores at the same time violates the unique
/// key, and the unit is repeated. OFFSET 0 keeps the lookup of each event from becoming a join, which
/// might read all events of the agent.
const ADD: &str = "\
    WITH new AS MATERIALIZED ( \
        SELECT agent, received_at, journal, journal_number, at, namespace, name, kind, message, details, \
            report_id, proc_name, account, ordinal, row_number() OVER (ORDER BY ordinal) AS nth \
        FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], \
            $8::text[], $9::text[], $10::text[], $11::bigint[], $12::text[], $13::text[]) WITH ORDINALITY \
            AS reported (agent, received_at, journal, journal_number, at, namespace, name, kind, message, \
            details, report_id, proc_name, account, ordinal) \
        WHERE NOT EXISTS ( \
            SELECT 1 FROM events WHERE events.agent = reported.agent AND events.journal = reported.journal \
            AND events.journal_number = reported.journal_number OFFSET 0) \
    ), counter AS ( \
        UPDATE event_counter SET last = last + (SELECT count(*) FROM new) \
        WHERE id = 1 AND EXISTS (SELECT 1 FROM new) RETURNING last \
    ), stored AS ( \
        INSERT INTO events (number, agent, journal, journal_number, at, received_at, namespace, name, kind, \
            message, details, report_id, proc_name, account) \
        SELECT counter.last - (SELECT count(*) FROM new) + nth, agent, journal, journal_number, at, received_at, \
            namespace, name, kind, message, details, report_id, proc_name, account \
        FROM new CROSS JOIN counter \
    ) \
    SELECT ARRAY(SELECT ordinal FROM new ORDER BY ordinal)";

/// Servers receive events concurrently, so the event that was received first need not have the lowest
/// number. The first one is searched among this many later numbers.
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
        let report = EventReport { agent: from.clone(), events, received_at };
        self.write_grouped(|inner| &inner.event_reports, report).await
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

/// Events that one agent reports.
#[derive(Debug)]
pub(super) struct EventReport {
    agent: AgentId,
    events: Vec<NewEvent>,
    received_at: i64,
}

impl GroupChange for EventReport {
    type Answer = Vec<NewEvent>;
    const DOING: &'static str = "storing events";

    fn agent(&self) -> &AgentId {
        &self.agent
    }

    fn bytes(&self) -> usize {
        const COLUMNS: usize = 300;
        self.events.iter().map(|event| event.message.len() + event.details.len() + COLUMNS).sum()
    }

    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(add(tx, group))
    }
}

async fn add(
    tx: &Transaction<'_>,
    group: &ChangeGroup<EventReport>,
) -> Result<Vec<ChangeReply<EventReport>>, PgFault> {
    let senders = lock_enrolled(tx, group.changes.iter().map(|report| &report.agent), group.locks).await?;
    let mut rows: Vec<(&EventReport, &NewEvent)> = Vec::new();
    for report in group.changes.iter().filter(|report| senders.get(&report.agent) == Some(&true)) {
        rows.extend(report.events.iter().map(|event| (report, event)));
    }
    let mut new: HashMap<&AgentId, Vec<NewEvent>> = HashMap::new();
    for (report, event) in insert(tx, &rows).await? {
        new.entry(&report.agent).or_default().push(event.clone());
    }
    let mut reply = |report: &EventReport| match senders.get(&report.agent) {
        Some(true) => ChangeReply::Answer(Ok(new.remove(&report.agent).unwrap_or_default())),
        None if group.locks == Locks::Skip => ChangeReply::Alone,
        Some(false) | None => ChangeReply::Answer(Err(StoreError::NoSuchAgent(report.agent.clone()))),
    };
    Ok(group.changes.iter().map(&mut reply).collect())
}

/// Returns those that are new, in order.
async fn insert<'a>(
    tx: &Transaction<'_>,
    rows: &[(&'a EventReport, &'a NewEvent)],
) -> Result<Vec<(&'a EventReport, &'a NewEvent)>, PgFault> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let texts = |text: fn(&NewEvent) -> &str| -> Vec<String> {
        rows.iter().map(|(_, event)| plain(text(event))).collect()
    };
    let numbers =
        |number: fn(&NewEvent) -> i64| -> Vec<i64> { rows.iter().map(|(_, event)| number(event)).collect() };
    let agents: Vec<&str> = rows.iter().map(|(report, _)| report.agent.as_str()).collect();
    let received: Vec<i64> = rows.iter().map(|(report, _)| report.received_at).collect();
    let statement = tx.prepare_cached(ADD).await?;
    let row = tx
        .query_one(
            &statement,
            &[
                &agents,
                &received,
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
    let ordinals: Vec<i64> = row.try_get(0)?;
    let new: HashSet<i64> = ordinals.into_iter().collect();
    Ok((1..).zip(rows).filter(|(ordinal, _)| new.contains(ordinal)).map(|(_, row)| *row).collect())
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
