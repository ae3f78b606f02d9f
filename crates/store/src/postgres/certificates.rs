//! The certificates of agents, and revoked agents.

use super::PgStore;
use super::agents::{COLUMNS, TABLES, ids, record};
use super::audit::insert_audit;
use super::ca;
use super::columns::{hash, hash_if_any, natural, plain};
use super::conditions::Value;
use super::fault::PgFault;
use super::group_commit::{Access, ChangeGroup, ChangeReply, GroupChange};
use crate::{AgentRecord, CertificateRecord, FORGOTTEN, NewAudit, StoreError};
use deadpool_postgres::Transaction;
use futures_util::future::BoxFuture;
use procfleet_core::AgentId;
use procfleet_proto::link::token::hex;
use std::collections::HashMap;

/// Maximum number of certificates per agent. An agent that loses its answers keeps asking for another.
const MOST: i64 = 8;

impl PgStore {
    pub(crate) async fn agent_with_certificate(
        &self,
        agent: &AgentId,
        sha256: [u8; 32],
    ) -> Result<Option<(AgentRecord, Option<CertificateRecord>)>, StoreError> {
        let question = PresentedCertificate { agent: agent.clone(), sha256 };
        self.write_grouped(|inner| &inner.presented, question).await
    }

    pub(crate) async fn give_certificate(
        &self,
        agent: &AgentId,
        certificate: CertificateRecord,
    ) -> Result<(), StoreError> {
        let arguments = (agent.clone(), certificate);
        self.write("giving an agent a certificate", arguments, |tx, (agent, certificate)| {
            Box::pin(async move {
                ca::check_signing(tx, certificate).await?;
                // Held until the commit, so that the certificate in use does not change meanwhile.
                let sql = "SELECT 1 FROM agents WHERE agent_id = $1 AND retired_at IS NULL AND revoked_at IS NULL \
                           FOR NO KEY UPDATE";
                let statement = tx.prepare_cached(sql).await?;
                if tx.query_opt(&statement, &[&agent.as_str()]).await?.is_none() {
                    return Err(StoreError::NoSuchAgent(agent.clone()).into());
                }
                insert(tx, agent, certificate).await?;
                // Never deletes the certificate in use.
                let sql = "DELETE FROM certificates WHERE agent = $1 AND sha256 NOT IN \
                           (SELECT sha256 FROM certificates WHERE agent = $1 \
                           ORDER BY issued_at DESC NULLS LAST LIMIT $2) \
                           AND sha256 != (SELECT certificate_sha256 FROM agents WHERE agent_id = $1)";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[&agent.as_str(), &MOST]).await?;
                Ok(())
            })
        })
        .await
    }

    pub(crate) async fn use_certificate(&self, agent: &AgentId, sha256: [u8; 32]) -> Result<(), StoreError> {
        let arguments = (agent.clone(), sha256);
        self.write("recording an agent's certificate", arguments, |tx, (agent, sha256)| {
            Box::pin(async move {
                // The second statement sees what `give_certificate` has deleted before this lock was granted.
                let sql = "SELECT 1 FROM agents WHERE agent_id = $1 FOR NO KEY UPDATE";
                let statement = tx.prepare_cached(sql).await?;
                tx.query_opt(&statement, &[&agent.as_str()]).await?;
                let sql = "UPDATE agents SET certificate_sha256 = c.sha256, certificate_ca = c.ca_sha256, \
                           certificate_expires_at = c.expires_at FROM certificates AS c \
                           WHERE c.agent = agents.agent_id AND c.sha256 = $2 AND agents.agent_id = $1";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[&agent.as_str(), &sha256.as_slice()]).await?;
                Ok(())
            })
        })
        .await
    }

    pub(crate) async fn backfill_certificate_ca(&self, ca: [u8; 32]) -> Result<(), StoreError> {
        self.write("naming the CA of old certificates", ca, |tx, ca| {
            Box::pin(async move {
                let sql = "WITH named AS (UPDATE certificates SET ca_sha256 = $1 WHERE ca_sha256 IS NULL) \
                           UPDATE agents SET certificate_ca = $1 WHERE certificate_ca IS NULL";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[&ca.as_slice()]).await?;
                Ok(())
            })
        })
        .await
    }

    pub(crate) async fn count_connectable_agents(&self) -> Result<u64, StoreError> {
        let sql = "SELECT count(*) FROM agents WHERE retired_at IS NULL AND revoked_at IS NULL";
        self.count("counting the agents", sql, &[]).await
    }

    pub(crate) async fn agents_of_ca(&self, ca: [u8; 32]) -> Result<u64, StoreError> {
        let sql = "SELECT count(*) FROM agents \
                   WHERE certificate_ca = decode(?, 'hex') AND retired_at IS NULL AND revoked_at IS NULL";
        self.count("counting the agents of a CA", sql, &[hex(&ca).into()]).await
    }

    pub(crate) async fn usable_tokens(&self, now: i64) -> Result<u64, StoreError> {
        let sql = "SELECT count(*) FROM tokens WHERE expires_at > ? AND uses_left > 0 AND revoked_at IS NULL";
        self.count("counting the join tokens", sql, &[now.into()]).await
    }

    pub(crate) async fn revoke_agents(
        &self,
        agents: Vec<AgentId>,
        why: String,
        at: i64,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        let arguments = (agents, plain(&why), at, audit);
        self.write("revoking agents", arguments, |tx, (agents, why, at, audit)| {
            Box::pin(async move {
                let sql = "WITH due AS MATERIALIZED ( \
                               SELECT agent_id FROM agents WHERE agent_id = ANY($3) AND revoked_at IS NULL \
                               AND retired_at IS NULL ORDER BY agent_id FOR NO KEY UPDATE \
                           ) \
                           UPDATE agents SET revoked_at = $1, revoked_why = $2 FROM due \
                           WHERE agents.agent_id = due.agent_id";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[at, why, &ids(agents)]).await?;
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn forget_agents(
        &self,
        agents: Vec<AgentId>,
        at: i64,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("forgetting agents", (agents, at, audit), |tx, (agents, at, audit)| {
            Box::pin(async move {
                let agents = ids(agents);
                let sql = "WITH due AS MATERIALIZED ( \
                               SELECT agent_id FROM agents WHERE agent_id = ANY($3) AND retired_at IS NULL \
                               ORDER BY agent_id FOR NO KEY UPDATE \
                           ) \
                           UPDATE agents SET revoked_at = coalesce(revoked_at, $1), \
                           revoked_why = CASE WHEN revoked_at IS NULL THEN $2 ELSE revoked_why END, \
                           retired_at = $1 FROM due WHERE agents.agent_id = due.agent_id";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[at, &FORGOTTEN, &agents]).await?;
                // A statement of its own: it sees the procs that were stored before the locks were granted.
                let sql = "WITH no_procs AS (DELETE FROM procs WHERE agent = ANY($1)) \
                           DELETE FROM process_groups WHERE agent = ANY($1)";
                let statement = tx.prepare_cached(sql).await?;
                tx.execute(&statement, &[&agents]).await?;
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    /// Runs a statement whose answer is one number.
    pub(super) async fn count(
        &self,
        doing: &'static str,
        sql: &str,
        values: &[Value],
    ) -> Result<u64, StoreError> {
        let rows = self.rows(doing, sql, values).await?;
        let counts = self.converted(doing, &rows, |row| Ok(natural(row.try_get(0)?)))?;
        Ok(counts.into_iter().sum())
    }
}

/// A certificate that an agent shows when it connects. Thousands do at the same moment when a server has
/// died.
#[derive(Debug)]
pub(super) struct PresentedCertificate {
    agent: AgentId,
    sha256: [u8; 32],
}

impl GroupChange for PresentedCertificate {
    type Answer = Option<(AgentRecord, Option<CertificateRecord>)>;
    const DOING: &'static str = "reading an agent and its certificate";
    const ACCESS: Access = Access::Read;

    fn agent(&self) -> &AgentId {
        &self.agent
    }

    fn bytes(&self) -> usize {
        0
    }

    fn carry_out<'a>(
        tx: &'a Transaction<'a>,
        group: &'a ChangeGroup<Self>,
    ) -> BoxFuture<'a, Result<Vec<ChangeReply<Self>>, PgFault>> {
        Box::pin(look_up(tx, group))
    }
}

async fn look_up(
    tx: &Transaction<'_>,
    group: &ChangeGroup<PresentedCertificate>,
) -> Result<Vec<ChangeReply<PresentedCertificate>>, PgFault> {
    let sql = format!(
        "SELECT {COLUMNS}, sha256 IS NOT NULL, sha256, ca_sha256, issued_at, expires_at \
         FROM unnest($1::text[], $2::bytea[]) AS shown (shown_by, shown_sha256) JOIN ({TABLES}) ON agent_id = shown_by \
         LEFT JOIN certificates ON agent = agent_id AND sha256 = shown_sha256"
    );
    let statement = tx.prepare_cached(&sql).await?;
    let agents: Vec<&str> = group.changes.iter().map(|shown| shown.agent.as_str()).collect();
    let digests: Vec<&[u8]> = group.changes.iter().map(|shown| shown.sha256.as_slice()).collect();
    let mut found = HashMap::new();
    for row in tx.query(&statement, &[&agents, &digests]).await? {
        let agent = record(&row)?;
        let certificate = match row.try_get(19)? {
            true => Some(CertificateRecord {
                sha256: hash(&row, 20)?,
                ca: hash_if_any(&row, 21)?,
                issued_at: row.try_get(22)?,
                expires_at: row.try_get(23)?,
            }),
            false => None,
        };
        found.insert(agent.agent.clone(), (agent, certificate));
    }
    let answer = |shown: &PresentedCertificate| found.remove(&shown.agent);
    Ok(group.changes.iter().map(answer).map(|answer| ChangeReply::Answer(Ok(answer))).collect())
}

pub(super) async fn insert(
    tx: &Transaction<'_>,
    agent: &AgentId,
    certificate: &CertificateRecord,
) -> Result<(), PgFault> {
    let sql = "INSERT INTO certificates (agent, sha256, ca_sha256, issued_at, expires_at) \
               VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING";
    let statement = tx.prepare_cached(sql).await?;
    let CertificateRecord { sha256, ca, issued_at, expires_at } = certificate;
    let ca = ca.as_ref().map(<[u8; 32]>::as_slice);
    tx.execute(&statement, &[&agent.as_str(), &sha256.as_slice(), &ca, issued_at, expires_at]).await?;
    Ok(())
}
