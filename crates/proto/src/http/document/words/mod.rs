//! The texts of the API document in English (`en.json`) and Chinese (`zh.json`), and their insertion into the
//! document.
//!
//! Both files have the same keys:
//!
//! | section | key | value |
//! |---|---|---|
//! | `apis` | name of an API or of a family of APIs | title and text |
//! | `general` | `info`, `header/NAME`, `path/NAME`, `response/NAME` | text |
//! | `requests` | `API/PATH` or `PATH` of a field, where PATH is its JSON path | text |
//! | `answers` | `TYPE.FIELD` or `*.FIELD` | text |
//! | `codes` | number of an error code | text |
//!
//! The more specific key wins. [`Words::faults`] lists missing, unused and untranslated keys; a test requires
//! that there are none.

use procfleet_core::code::Code;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

static ENGLISH: LazyLock<Texts> = LazyLock::new(|| Texts::read(include_str!("en.json")));
static CHINESE: LazyLock<Texts> = LazyLock::new(|| Texts::read(include_str!("zh.json")));

/// The texts of one language.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Texts {
    apis: BTreeMap<String, Titled>,
    general: BTreeMap<String, String>,
    requests: BTreeMap<String, String>,
    answers: BTreeMap<String, String>,
    codes: BTreeMap<String, String>,
}

/// A section, and a key in it.
type TextKey = (&'static str, String);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Titled {
    title: String,
    text: String,
}

impl Texts {
    fn read(json: &str) -> Texts {
        serde_json::from_str(json).expect("a test reads the same file")
    }

    /// The sections whose keys are looked up without naming the section.
    fn sections(&self) -> [(&'static str, &BTreeMap<String, String>); 3] {
        [("general", &self.general), ("requests", &self.requests), ("answers", &self.answers)]
    }

    /// The text of a key, and the section in which it is.
    fn text(&self, key: &str) -> Option<(&'static str, &str)> {
        self.sections().into_iter().find_map(|(name, texts)| Some((name, texts.get(key)?.as_str())))
    }

    fn keys(&self) -> BTreeSet<TextKey> {
        let key = |section, key: &String| (section, key.clone());
        let texts =
            self.sections().into_iter().flat_map(|(name, texts)| texts.keys().map(move |one| key(name, one)));
        let apis = self.apis.keys().map(|one| key("apis", one));
        apis.chain(texts).chain(self.codes.keys().map(|one| key("codes", one))).collect()
    }
}

pub(super) struct Words {
    used: BTreeSet<TextKey>,
    faults: Vec<String>,
}

impl Words {
    pub(super) fn new() -> Words {
        Words { used: BTreeSet::new(), faults: Vec::new() }
    }

    pub(super) fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    pub(super) fn describe(&mut self, to: &mut Value, key: &str) {
        self.describe_first(to, &[key]);
    }

    /// A field of a request.
    pub(super) fn describe_field(&mut self, to: &mut Value, api: &str, path: &str) {
        // An element of a list of requests has the fields of a single request.
        let path = path.strip_prefix("proc_operate_req[].").unwrap_or(path);
        // JOB's APIs share the texts of an element, too.
        let shared = if api.starts_with("job.") { format!("job/{path}") } else { path.to_owned() };
        self.describe_first(to, &[&format!("{api}/{path}"), &shared, path]);
    }

    /// A field of an answer.
    pub(super) fn describe_member(&mut self, to: &mut Value, kind: &str, field: &str) {
        self.describe_first(to, &[&format!("{kind}.{field}"), &format!("*.{field}")]);
    }

    pub(super) fn summarize(&mut self, to: &mut Value, key: &str) {
        self.entitle(to, key, "summary", "x-summary-zh");
    }

    pub(super) fn title(&mut self, to: &mut Value, key: &str) {
        self.entitle(to, key, "x-displayName", "x-displayName-zh");
    }

    fn entitle(&mut self, to: &mut Value, key: &str, english: &str, chinese: &str) {
        let titled = ENGLISH.apis.get(key).zip(CHINESE.apis.get(key));
        if let Some((in_english, in_chinese)) = titled {
            self.used.insert(("apis", key.to_owned()));
            to[english] = json!(in_english.title);
            to[chinese] = json!(in_chinese.title);
            put(to, &in_english.text, &in_chinese.text);
        } else {
            self.faults.push(format!("{key} has no title"));
        }
    }

    /// Every error code.
    pub(super) fn codes(&mut self) -> Value {
        let mut rows = Vec::new();
        for code in Code::all() {
            let mut row = json!({"error_code": code.number(), "code": code.external()});
            let key = code.number().to_string();
            match ENGLISH.codes.get(&key).zip(CHINESE.codes.get(&key)) {
                Some((english, chinese)) => put(&mut row, english, chinese),
                None => self.fault(format!("code {key} has no text")),
            }
            self.used.insert(("codes", key));
            rows.push(row);
        }
        Value::Array(rows)
    }

    /// The keys that are missing, unused, or in one language only.
    pub(super) fn faults(mut self) -> Vec<String> {
        let (english, chinese) = (ENGLISH.keys(), CHINESE.keys());
        for (section, key) in english.symmetric_difference(&chinese) {
            self.faults.push(format!("{section}: {key} is in one language only"));
        }
        for (section, key) in english.difference(&self.used) {
            self.faults.push(format!("{section}: the text of {key} is not used"));
        }
        self.faults
    }

    fn describe_first(&mut self, to: &mut Value, keys: &[&str]) {
        match keys.iter().find_map(|&key| Some((key, ENGLISH.text(key)?, CHINESE.text(key)?))) {
            Some((key, (section, english), (_, chinese))) => {
                self.used.insert((section, key.to_owned()));
                put(to, english, chinese);
            }
            None => self.faults.push(format!("{} has no text", keys[0])),
        }
    }
}

/// Most tools show only `description`, so it has both languages. The page of this server shows one of them.
fn put(to: &mut Value, english: &str, chinese: &str) {
    to["description"] = json!(format!("{english}\n\n{chinese}"));
    to["x-description-zh"] = json!(chinese);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repeated key would silently replace the earlier one.
    #[test]
    fn no_key_occurs_twice() {
        for (texts, json) in [(&ENGLISH, include_str!("en.json")), (&CHINESE, include_str!("zh.json"))] {
            let lines = json.lines().filter(|line| line.starts_with("    \"")).count();
            assert_eq!(lines, texts.keys().len());
            let sections = texts.sections().into_iter().flat_map(|(_, texts)| texts.keys());
            let distinct: BTreeSet<&String> = sections.clone().collect();
            assert_eq!(distinct.len(), sections.count(), "a key is in two sections");
        }
    }
}
