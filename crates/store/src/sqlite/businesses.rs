//! Businesses, business sets, and the agents of each business.

use super::audit::insert_audit;
use super::columns::small;
use super::{QueryFault, SqliteStore};
use crate::{Business, BusinessSet, NewAudit, StoreError};
use procfleet_core::{AgentId, BusinessId};
use rusqlite::{Connection, params};

impl SqliteStore {
    pub(crate) async fn create_business(
        &self,
        business: Business,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("creating a business", move |db| {
            let sql = "INSERT INTO businesses (id, name) VALUES (?, ?) ON CONFLICT DO NOTHING";
            if db.prepare_cached(sql)?.execute(params![business.id.0, business.name])? == 0 {
                let key = format!("{} or one called {:?}", business.id, business.name);
                return Err(StoreError::Exists { what: "a business", key }.into());
            }
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn businesses(&self) -> Result<Vec<Business>, StoreError> {
        self.read("reading the businesses", |db| {
            let mut statement = db.prepare_cached("SELECT id, name FROM businesses ORDER BY id")?;
            let mut rows = statement.query([])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(Business { id: business(row.get(0)?)?, name: row.get(1)? });
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn create_business_set(
        &self,
        set: BusinessSet,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("creating a business set", move |db| {
            let sql = "INSERT INTO business_sets (id, name) VALUES (?, ?) ON CONFLICT DO NOTHING";
            if db.prepare_cached(sql)?.execute(params![set.id, set.name])? == 0 {
                let key = format!("{} or one called {:?}", set.id, set.name);
                return Err(StoreError::Exists { what: "a business set", key }.into());
            }
            for member in &set.businesses {
                require(db, *member)?;
                let sql = "INSERT INTO business_set_members (set_id, business_id) VALUES (?, ?) ON CONFLICT DO NOTHING";
                db.prepare_cached(sql)?.execute(params![set.id, member.0])?;
            }
            insert_audit(db, &audit)
        })
        .await
    }

    pub(crate) async fn business_sets(&self) -> Result<Vec<BusinessSet>, StoreError> {
        self.read("reading the business sets", |db| {
            let mut statement = db.prepare_cached("SELECT id, name FROM business_sets ORDER BY id")?;
            let mut rows = statement.query([])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                let id = small("a business set", row.get(0)?)?;
                found.push(BusinessSet { id, name: row.get(1)?, businesses: members(db, id)? });
            }
            Ok(found)
        })
        .await
    }

    pub(crate) async fn assign(
        &self,
        agents: Vec<AgentId>,
        to: BusinessId,
        audit: NewAudit,
    ) -> Result<(), StoreError> {
        self.write("assigning agents to a business", move |db| {
            require(db, to)?;
            let sql = "UPDATE agents SET business_id = ? WHERE agent_id = ? AND retired_at IS NULL";
            let mut update = db.prepare_cached(sql)?;
            for agent in agents {
                if update.execute(params![to.0, agent.as_str()])? == 0 {
                    return Err(StoreError::NoSuchAgent(agent).into());
                }
            }
            insert_audit(db, &audit)
        })
        .await
    }
}

pub(super) fn business(number: i64) -> Result<BusinessId, QueryFault> {
    Ok(BusinessId(small("a business", number)?))
}

fn require(db: &Connection, business: BusinessId) -> Result<(), QueryFault> {
    match db.prepare_cached("SELECT 1 FROM businesses WHERE id = ?")?.exists([business.0])? {
        true => Ok(()),
        false => Err(StoreError::Missing { what: "business", key: business.to_string() }.into()),
    }
}

fn members(db: &Connection, set: u32) -> Result<Vec<BusinessId>, QueryFault> {
    let sql = "SELECT business_id FROM business_set_members WHERE set_id = ? ORDER BY business_id";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([set])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        found.push(business(row.get(0)?)?);
    }
    Ok(found)
}
