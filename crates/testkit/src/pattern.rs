//! Patterns for answers: JSON in which `…` stands for a part that may differ.
//!
//! | pattern | matches |
//! |---|---|
//! | `"…"` | anything |
//! | `"…int"`, `"…number"`, `"…text"`, `"…bool"` | anything of that kind |
//! | `"no such task …"` | a text that is the same where the pattern says something |
//! | `{"…": "…", "a": 1}` | an object that has `a: 1`, and may have more; without `"…"` the keys must be exactly those |
//! | `{"…has": ["a", "b"]}` | a text in which each of these stands |
//! | `{"…json": PATTERN}` | a text that holds JSON which matches |
//! | `{"…over": 1}` | a number above that |
//! | `{"…not": PATTERN}` | what does not match |
//! | anything else | itself |

use serde_json::{Map, Value};

/// The differences between answer and pattern, with their paths; empty: it matches.
pub fn mismatches(pattern: &Value, answer: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(pattern, answer, "", &mut found);
    found
}

fn compare(pattern: &Value, answer: &Value, at: &str, found: &mut Vec<String>) {
    match (pattern, answer) {
        (Value::String(pattern), _) => {
            if !text_matches(pattern, answer) {
                found.push(differs(at, &Value::from(pattern.as_str()), answer));
            }
        }
        (Value::Object(pattern), _) if special(pattern).is_some() => {
            let (word, argument) = special(pattern).expect("it was just seen");
            compare_special(word, argument, answer, at, found);
        }
        (Value::Object(pattern), Value::Object(answer)) => compare_objects(pattern, answer, at, found),
        (Value::Array(pattern), Value::Array(answer)) => {
            if pattern.len() != answer.len() {
                found.push(format!(
                    "{}: {} elements expected, {} found",
                    path(at),
                    pattern.len(),
                    answer.len()
                ));
            }
            for (index, (pattern, answer)) in pattern.iter().zip(answer).enumerate() {
                compare(pattern, answer, &format!("{at}[{index}]"), found);
            }
        }
        _ if pattern == answer => {}
        _ => found.push(differs(at, pattern, answer)),
    }
}

fn compare_objects(
    pattern: &Map<String, Value>,
    answer: &Map<String, Value>,
    at: &str,
    found: &mut Vec<String>,
) {
    for (key, pattern) in pattern.iter().filter(|(key, _)| *key != "…") {
        let inner = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
        match answer.get(key) {
            Some(answer) => compare(pattern, answer, &inner, found),
            None => found.push(format!("{inner}: missing")),
        }
    }
    if !pattern.contains_key("…") {
        let unasked = answer.iter().filter(|(key, _)| !pattern.contains_key(*key));
        found.extend(unasked.map(|(key, value)| format!("{}: {key:?} was not expected: {value}", path(at))));
    }
}

/// An object with one field whose name begins with `…` and goes on.
fn special(pattern: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (key, argument) = pattern.iter().next().filter(|_| pattern.len() == 1)?;
    key.strip_prefix('…').filter(|word| !word.is_empty()).map(|word| (word, argument))
}

fn compare_special(word: &str, argument: &Value, answer: &Value, at: &str, found: &mut Vec<String>) {
    match (word, argument) {
        ("has", Value::Array(parts)) => {
            let text = answer.as_str().unwrap_or_default();
            let missing = parts.iter().filter_map(Value::as_str).filter(|part| !text.contains(*part));
            found.extend(missing.map(|part| format!("{}: {part:?} is not in {answer}", path(at))));
        }
        ("json", pattern) => match answer.as_str().map(serde_json::from_str::<Value>) {
            Some(Ok(inner)) => compare(pattern, &inner, &format!("{at}(json)"), found),
            Some(Err(_)) | None => found.push(format!("{}: no text that holds JSON: {answer}", path(at))),
        },
        ("over", Value::Number(least)) => {
            if answer.as_f64().is_none_or(|number| Some(number) <= least.as_f64()) {
                found.push(format!("{}: a number over {least} expected, {answer} found", path(at)));
            }
        }
        ("not", pattern) => {
            if mismatches(pattern, answer).is_empty() {
                found.push(format!("{}: anything but {pattern} expected, {answer} found", path(at)));
            }
        }
        (word, argument) => found.push(format!("{}: no such pattern: …{word} {argument}", path(at))),
    }
}

fn text_matches(pattern: &str, answer: &Value) -> bool {
    match (pattern, answer) {
        ("…", _) => true,
        ("…int", _) => answer.is_i64() || answer.is_u64(),
        ("…number", _) => answer.is_number(),
        ("…text", _) => answer.is_string(),
        ("…bool", _) => answer.is_boolean(),
        (pattern, Value::String(text)) => fits(pattern, text),
        _ => false,
    }
}

/// Whether `text` is `pattern`, where `…` matches any characters.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, more)) = pattern.split_once('…') else { return pattern == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let (middle, last) = more.rsplit_once('…').unwrap_or(("", more));
    // The earliest match leaves the most for the parts that follow.
    for part in middle.split('…') {
        let Some(from) = rest.find(part) else { return false };
        rest = &rest[from + part.len()..];
    }
    rest.ends_with(last)
}

fn differs(at: &str, pattern: &Value, answer: &Value) -> String {
    format!("{}: {pattern} expected, {answer} found", path(at))
}

fn path(at: &str) -> &str {
    if at.is_empty() { "the answer" } else { at }
}
