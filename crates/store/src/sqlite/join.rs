//! Joining: an agent with a join token becomes the agent of its host.

use super::audit::insert_audit;
use super::businesses::business;
use super::columns::{agent, host_order};
use super::{QueryFault, SqliteStore, ca, certificates, tokens};
use crate::types::Belonging;
use crate::{
    AGENT_REPLACED, JoinTokenRefusal, JoinedAgent, JoiningAgent, LINK, NewAudit, Replaces, StoreError,
    TokenUse,
};
use procfleet_core::code::Code;
use procfleet_core::{AgentId, BusinessId, Host};
use rusqlite::{Connection, params};
use std::net::IpAddr;

impl SqliteStore {
    pub(crate) async fn join(
        &self,
        token: TokenUse,
        joining: JoiningAgent,
        now: i64,
    ) -> Result<Result<JoinedAgent, JoinTokenRefusal>, StoreError> {
        self.write("enrolling an agent", move |db| {
            let mut audit = NewAudit {
                at: now,
                app: LINK.to_owned(),
                origin: joining.from.to_string(),
                action: "agent_join".to_owned(),
                subject: joining.agent.to_string(),
                ..NewAudit::default()
            };
            let allowed = match tokens::check(db, &token, now)? {
                Ok(belonging) => permit(db, &belonging, joining.ip, now)?.map(|()| belonging),
                Err(refusal) => Err(refusal),
            };
            let belonging = match allowed {
                Ok(belonging) => belonging,
                Err(refusal) => {
                    audit.code = Code::NotAllowed.external();
                    audit.detail = format!("{} with token {}: {refusal}", joining.ip, token.id);
                    insert_audit(db, &audit)?;
                    return Ok(Err(refusal));
                }
            };
            ca::check_signing(db, &joining.certificate)?;
            tokens::spend(db, &token)?;
            let host = Host { cloud: belonging.cloud, ip: joining.ip };
            let retired = retire(db, host, now)?;
            insert(db, &joining, &belonging, now)?;
            if let Some(old) = retired.last() {
                // Labels belong to the host, so the new agent inherits them.
                let sql = "UPDATE agents SET labels = (SELECT labels FROM agents WHERE agent_id = ?) WHERE agent_id = ?";
                db.prepare_cached(sql)?.execute([old.as_str(), joining.agent.as_str()])?;
            }
            let instead: Vec<&str> = retired.iter().map(AgentId::as_str).collect();
            audit.detail = format!("{host} with token {}, business {}", token.id, belonging.business);
            if !instead.is_empty() {
                audit.detail.push_str(&format!(", instead of {}", instead.join(", ")));
                record_takeover(db, &joining, host, &retired, &token.id, now)?;
            }
            insert_audit(db, &audit)?;
            Ok(Ok(JoinedAgent { host, retired }))
        })
        .await
    }

    pub(crate) async fn join_refusal(
        &self,
        token: TokenUse,
        ip: IpAddr,
        now: i64,
    ) -> Result<Option<JoinTokenRefusal>, StoreError> {
        self.read("checking a join token", move |db| {
            Ok(match tokens::check(db, &token, now)? {
                Ok(belonging) => permit(db, &belonging, ip, now)?.err(),
                Err(refusal) => Some(refusal),
            })
        })
        .await
    }
}

/// How long an agent may be away before any token lets another take its place.
const LOST_AFTER_MS: i64 = 86_400_000;

/// The holder of a token chooses the host that it joins as. It must not take a host from another business,
/// nor replace a live agent unless the token was made for that.
pub(super) fn permit(
    db: &Connection,
    belonging: &Belonging,
    ip: IpAddr,
    now: i64,
) -> Result<Result<(), JoinTokenRefusal>, QueryFault> {
    // The absence of an agent whose session was cut off by the end of a server begins with the next start.
    let sql = "SELECT business_id, epoch > 0 AND revoked_at IS NULL \
               AND (present OR max(changed_at, cut_off_at) > ?) FROM agents \
               WHERE cloud_id = ? AND ip = ? AND retired_at IS NULL";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![now - LOST_AFTER_MS, belonging.cloud.0, ip.to_string()])?;
    let Some(row) = rows.next()? else { return Ok(Ok(())) };
    let (owner, is_live): (BusinessId, bool) = (business(row.get(0)?)?, row.get(1)?);
    if owner != belonging.business {
        return Ok(Err(JoinTokenRefusal::HostOf(owner)));
    }
    match belonging.replaces {
        Replaces::LostAgents if is_live => {
            Ok(Err(JoinTokenRefusal::HostInUse(Host { cloud: belonging.cloud, ip })))
        }
        Replaces::LostAgents | Replaces::AnyAgent => Ok(Ok(())),
    }
}

/// Tells of an agent that has taken the place of others: in an event, for whoever listens, and in the audit
/// trail.
fn record_takeover(
    db: &Connection,
    joining: &JoiningAgent,
    host: Host,
    instead: &[AgentId],
    token: &str,
    now: i64,
) -> Result<(), QueryFault> {
    let old: Vec<&str> = instead.iter().map(AgentId::as_str).collect();
    let (new, from) = (joining.agent.as_str(), joining.from);
    let message =
        format!("agent {new} has joined in place of {}, from {from} with token {token}", old.join(", "));
    let details =
        serde_json::json!({"agent_replaced": {"new": new, "old": old, "from": from, "token": token}});
    let sql = "INSERT INTO events (agent, journal, journal_number, at, received_at, namespace, name, kind, message, details, \
               report_id, proc_name, account) VALUES (?1, 'takeover', 1, ?2, ?2, '', '', ?3, ?4, ?5, 0, '', '')";
    db.prepare_cached(sql)?.execute(params![new, now, AGENT_REPLACED, message, details.to_string()])?;
    let audit = NewAudit {
        at: now,
        app: LINK.to_owned(),
        origin: from.to_string(),
        action: "agent_replace".to_owned(),
        subject: host.to_string(),
        detail: message,
        ..NewAudit::default()
    };
    insert_audit(db, &audit)
}

/// Retires the agents of a host, and deletes the procs, groups and certificates that are stored for them: no
/// agent would update them any more.
fn retire(db: &Connection, host: Host, now: i64) -> Result<Vec<AgentId>, QueryFault> {
    let sql = "UPDATE agents SET retired_at = ?1, changed_at = iif(connected, ?1, changed_at), connected = 0, present = 0 \
               WHERE cloud_id = ?2 AND ip = ?3 AND retired_at IS NULL RETURNING agent_id";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![now, host.cloud.0, host.ip.to_string()])?;
    let mut retired = Vec::new();
    while let Some(row) = rows.next()? {
        retired.push(agent(row, 0)?);
    }
    for agent in &retired {
        db.prepare_cached("DELETE FROM procs WHERE agent = ?")?.execute([agent.as_str()])?;
        db.prepare_cached("DELETE FROM process_groups WHERE agent = ?")?.execute([agent.as_str()])?;
        db.prepare_cached("DELETE FROM certificates WHERE agent = ?")?.execute([agent.as_str()])?;
    }
    Ok(retired)
}

pub(super) fn insert(
    db: &Connection,
    joining: &JoiningAgent,
    to: &Belonging,
    now: i64,
) -> Result<(), QueryFault> {
    let sql = "INSERT INTO agents (agent_id, cloud_id, ip, certificate_sha256, version, enrolled_at, \
               connected, changed_at, epoch, business_id, certificate_ca, certificate_expires_at, host_order) \
               VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?6, 0, ?7, ?8, ?9, ?10) \
               ON CONFLICT (agent_id) DO NOTHING";
    let inserted = db.prepare_cached(sql)?.execute(params![
        joining.agent.as_str(),
        to.cloud.0,
        joining.ip.to_string(),
        joining.certificate.sha256,
        joining.version,
        now,
        to.business.0,
        joining.certificate.ca,
        joining.certificate.expires_at,
        host_order(Host { cloud: to.cloud, ip: joining.ip })
    ])?;
    match inserted {
        0 => Err(StoreError::Exists { what: "an agent", key: joining.agent.to_string() }.into()),
        _ => certificates::insert(db, &joining.agent, &joining.certificate),
    }
}
