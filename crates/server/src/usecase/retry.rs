//! Retries a task: a new task with the same requests, only for the hosts where it failed.

use super::results::find;
use super::{AppError, Caller, Services, operate};
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::TaskId;
use procfleet_core::request::{Request, Target};
use procfleet_proto::http::fault::Faults;
use procfleet_store::SubmissionKey;
use std::collections::BTreeMap;

/// Creates one task for each key, however often the call is repeated. The caller needs the grants of the
/// first attempt; its current grants count.
pub async fn retry(
    services: &Services,
    caller: &Caller,
    task_text: &str,
    key: Option<SubmissionKey>,
) -> Result<TaskId, AppError> {
    let (task, ops) = find(services, caller, task_text).await?;
    let mut faults = Faults::default();
    let mut targets: BTreeMap<u32, Vec<Target>> = BTreeMap::new();
    for op in &ops {
        // The spec and operation of a rejected request may be incomplete, so it is never sent again.
        let settled = [Code::Success, Code::BadRequest, Code::UnknownOp];
        if op.outcome.as_ref().is_some_and(|outcome| !settled.contains(&outcome.code)) {
            targets.entry(op.request).or_default().push(op.target.clone());
        }
    }
    if task.counts.open > 0 {
        let reason =
            format!("{} of its operations are still open; wait for them, or cancel it", task.counts.open);
        faults.add("task_id", reason);
    } else if targets.is_empty() {
        faults.add("task_id", "none of its operations has failed, so there is nothing to try again");
    }
    if !faults.is_empty() {
        return Err(faults.into());
    }
    let requests = targets.into_iter().filter_map(|(index, targets)| {
        let head = task.requests.get(index as usize)?;
        let spec = head.spec.as_deref().cloned();
        Some(Request { proc: head.proc.clone(), kind: head.kind, spec, targets, refused: None })
    });
    operate::submit_retry(services, caller, requests.collect(), &GrantScope::All, task.id, key).await
}
