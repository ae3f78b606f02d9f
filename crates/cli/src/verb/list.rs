//! What the verbs that list things share: order, filters by time, and showing a list again and again.

use crate::client::ReplyData;
use crate::output::{Colors, Surroundings};
use crate::{Error, VerbExit};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;

/// The most rows that one answer has. Filters that the server does not know are applied to so many.
pub(super) const MOST_ROWS: u32 = 1_000;

#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Watching {
    /// Show it again every so many seconds, until Ctrl-C [default: 2]
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

impl Watching {
    /// Once, or until the reader has left.
    pub(super) fn repeat(
        self,
        around: &mut Surroundings<'_>,
        mut show: impl FnMut(&mut Surroundings<'_>) -> Result<VerbExit, Error>,
    ) -> Result<VerbExit, Error> {
        let Some(secs) = self.watch else { return show(around) };
        loop {
            let clear = if around.colors == Colors::Shown { "\u{1b}[H\u{1b}[2J" } else { "" };
            let now = around.moment(around.now);
            // A reader that left is only noticed by writing to it.
            if writeln!(around.out, "{clear}{now}").and_then(|()| around.out.flush()).is_err() {
                return Ok(VerbExit::Done);
            }
            match show(around) {
                // A server that restarts is worth waiting for.
                Err(fault @ (Error::Unreachable { .. } | Error::Interrupted { .. })) => {
                    around.note(&format!("error: {fault}"));
                }
                shown => _ = shown?,
            }
            crate::wait::pause(Duration::from_secs(secs));
            around.now = jiff::Timestamp::now().as_second();
        }
    }
}

/// Each row as it came, for `--json`, and as it is understood.
pub(super) fn rows<T: DeserializeOwned>(answer: &ReplyData) -> Result<Vec<(Value, T)>, Error> {
    let rows: Vec<T> = answer.read()?;
    let values = answer.data.as_array().cloned().unwrap_or_default();
    Ok(values.into_iter().zip(rows).collect())
}

pub(super) fn json<T>(rows: &[(Value, T)]) -> Value {
    Value::Array(rows.iter().map(|(value, _)| value.clone()).collect())
}

/// As people order addresses: 10.0.0.2 before 10.0.0.10.
pub(super) fn host_order(cloud: u32, ip: &str) -> (u32, Option<IpAddr>, String) {
    (cloud, ip.parse().ok(), ip.to_owned())
}

/// The same for `CLOUD:IP`; agent ids come last, in their own order.
pub(super) fn target_order(target: &str) -> (u32, Option<IpAddr>, String) {
    match target.split_once(':').and_then(|(cloud, ip)| Some((cloud.parse().ok()?, ip))) {
        Some((cloud, ip)) => host_order(cloud, ip),
        None => (u32::MAX, None, target.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_ordered_as_people_order_addresses() {
        let mut hosts = ["1:10.0.0.1", "0:10.0.0.10", "agent-1", "0:fe80::1", "0:10.0.0.2", "0:9.9.9.9"];
        hosts.sort_by_key(|host| target_order(host));
        assert_eq!(hosts, ["0:9.9.9.9", "0:10.0.0.2", "0:10.0.0.10", "0:fe80::1", "1:10.0.0.1", "agent-1"]);
    }
}
