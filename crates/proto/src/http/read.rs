//! Reading a JSON value field by field, and noting each fault instead of stopping at the first.
//!
//! `null` is the same as absent everywhere: several callers send it for what they leave out.

use super::fault::Faults;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// One object of a request and its place in it.
#[derive(Debug)]
pub struct Reader<'v> {
    fields: &'v Map<String, Value>,
    path: String,
}

impl<'v> Reader<'v> {
    /// The request itself.
    pub fn root(value: &'v Value, faults: &mut Faults) -> Option<Reader<'v>> {
        Reader::at(value, String::new(), faults)
    }

    fn at(value: &'v Value, path: String, faults: &mut Faults) -> Option<Reader<'v>> {
        match value {
            Value::Object(fields) => Some(Reader { fields, path }),
            other => {
                faults.add(path, format!("must be an object, not {}", kind_of(other)));
                None
            }
        }
    }

    /// The place of this object; empty for the request itself.
    pub fn place(&self) -> &str {
        &self.path
    }

    /// The place of a field of this object.
    pub fn path(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    fn get(&self, field: &str) -> Option<&'v Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    pub fn has(&self, field: &str) -> bool {
        self.get(field).is_some()
    }

    pub fn is_text(&self, field: &str) -> bool {
        self.get(field).is_some_and(Value::is_string)
    }

    pub fn is_empty_list(&self, field: &str) -> bool {
        self.get(field).and_then(Value::as_array).is_some_and(Vec::is_empty)
    }

    /// An object that must be there.
    pub fn object(&self, field: &str, faults: &mut Faults) -> Option<Reader<'v>> {
        match self.get(field) {
            Some(value) => Reader::at(value, self.path(field), faults),
            None => {
                self.missing(field, faults);
                None
            }
        }
    }

    /// An object that may be there.
    pub fn optional_object(&self, field: &str, faults: &mut Faults) -> Option<Reader<'v>> {
        self.get(field).and_then(|value| Reader::at(value, self.path(field), faults))
    }

    /// The objects of a list; absent is empty.
    pub fn objects(&self, field: &str, faults: &mut Faults) -> Vec<Reader<'v>> {
        let values = self.list(field, faults);
        let at = self.path(field);
        values
            .iter()
            .enumerate()
            .filter_map(|(place, value)| Reader::at(value, format!("{at}[{place}]"), faults))
            .collect()
    }

    /// The texts of a list with their places; absent is empty.
    pub fn texts(&self, field: &str, faults: &mut Faults) -> Vec<(String, &'v str)> {
        let at = self.path(field);
        let mut texts = Vec::new();
        for (place, value) in self.list(field, faults).iter().enumerate() {
            let path = format!("{at}[{place}]");
            match value {
                Value::String(text) => texts.push((path, text.as_str())),
                other => faults.add(path, format!("must be a string, not {}", kind_of(other))),
            }
        }
        texts
    }

    fn list(&self, field: &str, faults: &mut Faults) -> &'v [Value] {
        match self.get(field) {
            None => &[],
            Some(Value::Array(values)) => values,
            Some(other) => {
                faults.add(self.path(field), format!("must be an array, not {}", kind_of(other)));
                &[]
            }
        }
    }

    pub fn missing(&self, field: &str, faults: &mut Faults) {
        faults.add(self.path(field), "is required");
    }

    /// A text of at most `longest` characters; absent is empty.
    pub fn text(&self, field: &str, longest: usize, faults: &mut Faults) -> String {
        match self.get(field) {
            None => String::new(),
            Some(Value::String(text)) => {
                let length = text.chars().count();
                if length > longest {
                    faults.add(
                        self.path(field),
                        format!("has {length} characters, at most {longest} are allowed"),
                    );
                }
                if text.contains('\0') {
                    faults.add(self.path(field), "contains a NUL character");
                }
                text.clone()
            }
            Some(other) => {
                faults.add(self.path(field), format!("must be a string, not {}", kind_of(other)));
                String::new()
            }
        }
    }

    /// A text that must be there and not be empty.
    pub fn required_text(&self, field: &str, longest: usize, faults: &mut Faults) -> String {
        match self.get(field) {
            None => {
                self.missing(field, faults);
                String::new()
            }
            Some(Value::String(text)) if text.trim().is_empty() => {
                faults.add(self.path(field), "must not be empty");
                String::new()
            }
            Some(_) => self.text(field, longest, faults),
        }
    }

    /// A whole number; absent is `None`.
    pub fn integer(&self, field: &str, range: RangeInclusive<i64>, faults: &mut Faults) -> Option<i64> {
        let value = self.get(field)?;
        let Some(number) = value.as_i64() else {
            let found = match value {
                Value::Number(number) => number.to_string(),
                other => kind_of(other).to_owned(),
            };
            faults.add(self.path(field), format!("must be an integer, not {found}"));
            return None;
        };
        self.in_range(field, number, range, faults)
    }

    /// A whole number that may also be written as a text, as the parameters of a query always are; absent is `None`.
    pub fn integer_or_text(
        &self,
        field: &str,
        range: RangeInclusive<i64>,
        faults: &mut Faults,
    ) -> Option<i64> {
        match self.get(field)? {
            Value::String(text) => match text.trim().parse() {
                Ok(number) => self.in_range(field, number, range, faults),
                Err(_) => {
                    faults.add(self.path(field), format!("must be an integer, not {text:?}"));
                    None
                }
            },
            _ => self.integer(field, range, faults),
        }
    }

    /// A number; absent is `None`.
    pub fn number(&self, field: &str, range: RangeInclusive<f64>, faults: &mut Faults) -> Option<f64> {
        let value = self.get(field)?;
        let Some(number) = value.as_f64() else {
            faults.add(self.path(field), format!("must be a number, not {}", kind_of(value)));
            return None;
        };
        self.in_range(field, number, range, faults)
    }

    fn in_range<N: PartialOrd + Display>(
        &self,
        field: &str,
        number: N,
        range: RangeInclusive<N>,
        faults: &mut Faults,
    ) -> Option<N> {
        if range.contains(&number) {
            return Some(number);
        }
        faults
            .add(self.path(field), format!("is {number}, must be from {} to {}", range.start(), range.end()));
        None
    }

    /// The fields of an object of texts. Numbers and booleans are taken as their text: callers label with ids.
    pub fn labels(&self, field: &str, faults: &mut Faults) -> Vec<(String, String)> {
        let Some(labels) = self.optional_object(field, faults) else { return Vec::new() };
        let mut read = Vec::new();
        for (name, value) in labels.fields {
            match value {
                Value::String(text) => read.push((name.clone(), text.clone())),
                Value::Number(number) => read.push((name.clone(), number.to_string())),
                Value::Bool(yes) => read.push((name.clone(), yes.to_string())),
                Value::Null => read.push((name.clone(), String::new())),
                Value::Array(_) | Value::Object(_) => {
                    faults.add(labels.path(name), format!("must be a string, not {}", kind_of(value)));
                }
            }
        }
        read
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
