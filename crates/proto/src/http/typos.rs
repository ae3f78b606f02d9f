//! Unknown fields, and suggestions for fields that look like typos.
//!
//! GSE's callers send additional fields, so an unknown field is not a fault. But `strat_cmd` is most likely a
//! typo of `start_cmd` and causes a warning. The known names come from the reading code itself
//! (`operate::unread_fields`), so there is no second list.

use super::record::{FieldRecord, Shape};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A field that the parsing code does not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// `spec.control.strat_cmd`
    pub path: String,
    /// Suggestion: a field name of the same object, or the path of a field of another object.
    pub meant: Option<String>,
}

/// Known field names by the path of their object. Paths of lists end with `[]`.
#[derive(Debug, Default)]
pub struct KnownFields {
    names: BTreeMap<String, BTreeSet<String>>,
    /// Paths of fields that hold an object or a list of objects, with the path of that object.
    inner: BTreeMap<String, String>,
}

impl KnownFields {
    pub(super) fn add(&mut self, record: &FieldRecord) {
        for (path, shape) in &record.fields {
            self.name(path);
            match shape {
                Shape::Object => drop(self.inner.insert(path.clone(), path.clone())),
                Shape::Objects => drop(self.inner.insert(path.clone(), format!("{path}[]"))),
                _ => {}
            }
        }
        for (path, other) in &record.aliases {
            self.name(other);
            let inner = self.inner.get(path).cloned();
            self.inner.extend(inner.map(|inner| (other.clone(), inner)));
        }
    }

    fn name(&mut self, path: &str) {
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        self.names.entry(parent.to_owned()).or_default().insert(name.to_owned());
    }

    /// The unknown fields in and below the object at `path` (`spec`). `shown`: the object's path in the
    /// request that was sent, for messages.
    pub(super) fn unread(&self, object: &Map<String, Value>, path: &str, shown: &str) -> Vec<Unread> {
        let names = self.names.get(path);
        let mut found = Vec::new();
        for (name, value) in object {
            let (at, shown) = (below(path, name), below(shown, name));
            if names.is_none_or(|names| !names.contains(name)) {
                found.push(Unread { path: shown, meant: self.meant(path, name) });
                continue;
            }
            let Some(inner) = self.inner.get(&at) else { continue };
            match value {
                Value::Object(object) => found.extend(self.unread(object, inner, &shown)),
                Value::Array(list) => {
                    for (index, element) in list.iter().enumerate() {
                        let Value::Object(element) = element else { continue };
                        found.extend(self.unread(element, inner, &format!("{shown}[{index}]")));
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The closest name of the same object; else the path of the closest name of any other object.
    fn meant(&self, path: &str, name: &str) -> Option<String> {
        let nearest = |names: &mut dyn Iterator<Item = (String, &String)>| {
            let near = names.filter_map(|(shown, known)| Some((distance_if_near(name, known)?, shown)));
            near.min().map(|(_, shown)| shown)
        };
        let beside = self.names.get(path).into_iter().flatten();
        let elsewhere = self.names.iter().filter(|(parent, _)| parent.as_str() != path);
        let elsewhere =
            elsewhere.flat_map(|(parent, names)| names.iter().map(move |name| (below(parent, name), name)));
        nearest(&mut beside.map(|known| (known.clone(), known))).or_else(|| nearest(&mut { elsewhere }))
    }
}

fn below(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `None` if the names differ too much. The shorter the name, the fewer edits are allowed: `id` is not `fd`.
fn distance_if_near(name: &str, known: &str) -> Option<usize> {
    let allowed = match known.chars().count() {
        0..=3 => 0,
        4..=7 => 1,
        _ => 2,
    };
    // Skip the quadratic comparison for names of very different length.
    if name.len().abs_diff(known.len()) > 4 * (allowed + 1) {
        return None;
    }
    let (name, known) = (name.to_lowercase(), known.to_lowercase());
    Some(distance(&name, &known)).filter(|distance| *distance <= allowed)
}

/// Edit distance with transpositions (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut rows: [Vec<usize>; 3] = [Vec::new(), Vec::new(), (0..=other.len()).collect()];
    for i in 1..=one.len() {
        rows.rotate_left(1);
        let mut row = vec![i];
        for j in 1..=other.len() {
            let changed = rows[1][j - 1] + usize::from(one[i - 1] != other[j - 1]);
            let mut least = changed.min(rows[1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                least = least.min(rows[0][j - 2] + 1);
            }
            row.push(least);
        }
        rows[2] = row;
    }
    rows[2][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::operate::unread_fields;
    use serde_json::json;

    #[test]
    fn distances() {
        for (one, other, expected) in [
            ("start_cmd", "start_cmd", 0),
            ("strat_cmd", "start_cmd", 1),
            ("start_chek_secs", "start_check_secs", 1),
            ("stat_cmd", "start_cmd", 1),
            ("", "abc", 3),
            ("ca", "abc", 3),
        ] {
            assert_eq!((distance(one, other), distance(other, one)), (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn unread_fields_are_named_with_the_intended_field() {
        let request = json!({
            "meta": {"namespace": "a", "name": "b", "labels": {"anything": 1}},
            "hots": [],
            "hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 0, "bk_cloud": 1}],
            "spec": {
                "identity": {"proc_name": "x", "usr": "root", "owner": "me"},
                "control": {"strat_cmd": "x", "start_cmd": "y"},
                "monitor_policy": {"auto_type": 1, "start_chek_secs": 5, "crotab_rule": "", "timeout": null},
                "configmap": [{"path": "/x", "md5": "", "mode": 7}],
                "stop_cmd": "z",
                "id": 1,
            },
        });
        let Value::Object(request) = request else { panic!("an object") };
        let found: Vec<(String, Option<String>)> =
            unread_fields(&request).into_iter().map(|unread| (unread.path, unread.meant)).collect();
        let expected = [
            ("hots", Some("hosts")),
            ("hosts[0].bk_cloud", None),
            ("spec.identity.usr", Some("user")),
            ("spec.identity.owner", None),
            ("spec.control.strat_cmd", Some("start_cmd")),
            ("spec.monitor_policy.start_chek_secs", Some("start_check_secs")),
            ("spec.monitor_policy.timeout", None),
            ("spec.configmap[0].mode", None),
            ("spec.stop_cmd", Some("spec.control.stop_cmd")),
            ("spec.id", None),
        ];
        let expected = expected.map(|(path, meant)| (path.to_owned(), meant.map(str::to_owned)));
        assert_eq!(found, expected);
    }
}
