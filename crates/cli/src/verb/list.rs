//! Shared by the verbs that list things: reading pages, order, and repeating a list (`--watch`).

use crate::client::{Client, ReplyData};
use crate::output::{Colors, Console, plain};
use crate::{Error, VerbExit};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;

/// The most rows that one answer of these lists may have.
pub(super) const FLEET_PAGE: u32 = 10_000;
pub(super) const TASK_PAGE: u32 = 1_000;
pub(super) const EVENT_PAGE: u32 = 1_000;
pub(super) const AUDIT_PAGE: u32 = 1_000;

/// Limit and cursor of a list.
#[derive(Clone, Debug, clap::Args)]
pub struct PageFlags {
    /// Maximum number of rows [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Only rows after this cursor, which was printed with the previous page
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<String>,
}

/// The rows of one or more pages.
#[derive(Debug)]
pub(super) struct ListedRows<T> {
    /// Unchanged, for `--json`.
    pub(super) values: Vec<Value>,
    pub(super) rows: Vec<T>,
    next: Option<String>,
    pub(super) total: Option<u64>,
}

impl<T: DeserializeOwned> ListedRows<T> {
    /// Reads as many pages as the limit needs. `page`: the most rows that the server puts into one.
    pub(super) fn read(
        client: &Client,
        path: &str,
        filters: &[(&'static str, String)],
        flags: &PageFlags,
        page: u32,
    ) -> Result<ListedRows<T>, Error> {
        let mut listed =
            ListedRows { values: Vec::new(), rows: Vec::new(), next: flags.after.clone(), total: None };
        loop {
            let mut query = filters.to_vec();
            let left = flags.limit.map(|limit| (limit as usize).saturating_sub(listed.rows.len()));
            query.extend(left.map(|left| ("limit", left.min(page as usize).to_string())));
            query.extend(listed.next.take().map(|after| ("after", after)));
            let answer = client.get(path, &query)?;
            let (values, rows): (Vec<Value>, Vec<T>) = rows(&answer)?.into_iter().unzip();
            listed.values.extend(values);
            listed.rows.extend(rows);
            (listed.next, listed.total) = (answer.next, answer.total);
            // Without a limit one page is enough. A page may have no rows at all and still a next one.
            let is_enough = flags.limit.is_none_or(|limit| listed.rows.len() >= limit as usize);
            if listed.next.is_none() || is_enough {
                return Ok(listed);
            }
        }
    }

    pub(super) fn json(&self) -> Value {
        Value::Array(self.values.clone())
    }

    /// Prints a hint if there are more rows.
    pub(super) fn note_more(&self, console: &mut Console<'_>) {
        note_more(self.rows.len(), self.next.as_deref(), self.total, console);
    }
}

/// Prints a hint if a list is longer than shown, and how to see the rest.
pub(super) fn note_more(shown: usize, next: Option<&str>, total: Option<u64>, console: &mut Console<'_>) {
    let Some(next) = next else { return };
    let of = total.map(|total| format!(" of {}", grouped(total))).unwrap_or_default();
    let shown = grouped(shown as u64);
    console.note(&format!("showing {shown}{of}; for more: --limit N, or --after {}", plain(next)));
}

/// Says that a list of the newest rows leaves out older ones. `most`: the highest limit.
pub(super) fn note_older(shown: usize, total: Option<u64>, most: u32, console: &mut Console<'_>) {
    let shown = shown as u64;
    let Some(total) = total.filter(|total| *total > shown) else { return };
    let more = if shown < u64::from(most) { "--limit N" } else { "filters such as --since" };
    console.note(&format!("showing {} of {}; for more: {more}", grouped(shown), grouped(total)));
}

/// 100000 as 100,000.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits are ASCII"))
        .collect();
    groups.join(",")
}

#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Watching {
    /// Repeat every SECS seconds, until Ctrl-C [default: 2]
    #[arg(long, value_name = "SECS", num_args = 0..=1, default_missing_value = "2",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub watch: Option<u64>,
}

impl Watching {
    /// Prints once, or repeatedly until the reader closes the output.
    pub(super) fn repeat(
        self,
        console: &mut Console<'_>,
        mut show: impl FnMut(&mut Console<'_>) -> Result<VerbExit, Error>,
    ) -> Result<VerbExit, Error> {
        let Some(secs) = self.watch else { return show(console) };
        loop {
            let clear = if console.colors == Colors::Shown { "\u{1b}[H\u{1b}[2J" } else { "" };
            let now = console.moment(console.now);
            // Only a write shows that the reader has closed the output.
            if writeln!(console.out, "{clear}{now}").and_then(|()| console.out.flush()).is_err() {
                return Ok(VerbExit::Done);
            }
            match show(console) {
                // A server that restarts is worth waiting for.
                Err(
                    fault @ (Error::Unreachable { .. } | Error::Proxy { .. } | Error::Interrupted { .. }),
                ) => {
                    console.note(&format!("error: {fault}"));
                }
                shown => _ = shown?,
            }
            crate::wait::pause(Duration::from_secs(secs));
            console.now = jiff::Timestamp::now().as_second();
        }
    }
}

/// Each row unchanged, for `--json`, and parsed.
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

/// Orders texts of the form `CLOUD:IP` by address; agent ids come last, in their own order.
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
    fn large_numbers_are_grouped() {
        for (number, expected) in [(0, "0"), (999, "999"), (1_000, "1,000"), (100_000, "100,000")] {
            assert_eq!(grouped(number), expected);
        }
        assert_eq!(grouped(12_345_678), "12,345,678");
    }

    #[test]
    fn hosts_are_ordered_as_people_order_addresses() {
        let mut hosts = ["1:10.0.0.1", "0:10.0.0.10", "agent-1", "0:fe80::1", "0:10.0.0.2", "0:9.9.9.9"];
        hosts.sort_by_key(|host| target_order(host));
        assert_eq!(hosts, ["0:9.9.9.9", "0:10.0.0.2", "0:10.0.0.10", "0:fe80::1", "1:10.0.0.1", "agent-1"]);
    }
}
