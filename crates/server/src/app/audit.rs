//! Who did what, as far as it is recorded.

use super::{App, AppError};
use procfleet_proto::http::native::AuditRow;

pub async fn list(app: &App, limit: u32) -> Result<Vec<AuditRow>, AppError> {
    let records = app.store.audit_rows(limit).await?;
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
