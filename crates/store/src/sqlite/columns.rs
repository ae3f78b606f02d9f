//! Conversions between core types and columns.

use super::QueryFault;
use crate::clock::{BootNumber, ClockMark};
use procfleet_core::boot_time::BootTime;
use procfleet_core::request::{Target, UnusableTarget};
use procfleet_core::{AgentId, CloudId, Host};
use rusqlite::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::IpAddr;
use std::str::FromStr;

pub(super) use crate::order::{CLOUD_ORDER, address_order, host_order, integer, natural};

pub(super) fn small(what: &'static str, number: i64) -> Result<u32, QueryFault> {
    u32::try_from(number).map_err(|error| unreadable(what, &error))
}

pub(super) fn parsed<T>(what: &'static str, text: &str) -> Result<T, QueryFault>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| unreadable(what, &error))
}

pub(super) fn to_json<T: Serialize>(what: &'static str, value: &T) -> Result<String, QueryFault> {
    serde_json::to_string(value).map_err(|error| QueryFault::Unwritable { what, reason: error.to_string() })
}

pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, QueryFault> {
    serde_json::from_str(text).map_err(|error| unreadable(what, &error))
}

pub(super) fn agent(row: &Row<'_>, column: usize) -> Result<AgentId, QueryFault> {
    parsed("an agent id", text(row, column)?)
}

pub(super) fn agent_if_any(row: &Row<'_>, column: usize) -> Result<Option<AgentId>, QueryFault> {
    optional_text(row, column)?.map(|text| parsed("an agent id", text)).transpose()
}

/// A host in two columns: cloud id, ip.
pub(super) fn host(row: &Row<'_>, column: usize) -> Result<Host, QueryFault> {
    let cloud = CloudId(small("a cloud id", row.get(column)?)?);
    Ok(Host { cloud, ip: parsed::<IpAddr>("an ip", text(row, column + 1)?)? })
}

/// A target in four columns: cloud id, ip, supplier, name. The name is an agent id, or an invalid one.
pub(super) fn target(row: &Row<'_>, column: usize) -> Result<Target, QueryFault> {
    let supplier = row.get::<_, Option<i64>>(column + 2)?;
    let supplier = supplier.map(|supplier| small("a supplier id", supplier)).transpose()?;
    match (optional_text(row, column + 3)?, supplier) {
        (Some(name), supplier) => Ok(match (name.parse(), supplier) {
            (Ok(agent), None) => Target::Agent(agent),
            (Ok(_) | Err(_), supplier) => {
                let (name, reason) = (name.to_owned(), String::new());
                Target::Unusable(UnusableTarget { name, supplier, reason })
            }
        }),
        (None, None) => host(row, column).map(Target::Host),
        (None, Some(supplier)) => Ok(Target::SupplierHost(host(row, column)?, supplier)),
    }
}

/// A point on the boot-time clock in two columns: boot, milliseconds.
pub(super) fn mark_if_any(row: &Row<'_>, column: usize) -> Result<Option<ClockMark>, QueryFault> {
    let columns: (Option<i64>, Option<i64>) = (row.get(column)?, row.get(column + 1)?);
    Ok(match columns {
        (Some(boot), Some(millis)) => {
            Some(ClockMark { boot: BootNumber(boot), moment: BootTime(natural(millis)) })
        }
        (None, _) | (_, None) => None,
    })
}

/// Borrowed text, without a copy.
pub(super) fn text<'row>(row: &'row Row<'_>, column: usize) -> Result<&'row str, QueryFault> {
    optional_text(row, column)?
        .ok_or_else(|| QueryFault::Unreadable { what: "a text", reason: format!("column {column} is empty") })
}

pub(super) fn optional_text<'row>(
    row: &'row Row<'_>,
    column: usize,
) -> Result<Option<&'row str>, QueryFault> {
    row.get_ref(column)?.as_str_or_null().map_err(|error| unreadable("a text", &error))
}

pub(super) fn unreadable(what: &'static str, reason: &dyn std::fmt::Display) -> QueryFault {
    QueryFault::Unreadable { what, reason: reason.to_string() }
}
