//! `register_proc_info`, `update_proc_info`, `unregister_proc_info`, `set_process_group_info`: carried out on
//! the hosts while the caller waits.
//!
//! Ops that have not ended within the wait are reported as in progress, and continue. If the same call is
//! repeated, it joins the existing task and gets its true outcome, instead of a second task that would find
//! the work done.

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

/// How long a caller waits. Callers often time out after 30 s.
const WAIT: Duration = Duration::from_secs(10);
/// Maximum number of unfinished calls in memory; beyond it the oldest is removed, and its repeat creates a
/// new task.
const REMEMBERED: usize = 1_000;

/// Calls that were answered before their task ended.
#[derive(Clone, Debug, Default)]
pub struct Unfinished(Arc<Mutex<HashMap<[u8; 32], TaskId>>>);

pub async fn carry_out(
    services: &Services,
    caller: &Caller,
    api: &'static str,
    requests: Vec<Request>,
) -> Result<Results, AppError> {
    // Checked also for a repeated call, because grants may have been revoked since.
    access::permit(caller, &requests, &GrantScope::All)?;
    let call = serde_json::to_vec(&(&caller.app, api, &requests, caller.rights.accounts()))
        .expect("requests are always JSON");
    let call = secret::hash(&call);
    let task = match services.unfinished.get(&call) {
        // The task may have been deleted since.
        Some(task) if services.store.task(task).await?.is_some() => task,
        Some(_) | None => {
            let task = operate::submit(services, caller, api, requests, &GrantScope::All, None).await?;
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
