//! Readmits agents that a restored store does not know, or whose certificate it does not know.

use super::SqliteStore;
use super::agents::one;
use super::audit::insert_audit;
use super::certificates;
use super::join;
use crate::types::Belonging;
use crate::{
    AgentRecord, CertificateRecord, JoiningAgent, LINK, NewAudit, ReadmitRefusal, Replaces, StoreError,
};
use procfleet_core::id::{BusinessId, CloudId, Host};
use rusqlite::params;

impl SqliteStore {
    pub(crate) async fn readmit(
        &self,
        back: JoiningAgent,
        now: i64,
    ) -> Result<Result<Host, ReadmitRefusal>, StoreError> {
        self.write("readmitting an agent", move |db| {
            let host = match one(db, &back.agent)? {
                Some(known) => match may_use(db, &known, &back.certificate)? {
                    Ok(()) => {
                        certificates::insert(db, &back.agent, &back.certificate)?;
                        known.host
                    }
                    Err(refusal) => return Ok(Err(refusal)),
                },
                None => {
                    let host = Host { cloud: CloudId(0), ip: back.ip };
                    if let Some(agent) = agent_on(db, host)? {
                        return Ok(Err(ReadmitRefusal::HostTaken { host, agent }));
                    }
                    let belonging = Belonging {
                        cloud: host.cloud,
                        business: BusinessId::DEFAULT,
                        replaces: Replaces::LostAgents,
                    };
                    join::insert(db, &back, &belonging, now)?;
                    host
                }
            };
            let audit = NewAudit {
                at: now,
                app: LINK.to_owned(),
                origin: back.from.to_string(),
                action: "agent_readmit".to_owned(),
                subject: back.agent.to_string(),
                detail: format!("{host}, by its certificate"),
                ..NewAudit::default()
            };
            insert_audit(db, &audit)?;
            Ok(Ok(host))
        })
        .await
    }

    pub(crate) async fn was_restored(&self) -> Result<bool, StoreError> {
        self.read("reading the generations", |db| {
            Ok(db.prepare_cached("SELECT 1 FROM generations")?.exists([])?)
        })
        .await
    }
}

/// A certificate that was renewed in the lost time expires later than all known ones.
fn may_use(
    db: &rusqlite::Connection,
    known: &AgentRecord,
    shown: &CertificateRecord,
) -> Result<Result<(), ReadmitRefusal>, super::QueryFault> {
    if known.retired_at.is_some() || known.revoked.is_some() {
        return Ok(Err(ReadmitRefusal::Dismissed));
    }
    let sql = "SELECT coalesce(max(expires_at), 0) FROM certificates WHERE agent = ?";
    let newest: i64 = db.prepare_cached(sql)?.query_row([known.agent.as_str()], |row| row.get(0))?;
    Ok(if shown.expires_at.is_some_and(|end| end > newest) {
        Ok(())
    } else {
        Err(ReadmitRefusal::OldCertificate)
    })
}

fn agent_on(db: &rusqlite::Connection, host: Host) -> Result<Option<String>, super::QueryFault> {
    let sql = "SELECT agent_id FROM agents WHERE cloud_id = ? AND ip = ? AND retired_at IS NULL";
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query(params![host.cloud.0, host.ip.to_string()])?;
    Ok(rows.next()?.map(|row| row.get(0)).transpose()?)
}
