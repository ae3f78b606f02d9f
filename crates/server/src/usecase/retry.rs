//! Retries a task: a new task with the same requests, only for the hosts where it failed.

use super::results::find;
use super::{AppError, Caller, Services, operate};
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::TaskId;
use procfleet_core::op::Outcome;
use procfleet_core::request::{Request, Target};
use procfleet_proto::http::fault::Faults;
use procfleet_store::{SubmissionKey, TaskRecord};
use std::collections::BTreeMap;

/// Creates one task for each key, however often the call is repeated. The caller needs the grants of the
/// first attempt; its current grants count. The businesses that the first call named still bound the hosts.
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
        let failed =
            |outcome: &Outcome| !settled.contains(&outcome.code) && !is_outside_unknown_scope(&task, outcome);
        if op.outcome.as_ref().is_some_and(failed) {
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
    // All requests of a task have the same scope.
    let within = task.requests.first().map_or(GrantScope::All, |head| head.within.clone());
    operate::submit_retry(services, caller, requests.collect(), &within, task.id, key).await
}

/// Whether the op was refused for a scope that the task does not have stored: a server of an earlier version
/// accepted it.
fn is_outside_unknown_scope(task: &TaskRecord, outcome: &Outcome) -> bool {
    let unknown = task.requests.iter().all(|head| head.within.is_all());
    unknown && outcome.code == Code::NotAllowed && outcome.message.ends_with(operate::OUTSIDE_SCOPE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::id::{BusinessId, ProcKey};
    use procfleet_core::op::OpKind;
    use procfleet_store::{RequestHead, TaskCounts};
    use std::collections::BTreeSet;

    /// The requests of a task as they are stored: an earlier version has no scope there.
    #[test]
    fn an_op_outside_a_scope_that_was_not_stored_is_left_out() {
        let proc = ProcKey::of_job("/data/web".to_owned());
        let head = RequestHead {
            proc,
            kind: OpKind::Start,
            spec: None,
            accounts: GrantScope::All,
            within: GrantScope::All,
        };
        let within = GrantScope::Only(BTreeSet::from([BusinessId(7)]));
        for (within, code, reason, left_out) in [
            (None, Code::NotAllowed, "0:10.0.0.1 is outside the scope of the request", true),
            (None, Code::NotAllowed, "0:10.0.0.1 is outside the businesses that the app may use", false),
            (None, Code::Timeout, "0:10.0.0.1 is outside the scope of the request", false),
            (Some(within), Code::NotAllowed, "0:10.0.0.1 is outside the scope of the request", false),
        ] {
            let head = RequestHead { within: within.unwrap_or(GrantScope::All), ..head.clone() };
            let stored = serde_json::to_value(&head).expect("JSON");
            assert_eq!(stored.get("within").is_none(), head.within.is_all(), "{stored}");
            let task = TaskRecord {
                id: TaskId { stamp: 1, number: 1 },
                created_at: 0,
                app: String::new(),
                username: String::new(),
                summary: String::new(),
                requests: vec![serde_json::from_value(stored).expect("a request")],
                counts: TaskCounts::default(),
                cancelled_at: None,
                retry_of: None,
            };
            assert_eq!(task.requests, [head]);
            let outcome = Outcome::without_status(code, reason, OpKind::Start);
            assert_eq!(is_outside_unknown_scope(&task, &outcome), left_out, "{reason} {code:?}");
        }
    }
}
