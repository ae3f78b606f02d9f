//! JSON objects that flags are written to.

use serde_json::{Map, Value, json};

pub(super) type Object = Map<String, Value>;

pub(super) fn set(object: &mut Object, key: &str, value: Value) {
    object.insert(key.to_owned(), value);
}

/// The object of a key. A value that is not an object (`"labels": null`) is replaced.
pub(super) fn child<'a>(object: &'a mut Object, key: &str) -> &'a mut Object {
    let value = object.entry(key).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("it was just made one")
}
