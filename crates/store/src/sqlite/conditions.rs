//! The conditions of a list's query, and their values in the same order.
//!
//! The caller's rights are conditions like its filters, so that pages and totals never count rows of others.

use super::columns::{CLOUD_ORDER, address_order, host_order};
use procfleet_core::grants::{GrantScope, Pattern};
use procfleet_core::select::Term;
use procfleet_core::{BusinessId, Host};
use rusqlite::types::Value;

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Conditions {
    clauses: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    /// `clause` has one `?` for each value.
    pub(super) fn add<V: Into<Value>>(
        &mut self,
        clause: impl Into<String>,
        values: impl IntoIterator<Item = V>,
    ) {
        self.clauses.push(clause.into());
        self.values.extend(values.into_iter().map(Into::into));
    }

    pub(super) fn always(&mut self, clause: &str) {
        self.clauses.push(clause.to_owned());
    }

    pub(super) fn equals<V: Into<Value>>(&mut self, column: &str, value: Option<V>) {
        if let Some(value) = value {
            self.add(format!("{column} = ?"), [value]);
        }
    }

    /// A text, or a glob if it has `*` or `?` in it.
    pub(super) fn matches(&mut self, column: &str, pattern: Option<&str>) {
        match pattern {
            None => {}
            Some(pattern) if is_glob(pattern) => self.add(format!("{column} GLOB ?"), [sql_glob(pattern)]),
            Some(text) => self.add(format!("{column} = ?"), [text.to_owned()]),
        }
    }

    pub(super) fn businesses(&mut self, column: &str, within: &GrantScope<BusinessId>) {
        match within {
            GrantScope::All => {}
            GrantScope::Only(some) => {
                let list = some.iter().map(BusinessId::to_string).collect::<Vec<_>>().join(",");
                let clause = format!("{column} IN (SELECT value FROM json_each(?))");
                self.add(clause, [format!("[{list}]")]);
            }
        }
    }

    pub(super) fn namespaces(&mut self, column: &str, within: &GrantScope<Pattern>) {
        let GrantScope::Only(some) = within else { return };
        let mut any = Any::default();
        for pattern in some {
            match pattern {
                Pattern::Exactly(name) => any.add(format!("{column} = ?"), [name.clone()]),
                Pattern::BeginsWith(start) => {
                    any.add(format!("{column} GLOB ?"), [format!("{}*", sql_literal(start))]);
                }
            }
        }
        any.close(self);
    }

    /// The agents that a selection means, as [`procfleet_core::select::selects`] decides it.
    pub(super) fn select(&mut self, terms: &[Term]) {
        let mut addresses = Any::default();
        for term in terms {
            match term {
                Term::Label { key, value } => self.add(
                    "EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value GLOB ?)",
                    [key.clone(), sql_glob(value)],
                ),
                address => addresses.add_address(address),
            }
        }
        if !addresses.0.clauses.is_empty() {
            addresses.close(self);
        }
    }

    /// One term alone.
    pub(super) fn term(&mut self, term: &Term) {
        self.select(std::slice::from_ref(term));
    }

    /// As part of a statement: `WHERE …`, or nothing.
    pub(super) fn sql(&self) -> String {
        match self.clauses.is_empty() {
            true => String::new(),
            false => format!("WHERE {}", self.clauses.join(" AND ")),
        }
    }

    pub(super) fn values(&self) -> &[Value] {
        &self.values
    }

    /// Adds values that stand after the conditions in the statement.
    pub(super) fn into_values(mut self, more: impl IntoIterator<Item = Value>) -> Vec<Value> {
        self.values.extend(more);
        self.values
    }

    /// `column IN (SELECT key FROM table WHERE …)`, where the inner conditions are `inner`.
    pub(super) fn within(&mut self, column: &str, select: &str, inner: Conditions) {
        self.clauses.push(format!("{column} IN ({select} {})", inner.sql()));
        self.values.extend(inner.values);
    }
}

/// Conditions of which one must hold.
#[derive(Default)]
struct Any(Conditions);

impl Any {
    fn add(&mut self, clause: String, values: impl IntoIterator<Item = String>) {
        self.0.add(clause, values);
    }

    fn add_address(&mut self, term: &Term) {
        match term {
            Term::Addresses { cloud: Some(cloud), first, last } => {
                let ends = [first, last].map(|ip| host_order(Host { cloud: *cloud, ip: *ip }));
                self.add("host_order BETWEEN ? AND ?".to_owned(), ends);
            }
            Term::Addresses { cloud: None, first, last } => {
                let clause = format!("substr(host_order, {}) BETWEEN ? AND ?", CLOUD_ORDER + 1);
                self.add(clause, [first, last].map(|ip| address_order(*ip)));
            }
            Term::Glob(pattern) => {
                let clause = "(agent_id GLOB ? OR ip GLOB ? OR cloud_id || ':' || ip GLOB ?)";
                let pattern = sql_glob(pattern);
                self.add(clause.to_owned(), [pattern.clone(), pattern.clone(), pattern]);
            }
            Term::Agent(agent) => self.add("agent_id = ?".to_owned(), [agent.to_string()]),
            Term::Label { .. } => {}
        }
    }

    /// Without any condition nothing holds.
    fn close(self, all: &mut Conditions) {
        let clause = match self.0.clauses.is_empty() {
            true => "0".to_owned(),
            false => format!("({})", self.0.clauses.join(" OR ")),
        };
        all.add(clause, self.0.values);
    }
}

pub(super) fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// SQLite's GLOB knows sets of characters, too; ours does not.
pub(super) fn sql_glob(pattern: &str) -> String {
    pattern.replace('[', "[[]")
}

/// A text that GLOB takes literally.
fn sql_literal(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '*' | '?' | '[' => format!("[{c}]"),
            c => c.to_string(),
        })
        .collect()
}
