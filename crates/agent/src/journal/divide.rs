//! Divides an order for a proc with several instances into one part for each instance.
//!
//! Runs in the transaction that writes the order, so that an order finds the instances of the orders before
//! it. Also merges an order that changes only some fields into the stored spec.

use super::json;
use procfleet_core::change::UnknownFields;
use procfleet_core::code::Code;
use procfleet_core::id::{OpId, ProcKey};
use procfleet_core::op::{OpKind, Order};
use procfleet_core::parts::{self, KnownInstances};
use procfleet_core::spec::{Instances, Spec};
use procfleet_core::supervise::Record;
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why an order that changes fields cannot be merged into the stored spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MergeFault {
    #[error("{0}; upgrade the agent")]
    Unknown(UnknownFields),
    #[error(
        "with the changed {fields} the spec has {bytes} bytes, at most {} are allowed (its labels have {labels}); \
         send the whole spec",
        Spec::LARGEST
    )]
    TooLarge { fields: String, bytes: usize, labels: usize },
}

impl MergeFault {
    pub(super) fn code(&self) -> Code {
        match self {
            MergeFault::Unknown(_) => Code::ArgsInvalid,
            MergeFault::TooLarge { .. } => Code::BadRequest,
        }
    }
}

/// The order with its complete spec on this host.
pub(super) fn with_whole_spec(
    t: &Connection,
    key: &ProcKey,
    mut order: Order,
) -> rusqlite::Result<Result<Order, MergeFault>> {
    if order.spec.as_ref().is_none_or(|spec| spec.change.is_empty()) {
        return Ok(Ok(order));
    }
    let mut stored = newest_spec(t, key)?;
    // `of_instance` appends the number to the pid file again.
    if let (Some(spec), (_, number @ 2..)) = (&mut stored, key.whole())
        && let Some(path) = spec.identity.pid_path.strip_suffix(&format!(".{number}"))
    {
        spec.identity.pid_path = path.to_owned();
    }
    let spec = order.spec.take().map(|spec| merged(spec, stored.as_ref())).transpose();
    Ok(spec.map(|spec| Order { spec, ..order }))
}

/// Each order is small, but labels are added to the stored ones. A spec that an earlier version let grow may
/// be changed as long as it does not grow further.
fn merged(spec: Spec, stored: Option<&Spec>) -> Result<Spec, MergeFault> {
    let fields = spec.change.join(", ");
    let spec = spec.changing(stored).map_err(MergeFault::Unknown)?;
    let bytes = json(&spec).len();
    if bytes > Spec::LARGEST && stored.is_none_or(|stored| bytes > json(stored).len()) {
        return Err(MergeFault::TooLarge { fields, bytes, labels: json(&spec.labels).len() });
    }
    Ok(spec)
}

/// The order itself, or its parts. A part has its own id and the spec of its instance.
pub(super) fn divide(
    t: &Connection,
    key: &ProcKey,
    order: &Order,
) -> rusqlite::Result<Vec<(ProcKey, Order)>> {
    let of_instance = |number: u32| order.spec.clone().map(|spec| spec.of_instance(number));
    let (_, number) = key.whole();
    if number > 1 {
        return Ok(vec![(key.clone(), Order { spec: of_instance(number), ..order.clone() })]);
    }
    let sent = order.spec.as_ref().map(|spec| spec.instances);
    let known = match (order.kind, sent) {
        // The sent spec decides.
        (OpKind::Start | OpKind::Host | OpKind::Register | OpKind::Update, Some(_)) | (OpKind::Group, _) => {
            KnownInstances::default()
        }
        (OpKind::Restart, _) => KnownInstances { wanted: wanted(t, key)?, instances: instances(t, key)? },
        (OpKind::Start | OpKind::Host | OpKind::Register | OpKind::Update, None) => {
            KnownInstances { wanted: wanted(t, key)?, instances: BTreeSet::new() }
        }
        (
            OpKind::Stop
            | OpKind::Query
            | OpKind::Unhost
            | OpKind::Reload
            | OpKind::Kill
            | OpKind::Unregister,
            _,
        ) => KnownInstances { wanted: None, instances: instances(t, key)? },
    };
    let concerned = parts::concerned(order.kind, sent, &known);
    if concerned.len() == 1 {
        return Ok(vec![(key.clone(), order.clone())]);
    }
    // An order may concern more instances than its spec has. Each keeps its own pid file.
    let count = Instances(concerned.last().copied().unwrap_or(1));
    let part = |number: u32| {
        let counted = |spec: Spec| Spec { instances: spec.instances.max(count), ..spec };
        let spec = order.spec.clone().map(|spec| counted(spec).of_instance(number));
        let order = Order { op: order.op.part(number), spec, ..order.clone() };
        (key.instance(number), order)
    };
    Ok(concerned.into_iter().map(part).collect())
}

/// Instances that have a record or an order without an outcome. A separate proc whose name looks like that of
/// an instance does not count.
fn instances(t: &Connection, key: &ProcKey) -> rusqlite::Result<BTreeSet<u32>> {
    // All names that begin with the proc's and a number sign; the dollar sign is the next character.
    let (from, to) = (format!("{}#", key.name), format!("{}$", key.name));
    let named = |name: String| ProcKey { namespace: key.namespace.clone(), name };
    let mut instances = BTreeSet::new();

    let mut statement =
        t.prepare_cached("SELECT name, record FROM procs WHERE namespace = ?1 AND name >= ?2 AND name < ?3")?;
    let mut rows = statement.query(params![key.namespace, from, to])?;
    while let Some(row) = rows.next()? {
        let (name, record): (String, String) = (row.get(0)?, row.get(1)?);
        let Ok(record) = serde_json::from_str::<Record>(&record) else { continue };
        let (proc, number) = record.spec.instance(&named(name));
        instances.extend((proc == *key).then_some(number));
    }

    let mut statement = t.prepare_cached(
        "SELECT name, op FROM ops
         WHERE confirmed = 0 AND state < 2 AND namespace = ?1 AND name >= ?2 AND name < ?3",
    )?;
    let mut rows = statement.query(params![key.namespace, from, to])?;
    while let Some(row) = rows.next()? {
        let (name, op): (String, String) = (row.get(0)?, row.get(1)?);
        let part = op.parse::<OpId>().ok().and_then(|op| op.whole().1);
        instances.extend(part.filter(|number| named(name) == key.instance(*number)));
    }
    Ok(instances)
}

/// The number of instances in the newest spec.
fn wanted(t: &Connection, key: &ProcKey) -> rusqlite::Result<Option<Instances>> {
    Ok(newest_spec(t, key)?.map(|spec| spec.instances))
}

/// The spec of the newest open order, else the stored one.
fn newest_spec(t: &Connection, key: &ProcKey) -> rusqlite::Result<Option<Spec>> {
    let mut statement = t.prepare_cached(
        "SELECT request FROM ops
         WHERE confirmed = 0 AND state < 2 AND namespace = ?1 AND name = ?2 ORDER BY rowid DESC",
    )?;
    let requests = statement.query_map(params![key.namespace, key.name], |row| row.get::<_, String>(0))?;
    for request in requests {
        let launches = |kind| {
            matches!(kind, OpKind::Start | OpKind::Host | OpKind::Restart | OpKind::Register | OpKind::Update)
        };
        let order: Option<Order> = serde_json::from_str(&request?).ok();
        let spec = order.filter(|order| launches(order.kind)).and_then(|order| order.spec);
        if spec.is_some() {
            return Ok(spec);
        }
    }
    stored_spec(t, key)
}

pub(super) fn stored_spec(t: &Connection, key: &ProcKey) -> rusqlite::Result<Option<Spec>> {
    let record: Option<String> = t
        .prepare_cached("SELECT record FROM procs WHERE namespace = ?1 AND name = ?2")?
        .query_row(params![key.namespace, key.name], |row| row.get(0))
        .optional()?;
    let record = record.and_then(|text| serde_json::from_str::<Record>(&text).ok());
    Ok(record.map(|record| Arc::unwrap_or_clone(record.spec)))
}
