//! The conditions of a list's query, and their values in the same order.
//!
//! The caller's rights are conditions like its filters, so that pages and totals never count rows of others.

use super::columns::plain;
use crate::order::{CLOUD_ORDER, address_order, host_order};
use procfleet_core::grants::{GrantScope, Pattern};
use procfleet_core::select::Term;
use procfleet_core::{BusinessId, Host};
use tokio_postgres::types::{ToSql, Type};

/// A value of a statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Int(i64),
    Text(String),
    Ints(Vec<i64>),
    Texts(Vec<String>),
}

impl Value {
    pub(super) fn as_sql(&self) -> &(dyn ToSql + Sync) {
        match self {
            Value::Int(value) => value,
            Value::Text(value) => value,
            Value::Ints(value) => value,
            Value::Texts(value) => value,
        }
    }

    /// The type is sent with the statement, so that the server need not infer it.
    pub(super) fn sql_type(&self) -> Type {
        match self {
            Value::Int(_) => Type::INT8,
            Value::Text(_) => Type::TEXT,
            Value::Ints(_) => Type::INT8_ARRAY,
            Value::Texts(_) => Type::TEXT_ARRAY,
        }
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(plain(&value))
    }
}

impl From<Vec<String>> for Value {
    fn from(value: Vec<String>) -> Value {
        Value::Texts(value)
    }
}

/// Clauses have a `?` for each value; [`Conditions::sql`] numbers them.
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
            Some(pattern) if is_glob(pattern) => self.add(format!("{column} LIKE ?"), [like(pattern)]),
            Some(text) => self.add(format!("{column} = ?"), [text.to_owned()]),
        }
    }

    pub(super) fn businesses(&mut self, column: &str, within: &GrantScope<BusinessId>) {
        match within {
            GrantScope::All => {}
            GrantScope::Only(some) => {
                let list = some.iter().map(|business| i64::from(business.0)).collect();
                self.add(format!("{column} = ANY(?)"), [Value::Ints(list)]);
            }
        }
    }

    pub(super) fn namespaces(&mut self, column: &str, within: &GrantScope<Pattern>) {
        let GrantScope::Only(some) = within else { return };
        let mut any = AnyOf::default();
        for pattern in some {
            match pattern {
                Pattern::Exactly(name) => any.add(format!("{column} = ?"), [name.clone()]),
                Pattern::BeginsWith(start) => {
                    any.add(format!("{column} LIKE ?"), [format!("{}%", like_literal(start))]);
                }
            }
        }
        any.close(self);
    }

    /// The agents that a selection means, as [`procfleet_core::select::selects`] decides it. The columns are
    /// those of `agents`.
    pub(super) fn select(&mut self, terms: &[Term]) {
        let mut addresses = AnyOf::default();
        for term in terms {
            match term {
                Term::Label { key, value } => self.add(
                    "EXISTS (SELECT 1 FROM json_each_text(labels::json) AS label WHERE label.key = ? AND label.value LIKE ?)",
                    [key.clone(), like(value)],
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

    /// `column IN (SELECT key FROM table WHERE …)`, where the inner conditions are `inner`.
    pub(super) fn within(&mut self, column: &str, select: &str, inner: Conditions) {
        self.clauses.push(format!("{column} IN ({select} {})", inner.filter()));
        self.values.extend(inner.values);
    }

    /// `WHERE …` with `?`, or nothing. For [`numbered`].
    pub(super) fn filter(&self) -> String {
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
}

/// Replaces each `?` by `$1`, `$2`, … . No operator of ours has a question mark in it.
pub(super) fn numbered(sql: &str) -> String {
    let mut text = String::with_capacity(sql.len() + 16);
    let mut number = 0;
    for c in sql.chars() {
        match c {
            '?' => {
                number += 1;
                text.push('$');
                text.push_str(&number.to_string());
            }
            c => text.push(c),
        }
    }
    text
}

/// Conditions of which one must hold.
#[derive(Default)]
struct AnyOf(Conditions);

impl AnyOf {
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
                let clause = "(agent_id LIKE ? OR ip LIKE ? OR cloud_id || ':' || ip LIKE ?)";
                let pattern = like(pattern);
                self.add(clause.to_owned(), [pattern.clone(), pattern.clone(), pattern]);
            }
            Term::Agent(agent) => self.add("agent_id = ?".to_owned(), [agent.to_string()]),
            Term::Label { .. } => {}
        }
    }

    /// Without any condition nothing holds.
    fn close(self, all: &mut Conditions) {
        let clause = match self.0.clauses.is_empty() {
            true => "false".to_owned(),
            false => format!("({})", self.0.clauses.join(" OR ")),
        };
        all.add(clause, self.0.values);
    }
}

pub(super) fn is_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?'])
}

/// A glob as a pattern of LIKE.
pub(super) fn like(pattern: &str) -> String {
    pattern
        .chars()
        .map(|c| match c {
            '*' => "%".to_owned(),
            '?' => "_".to_owned(),
            '%' | '_' | '\\' => format!("\\{c}"),
            c => c.to_string(),
        })
        .collect()
}

/// A text that LIKE takes literally.
fn like_literal(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '%' | '_' | '\\' => format!("\\{c}"),
            c => c.to_string(),
        })
        .collect()
}
