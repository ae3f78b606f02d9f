//! `register_proc_info`, `update_proc_info`, `unregister_proc_info`, `set_process_group_info`: carried out on
//! the hosts while the caller waits.
//!
//! What has not answered within the wait is said to be in progress, and goes on. The same call, sent again,
//! then joins the task that is already there and gets its true outcome, instead of a second try that would
//! find the first one done.

use super::results::{self, KeyStyle};
use super::{AppError, Caller, Services, access, operate};
use crate::secret;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::TaskId;
use procfleet_core::request::Request;
use procfleet_proto::http::result::Results;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a caller waits. Its own patience is often 30 s.
const WAIT: Duration = Duration::from_secs(10);
/// How many unfinished calls are remembered; more than that, and the oldest is asked for anew.
const REMEMBERED: usize = 1_000;

/// The calls that were answered before they were done.
#[derive(Clone, Debug, Default)]
pub struct Unfinished(Arc<Mutex<HashMap<[u8; 32], TaskId>>>);

pub async fn carry_out(
    services: &Services,
    caller: &Caller,
    api: &'static str,
    requests: Vec<Request>,
) -> Result<Results, AppError> {
    // Before it is looked for among the unfinished ones: grants may have been taken back since.
    access::permit(caller, &requests, &GrantScope::All)?;
    let call = serde_json::to_vec(&(&caller.app, api, &requests, caller.rights.accounts()))
        .map_err(|_| AppError::Ending)?;
    let call = secret::hash(&call);
    let task = match services.unfinished.get(&call) {
        // One that was deleted since has nothing to say.
        Some(task) if services.store.task(task).await?.is_some() => task,
        Some(_) | None => {
            let task = operate::submit(services, caller, api, requests, &GrantScope::All).await?;
            services.unfinished.remember(call, task);
            task
        }
    };
    let until = Instant::now() + WAIT;
    let mut changed = services.dispatcher.changed();
    loop {
        changed.mark_unchanged();
        let record = services.store.task(task).await?.ok_or_else(|| AppError::NoTask(task.to_string()))?;
        if record.counts.open == 0 {
            services.unfinished.forget(&call);
            break;
        }
        if Instant::now() >= until {
            break;
        }
        let _ = tokio::time::timeout_at(until, changed.changed()).await;
    }
    results::by_key(services, caller, &task.to_string(), KeyStyle::First).await
}

impl Unfinished {
    fn get(&self, call: &[u8; 32]) -> Option<TaskId> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(call).copied()
    }

    fn remember(&self, call: [u8; 32], task: TaskId) {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if calls.len() >= REMEMBERED {
            let oldest = calls.iter().min_by_key(|(_, task)| task.number).map(|(call, _)| *call);
            oldest.and_then(|call| calls.remove(&call));
        }
        calls.insert(call, task);
    }

    fn forget(&self, call: &[u8; 32]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(call);
    }
}
