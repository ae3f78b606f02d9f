//! Businesses, business sets, and the agents of each business.

use super::PgStore;
use super::audit::insert_audit;
use super::columns::{business, plain, small};
use super::fault::PgFault;
use crate::{Business, BusinessSet, NewAudit, StoreError};
use deadpool_postgres::Transaction;
use procfleet_core::{AgentId, BusinessId};
use std::collections::HashSet;

impl PgStore {
    pub(crate) async fn create_business(
        &self,
        business: Business,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("creating a business", (business, audit), |tx, (business, audit)| {
            Box::pin(async move {
                let Business { id, name } = business;
                let sql = "INSERT INTO businesses (id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING";
                if tx.execute(sql, &[&i64::from(id.0), &plain(name)]).await? == 0 {
                    let key = format!("{id} or one called {name:?}");
                    return Err(StoreError::Exists { what: "a business", key }.into());
                }
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn businesses(&self) -> Result<Vec<Business>, StoreError> {
        const DOING: &str = "reading the businesses";
        let rows = self.rows(DOING, "SELECT id, name FROM businesses ORDER BY id", &[]).await?;
        self.converted(DOING, &rows, |row| {
            Ok(Business { id: business(row.try_get(0)?)?, name: row.try_get(1)? })
        })
    }

    pub(crate) async fn create_business_set(
        &self,
        set: BusinessSet,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("creating a business set", (set, audit), |tx, (set, audit)| {
            Box::pin(async move {
                let BusinessSet { id, name, businesses } = set;
                let number = i64::from(*id);
                let sql = "INSERT INTO business_sets (id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING";
                if tx.execute(sql, &[&number, &plain(name)]).await? == 0 {
                    let key = format!("{id} or one called {name:?}");
                    return Err(StoreError::Exists { what: "a business set", key }.into());
                }
                require(tx, businesses).await?;
                let sql = "INSERT INTO business_set_members (set_id, business_id) \
                           SELECT $1, id FROM businesses WHERE id = ANY($2)";
                tx.execute(sql, &[&number, &numbers(businesses)]).await?;
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }

    pub(crate) async fn business_sets(&self) -> Result<Vec<BusinessSet>, StoreError> {
        const DOING: &str = "reading the business sets";
        let sql = "SELECT id, name, \
                   ARRAY(SELECT business_id FROM business_set_members WHERE set_id = id ORDER BY business_id) \
                   FROM business_sets ORDER BY id";
        let rows = self.rows(DOING, sql, &[]).await?;
        self.converted(DOING, &rows, |row| {
            let members: Vec<i64> = row.try_get(2)?;
            Ok(BusinessSet {
                id: small("a business set", row.try_get(0)?)?,
                name: row.try_get(1)?,
                businesses: members.into_iter().map(business).collect::<Result<_, _>>()?,
            })
        })
    }

    pub(crate) async fn assign(
        &self,
        agents: Vec<AgentId>,
        to: BusinessId,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("assigning agents to a business", (agents, to, audit), |tx, (agents, to, audit)| {
            Box::pin(async move {
                require(tx, &[*to]).await?;
                let ids: Vec<&str> = agents.iter().map(AgentId::as_str).collect();
                let sql = "SELECT agent_id FROM agents WHERE agent_id = ANY($1) AND retired_at IS NULL \
                           ORDER BY agent_id FOR NO KEY UPDATE";
                let rows = tx.query(sql, &[&ids]).await?;
                let found = rows.iter().map(|row| row.try_get(0)).collect::<Result<HashSet<&str>, _>>()?;
                if let Some(agent) = agents.iter().find(|agent| !found.contains(agent.as_str())) {
                    return Err(StoreError::NoSuchAgent(agent.clone()).into());
                }
                let sql = "UPDATE agents SET business_id = $2 WHERE agent_id = ANY($1) AND business_id <> $2";
                tx.execute(sql, &[&ids, &i64::from(to.0)]).await?;
                insert_audit(tx, audit).await.map(|_| ())
            })
        })
        .await
    }
}

/// Businesses are never deleted, so nothing needs a lock.
async fn require(tx: &Transaction<'_>, wanted: &[BusinessId]) -> Result<(), PgFault> {
    let rows = tx.query("SELECT id FROM businesses WHERE id = ANY($1)", &[&numbers(wanted)]).await?;
    let found = rows.iter().map(|row| business(row.try_get(0)?)).collect::<Result<Vec<_>, PgFault>>()?;
    match wanted.iter().find(|business| !found.contains(business)) {
        None => Ok(()),
        Some(missing) => Err(StoreError::Missing { what: "business", key: missing.to_string() }.into()),
    }
}

fn numbers(businesses: &[BusinessId]) -> Vec<i64> {
    businesses.iter().map(|business| i64::from(business.0)).collect()
}
