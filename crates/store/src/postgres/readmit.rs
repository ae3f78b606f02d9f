//! Readmits agents that a restored store does not know, or whose certificate it does not know.

use super::PgStore;
use super::audit::insert_audit;
use super::certificates;
use super::columns;
use super::fault::PgFault;
use super::join;
use crate::types::Belonging;
use crate::{CertificateRecord, JoiningAgent, LINK, NewAudit, ReadmitRefusal, Replaces, StoreError};
use deadpool_postgres::Transaction;
use procfleet_core::AgentId;
use procfleet_core::id::{BusinessId, CloudId, Host};

impl PgStore {
    pub(crate) async fn readmit(
        &self,
        back: JoiningAgent,
        now: i64,
    ) -> Result<Result<Host, ReadmitRefusal>, StoreError> {
        self.write("readmitting an agent", (back, now), |tx, (back, now)| {
            Box::pin(async move {
                let host = match admit(tx, back, *now).await? {
                    Ok(host) => host,
                    Err(refusal) => return Ok(Err(refusal)),
                };
                let audit = NewAudit {
                    at: *now,
                    app: LINK.to_owned(),
                    origin: back.from.to_string(),
                    action: "agent_readmit".to_owned(),
                    subject: back.agent.to_string(),
                    detail: format!("{host}, by its certificate"),
                    ..NewAudit::default()
                };
                insert_audit(tx, &audit).await?;
                Ok(Ok(host))
            })
        })
        .await
    }

    pub(crate) async fn was_restored(&self) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM generations LIMIT 1";
        Ok(!self.rows("reading the generations", sql, &[]).await?.is_empty())
    }
}

async fn admit(
    tx: &Transaction<'_>,
    back: &JoiningAgent,
    now: i64,
) -> Result<Result<Host, ReadmitRefusal>, PgFault> {
    let belonging =
        Belonging { cloud: CloudId(0), business: BusinessId::DEFAULT, replaces: Replaces::LostAgents };
    let host = belonging.host(back.ip);
    match find(tx, &back.agent, host).await? {
        ReturningAgent::Itself(known) => return renew(tx, &known, back).await,
        ReturningAgent::Another(agent) => return Ok(Err(ReadmitRefusal::HostTaken { host, agent })),
        ReturningAgent::Nobody => {}
    }
    // If another agent gets the host at the same time, the unit is repeated.
    if join::insert(tx, back, &belonging, "{}", now).await? {
        return Ok(Ok(host));
    }
    // Another server has readmitted the same agent meanwhile.
    match find(tx, &back.agent, host).await? {
        ReturningAgent::Itself(known) => renew(tx, &known, back).await,
        ReturningAgent::Another(_) | ReturningAgent::Nobody => {
            Err(StoreError::Exists { what: "an agent", key: back.agent.to_string() }.into())
        }
    }
}

/// An agent of the store. Its row is locked.
struct Known {
    host: Host,
    is_dismissed: bool,
}

enum ReturningAgent {
    Itself(Known),
    /// The host has this agent, and the wanted one is unknown.
    Another(String),
    Nobody,
}

/// Locks the agent, and the agent that the host has.
async fn find(tx: &Transaction<'_>, wanted: &AgentId, host: Host) -> Result<ReturningAgent, PgFault> {
    let sql = "SELECT agent_id, cloud_id, ip, retired_at IS NOT NULL OR revoked_at IS NOT NULL FROM agents \
               WHERE agent_id = $1 OR (cloud_id = $2 AND ip = $3 AND retired_at IS NULL) \
               ORDER BY agent_id FOR NO KEY UPDATE";
    let statement = tx.prepare_cached(sql).await?;
    let (cloud, ip) = (i64::from(host.cloud.0), host.ip.to_string());
    let mut found = ReturningAgent::Nobody;
    for row in tx.query(&statement, &[&wanted.as_str(), &cloud, &ip]).await? {
        let agent: String = row.try_get(0)?;
        if agent == wanted.as_str() {
            let known = Known { host: columns::host(&row, 1)?, is_dismissed: row.try_get(3)? };
            return Ok(ReturningAgent::Itself(known));
        }
        found = ReturningAgent::Another(agent);
    }
    Ok(found)
}

/// Adds the certificate that a known agent shows.
async fn renew(
    tx: &Transaction<'_>,
    known: &Known,
    back: &JoiningAgent,
) -> Result<Result<Host, ReadmitRefusal>, PgFault> {
    if known.is_dismissed {
        return Ok(Err(ReadmitRefusal::Dismissed));
    }
    if !is_newest(tx, &back.agent, &back.certificate).await? {
        return Ok(Err(ReadmitRefusal::OldCertificate));
    }
    certificates::insert(tx, &back.agent, &back.certificate).await?;
    Ok(Ok(known.host))
}

/// A certificate that was renewed in the lost time expires later than all known ones.
async fn is_newest(
    tx: &Transaction<'_>,
    agent: &AgentId,
    shown: &CertificateRecord,
) -> Result<bool, PgFault> {
    let sql = "SELECT coalesce(max(expires_at), 0) FROM certificates WHERE agent = $1";
    let statement = tx.prepare_cached(sql).await?;
    let newest: i64 = tx.query_one(&statement, &[&agent.as_str()]).await?.try_get(0)?;
    Ok(shown.expires_at.is_some_and(|end| end > newest))
}
