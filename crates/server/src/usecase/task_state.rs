//! `get_task_state`: the state of a task as a whole.

use super::{AppError, Caller, Services, results};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::task_state::{StateQuery, TaskState, render};
use std::collections::HashSet;

pub async fn of_task(services: &Services, caller: &Caller, query: StateQuery) -> Result<TaskState, AppError> {
    let (_, ops) = results::find(services, caller, &query.task).await?;
    let wanted: HashSet<String> = query.agents.into_iter().collect();
    let asked: Vec<_> = ops
        .into_iter()
        .filter_map(|op| {
            let named = op.target.to_string();
            let agent = op.agent.as_ref().map_or_else(|| named.clone(), ToString::to_string);
            let asked = wanted.is_empty() || wanted.contains(&agent) || wanted.contains(&named);
            asked.then(|| (agent, op.outcome.map(|outcome| outcome.code)))
        })
        .collect();
    if asked.is_empty() && !wanted.is_empty() {
        return Err(Faults::one("agent_id_list", "names no agent of this task").into());
    }
    Ok(render(&query.task, asked))
}
