//! Schemas of answers, from their types.

use super::words::Words;
use schemars::generate::SchemaGenerator;
use serde_json::{Map, Value, json};

/// Every type that an answer is made of, by its name.
pub(super) fn definitions(generator: &mut SchemaGenerator, words: &mut Words) -> Map<String, Value> {
    let mut all: Vec<(String, Value)> = generator.take_definitions(true).into_iter().collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let described = all.into_iter().map(|(name, mut schema)| {
        plain(&mut schema);
        // The envelope is the same for all answers.
        let kind = match name.split_once("Answer_") {
            Some(("" | "Page", _)) => "Answer",
            Some(("Job", _)) => "JobAnswer",
            Some(_) | None => name.as_str(),
        };
        let fields = schema.get_mut("properties").and_then(Value::as_object_mut);
        for (field, schema) in fields.into_iter().flatten() {
            words.describe_member(schema, kind, field);
        }
        (name, schema)
    });
    described.collect()
}

/// Comments in the code are for its readers; the document has its own texts.
fn plain(schema: &mut Value) {
    // An enum whose variants have comments is written as one schema per variant.
    if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
        let names = |variant: &Value| match (variant.get("const"), variant.get("enum")) {
            (Some(one), _) => Some(vec![one.clone()]),
            (None, several) => several?.as_array().cloned(),
        };
        if let Some(names) = variants.iter().map(names).collect::<Option<Vec<_>>>() {
            *schema = json!({"type": "string", "enum": names.concat()});
        }
    }
    match schema {
        Value::Object(fields) => {
            if fields.get("description").is_some_and(Value::is_string) {
                fields.shift_remove("description");
            }
            fields.values_mut().for_each(plain);
        }
        Value::Array(values) => values.iter_mut().for_each(plain),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
