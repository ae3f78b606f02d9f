//! `procfleet audit`: who did what, and from where.

use crate::output::{Format, Output};
use crate::{Connection, Error, Exit, Surroundings};
use procfleet_proto::http::native::AuditRow;

#[derive(Clone, Debug, clap::Args)]
pub struct Audit {
    /// How many of the newest lines to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Only what this app did
    #[arg(long, value_name = "CODE")]
    pub app: Option<String>,
    /// Only this action, such as operate_proc_v2, token_create or app_grant
    #[arg(long, value_name = "ACTION")]
    pub action: Option<String>,
    #[command(flatten)]
    pub output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl Audit {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<Exit, Error> {
        let mut query = vec![("limit", self.limit.to_string())];
        query.extend(self.app.iter().map(|app| ("app", app.clone())));
        query.extend(self.action.iter().map(|action| ("action", action.clone())));
        let answer = self.connection.client()?.get("/api/v1/audit", &query)?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => {
                let rows: Vec<AuditRow> = answer.read()?;
                let rows = rows.into_iter().map(|row| cells(row, around)).collect();
                around.table(
                    ["AT", "USER", "APP", "FROM", "ACTION", "SUBJECT", "CODE", "DETAIL"],
                    rows,
                    "nothing has been done yet",
                )?;
            }
        }
        Ok(Exit::Done)
    }
}

fn cells(row: AuditRow, around: &Surroundings<'_>) -> [String; 8] {
    [
        around.moment(row.at),
        row.bk_username,
        row.bk_app_code,
        row.from,
        row.action,
        row.subject,
        row.code.to_string(),
        match row.times {
            1 => row.detail,
            times => format!("{} ({times} times, last {})", row.detail, around.moment(row.last_at)),
        },
    ]
}
