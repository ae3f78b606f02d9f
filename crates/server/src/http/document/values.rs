//! Reads values of the document.

use serde_json::{Map, Value};

/// The English and the Chinese text.
pub(super) fn description(described: &Value) -> (&str, &str) {
    let chinese = text(&described["x-description-zh"]);
    let both = text(&described["description"]);
    let english = both.strip_suffix(chinese).map_or(both, |english| english.trim_end());
    (english, chinese)
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn object(value: &Value) -> Option<&Map<String, Value>> {
    value.as_object()
}
