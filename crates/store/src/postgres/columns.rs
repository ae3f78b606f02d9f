//! Conversions between core types and columns.

use super::fault::PgFault;
use crate::clock::{BootNumber, ClockMark};
use procfleet_core::boot_time::BootTime;
use procfleet_core::request::{Target, UnusableTarget};
use procfleet_core::{AgentId, BusinessId, CloudId, Host};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::IpAddr;
use std::str::FromStr;
use tokio_postgres::Row;

pub(super) use crate::order::{integer, natural};

pub(super) fn small(what: &'static str, number: i64) -> Result<u32, PgFault> {
    u32::try_from(number).map_err(|error| unreadable(what, &error))
}

pub(super) fn parsed<T>(what: &'static str, text: &str) -> Result<T, PgFault>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| unreadable(what, &error))
}

/// The answer of `SELECT count(*)`.
pub(super) fn count(rows: &[Row]) -> Result<u64, PgFault> {
    let row = rows.first().ok_or_else(|| unreadable("a count", &"there is no row"))?;
    Ok(natural(row.try_get(0)?))
}

/// PostgreSQL stores no NUL in a text. JSON writes it as an escape, so only plain texts can hold one.
pub(super) fn plain(text: &str) -> String {
    match text.contains('\0') {
        true => text.replace('\0', "\u{fffd}"),
        false => text.to_owned(),
    }
}

pub(super) fn to_json<T: Serialize>(what: &'static str, value: &T) -> Result<String, PgFault> {
    serde_json::to_string(value).map_err(|error| PgFault::Unwritable { what, reason: error.to_string() })
}

pub(super) fn from_json<T: DeserializeOwned>(what: &'static str, text: &str) -> Result<T, PgFault> {
    serde_json::from_str(text).map_err(|error| unreadable(what, &error))
}

pub(super) fn agent(row: &Row, column: usize) -> Result<AgentId, PgFault> {
    parsed("an agent id", row.try_get(column)?)
}

pub(super) fn agent_if_any(row: &Row, column: usize) -> Result<Option<AgentId>, PgFault> {
    let text: Option<&str> = row.try_get(column)?;
    text.map(|text| parsed("an agent id", text)).transpose()
}

pub(super) fn business(number: i64) -> Result<BusinessId, PgFault> {
    Ok(BusinessId(small("a business", number)?))
}

/// A SHA-256.
pub(super) fn hash(row: &Row, column: usize) -> Result<[u8; 32], PgFault> {
    sized(row.try_get(column)?)
}

pub(super) fn hash_if_any(row: &Row, column: usize) -> Result<Option<[u8; 32]>, PgFault> {
    let bytes: Option<&[u8]> = row.try_get(column)?;
    bytes.map(sized).transpose()
}

fn sized(bytes: &[u8]) -> Result<[u8; 32], PgFault> {
    let length = bytes.len();
    bytes.try_into().map_err(|_| unreadable("a hash", &format_args!("it has {length} bytes")))
}

/// A host in two columns: cloud id, ip.
pub(super) fn host(row: &Row, column: usize) -> Result<Host, PgFault> {
    let cloud = CloudId(small("a cloud id", row.try_get(column)?)?);
    Ok(Host { cloud, ip: parsed::<IpAddr>("an ip", row.try_get(column + 1)?)? })
}

/// A target in four columns: cloud id, ip, supplier, name. The name is an agent id, or an invalid one.
pub(super) fn target(row: &Row, column: usize) -> Result<Target, PgFault> {
    let supplier: Option<i64> = row.try_get(column + 2)?;
    let supplier = supplier.map(|supplier| small("a supplier id", supplier)).transpose()?;
    let name: Option<&str> = row.try_get(column + 3)?;
    match (name, supplier) {
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
pub(super) fn mark_if_any(row: &Row, column: usize) -> Result<Option<ClockMark>, PgFault> {
    let columns: (Option<i64>, Option<i64>) = (row.try_get(column)?, row.try_get(column + 1)?);
    Ok(match columns {
        (Some(boot), Some(millis)) => {
            Some(ClockMark { boot: BootNumber(boot), moment: BootTime(natural(millis)) })
        }
        (None, _) | (_, None) => None,
    })
}

pub(super) fn unreadable(what: &'static str, reason: &dyn std::fmt::Display) -> PgFault {
    PgFault::Unreadable { what, reason: reason.to_string() }
}
