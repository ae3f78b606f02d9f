//! The audit log: lists it, and makes its records.

use super::{AppError, Caller, Page, Services};
use procfleet_proto::http::native::AuditRow;
use procfleet_store::{AuditFilter, AuditPage, AuditRecord, NewAudit};

/// The newest records, and how many there are in all. There is no cursor: a longer list needs a larger limit.
pub async fn list(
    services: &Services,
    limit: u32,
    filter: AuditFilter,
) -> Result<Page<Vec<AuditRow>>, AppError> {
    services.refusals.write().await;
    let AuditPage { records, total } = services.store.list_audit(limit, filter).await?;
    let rows = records.into_iter().map(|AuditRecord { entry, times, last_at, .. }| AuditRow {
        at: entry.at / 1000,
        bk_app_code: entry.app,
        bk_username: entry.username,
        from: entry.origin,
        action: entry.action,
        subject: entry.subject,
        code: entry.code,
        detail: entry.detail,
        times,
        last_at: last_at / 1000,
    });
    Ok(Page { data: rows.collect(), next: None, total: Some(total) })
}

/// The record of a change by the caller, committed together with the change.
pub(super) fn entry(
    services: &Services,
    caller: &Caller,
    action: &str,
    subject: &str,
    detail: String,
) -> NewAudit {
    NewAudit {
        at: services.clock.wall(),
        app: caller.app.clone(),
        username: caller.username.clone(),
        origin: caller.from.to_string(),
        action: action.to_owned(),
        subject: subject.to_owned(),
        code: 0,
        detail,
    }
}
