//! A JSON object whose names are keys, in the order of the request, because callers show it unchanged.

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyed<T>(Vec<(String, T)>);

/// If a key occurs twice, the last value counts.
impl<T> FromIterator<(String, T)> for Keyed<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(rows: I) -> Self {
        let mut indexes: HashMap<String, usize> = HashMap::new();
        let mut kept: Vec<(String, T)> = Vec::new();
        for (key, value) in rows {
            match indexes.get(&key) {
                Some(index) => kept[*index].1 = value,
                None => {
                    indexes.insert(key.clone(), kept.len());
                    kept.push((key, value));
                }
            }
        }
        Keyed(kept)
    }
}

impl<T: Serialize> Serialize for Keyed<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl<T: JsonSchema> JsonSchema for Keyed<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        BTreeMap::<String, T>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<String, T>::json_schema(generator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_kept_and_a_key_is_there_once() {
        let rows = [("b", 1), ("a", 2), ("b", 3)].map(|(key, value)| (key.to_owned(), value));
        let keyed: Keyed<i32> = rows.into_iter().collect();
        assert_eq!(serde_json::to_string(&keyed).expect("JSON"), r#"{"b":3,"a":2}"#);
    }
}
