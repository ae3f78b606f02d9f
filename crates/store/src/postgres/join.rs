//! Joining: an agent with a join token becomes the agent of its host.

use super::audit::insert_audit;
use super::columns::{agent, business, plain};
use super::conditions::Value;
use super::fault::PgFault;
use super::group_commit::{self, ChangeGroup, ChangeReply, GroupChange};
use super::{PgStore, ca, tokens};
use crate::order::host_order;
use crate::types::Belonging;
use crate::{
    AGENT_REPLACED, JoinTokenRefusal, JoinedAgent, JoiningAgent, LINK, NewAudit, Replaces, StoreError,
    TokenUse,
};
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::code::Code;
use procfleet_core::{AgentId, BusinessId, Host};
use std::net::IpAddr;
use tokio_postgres::Row;

impl Belonging {
    /// The host that an agent with this address is on.
    pub(super) fn host(&self, ip: IpAddr) -> Host {
        Host { cloud: self.cloud, ip }
    }
}

impl PgStore {
    pub(crate) async fn join(
        &self,
        token: TokenUse,
        joining: JoiningAgent,
        now: i64,
    ) -> Result<Result<JoinedAgent, JoinTokenRefusal>, StoreError> {
        self.write_grouped(|inner| &inner.joins, Join { token, joining, now }).await
    }

    pub(crate) async fn join_refusal(
        &self,
        token: TokenUse,
        ip: IpAddr,
        now: i64,
    ) -> Result<Option<JoinTokenRefusal>, StoreError> {
        const DOING: &str = "checking a join token";
        // As in `lock_occupant`.
        let sql = "SELECT id, tokens.cloud_id, tokens.business_id, created_at, expires_at, uses_left, replaces, \
                   tokens.revoked_at, secret_hash, agents.agent_id, agents.business_id, \
                   epoch > 0 AND agents.revoked_at IS NULL AND (changed_at > ? OR connected AND \
                   coalesce((SELECT ended_at > ? FROM server_ends WHERE server = holder), \
                            holder IN (SELECT id FROM servers))), labels FROM tokens \
                   LEFT JOIN agents ON agents.cloud_id = tokens.cloud_id AND ip = ? AND retired_at IS NULL \
                   LEFT JOIN sessions ON sessions.agent_id = agents.agent_id WHERE id = ?";
        let lost = Value::Int(lost_before(now));
        let values = [lost.clone(), lost, ip.to_string().into(), plain(&token.id).into()];
        let rows = self.prepared_rows(DOING, sql, &values).await?;
        let refusal = |row: &Row| -> Result<Option<JoinTokenRefusal>, PgFault> {
            let belonging = match tokens::check(row, &token, now)? {
                Ok(belonging) => belonging,
                Err(refusal) => return Ok(Some(refusal)),
            };
            let there: Option<&str> = row.try_get(9)?;
            let occupant = there.map(|_| occupant(row, 9)).transpose()?;
            Ok(permit(occupant.as_ref(), &belonging, ip).err())
        };
        let found = self.converted(DOING, &rows, refusal)?.pop();
        Ok(found.unwrap_or(Some(JoinTokenRefusal::Unknown)))
    }
}

/// An agent that wants to be enrolled.
#[derive(Debug)]
pub(super) struct Join {
    token: TokenUse,
    joining: JoiningAgent,
    now: i64,
}

impl GroupChange for Join {
    type Answer = Result<JoinedAgent, JoinTokenRefusal>;
    const DOING: &'static str = "enrolling an agent";

    fn agent(&self) -> &AgentId {
        &self.joining.agent
    }

    /// A weight, not a size: about 50 joins share a unit at most, because each takes several statements and
    /// holds the lock of its token until the commit.
    fn bytes(&self) -> usize {
        group_commit::BYTES / 50
    }

    /// A unit of many joins locks the sessions of agents that are replaced in no order. A deadlock costs a
    /// repetition.
    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(async move {
            let mut replies = Vec::with_capacity(group.changes.len());
            for Join { token, joining, now } in &group.changes {
                replies.push(ChangeReply::Answer(Ok(enroll(tx, token, joining, *now).await?)));
            }
            Ok(replies)
        })
    }
}

/// Locks the token, then the session and the row of the host's agent.
///
/// Of two units for one host without an agent, the second violates the unique index of hosts and is repeated.
/// The same happens to a unit that has waited for the lock of an agent which is retired by then.
async fn enroll(
    tx: &Transaction<'_>,
    token: &TokenUse,
    joining: &JoiningAgent,
    now: i64,
) -> Result<Result<JoinedAgent, JoinTokenRefusal>, PgFault> {
    let mut audit = NewAudit {
        at: now,
        app: LINK.to_owned(),
        origin: joining.from.to_string(),
        action: "agent_join".to_owned(),
        subject: joining.agent.to_string(),
        ..NewAudit::default()
    };
    // Lock order: the pins of the CA before the token, as in every unit that gives out a certificate (`ca`).
    ca::check_signing(tx, &joining.certificate).await?;
    let allowed = match tokens::lock(tx, token, now).await? {
        Ok(belonging) => {
            let occupant = lock_occupant(tx, belonging.host(joining.ip), now).await?;
            permit(occupant.as_ref(), &belonging, joining.ip).map(|()| (belonging, occupant))
        }
        Err(refusal) => Err(refusal),
    };
    let (belonging, occupant) = match allowed {
        Ok(allowed) => allowed,
        Err(refusal) => {
            audit.code = Code::NotAllowed.external();
            audit.detail = format!("{} with token {}: {refusal}", joining.ip, token.id);
            insert_audit(tx, &audit).await?;
            return Ok(Err(refusal));
        }
    };
    tokens::spend(tx, token).await?;
    let host = belonging.host(joining.ip);
    audit.detail = format!("{host} with token {}, business {}", token.id, belonging.business);
    let Some(Occupant { agent: old, labels, .. }) = occupant else {
        insert_new(tx, joining, &belonging, "{}", now).await?;
        insert_audit(tx, &audit).await?;
        return Ok(Ok(JoinedAgent { host, retired: Vec::new() }));
    };
    retire(tx, &old, now).await?;
    // Labels belong to the host, so the new agent inherits them.
    insert_new(tx, joining, &belonging, &labels, now).await?;
    audit.detail.push_str(&format!(", instead of {old}"));
    record_takeover(tx, joining, host, &old, &token.id, &audit).await?;
    Ok(Ok(JoinedAgent { host, retired: vec![old] }))
}

/// How long an agent may be away before any token lets another take its place.
const LOST_AFTER_MS: i64 = 86_400_000;

/// An agent that went before this time is lost.
fn lost_before(now: i64) -> i64 {
    now.saturating_sub(LOST_AFTER_MS)
}

/// The agent that a host has.
struct Occupant {
    agent: AgentId,
    business: BusinessId,
    is_live: bool,
    /// As stored.
    labels: String,
}

/// Reads four columns: agent, business, whether it is live, labels.
fn occupant(row: &Row, column: usize) -> Result<Occupant, PgFault> {
    Ok(Occupant {
        agent: agent(row, column)?,
        business: business(row.try_get(column + 1)?)?,
        is_live: row.try_get(column + 2)?,
        labels: row.try_get(column + 3)?,
    })
}

/// Locks the session and then the row of the agent that a host has. An agent is connected as long as its
/// server is up; with the end of the server its absence begins.
async fn lock_occupant(tx: &Transaction<'_>, host: Host, now: i64) -> Result<Option<Occupant>, PgFault> {
    let sql = "WITH own AS MATERIALIZED ( \
                   SELECT sessions.agent_id, epoch, connected, changed_at, holder \
                   FROM agents JOIN sessions ON sessions.agent_id = agents.agent_id \
                   WHERE cloud_id = $1 AND ip = $2 AND retired_at IS NULL FOR UPDATE OF sessions \
               ) \
               SELECT agents.agent_id, business_id, \
               epoch > 0 AND revoked_at IS NULL AND (changed_at > $3 OR connected AND \
               coalesce((SELECT ended_at > $3 FROM server_ends WHERE server = holder), \
                        holder IN (SELECT id FROM servers))), labels, retired_at IS NULL \
               FROM own JOIN agents ON agents.agent_id = own.agent_id FOR NO KEY UPDATE OF agents";
    let statement = tx.prepare_cached(sql).await?;
    let (cloud, ip) = (i64::from(host.cloud.0), host.ip.to_string());
    match tx.query_opt(&statement, &[&cloud, &ip, &lost_before(now)]).await? {
        Some(row) if row.try_get(4)? => occupant(&row, 0).map(Some),
        // Retired while this unit waited for its session.
        Some(_) | None => Ok(None),
    }
}

/// The holder of a token chooses the host that it joins as. It must not take a host from another business,
/// nor replace a live agent unless the token was made for that.
fn permit(occupant: Option<&Occupant>, belonging: &Belonging, ip: IpAddr) -> Result<(), JoinTokenRefusal> {
    let Some(occupant) = occupant else { return Ok(()) };
    if occupant.business != belonging.business {
        return Err(JoinTokenRefusal::HostOf(occupant.business));
    }
    match belonging.replaces {
        Replaces::LostAgents if occupant.is_live => Err(JoinTokenRefusal::HostInUse(belonging.host(ip))),
        Replaces::LostAgents | Replaces::AnyAgent => Ok(()),
    }
}

/// Records that an agent has replaced another one: in the audit trail, before the record of the join, and as
/// an event. The event comes last, because its number locks the event counter until the commit.
async fn record_takeover(
    tx: &Transaction<'_>,
    joining: &JoiningAgent,
    host: Host,
    old: &AgentId,
    token: &str,
    join: &NewAudit,
) -> Result<(), PgFault> {
    let (new, old, from) = (joining.agent.as_str(), old.as_str(), joining.from);
    let message = format!("agent {new} has joined in place of {old}, from {from} with token {token}");
    let details =
        serde_json::json!({"agent_replaced": {"new": new, "old": [old], "from": from, "token": token}});
    let replace = NewAudit {
        action: "agent_replace".to_owned(),
        subject: host.to_string(),
        detail: message.clone(),
        ..join.clone()
    };
    insert_audit(tx, &replace).await?;
    insert_audit(tx, join).await?;
    let sql = "WITH n AS (UPDATE event_counter SET last = last + 1 WHERE id = 1 RETURNING last) \
               INSERT INTO events (number, agent, journal, journal_number, at, received_at, namespace, name, kind, \
               message, details, report_id, proc_name, account) \
               SELECT n.last, $1, 'takeover', 1, $2, $2, '', '', $3, $4, $5, 0, '', '' FROM n";
    let statement = tx.prepare_cached(sql).await?;
    let (message, details) = (plain(&message), details.to_string());
    tx.execute(&statement, &[&new, &join.at, &AGENT_REPLACED, &message, &details]).await?;
    Ok(())
}

/// Retires an agent whose rows are locked, and deletes what it reported about its procs: nobody would correct
/// it.
async fn retire(tx: &Transaction<'_>, agent: &AgentId, now: i64) -> Result<(), PgFault> {
    let sql = "WITH ended AS ( \
                   UPDATE sessions SET changed_at = CASE WHEN connected THEN $2 ELSE changed_at END, \
                   connected = false WHERE agent_id = $1 \
               ), no_procs AS (DELETE FROM procs WHERE agent = $1), \
               no_groups AS (DELETE FROM process_groups WHERE agent = $1), \
               no_certificates AS (DELETE FROM certificates WHERE agent = $1) \
               UPDATE agents SET retired_at = $2 WHERE agent_id = $1";
    let statement = tx.prepare_cached(sql).await?;
    tx.execute(&statement, &[&agent.as_str(), &now]).await?;
    Ok(())
}

async fn insert_new(
    tx: &Transaction<'_>,
    joining: &JoiningAgent,
    to: &Belonging,
    labels: &str,
    now: i64,
) -> Result<(), PgFault> {
    match insert(tx, joining, to, labels, now).await? {
        true => Ok(()),
        false => Err(StoreError::Exists { what: "an agent", key: joining.agent.to_string() }.into()),
    }
}

/// Inserts an agent with its session and its certificate. False: there is an agent with this id.
pub(super) async fn insert(
    tx: &Transaction<'_>,
    joining: &JoiningAgent,
    to: &Belonging,
    labels: &str,
    now: i64,
) -> Result<bool, PgFault> {
    let sql = "WITH new AS ( \
                   INSERT INTO agents (agent_id, cloud_id, ip, host_order, business_id, certificate_sha256, \
                   certificate_ca, certificate_expires_at, version, labels, enrolled_at) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) \
                   ON CONFLICT (agent_id) DO NOTHING RETURNING agent_id \
               ), session AS ( \
                   INSERT INTO sessions (agent_id, epoch, connected, changed_at) \
                   SELECT agent_id, 0, false, $11 FROM new \
               ), certificate AS ( \
                   INSERT INTO certificates (agent, sha256, ca_sha256, issued_at, expires_at) \
                   SELECT agent_id, $6, $7, $12, $8 FROM new \
               ) \
               SELECT agent_id FROM new";
    let statement = tx.prepare_cached(sql).await?;
    let host = to.host(joining.ip);
    let certificate = &joining.certificate;
    let row = tx
        .query_opt(
            &statement,
            &[
                &joining.agent.as_str(),
                &i64::from(host.cloud.0),
                &host.ip.to_string(),
                &host_order(host),
                &i64::from(to.business.0),
                &certificate.sha256.as_slice(),
                &certificate.ca.as_ref().map(<[u8; 32]>::as_slice),
                &certificate.expires_at,
                &plain(&joining.version),
                &labels,
                &now,
                &certificate.issued_at,
            ],
        )
        .await?;
    Ok(row.is_some())
}
