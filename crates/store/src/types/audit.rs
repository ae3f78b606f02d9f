//! The audit trail: actions and refused attempts.

/// An action, or a refused attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NewAudit {
    pub at: i64,
    pub app: String,
    pub username: String,
    /// The caller's address.
    pub origin: String,
    pub action: String,
    /// The object of the action, such as a task id or a token id. Empty for a new task, whose id is filled
    /// in.
    pub subject: String,
    pub code: u32,
    pub detail: String,
}

impl NewAudit {
    /// Something that the server does by itself.
    pub fn of_server(at: i64, action: &str, subject: String, detail: String) -> NewAudit {
        let (app, action) = ("procfleet-server".to_owned(), action.to_owned());
        NewAudit { at, app, action, subject, detail, ..NewAudit::default() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: u64,
    pub entry: NewAudit,
    pub times: u64,
    pub last_at: i64,
}

/// A counter of equal refusals. `row`: the row that has it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditCount {
    pub row: Option<i64>,
    pub times: u64,
    pub last_at: i64,
}

/// `None` is any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub app: Option<String>,
    pub action: Option<String>,
    /// Only what was refused or denied.
    pub failed: bool,
    /// Only what was done, or done again, at this time or later.
    pub since: Option<i64>,
}

/// The newest records, and how many there are in all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditPage {
    pub records: Vec<AuditRecord>,
    pub total: u64,
}
