//! The certificates of agents, and revoked agents.

use super::agents::one;
use super::audit::insert_audit;
use super::ca;
use super::columns::natural;
use super::{QueryFault, SqliteStore};
use crate::{AgentRecord, CertificateRecord, FORGOTTEN, NewAudit, StoreError};
use procfleet_core::AgentId;
use rusqlite::{Connection, OptionalExtension, params};

/// Maximum number of certificates per agent. An agent that loses its answers keeps asking for another.
const MOST: u32 = 8;

impl SqliteStore {
    pub(crate) async fn agent_with_certificate(
        &self,
        agent: &AgentId,
        sha256: [u8; 32],
    ) -> Result<Option<(AgentRecord, Option<CertificateRecord>)>, StoreError> {
        let agent = agent.clone();
        self.read("reading an agent and its certificate", move |db| {
            let Some(record) = one(db, &agent)? else { return Ok(None) };
            let sql =
                "SELECT ca_sha256, issued_at, expires_at FROM certificates WHERE agent = ? AND sha256 = ?";
            let certificate = db
                .prepare_cached(sql)?
                .query_row(params![agent.as_str(), sha256], |row| {
                    let (ca, issued_at, expires_at) = (row.get(0)?, row.get(1)?, row.get(2)?);
                    Ok(CertificateRecord { sha256, ca, issued_at, expires_at })
                })
                .optional()?;
            Ok(Some((record, certificate)))
        })
        .await
    }

    pub(crate) async fn give_certificate(
        &self,
        agent: &AgentId,
        certificate: CertificateRecord,
    ) -> Result<(), StoreError> {
        let agent = agent.clone();
        self.write("giving an agent a certificate", move |db| {
            let sql = "SELECT 1 FROM agents WHERE agent_id = ? AND retired_at IS NULL AND revoked_at IS NULL";
            if !db.prepare_cached(sql)?.exists([agent.as_str()])? {
                return Err(StoreError::NoSuchAgent(agent).into());
            }
            ca::check_signing(db, &certificate)?;
            insert(db, &agent, &certificate)?;
            // Never deletes the certificate in use.
            let sql = "DELETE FROM certificates WHERE agent = ?1 AND sha256 NOT IN \
                       (SELECT sha256 FROM certificates WHERE agent = ?1 ORDER BY issued_at DESC LIMIT ?2) \
                       AND sha256 != (SELECT certificate_sha256 FROM agents WHERE agent_id = ?1)";
            db.prepare_cached(sql)?.execute(params![agent.as_str(), MOST])?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn use_certificate(&self, agent: &AgentId, sha256: [u8; 32]) -> Result<(), StoreError> {
        let agent = agent.clone();
        self.write("recording an agent's certificate", move |db| {
            let sql = "UPDATE agents SET certificate_sha256 = c.sha256, \
                       certificate_ca = c.ca_sha256, certificate_expires_at = c.expires_at \
                       FROM certificates AS c WHERE c.agent = agents.agent_id AND c.sha256 = ?2 AND agent_id = ?1";
            db.prepare_cached(sql)?.execute(params![agent.as_str(), sha256])?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn backfill_certificate_ca(&self, ca: [u8; 32]) -> Result<(), StoreError> {
        self.write("naming the CA of old certificates", move |db| {
            db.execute("UPDATE certificates SET ca_sha256 = ? WHERE ca_sha256 IS NULL", [ca])?;
            db.execute("UPDATE agents SET certificate_ca = ? WHERE certificate_ca IS NULL", [ca])?;
            Ok(())
        })
        .await
    }

    pub(crate) async fn count_connectable_agents(&self) -> Result<u64, StoreError> {
        self.read("counting the agents", move |db| {
            let sql = "SELECT count(*) FROM agents WHERE retired_at IS NULL AND revoked_at IS NULL";
            Ok(natural(db.prepare_cached(sql)?.query_row([], |row| row.get(0))?))
        })
        .await
    }

    pub(crate) async fn agents_of_ca(&self, ca: [u8; 32]) -> Result<u64, StoreError> {
        self.read("counting the agents of a CA", move |db| ca::count_agents(db, ca)).await
    }

    pub(crate) async fn usable_tokens(&self, now: i64) -> Result<u64, StoreError> {
        self.read("counting the join tokens", move |db| ca::count_usable_tokens(db, now)).await
    }

    pub(crate) async fn revoke_agents(
        &self,
        agents: Vec<AgentId>,
        why: String,
        at: i64,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("revoking agents", move |db| {
            let sql = "UPDATE agents SET revoked_at = ?1, revoked_why = ?2 \
                       WHERE agent_id = ?3 AND revoked_at IS NULL AND retired_at IS NULL";
            let mut revoke = db.prepare_cached(sql)?;
            for agent in &agents {
                revoke.execute(params![at, why, agent.as_str()])?;
            }
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn forget_agents(
        &self,
        agents: Vec<AgentId>,
        at: i64,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("forgetting agents", move |db| {
            let sql = "UPDATE agents SET revoked_at = coalesce(revoked_at, ?1), \
                       revoked_why = iif(revoked_at IS NULL, ?2, revoked_why), retired_at = ?1 \
                       WHERE agent_id = ?3 AND retired_at IS NULL";
            let mut forget = db.prepare_cached(sql)?;
            for agent in &agents {
                forget.execute(params![at, FORGOTTEN, agent.as_str()])?;
                db.prepare_cached("DELETE FROM procs WHERE agent = ?")?.execute([agent.as_str()])?;
                db.prepare_cached("DELETE FROM process_groups WHERE agent = ?")?.execute([agent.as_str()])?;
            }
            insert_audit(db, &audit)
        })
        .await
    }
}

pub(super) fn insert(
    db: &Connection,
    agent: &AgentId,
    certificate: &CertificateRecord,
) -> Result<(), QueryFault> {
    let sql = "INSERT INTO certificates (agent, sha256, ca_sha256, issued_at, expires_at) VALUES (?, ?, ?, ?, ?) \
               ON CONFLICT DO NOTHING";
    let CertificateRecord { sha256, ca, issued_at, expires_at } = certificate;
    db.prepare_cached(sql)?.execute(params![agent.as_str(), sha256, ca, issued_at, expires_at])?;
    Ok(())
}
