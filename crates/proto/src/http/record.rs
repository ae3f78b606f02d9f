//! Records the fields that the reading code asks for.
//!
//! A reader with a [`Recorder`] instead of a request finds no values, and the recorder records each requested
//! field: its JSON path, type, bounds, and whether it is required. The API's document is made from these
//! records, so it matches the code. If the code branches on a value, several runs with given values are
//! merged.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The kind of a field, with its bounds.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Text {
        longest: usize,
    },
    /// Also as a text.
    Integer(RangeInclusive<i64>),
    /// One of these numbers, also as a text.
    Choice(&'static [i64]),
    /// A name or a number.
    TextOrInteger {
        longest: usize,
    },
    /// Also as a text.
    Number(RangeInclusive<f64>),
    Flag,
    Object,
    Objects,
    Texts,
    Integers(RangeInclusive<i64>),
    /// An object of texts, whose names are the caller's.
    Labels,
}

/// Whether a field is required, ordered by strictness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldNeed {
    /// It may be absent or `null`.
    None,
    /// It may be absent, but not `null`.
    NotNull,
    Present,
    /// The field is required, and neither blank nor an empty list.
    Filled,
}

/// Fields by their JSON paths (`spec.identity.user`, `hosts[].ip`), in the order of the first request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FieldRecord {
    pub fields: Vec<(String, Shape)>,
    needs: BTreeMap<String, FieldNeed>,
    /// Pairs of names for the same field.
    pub aliases: Vec<(String, String)>,
    /// Of each group, the fields of at least one set are required.
    pub groups: Vec<Vec<Vec<String>>>,
    /// The only fields that are known, where others are refused.
    pub only: Option<Vec<String>>,
}

impl FieldRecord {
    pub fn need(&self, path: &str) -> FieldNeed {
        self.needs.get(path).copied().unwrap_or(FieldNeed::None)
    }

    /// The union of both: every field of either; a field is required only if both require it.
    #[must_use]
    pub fn merged(mut self, other: FieldRecord) -> FieldRecord {
        for (path, shape) in other.fields {
            if self.fields.iter().all(|(known, _)| *known != path) {
                self.fields.push((path, shape));
            }
        }
        self.needs = self
            .needs
            .into_iter()
            .filter_map(|(path, need)| Some((need.min(*other.needs.get(&path)?), path)))
            .map(|(need, path)| (path, need))
            .collect();
        for alias in other.aliases {
            if !self.aliases.contains(&alias) {
                self.aliases.push(alias);
            }
        }
        self.groups.retain(|group| other.groups.contains(group));
        self.only = self.only.or(other.only);
        self
    }
}

#[derive(Debug, Default)]
pub struct Recorder {
    record: RefCell<FieldRecord>,
    /// The given values: numbers by the name of the field.
    given: Vec<(&'static str, i64)>,
}

impl Recorder {
    pub fn with(given: &[(&'static str, i64)]) -> Recorder {
        Recorder { given: given.to_vec(), ..Recorder::default() }
    }

    pub fn into_record(self) -> FieldRecord {
        self.record.into_inner()
    }

    pub(super) fn given(&self, field: &str) -> Option<i64> {
        self.given.iter().find(|(name, _)| *name == field).map(|(_, number)| *number)
    }

    pub(super) fn record_field(&self, path: String, shape: Shape) {
        let mut record = self.record.borrow_mut();
        if record.fields.iter().all(|(known, _)| *known != path) {
            record.fields.push((path, shape));
        }
    }

    pub(super) fn need(&self, path: String, need: FieldNeed) {
        let mut record = self.record.borrow_mut();
        let known = record.needs.entry(path).or_insert(need);
        *known = need.max(*known);
    }

    pub(super) fn alias(&self, path: String, other: String) {
        let mut record = self.record.borrow_mut();
        if !record.aliases.contains(&(path.clone(), other.clone())) {
            record.aliases.push((path, other));
        }
    }

    pub(super) fn group(&self, sets: Vec<Vec<String>>) {
        let mut record = self.record.borrow_mut();
        if !record.groups.contains(&sets) {
            record.groups.push(sets);
        }
    }

    pub(super) fn only(&self, known: &[&str]) {
        self.record.borrow_mut().only = Some(known.iter().map(|name| (*name).to_owned()).collect());
    }
}
