//! Accepts a task: it is durable, with all its ops, before its caller is answered.
//!
//! A call with an idempotency key creates one task, however often it is repeated.

use super::support::size::{json_bytes, shortened};
use super::{AppError, Caller, Services, access};
use crate::backlog::{BacklogShare, Load};
use crate::dispatcher::DispatcherMessage;
use crate::durably::durably;
use crate::secret;
use procfleet_core::code::Code;
use procfleet_core::dispatch::QUEUE_ALLOWANCE;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{BusinessId, TaskId};
use procfleet_core::op::{OpKind, Outcome};
use procfleet_core::request::{Refusal, Request, Target};
use procfleet_core::spec::Policy;
use procfleet_failpoint::{Point, hit};
use procfleet_program::panics;
use procfleet_proto::http::fault::Faults;
use procfleet_store::clock::{ClockReading, WallMs};
use procfleet_store::{
    FoundTarget, KeyKind, NewAudit, NewOp, NewTask, RequestHead, Submission, SubmissionKey, Submitted,
};
use std::sync::Arc;
use std::time::Duration;
use tracing::info;

/// Time that the agent may take in addition to its commands and checks: the journal, the link, a busy host.
const SLACK: Duration = Duration::from_secs(10);
/// Time for the commands of an op without a spec: only the agent knows its spec.
const UNKNOWN_POLICY: Duration = Duration::from_secs(300);
/// For this long the same request with the same request id counts as a repeat.
const REQUEST_ID_WINDOW: Duration = Duration::from_secs(60);

/// Maximum bytes of the specs, accounts and businesses of one task.
const LARGEST_TASK: usize = 256 << 20;
/// Maximum bytes of the reason of an op that ends at once. A reason may quote the request 50 times, and each
/// op of an invalid request has a copy.
const LONGEST_REASON: usize = 2_048;
/// This much of each reason is kept, however many ops end at once.
const SHORTEST_REASON: usize = 256;
/// Bytes of the reasons of one task together, above which each of them is shortened.
const REASONS: usize = 16 << 20;

/// End of the reason of an op whose host is outside the businesses that the call named.
pub(in crate::usecase) const OUTSIDE_SCOPE: &str = "the scope of the request";

/// Creates the task of a call. With a key, the same request of the same app creates one task, however often
/// it is repeated. `within`: the businesses of the call; hosts of other businesses are outside.
pub async fn submit(
    services: &Services,
    caller: &Caller,
    api: &'static str,
    requests: Vec<Request>,
    within: &GrantScope<BusinessId>,
    key: Option<SubmissionKey>,
) -> Result<TaskId, AppError> {
    hit(Point::ServerRequestRead);
    match key {
        Some(key) => submit_once(services, caller, api, requests, within, key).await,
        None => accept(services, prepare(services, caller, api, requests, within).await?).await,
    }
}

/// Like [`submit`]; the new task records which task it retries.
pub async fn submit_retry(
    services: &Services,
    caller: &Caller,
    requests: Vec<Request>,
    within: &GrantScope<BusinessId>,
    of: TaskId,
    key: Option<SubmissionKey>,
) -> Result<TaskId, AppError> {
    const API: &str = "task_retry";
    // The failed ops of an ended task do not change, so its id identifies the request.
    let hash = || secret::hash(format!("{API} {of}").as_bytes());
    let submission = key.map(|key| submission(services, hash(), key));
    let prepared = prepare(services, caller, API, requests, within).await.map(|(mut task, share)| {
        task.retry_of = Some(of);
        if let Some(audit) = &mut task.audit {
            audit.detail.push_str(&format!(", again after {of}"));
        }
        (task, share)
    });
    match submission {
        Some(submission) => accept_once(services, caller, API, prepared, submission).await,
        None => accept(services, prepared?).await,
    }
}

async fn accept(services: &Services, (task, share): (NewTask, BacklogShare)) -> Result<TaskId, AppError> {
    let ended = ended(&task);
    let (store, dispatcher, metrics) =
        (services.store.clone(), services.dispatcher.clone(), services.metrics.clone());
    durably(async move {
        hit(Point::ServerTaskUnwritten);
        let task = store.create_task(task).await?;
        share.keep(task);
        hit(Point::ServerTaskCommitted);
        ended.into_iter().for_each(|code| metrics.outcome(code));
        dispatcher.send(DispatcherMessage::TaskCreated(task)).await;
        Ok(task)
    })
    .await
}

/// Creates a task, unless the app has sent the same request with this key before: then it gets the first
/// task.
async fn submit_once(
    services: &Services,
    caller: &Caller,
    api: &'static str,
    requests: Vec<Request>,
    within: &GrantScope<BusinessId>,
    key: SubmissionKey,
) -> Result<TaskId, AppError> {
    let businesses = match within {
        GrantScope::All => None,
        GrantScope::Only(named) => Some(named.clone()),
    };
    // On a blocking thread, because serializing a large request takes time. The hash covers the parsed
    // request: neither the login nor the order of fields counts. Another version of this program may parse
    // more fields, and then refuses a repeat rather than run it twice.
    let hashing = panics::block_for_request(move || {
        // A request without businesses keeps the hash of versions that did not know them.
        let text = match businesses {
            None => serde_json::to_vec(&(api, &requests)),
            Some(named) => serde_json::to_vec(&(api, &requests, named)),
        };
        (secret::hash(&text.expect("requests are always JSON")), requests)
    });
    let (request_hash, requests) = hashing.await?;
    let submission = submission(services, request_hash, key);
    let prepared = prepare(services, caller, api, requests, within).await;
    accept_once(services, caller, api, prepared, submission).await
}

fn submission(services: &Services, request_hash: [u8; 32], key: SubmissionKey) -> Submission {
    let since = match key.kind {
        KeyKind::Idempotency => ClockReading { wall: WallMs::MIN, mark: None },
        KeyKind::RequestId => services.clock.reading().earlier_by(REQUEST_ID_WINDOW),
    };
    Submission { key, request_hash, since }
}

async fn accept_once(
    services: &Services,
    caller: &Caller,
    api: &'static str,
    prepared: Result<(NewTask, BacklogShare), AppError>,
    submission: Submission,
) -> Result<TaskId, AppError> {
    let (task, share) = match prepared {
        Ok(prepared) => prepared,
        // A repeat needs no capacity: it gets its first task, whatever is open or full.
        Err(refusal @ (AppError::Full(_) | AppError::EndedOpsLimitExceeded(_) | AppError::DiskFull(_))) => {
            return match services.store.submitted_before(caller.app.clone(), submission).await? {
                Some(earlier) => answer_submitted(caller, api, earlier),
                None => Err(refusal),
            };
        }
        Err(error) => return Err(error),
    };
    let ended = ended(&task);
    let (store, dispatcher, metrics) =
        (services.store.clone(), services.dispatcher.clone(), services.metrics.clone());
    let submitted = durably(async move {
        hit(Point::ServerTaskUnwritten);
        let submitted = store.submit_task(task, submission).await?;
        hit(Point::ServerTaskCommitted);
        if let Submitted::New(task) = submitted {
            share.keep(task);
            ended.into_iter().for_each(|code| metrics.outcome(code));
            dispatcher.send(DispatcherMessage::TaskCreated(task)).await;
        }
        Ok::<_, AppError>(submitted)
    });
    answer_submitted(caller, api, submitted.await?)
}

fn answer_submitted(caller: &Caller, api: &'static str, submitted: Submitted) -> Result<TaskId, AppError> {
    match submitted {
        Submitted::New(task) => Ok(task),
        Submitted::Before(task) => {
            info!(%task, app = %caller.app, api, "a repeated call gets its first task");
            Ok(task)
        }
        Submitted::OtherRequest(task) => Err(AppError::KeyTaken(task)),
    }
}

/// The first operation that is not accepted because the disk of the store is full. The last of the store's
/// reserve is for operations that end processes.
async fn refused_on_full_disk(services: &Services, requests: &[Request]) -> Result<Option<OpKind>, AppError> {
    if !services.store.is_disk_full() {
        return Ok(None);
    }
    let is_low = services.store.is_reserve_low().await?;
    let is_taken = |kind: OpKind| match is_low {
        true => matches!(kind, OpKind::Stop | OpKind::Kill),
        false => kind.is_taken_on_a_full_disk(),
    };
    Ok(requests.iter().map(|request| request.kind).find(|kind| !is_taken(*kind)))
}

async fn prepare(
    services: &Services,
    caller: &Caller,
    api: &'static str,
    requests: Vec<Request>,
    within: &GrantScope<BusinessId>,
) -> Result<(NewTask, BacklogShare), AppError> {
    access::permit(caller, &requests, within)?;
    if let Some(kind) = refused_on_full_disk(services, &requests).await? {
        return Err(AppError::DiskFull(kind));
    }
    let load = load(&requests);
    check_size(requests.len(), load.bytes, json_bytes(&(caller.rights.accounts(), within)))?;
    // Before anything is built from the requests: a waiting call holds no more than its requests.
    let share = services.backlog.take(&caller.app, load).await.map_err(AppError::Full)?;
    let targets: Vec<Target> = requests.iter().flat_map(|request| request.targets.iter().cloned()).collect();
    let found = services.store.resolve_within(&targets, &caller.rights.businesses_within(within)).await?;
    let ended = ended_at_once(&requests, &found);
    services
        .ended_ops
        .spend(&caller.app, ended, services.clock.now())
        .map_err(AppError::EndedOpsLimitExceeded)?;
    let longest_reason = longest_reason(ended);
    let mut found = found.into_iter();
    let accepted = services.clock.reading();
    let created_at = accepted.wall;
    let summary = summary(&requests);
    let (mut heads, mut ops) = (Vec::new(), Vec::new());
    for (index, mut request) in requests.into_iter().enumerate() {
        if let Some(refused) = &mut request.refused {
            refused.reason = shortened(std::mem::take(&mut refused.reason), longest_reason);
        }
        let budget = match &request.spec {
            Some(spec) if spec.change.is_empty() => request.kind.budget(&spec.policy),
            // Only the agent knows the times that the spec does not change.
            Some(spec) => request.kind.budget(&spec.policy) + UNKNOWN_POLICY,
            None => request.kind.budget(&Policy::default()) + UNKNOWN_POLICY,
        };
        let start_by = created_at + millis(QUEUE_ALLOWANCE);
        let deadline = start_by + millis(budget + SLACK);
        let head = u32::try_from(index).unwrap_or(u32::MAX);
        for target in request.targets {
            let (agent, ended) = match (found.next(), &request.refused, &target) {
                (_, Some(Refusal { code, reason }), _) => (None, Some((*code, reason.clone()))),
                (_, None, Target::Unusable(unusable)) => {
                    let reason = format!("Can not find Agent by ip {target}: {}", unusable.reason);
                    (None, Some((Code::NoAgent, shortened(reason, longest_reason))))
                }
                (Some(FoundTarget::Agent(agent)), None, _) => (Some(agent), None),
                (Some(FoundTarget::Outside), None, _) => {
                    (None, Some((Code::NotAllowed, outside(&target, within))))
                }
                // The dispatcher ends the op, because it has no agent.
                (Some(FoundTarget::Nowhere) | None, None, _) => (None, None),
            };
            let ended =
                ended.map(|(code, reason)| Box::new(Outcome::without_status(code, reason, request.kind)));
            ops.push(NewOp { request: head, target, agent, start_by, deadline, ended });
        }
        heads.push(RequestHead {
            proc: request.proc,
            kind: request.kind,
            spec: request.spec.map(Arc::new),
            accounts: caller.rights.accounts().clone(),
            within: within.clone(),
        });
    }
    let audit = NewAudit {
        at: created_at,
        app: caller.app.clone(),
        username: caller.username.clone(),
        origin: caller.from.to_string(),
        action: api.to_owned(),
        subject: String::new(),
        code: 0,
        detail: summary.clone(),
    };
    let task = NewTask {
        stamp: services.clock.stamp(),
        created_at,
        mark: accepted.mark,
        app: caller.app.clone(),
        username: caller.username.clone(),
        summary,
        requests: heads,
        ops,
        retry_of: None,
        audit: Some(audit),
    };
    Ok((task, share))
}

/// The number of ops that end without an agent. `found` has an element for each target.
fn ended_at_once(requests: &[Request], found: &[FoundTarget]) -> usize {
    let refused =
        requests.iter().flat_map(|request| request.targets.iter().map(|_| request.refused.is_some()));
    refused.zip(found).filter(|(refused, found)| *refused || !matches!(found, FoundTarget::Agent(_))).count()
}

/// Capacity that the requests hold until their ops have ended.
fn load(requests: &[Request]) -> Load {
    let specs = requests.iter().filter_map(|request| request.spec.as_ref());
    let bytes = specs.map(json_bytes).sum();
    Load { ops: requests.iter().map(|request| request.targets.len()).sum(), bytes }
}

/// Checks what the task stores of its requests: each has a copy of the app's accounts and of the call's
/// businesses beside its spec.
fn check_size(requests: usize, specs: usize, scopes: usize) -> Result<(), Faults> {
    let bytes = requests.saturating_mul(scopes).saturating_add(specs);
    if bytes <= LARGEST_TASK {
        return Ok(());
    }
    let reason = format!(
        "its {requests} processes need {} MiB, with their specs and with the businesses and accounts that each \
         may use: at most {} MiB are allowed in one call. Send fewer processes in each call",
        bytes.div_ceil(1 << 20),
        LARGEST_TASK >> 20
    );
    Err(Faults::one("", reason))
}

/// Maximum bytes of the reason of each of this many ops that end at once.
fn longest_reason(ended: usize) -> usize {
    (REASONS / ended.max(1)).clamp(SHORTEST_REASON, LONGEST_REASON)
}

/// Outcomes of the ops that were ended from the start.
fn ended(task: &NewTask) -> Vec<Code> {
    task.ops.iter().filter_map(|op| op.ended.as_ref()).map(|outcome| outcome.code).collect()
}

/// A host of another business fails alone; the call is accepted.
fn outside(target: &Target, within: &GrantScope<BusinessId>) -> String {
    let businesses = match within {
        GrantScope::All => "the businesses that the app may use",
        // All businesses of the scope were granted, or there would be no task.
        GrantScope::Only(_) => OUTSIDE_SCOPE,
    };
    format!("{target} is outside {businesses}")
}

/// Summary for lists: `start web:nginx on 3 hosts`.
fn summary(requests: &[Request]) -> String {
    match requests {
        [one] => match one.targets.as_slice() {
            [target] => format!("{} {} on {target}", one.kind.verb(), one.proc),
            targets => format!("{} {} on {} hosts", one.kind.verb(), one.proc, targets.len()),
        },
        many => {
            let first = many.first().map(|r| format!("{} {}", r.kind.verb(), r.proc)).unwrap_or_default();
            format!("{first} and {} more", many.len().saturating_sub(1))
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_count_once_for_each_request() {
        for (requests, specs, scopes, fits) in [
            (100_000, 100_000 * 2_048, 30, true),
            (1, LARGEST_TASK - 30, 30, true),
            (1, LARGEST_TASK, 30, false),
            (100_000, 0, 5_000, false),
            (usize::MAX, 0, 30, false),
        ] {
            let checked = check_size(requests, specs, scopes);
            assert_eq!(checked.is_ok(), fits, "{requests} requests: {checked:?}");
        }
        let reason = check_size(100_000, 0, 5_000).expect_err("it is too large").to_string();
        assert!(reason.starts_with("its 100000 processes need 477 MiB"), "{reason}");
    }

    #[test]
    fn reasons_are_shorter_where_there_are_many() {
        for (ended, longest) in [(0, 2_048), (1, 2_048), (8_192, 2_048), (16_384, 1_024), (100_000, 256)] {
            assert_eq!(longest_reason(ended), longest);
        }
    }
}
