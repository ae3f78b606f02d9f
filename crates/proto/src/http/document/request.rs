//! Schemas of requests, from the fields that the reading code asks for.

use super::apis::{ApiEntry, Family};
use super::words::Words;
use crate::http::login;
use crate::http::record::{FieldNeed, FieldRecord, Recorder, Shape};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// All runs of an API's reading code.
pub(super) struct Runs {
    record: FieldRecord,
    /// The values of the varying field for which a field is required, if not for all.
    sometimes: BTreeMap<String, Vec<i64>>,
}

/// `None` for an API that reads nothing.
pub(super) fn runs(api: &ApiEntry) -> Option<Runs> {
    let read = api.read?;
    let run = |given: &[(&'static str, i64)]| {
        let recorder = Recorder::with(given);
        // The result of reading a recorder is ignored, because a recorder has no values.
        let _ = read((&recorder).into());
        recorder.into_record()
    };
    let Some((field, values)) = api.varies else {
        return Some(Runs { record: run(&[]), sometimes: BTreeMap::new() });
    };
    let each: Vec<(i64, FieldRecord)> =
        values.iter().map(|value| (*value, run(&[(field, *value)]))).collect();
    let record =
        each.iter().map(|(_, record)| record.clone()).reduce(FieldRecord::merged).unwrap_or_default();
    let mut sometimes = BTreeMap::new();
    for (path, _) in record.fields.iter().filter(|(path, _)| record.need(path) < FieldNeed::Present) {
        let needing = each.iter().filter(|(_, record)| record.need(path) >= FieldNeed::Present);
        let needing: Vec<i64> = needing.map(|(value, _)| *value).collect();
        if !needing.is_empty() {
            sometimes.insert(path.clone(), needing);
        }
    }
    Some(Runs { record, sometimes })
}

/// The JSON paths of all fields of an API's requests, in reading order, including aliases.
pub fn fields_of(api: &ApiEntry) -> Vec<String> {
    let Some(Runs { record, .. }) = runs(api) else { return Vec::new() };
    let mut fields: Vec<String> = record.fields.iter().map(|(path, _)| path.clone()).collect();
    fields.extend(record.aliases.iter().map(|(_, other)| other.clone()));
    fields
}

/// The schema of the whole request, the login included.
pub(super) fn body(api: &ApiEntry, runs: &Runs, words: &mut Words) -> Value {
    let mut schema = object(api, runs, "", words);
    for name in login::FIELDS {
        let mut field = json!({"type": ["string", "null"]});
        words.describe(&mut field, name);
        schema["properties"][name] = field;
    }
    if runs.record.only.is_some() {
        schema["additionalProperties"] = json!(false);
    }
    schema
}

/// The fields as parameters of a query: objects and lists as JSON texts.
pub(super) fn query(api: &ApiEntry, runs: &Runs, words: &mut Words) -> Vec<Value> {
    let mut parameters = Vec::new();
    for (name, path, shape) in children(&runs.record, "") {
        let mut schema = schema_of(api, runs, path, shape, words);
        let mut parameter = json!({"name": name, "in": "query"});
        if runs.record.need(path) >= FieldNeed::Present {
            parameter["required"] = json!(true);
        }
        for key in ["description", "x-description-zh"] {
            if let Some(text) = schema.as_object_mut().and_then(|schema| schema.shift_remove(key)) {
                parameter[key] = text;
            }
        }
        // In a query an empty text means absent, and `null` is a text.
        if let Some(list) = schema["type"].as_array() {
            schema["type"] = list[0].clone();
        }
        match shape {
            Shape::Object | Shape::Objects | Shape::Texts | Shape::Integers(_) | Shape::Labels => {
                parameter["content"] = json!({"application/json": {"schema": schema}});
            }
            Shape::Text { .. }
            | Shape::Integer(_)
            | Shape::Choice(_)
            | Shape::TextOrInteger { .. }
            | Shape::Number(_)
            | Shape::Flag => {
                parameter["schema"] = schema;
            }
        }
        parameters.push(parameter);
    }
    parameters
}

/// The fields of the object at `prefix`.
fn children<'r>(
    record: &'r FieldRecord,
    prefix: &'r str,
) -> impl Iterator<Item = (&'r str, &'r str, &'r Shape)> + 'r {
    record.fields.iter().filter_map(move |(path, shape)| {
        let name = match prefix {
            "" => path.as_str(),
            prefix => path.strip_prefix(prefix)?.strip_prefix('.')?,
        };
        (!name.contains('.')).then_some((name, path.as_str(), shape))
    })
}

fn object(api: &ApiEntry, runs: &Runs, prefix: &str, words: &mut Words) -> Value {
    let record = &runs.record;
    let mut properties = Map::new();
    let mut required = Vec::new();
    let mut groups: Vec<Vec<Vec<String>>> = Vec::new();
    let here = |path: &str| match prefix {
        "" => Some(path.to_owned()),
        prefix => path.strip_prefix(prefix)?.strip_prefix('.').map(str::to_owned),
    };
    for (name, path, shape) in children(record, prefix) {
        let schema = schema_of(api, runs, path, shape, words);
        let needed = record.need(path) >= FieldNeed::Present;
        let other = record.aliases.iter().find(|(first, _)| first == path).map(|(_, other)| other);
        if let Some((other, path)) = other.and_then(|other| Some((here(other)?, other))) {
            let mut same = schema.clone();
            words.describe_field(&mut same, api.name, path);
            same["x-alias-of"] = json!(name);
            properties.insert(name.to_owned(), schema);
            properties.insert(other.clone(), same);
            if needed {
                groups.push(vec![vec![name.to_owned()], vec![other]]);
            }
            continue;
        }
        properties.insert(name.to_owned(), schema);
        if needed {
            required.push(name.to_owned());
        }
    }
    for group in &record.groups {
        let set = |paths: &Vec<String>| {
            let names = paths.iter().map(|path| here(path).filter(|name| !name.contains('.')));
            names.collect::<Option<Vec<String>>>()
        };
        groups.extend(group.iter().map(set).collect::<Option<Vec<_>>>());
    }
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    let either = |sets: &Vec<Vec<String>>| -> Value {
        json!({"anyOf": sets.iter().map(|names| json!({"required": names})).collect::<Vec<_>>()})
    };
    if !groups.is_empty() {
        schema["allOf"] = groups.iter().map(either).collect();
    }
    schema
}

fn schema_of(api: &ApiEntry, runs: &Runs, path: &str, shape: &Shape, words: &mut Words) -> Value {
    let need = runs.record.need(path);
    let filled = need == FieldNeed::Filled;
    let mut schema = match shape {
        Shape::Text { longest } => match filled {
            true => json!({"type": "string", "minLength": 1, "maxLength": longest, "pattern": "\\S"}),
            false => json!({"type": "string", "maxLength": longest}),
        },
        // In a query everything is text, so a list of types would be wrong.
        Shape::Integer(range) if is_own(api) => bounded("integer", range),
        Shape::Integer(range) => json!({"anyOf": [bounded("integer", range), {"type": "string"}]}),
        Shape::Choice(known) if is_own(api) => json!({"type": "integer", "enum": known}),
        Shape::Choice(known) => {
            let texts: Vec<String> = known.iter().map(i64::to_string).collect();
            json!({"anyOf": [{"type": "integer", "enum": known}, {"type": "string", "enum": texts}]})
        }
        Shape::TextOrInteger { longest } => {
            json!({"anyOf": [{"type": "string", "maxLength": longest}, {"type": "integer"}]})
        }
        Shape::Number(range) => {
            let number = json!({"type": "number", "minimum": range.start(), "maximum": range.end()});
            if is_own(api) { number } else { json!({"anyOf": [number, {"type": "string"}]}) }
        }
        Shape::Flag => json!({"type": "boolean"}),
        Shape::Object => object(api, runs, path, words),
        Shape::Objects => {
            json!({"type": "array", "items": object(api, runs, &format!("{path}[]"), words)})
        }
        Shape::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Shape::Integers(range) => json!({"type": "array", "items": bounded("integer", range)}),
        Shape::Labels => {
            let any = json!({"type": ["string", "number", "boolean", "null"]});
            json!({"type": "object", "additionalProperties": any})
        }
    };
    if filled && schema["type"] == "array" {
        schema["minItems"] = json!(1);
    }
    // A field that is required only sometimes may be null.
    if need == FieldNeed::None {
        match schema.get_mut("anyOf").and_then(Value::as_array_mut) {
            Some(several) => several.push(json!({"type": "null"})),
            None => schema["type"] = json!([schema["type"], "null"]),
        }
        if let Some(known) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            known.push(Value::Null);
        }
    }
    if let (Some(values), Some((field, _))) = (runs.sometimes.get(path), api.varies) {
        schema["x-required-for"] = json!({field: values});
    }
    words.describe_field(&mut schema, api.name, path);
    schema
}

/// procfleet's own APIs accept numbers as texts too, but their document recommends numbers.
fn is_own(api: &ApiEntry) -> bool {
    matches!(api.family, Family::Native | Family::Admin)
}

/// Bounds of the integer type itself are left out.
fn bounded(kind: &str, range: &std::ops::RangeInclusive<i64>) -> Value {
    let mut schema = json!({"type": kind});
    if *range.start() != i64::MIN {
        schema["minimum"] = json!(range.start());
    }
    if *range.end() != i64::MAX {
        schema["maximum"] = json!(range.end());
    }
    schema
}
