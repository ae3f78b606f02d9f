//! What everything means, in English and Chinese: [`Text`]s by key, and the putting of them into the
//! document.
//!
//! Keys: an API's or a family's name; `API/PLACE` or only `PLACE` of a request's field; `TYPE.FIELD` or only
//! `*.FIELD` of an answer's; `header/NAME`, `path/NAME`, `response/NAME`, and `info`.

mod answers;
mod apis;
mod codes;
mod requests;

use procfleet_core::code::Code;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A key, the words in English, and those in Chinese.
pub(super) type Text = (&'static str, &'static str, &'static str);
/// An API's or family's name; its title and description, each in English and Chinese.
pub(super) type Titled = (&'static str, [&'static str; 2], [&'static str; 2]);

pub(super) struct Words {
    texts: BTreeMap<&'static str, [&'static str; 2]>,
    titles: BTreeMap<&'static str, ([&'static str; 2], [&'static str; 2])>,
    used: BTreeSet<&'static str>,
    faults: Vec<String>,
}

impl Words {
    pub(super) fn new() -> Words {
        let texts = [requests::TEXTS, answers::TEXTS, apis::TEXTS].into_iter().flatten();
        let titles = apis::TITLES.iter().map(|(key, title, text)| (*key, (*title, *text)));
        Words {
            texts: texts.map(|(key, english, chinese)| (*key, [*english, *chinese])).collect(),
            titles: titles.collect(),
            used: BTreeSet::new(),
            faults: Vec::new(),
        }
    }

    pub(super) fn fault(&mut self, fault: String) {
        self.faults.push(fault);
    }

    pub(super) fn describe(&mut self, to: &mut Value, key: &str) {
        self.describe_first(to, &[key]);
    }

    /// A field of a request.
    pub(super) fn describe_field(&mut self, to: &mut Value, api: &str, path: &str) {
        // One element of many is a request like any other.
        let path = path.strip_prefix("proc_operate_req[].").unwrap_or(path);
        // JOB's APIs share the words of one element too.
        let shared = if api.starts_with("job.") { format!("job/{path}") } else { path.to_owned() };
        self.describe_first(to, &[&format!("{api}/{path}"), &shared, path]);
    }

    /// A field of an answer.
    pub(super) fn describe_member(&mut self, to: &mut Value, kind: &str, field: &str) {
        self.describe_first(to, &[&format!("{kind}.{field}"), &format!("*.{field}")]);
    }

    pub(super) fn summarize(&mut self, to: &mut Value, key: &str) {
        let Some((title, text)) = self.titled(key) else { return };
        to["summary"] = json!(title[0]);
        to["x-summary-zh"] = json!(title[1]);
        put(to, text);
    }

    pub(super) fn title(&mut self, to: &mut Value, key: &str) {
        let Some((title, text)) = self.titled(key) else { return };
        to["x-displayName"] = json!(title[0]);
        to["x-displayName-zh"] = json!(title[1]);
        put(to, text);
    }

    /// Every error code.
    pub(super) fn codes(&mut self) -> Value {
        let mut rows = Vec::new();
        for code in Code::all() {
            let mut row = json!({"error_code": code.number(), "code": code.external()});
            match codes::TEXTS.iter().find(|(number, ..)| *number == code) {
                Some((_, english, chinese)) => put(&mut row, [english, chinese]),
                None => self.fault(format!("code {} has no words", code.number())),
            }
            rows.push(row);
        }
        Value::Array(rows)
    }

    /// What was missing, and what nobody asked for.
    pub(super) fn faults(mut self) -> Vec<String> {
        let known = self.texts.keys().chain(self.titles.keys());
        let idle: Vec<&str> = known.filter(|key| !self.used.contains(*key)).copied().collect();
        self.faults.extend(idle.iter().map(|key| format!("there are words for {key}, which is nowhere")));
        self.faults
    }

    fn describe_first(&mut self, to: &mut Value, keys: &[&str]) {
        match keys.iter().find_map(|key| self.texts.get_key_value::<str>(key)) {
            Some((key, text)) => {
                self.used.insert(key);
                put(to, *text);
            }
            None => self.faults.push(format!("{} has no words", keys[0])),
        }
    }

    fn titled(&mut self, key: &str) -> Option<([&'static str; 2], [&'static str; 2])> {
        match self.titles.get_key_value::<str>(key) {
            Some((key, words)) => {
                self.used.insert(key);
                Some(*words)
            }
            None => {
                self.faults.push(format!("{key} has no words"));
                None
            }
        }
    }
}

/// Both languages where everybody looks, and the Chinese alone beside it.
fn put(to: &mut Value, [english, chinese]: [&str; 2]) {
    to["description"] = json!(format!("{english}\n\n{chinese}"));
    to["x-description-zh"] = json!(chinese);
}
