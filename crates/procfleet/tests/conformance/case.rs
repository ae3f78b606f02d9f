//! The contents of a case's file. A field that is not known here is a mistake, and refused.

use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Which rule, document or caller it stands for.
    pub(crate) about: String,
    /// Values that its steps repeat, by name.
    #[serde(default)]
    pub(crate) values: Map<String, Value>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    /// The purpose of the step, where the request does not show it.
    #[serde(default)]
    pub(crate) note: String,
    pub(crate) request: Request,
    #[serde(default = "ok")]
    pub(crate) status: u16,
    /// A pattern; see `procfleet_testkit::pattern`.
    pub(crate) answer: Value,
    /// For how many seconds the request is repeated until the answer matches.
    pub(crate) until: Option<u64>,
    /// Names for what later steps need, by JSON pointer.
    #[serde(default)]
    pub(crate) keep: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    #[serde(default = "post")]
    pub(crate) method: String,
    pub(crate) path: String,
    /// In addition to `Content-Type: application/json`; null takes one away.
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, Option<Value>>,
    #[serde(default)]
    pub(crate) query: BTreeMap<String, Value>,
    pub(crate) body: Option<Value>,
    /// A body that is not JSON, or not to be touched.
    pub(crate) text: Option<String>,
    #[serde(default)]
    pub(crate) login: Login,
}

/// Where the app's code and secret and the user's name stand.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Login {
    #[default]
    Body,
    Header,
    Query,
    /// Nowhere, or where the case itself writes them.
    None,
}

impl Case {
    pub(crate) fn read(path: &Path) -> Result<Case, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let case: Case =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
        match (case.about.is_empty(), case.steps.is_empty()) {
            (false, false) => Ok(case),
            _ => Err(format!("{}: a case says what it is about and has steps", path.display())),
        }
    }
}

fn post() -> String {
    "POST".to_owned()
}

fn ok() -> u16 {
    200
}
