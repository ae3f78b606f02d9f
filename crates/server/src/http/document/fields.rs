//! A schema as a list of fields, each with its path, for people to read.

use super::values::{description, object, text};
use serde_json::Value;

/// One row of a list of fields.
#[derive(Clone, Debug)]
pub(super) struct Field<'d> {
    pub(super) path: String,
    pub(super) kind: String,
    pub(super) bounds: String,
    pub(super) required: bool,
    /// `op_type 0, 1`: the field is required for these only.
    pub(super) required_for: String,
    /// `in` of a parameter (path, query, header); empty for a field of a body.
    pub(super) location: &'d str,
    pub(super) english: &'d str,
    pub(super) chinese: &'d str,
}

impl<'d> Field<'d> {
    pub(super) fn new(path: &str, schema: &'d Value, required: bool) -> Field<'d> {
        let (english, chinese) = description(schema);
        Field {
            path: path.to_owned(),
            kind: kind(schema),
            bounds: bounds(schema),
            required,
            required_for: required_for(schema),
            location: "",
            english,
            chinese,
        }
    }
}

/// All fields below `schema`, parents before their children.
pub(super) fn fields<'d>(document: &'d Value, schema: &'d Value, path: &str) -> Vec<Field<'d>> {
    let mut rows = Vec::new();
    walk(document, schema, path, &mut rows);
    rows
}

fn walk<'d>(document: &'d Value, schema: &'d Value, path: &str, rows: &mut Vec<Field<'d>>) {
    if let Some(target) = referred(document, schema) {
        return walk(document, target, path, rows);
    }
    // An optional value: skip the `null` variant.
    for inner in schema["anyOf"].as_array().into_iter().flatten() {
        walk(document, inner, path, rows);
    }
    if let Some(inner) = object(&schema["contentSchema"]) {
        let inner = inner.get("anyOf").and_then(Value::as_array);
        for inner in inner.into_iter().flatten() {
            walk(document, inner, &format!("{path}⟨JSON⟩"), rows);
        }
    }
    if object(&schema["items"]).is_some() {
        walk(document, &schema["items"], &format!("{path}[]"), rows);
    }
    if object(&schema["additionalProperties"]).is_some() {
        walk(document, &schema["additionalProperties"], &format!("{path}.*"), rows);
    }
    let required = schema["required"].as_array();
    for (name, property) in object(&schema["properties"]).into_iter().flatten() {
        let needed = required.is_some_and(|required| required.iter().any(|other| other == name));
        let field_path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let described = Field::new(&field_path, property, needed);
        let shown = match referred(document, property).or_else(|| either(document, property)) {
            Some(target) => Field { kind: kind(target), bounds: bounds(target), ..described },
            None => described,
        };
        rows.push(shown);
        // The fields of an alias are listed at the other name.
        if property["x-alias-of"].is_null() {
            walk(document, property, &field_path, rows);
        }
    }
}

fn referred<'d>(document: &'d Value, schema: &'d Value) -> Option<&'d Value> {
    document.pointer(schema["$ref"].as_str()?.trim_start_matches('#'))
}

/// The variant that is not `null`.
fn either<'d>(document: &'d Value, schema: &'d Value) -> Option<&'d Value> {
    let several = schema["anyOf"].as_array()?;
    let one = several.iter().find(|one| one["type"] != "null")?;
    Some(referred(document, one).unwrap_or(one))
}

fn kind(schema: &Value) -> String {
    let named = match &schema["type"] {
        Value::Array(kinds) => kinds.first().map(text).unwrap_or_default(),
        kind => text(kind),
    };
    match named {
        "array" => match kind(&schema["items"]).as_str() {
            "" => "array".to_owned(),
            inner => format!("array of {inner}"),
        },
        "object" if object(&schema["additionalProperties"]).is_some() => "map".to_owned(),
        "" => "any".to_owned(),
        named => named.to_owned(),
    }
}

fn bounds(schema: &Value) -> String {
    let mut parts = Vec::new();
    if let Some(values) = schema["enum"].as_array() {
        let values: Vec<String> = values
            .iter()
            .filter(|value| !value.is_null())
            .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            .collect();
        parts.push(values.join(" | "));
    }
    match (schema["minimum"].as_f64(), schema["maximum"].as_f64()) {
        (Some(least), Some(most)) => parts.push(format!("{least} … {most}")),
        (Some(least), None) => parts.push(format!("≥ {least}")),
        (None, Some(most)) => parts.push(format!("≤ {most}")),
        (None, None) => {}
    }
    match (schema["minLength"].as_u64(), schema["maxLength"].as_u64()) {
        (Some(least), Some(most)) => parts.push(format!("{least} … {most} chars")),
        (None, Some(most)) => parts.push(format!("≤ {most} chars")),
        (Some(_) | None, None) => {}
    }
    if let Some(least) = schema["minItems"].as_u64() {
        parts.push(format!("≥ {least} items"));
    }
    parts.join(", ")
}

fn required_for(schema: &Value) -> String {
    let Some((field, values)) = object(&schema["x-required-for"]).and_then(|all| all.iter().next()) else {
        return String::new();
    };
    let values: Vec<String> = values.as_array().into_iter().flatten().map(Value::to_string).collect();
    format!("{field} {}", values.join(", "))
}
