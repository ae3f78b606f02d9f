//! `procfleet audit`: the audit trail.

use super::list::{self, AUDIT_PAGE, Watching};
use super::time_span::TimeSpan;
use crate::client::Client;
use crate::output::{Format, OutputFlag};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_proto::http::native::AuditRow;
use serde_json::Value;

#[derive(Clone, Debug, clap::Args)]
pub struct Audit {
    /// Number of the newest records to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=i64::from(AUDIT_PAGE)))]
    pub limit: u32,
    /// Only refused calls
    #[arg(long)]
    pub failed: bool,
    /// Only records of this last period, such as 10m or 2d
    #[arg(long, value_name = "TIME")]
    pub since: Option<TimeSpan>,
    /// Only records of this app
    #[arg(long, value_name = "CODE")]
    pub app: Option<String>,
    /// Only records of this action, such as operate_proc_v2, token_create or app_grant
    #[arg(long, value_name = "ACTION")]
    pub action: Option<String>,
    #[command(flatten)]
    pub watching: Watching,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl Audit {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        self.watching.repeat(console, |console| self.show(&client, console))
    }

    fn is_filtered(&self) -> bool {
        self.failed || self.since.is_some() || self.app.is_some() || self.action.is_some()
    }

    fn show(&self, client: &Client, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let mut query = vec![("limit", self.limit.to_string())];
        query.extend(self.app.iter().map(|app| ("app", app.clone())));
        query.extend(self.action.iter().map(|action| ("action", action.clone())));
        query.extend(self.failed.then(|| ("failed", "true".to_owned())));
        query.extend(self.since.map(|time| ("since", time.ago(console.now).to_string())));
        let answer = client.get("/api/v1/audit", &query)?;
        let rows: Vec<(Value, AuditRow)> = list::rows(&answer)?;
        let shown = rows.len();
        match self.output.format() {
            Format::Json => console.json(&list::json(&rows))?,
            Format::Text => {
                let rows = rows.into_iter().map(|(_, row)| cells(row, console)).collect();
                console.table(
                    ["AT", "USER", "APP", "FROM", "ACTION", "SUBJECT", "CODE", "DETAIL"],
                    rows,
                    match self.is_filtered() {
                        true => "no audit records match",
                        false => "nothing has been done yet",
                    },
                )?;
            }
        }
        list::note_older(shown, answer.total, AUDIT_PAGE, console);
        Ok(VerbExit::Done)
    }
}

fn cells(row: AuditRow, console: &Console<'_>) -> [String; 8] {
    [
        console.moment(row.at),
        row.bk_username,
        row.bk_app_code,
        row.from,
        row.action,
        row.subject,
        row.code.to_string(),
        match row.times {
            1 => row.detail,
            times => format!("{} ({times} times, last {})", row.detail, console.moment(row.last_at)),
        },
    ]
}
