//! Accepts a task: it is durable, with all its ops, before its caller is answered.

use super::{App, AppError, Caller};
use crate::keeper::Note;
use crate::store::{NewAudit, NewOp, NewTask, RequestHead};
use procfleet_core::dispatch::QUEUE_ALLOWANCE;
use procfleet_core::id::TaskId;
use procfleet_core::spec::Policy;
use procfleet_core::task::{Request, Target};
use std::sync::Arc;
use std::time::Duration;

/// What the agent may take beyond its commands and checks: the journal, the link, a busy host.
const SLACK: Duration = Duration::from_secs(10);
/// An op without a spec uses one that only the agent knows; its commands may take so long.
const UNKNOWN_POLICY: Duration = Duration::from_secs(300);

pub async fn submit(
    app: &App,
    caller: &Caller,
    api: &'static str,
    requests: Vec<Request>,
) -> Result<TaskId, AppError> {
    let targets: Vec<Target> = requests.iter().flat_map(|request| request.targets.iter().cloned()).collect();
    let mut agents = app.store.resolve(&targets).await?.into_iter();
    let created_at = app.clock.wall();
    let summary = summary(&requests);
    let (mut heads, mut ops) = (Vec::new(), Vec::new());
    for (place, request) in requests.into_iter().enumerate() {
        let budget = match &request.spec {
            Some(spec) => request.kind.budget(&spec.policy),
            None => request.kind.budget(&Policy::default()) + UNKNOWN_POLICY,
        };
        let start_by = created_at + millis(QUEUE_ALLOWANCE);
        let deadline = start_by + millis(budget + SLACK);
        let head = u32::try_from(place).unwrap_or(u32::MAX);
        for target in request.targets {
            ops.push(NewOp { request: head, target, agent: agents.next().flatten(), start_by, deadline });
        }
        heads.push(RequestHead { proc: request.proc, kind: request.kind, spec: request.spec.map(Arc::new) });
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
        stamp: app.clock.stamp(),
        created_at,
        app: caller.app.clone(),
        username: caller.username.clone(),
        summary,
        requests: heads,
        ops,
        audit: Some(audit),
    };
    // In a task of its own: a caller that hangs up between commit and wake-up must not leave ops lying.
    let (store, keeper) = (app.store.clone(), app.keeper.clone());
    let accepted = tokio::spawn(async move {
        let task = store.create_task(task).await?;
        keeper.tell(Note::TaskCreated(task)).await;
        Ok(task)
    });
    accepted.await.map_err(|_| AppError::Ending)?
}

/// What people see in lists: `start web:nginx on 3 hosts`.
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
