//! Who did what, as far as it is recorded.

use super::{App, AppError, Caller};
use crate::store::{AuditFilter, NewAudit};
use procfleet_proto::http::native::AuditRow;

pub async fn list(app: &App, limit: u32, filter: AuditFilter) -> Result<Vec<AuditRow>, AppError> {
    let records = app.store.audit_rows(limit, filter).await?;
    let rows = records.into_iter().map(|record| record.entry).map(|record| AuditRow {
        at: record.at / 1000,
        bk_app_code: record.app,
        bk_username: record.username,
        from: record.origin,
        action: record.action,
        subject: record.subject,
        code: record.code,
        detail: record.detail,
    });
    Ok(rows.collect())
}

/// The record of something that the caller does now, and that succeeds with it.
pub(super) fn entry(app: &App, caller: &Caller, action: &str, subject: &str, detail: String) -> NewAudit {
    NewAudit {
        at: app.clock.wall(),
        app: caller.app.clone(),
        username: caller.username.clone(),
        origin: caller.from.to_string(),
        action: action.to_owned(),
        subject: subject.to_owned(),
        code: 0,
        detail,
    }
}
