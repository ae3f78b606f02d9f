//! `get_proc_operate_result_v2`.

use super::content::{self, OpContext};
use super::fault::Faults;
use super::keyed::Keyed;
use super::read::{Reader, RequestBody};
use procfleet_core::code::Code;
use procfleet_core::op::Outcome;
use schemars::JsonSchema;
use serde::Serialize;

/// The task id as text; whether the task exists is checked later.
pub fn get_proc_operate_result<'v>(body: impl Into<RequestBody<'v>>) -> Result<String, Faults> {
    let mut faults = Faults::default();
    let task = Reader::root(body, &mut faults).map(|r| r.required_text("task_id", 128, &mut faults));
    match task {
        Some(task) if faults.is_empty() => Ok(task),
        _ => Err(faults),
    }
}

/// The answer's `data`: the ops by their keys.
pub type Results = Keyed<OpResult>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OpResult {
    pub error_code: u32,
    pub error_msg: String,
    /// A JSON text inside JSON; empty while the op is open.
    #[schemars(schema_with = "content::text_schema")]
    pub content: String,
}

impl OpResult {
    /// Callers wait for exactly this code and this word.
    pub fn handling() -> OpResult {
        OpResult {
            error_code: Code::Handling.number(),
            error_msg: "handling".to_owned(),
            content: String::new(),
        }
    }

    pub fn new(about: OpContext<'_>, outcome: Option<&Outcome>) -> OpResult {
        match outcome {
            None => OpResult::handling(),
            Some(outcome) => OpResult {
                error_code: outcome.code.number(),
                error_msg: outcome.message.clone(),
                content: match about.kind.has_content() {
                    true => content::text(about, outcome),
                    false => String::new(),
                },
            },
        }
    }
}
