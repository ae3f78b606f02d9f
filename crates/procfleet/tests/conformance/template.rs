//! Requests and patterns with variables in them: `${name}`.
//!
//! A text that is only a variable becomes its value, of any type; inside a longer text it becomes its text.
//! Values may contain variables. In an object, `"…of": OBJECT` supplies defaults for the other fields,
//! recursively, and a field that is `"…absent"` is removed.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// More of them inside one another are a circle.
const DEEPEST: usize = 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct Variables(BTreeMap<String, Value>);

impl Variables {
    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }

    pub(crate) fn expand(&self, value: &Value) -> Result<Value, String> {
        self.expand_at(value, 0)
    }

    pub(crate) fn expand_text(&self, text: &str) -> Result<String, String> {
        self.fill(text, 0)
    }

    fn expand_at(&self, value: &Value, depth: usize) -> Result<Value, String> {
        match value {
            Value::String(text) => match whole_variable(text) {
                Some(name) => self.look_up(name, depth),
                None => self.fill(text, depth).map(Value::String),
            },
            Value::Array(values) => values
                .iter()
                .map(|value| self.expand_at(value, depth))
                .collect::<Result<_, _>>()
                .map(Value::Array),
            Value::Object(fields) => self.expand_object(fields, depth),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(value.clone()),
        }
    }

    fn expand_object(&self, fields: &Map<String, Value>, depth: usize) -> Result<Value, String> {
        let mut own = Map::new();
        let mut under = Value::Object(Map::new());
        for (key, value) in fields {
            let value = self.expand_at(value, depth)?;
            match key.as_str() {
                "…of" => under = value,
                _ => _ = own.insert(self.fill(key, depth)?, value),
            }
        }
        if !fields.contains_key("…of") {
            return Ok(Value::Object(own));
        }
        lay_over(&mut under, Value::Object(own));
        Ok(under)
    }

    fn look_up(&self, name: &str, depth: usize) -> Result<Value, String> {
        let value = self.0.get(name).ok_or_else(|| format!("no variable is called {name:?}"))?;
        match depth < DEEPEST {
            true => self.expand_at(value, depth + 1),
            false => Err(format!("the variable {name:?} holds itself")),
        }
    }

    fn fill(&self, text: &str, depth: usize) -> Result<String, String> {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (name, after) = after.split_once('}').ok_or_else(|| format!("no }} in {text:?}"))?;
            filled.push_str(before);
            match self.look_up(name, depth)? {
                Value::String(text) => filled.push_str(&text),
                other => filled.push_str(&other.to_string()),
            }
            rest = after;
        }
        filled.push_str(rest);
        Ok(filled)
    }
}

/// `${name}` and nothing else.
fn whole_variable(text: &str) -> Option<&str> {
    text.strip_prefix("${")?.strip_suffix('}').filter(|name| !name.contains(['{', '}']))
}

fn lay_over(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                match value.as_str() {
                    Some("…absent") => _ = under.remove(&key),
                    _ => lay_over(under.entry(key).or_insert(Value::Null), value),
                }
            }
        }
        (under, over) => *under = over,
    }
}
