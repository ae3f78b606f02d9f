//! Checks a value against the API's own document: the part of JSON Schema that the document uses.

use serde_json::{Map, Value};

/// Keywords for readers, which say nothing about a value.
const ANNOTATIONS: [&str; 6] = ["description", "format", "title", "default", "example", "contentMediaType"];

/// All differences between `value` and `schema`; empty if it is valid. References are looked up in
/// `document`.
///
/// # Panics
/// At a keyword that is not known here: it would go unchecked.
pub fn schema_faults(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut checker = Checker { document, faults: Vec::new() };
    checker.check(schema, value, "");
    checker.faults
}

/// The operation of a path, whether it is the main one or another name for it, with any values of its
/// parameters.
pub fn operation<'d>(document: &'d Value, method: &str, path: &str) -> Option<&'d Value> {
    let path = path.split('?').next().unwrap_or_default();
    let items = document["paths"].as_object()?;
    items.iter().find_map(|(template, item)| {
        let operations = item.as_object()?;
        let named = |operation: &&Value| {
            let aliases = operation["x-aliases"].as_array().into_iter().flatten();
            matches(template, path) || aliases.into_iter().any(|alias| alias == path)
        };
        operations.get(method).filter(named)
    })
}

fn matches(template: &str, path: &str) -> bool {
    let (parts, given): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
    let same = |(part, given): (&&str, &&str)| part == given || (part.starts_with('{') && !given.is_empty());
    parts.len() == given.len() && parts.iter().zip(&given).all(same)
}

struct Checker<'d> {
    document: &'d Value,
    faults: Vec<String>,
}

impl Checker<'_> {
    fn check(&mut self, schema: &Value, value: &Value, at: &str) {
        let rules = match schema {
            Value::Bool(true) => return,
            Value::Object(rules) => rules,
            other => panic!("{at}: {other} is no schema"),
        };
        for (keyword, rule) in rules {
            let kept = match keyword.as_str() {
                "$ref" => {
                    let pointer =
                        rule.as_str().and_then(|rule| rule.strip_prefix('#')).expect("a local reference");
                    let target =
                        self.document.pointer(pointer).unwrap_or_else(|| panic!("{rule} leads nowhere"));
                    self.check(&target.clone(), value, at);
                    true
                }
                "type" => is_of(rule, value),
                "enum" => rule.as_array().expect("a list").contains(value),
                "const" => rule == value,
                "properties" | "required" | "additionalProperties" => {
                    self.check_object(keyword, rule, rules, value, at)
                }
                "items" => {
                    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(rule, value, &format!("{at}[{index}]"));
                    }
                    true
                }
                "anyOf" | "oneOf" => {
                    let schemas = rule.as_array().expect("a list");
                    schemas.iter().any(|schema| schema_faults(self.document, schema, value).is_empty())
                }
                "allOf" => {
                    rule.as_array().expect("a list").iter().for_each(|schema| self.check(schema, value, at));
                    true
                }
                "contentSchema" => self.check_text(rule, value, at),
                "minimum" => value.as_f64().is_none_or(|number| number >= rule.as_f64().expect("a number")),
                "maximum" => value.as_f64().is_none_or(|number| number <= rule.as_f64().expect("a number")),
                "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= whole(rule)),
                "maxItems" => value.as_array().is_none_or(|list| list.len() as u64 <= whole(rule)),
                "minLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 >= whole(rule)),
                "maxLength" => value.as_str().is_none_or(|text| text.chars().count() as u64 <= whole(rule)),
                "pattern" if rule == "\\S" => value.as_str().is_none_or(|text| !text.trim().is_empty()),
                known if ANNOTATIONS.contains(&known) || known.starts_with("x-") => true,
                unknown => panic!("{at}: {unknown} is not known to this test"),
            };
            if !kept {
                self.faults.push(format!("{at}: {value} is against {keyword} {rule}"));
            }
        }
    }

    fn check_object(
        &mut self,
        keyword: &str,
        rule: &Value,
        rules: &Map<String, Value>,
        value: &Value,
        at: &str,
    ) -> bool {
        let Some(fields) = value.as_object() else { return true };
        match keyword {
            "required" => rule.as_array().expect("a list").iter().all(|name| {
                let name = name.as_str().expect("a name");
                fields.contains_key(name)
            }),
            "properties" => {
                for (name, schema) in rule.as_object().expect("schemas by name") {
                    if let Some(value) = fields.get(name) {
                        self.check(schema, value, &format!("{at}.{name}"));
                    }
                }
                true
            }
            _ => {
                let known = rules.get("properties").and_then(Value::as_object);
                let others =
                    fields.iter().filter(|(name, _)| known.is_none_or(|known| !known.contains_key(*name)));
                for (name, value) in others {
                    match rule {
                        Value::Bool(allowed) if !allowed => {
                            self.faults.push(format!("{at}: {name} is not known"));
                        }
                        rule => self.check(rule, value, &format!("{at}.{name}")),
                    }
                }
                true
            }
        }
    }

    /// A text that is JSON itself; an empty one holds nothing.
    fn check_text(&mut self, rule: &Value, value: &Value, at: &str) -> bool {
        match value.as_str() {
            None | Some("") => true,
            Some(text) => match serde_json::from_str(text) {
                Ok(inner) => {
                    self.check(rule, &inner, &format!("{at}<"));
                    true
                }
                Err(_) => false,
            },
        }
    }
}

fn whole(rule: &Value) -> u64 {
    rule.as_u64().expect("a whole number")
}

fn is_of(rule: &Value, value: &Value) -> bool {
    match rule {
        Value::String(kind) => match kind.as_str() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other} is no type"),
        },
        Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
        other => panic!("{other} is no type"),
    }
}
