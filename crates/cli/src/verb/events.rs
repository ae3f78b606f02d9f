//! `procfleet events`: events of processes that no operation caused.

use super::list::{EVENT_PAGE, note_older};
use super::targets::host;
use super::time_span::TimeSpan;
use crate::output::{Format, OutputFlag, PollPace, plain, plain_lines};
use crate::{ConnectionFlags, Console, Error, VerbExit};
use procfleet_core::id::Host;
use procfleet_proto::http::events::{EventRow, EventsView};
use std::time::Duration;

/// How long the server may hold a long poll.
const LONG_POLL: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, clap::Args)]
pub struct EventsVerb {
    /// Number of the newest events to show
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=i64::from(EVENT_PAGE)))]
    pub limit: u32,
    /// Follow: keep showing new events
    #[arg(long, short)]
    pub follow: bool,
    /// Only events of this namespace
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Only events of processes with this name
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Only events of this host, as CLOUD:IP, or IP for cloud area 0
    #[arg(long, value_name = "HOST", value_parser = host)]
    pub host: Option<Host>,
    /// Only events of this kind, such as exited or gave_up
    #[arg(long, value_name = "KIND")]
    pub kind: Option<String>,
    /// Only events of this last period, such as 10m or 2d, and later ones
    #[arg(long, value_name = "TIME")]
    pub since: Option<TimeSpan>,
    /// Only events of selected hosts: addresses, ranges, blocks, globs, ids, labels;
    /// repeatable
    #[arg(long, value_name = "TERM")]
    pub select: Vec<String>,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl EventsVerb {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        let client = self.connection.client()?;
        let mut filters = Vec::new();
        let host = self.host.map(|host| host.to_string());
        for (field, value) in
            [("namespace", &self.namespace), ("name", &self.name), ("host", &host), ("kind", &self.kind)]
        {
            filters.extend(value.iter().map(|value| (field, value.clone())));
        }
        filters.extend((!self.select.is_empty()).then(|| ("select", self.select.join(","))));
        filters.extend(self.since.map(|time| ("since", time.ago(console.now).to_string())));
        let mut query = filters.clone();
        query.push(("limit", self.limit.to_string()));
        let answer = client.get("/api/v1/events", &query)?;
        let mut view: EventsView = answer.read()?;
        if !self.follow {
            match self.output.format() {
                Format::Json => console.json(&answer.data)?,
                Format::Text => self.show(&view.events, console)?,
            }
            note_older(view.events.len(), answer.total, EVENT_PAGE, console);
            return Ok(VerbExit::Done);
        }
        let mut failed_tries = 0;
        loop {
            self.show(&view.events, console)?;
            let mut query = filters.clone();
            query.push(("after", view.last.to_string()));
            query.push(("wait_ms", LONG_POLL.as_millis().to_string()));
            match client.get("/api/v1/events", &query) {
                Ok(answer) => {
                    failed_tries = 0;
                    view = answer.read()?;
                }
                // Wait for a server that restarts: no event is lost, because the request names the last event
                // seen.
                Err(
                    fault @ (Error::Unreachable { .. } | Error::Proxy { .. } | Error::Interrupted { .. }),
                ) => {
                    let PollPace { pause, tries, .. } = console.pace;
                    if failed_tries >= tries {
                        return Err(fault);
                    }
                    failed_tries += 1;
                    view.events.clear();
                    crate::wait::pause(pause);
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// One JSON document per line, so that a stream has no end.
    fn show(&self, events: &[EventRow], console: &mut Console<'_>) -> Result<(), Error> {
        for event in events {
            match self.output.format() {
                Format::Json => console.print_line(&serde_json::to_string(event).unwrap_or_default())?,
                Format::Text => {
                    let EventRow { at, bk_cloud_id, ip, namespace, name, kind, message, .. } = event;
                    let what = plain_lines(message);
                    // An event of the host itself, such as the replacement of its agent, names no proc.
                    let proc = match name.as_str() {
                        "" => String::new(),
                        name => format!(" {}", plain(&format!("{namespace}:{name}"))),
                    };
                    let kind = plain(kind);
                    let at = console.moment(at / 1000);
                    console.print_line(&format!("{at} {bk_cloud_id}:{ip}{proc} {kind}: {what}"))?;
                }
            }
        }
        Ok(())
    }
}
