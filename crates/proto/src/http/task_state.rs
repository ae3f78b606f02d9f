//! `get_task_state`: the state of a task for each agent.
//!
//! No public document describes this API. The format comes from one public caller, BlueKing's configuration
//! service, which declares the call and does not use it yet. The job platform, which uses the other APIs
//! below `task/`, does not know it. The request is `{"task_id": "..", "agent_id_list": [..]}`, and the
//! answer's `data` is `{"result": {"state", "successed_agents", "timeout_agents", "failed_agents",
//! "pending_agents", "offline_agents", "restarted_agents"}}` with lists of agent ids and one of the states
//! `pending`, `executing`, `timeout`, `failed` and `successed` (sic). `counts` and `task_id` are ours.
//!
//! An agent is in exactly one list: that of its worst op. A host without an agent is named as the caller
//! named it.

use super::batch::settle;
use super::fault::Faults;
use super::native::Counts;
use super::read::{Reader, RequestBody};
use procfleet_core::code::Code;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateQuery {
    /// As text; whether the task exists is checked later.
    pub task: String,
    /// Empty: all.
    pub agents: Vec<String>,
}

pub fn get_task_state<'v>(body: impl Into<RequestBody<'v>>) -> Result<StateQuery, Faults> {
    let mut faults = Faults::default();
    let query = Reader::root(body, &mut faults).map(|reader| StateQuery {
        task: reader.required_text("task_id", 128, &mut faults),
        agents: {
            let read = reader.each_text("agent_id_list", &mut faults).into_iter().map(|(path, text)| {
                let mut own = Faults::default();
                (text.map(str::to_owned).map_err(|reason| own.add(path, reason)).ok(), own)
            });
            settle(read.collect(), &mut faults)
        },
    });
    match query {
        Some(query) if faults.is_empty() => Ok(query),
        _ => Err(faults),
    }
}

/// The state of an agent in a task, ordered from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AgentTaskState {
    Succeeded,
    TimedOut,
    Offline,
    /// The agent exited while it carried out the op.
    Restarted,
    Failed,
    Pending,
}

impl AgentTaskState {
    fn of(outcome: Option<Code>) -> AgentTaskState {
        match outcome {
            None => AgentTaskState::Pending,
            Some(Code::Success) => AgentTaskState::Succeeded,
            Some(Code::NoAgent) => AgentTaskState::Offline,
            Some(Code::Interrupted) => AgentTaskState::Restarted,
            Some(Code::Timeout | Code::CommandTimeout) => AgentTaskState::TimedOut,
            // Every other code is a failure, and `Code` is a long list.
            Some(_) => AgentTaskState::Failed,
        }
    }
}

/// The answer's data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TaskState {
    pub task_id: String,
    pub result: TaskStateResult,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "TaskStanding")]
pub struct TaskStateResult {
    pub state: String,
    pub successed_agents: Vec<String>,
    pub timeout_agents: Vec<String>,
    pub failed_agents: Vec<String>,
    pub pending_agents: Vec<String>,
    pub offline_agents: Vec<String>,
    pub restarted_agents: Vec<String>,
    pub counts: Counts,
}

/// The answer's data, from each op's agent and the code of its outcome, if it has one.
pub fn render(task: &str, ops: impl IntoIterator<Item = (String, Option<Code>)>) -> TaskState {
    let mut agents: BTreeMap<String, AgentTaskState> = BTreeMap::new();
    let mut counts = Counts::default();
    for (agent, outcome) in ops {
        let state = AgentTaskState::of(outcome);
        counts.total += 1;
        match state {
            AgentTaskState::Pending => counts.open += 1,
            AgentTaskState::Succeeded => counts.succeeded += 1,
            AgentTaskState::Offline
            | AgentTaskState::Restarted
            | AgentTaskState::TimedOut
            | AgentTaskState::Failed => {
                counts.failed += 1;
            }
        }
        let gravest = agents.entry(agent).or_insert(state);
        *gravest = state.max(*gravest);
    }
    let gravest = agents.values().max().copied();
    let agents_in = |state: AgentTaskState| -> Vec<String> {
        agents.iter().filter(|(_, its)| **its == state).map(|(agent, _)| agent.clone()).collect()
    };
    let result = TaskStateResult {
        state: state(gravest).to_owned(),
        successed_agents: agents_in(AgentTaskState::Succeeded),
        timeout_agents: agents_in(AgentTaskState::TimedOut),
        failed_agents: agents_in(AgentTaskState::Failed),
        pending_agents: agents_in(AgentTaskState::Pending),
        offline_agents: agents_in(AgentTaskState::Offline),
        restarted_agents: agents_in(AgentTaskState::Restarted),
        counts,
    };
    TaskState { task_id: task.to_owned(), result }
}

/// A task is dispatched as soon as it is accepted, so a task that has not ended is `executing`.
fn state(gravest: Option<AgentTaskState>) -> &'static str {
    match gravest {
        None | Some(AgentTaskState::Succeeded) => "successed",
        Some(AgentTaskState::Pending) => "executing",
        Some(AgentTaskState::TimedOut) => "timeout",
        Some(AgentTaskState::Failed | AgentTaskState::Offline | AgentTaskState::Restarted) => "failed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const LISTS: [&str; 6] = [
        "successed_agents",
        "timeout_agents",
        "failed_agents",
        "pending_agents",
        "offline_agents",
        "restarted_agents",
    ];

    #[track_caller]
    fn check(ops: &[(&str, Option<Code>)], state: &str, lists: &[(&str, &[&str])]) {
        let data = json!(render("t", ops.iter().map(|(agent, code)| ((*agent).to_owned(), *code))));
        assert_eq!(data["result"]["state"], state, "{data}");
        for name in LISTS {
            let expected = lists.iter().find(|(list, _)| *list == name);
            let expected: &[&str] = expected.map_or(&[], |(_, agents)| agents);
            assert_eq!(data["result"][name], json!(expected), "{data}");
        }
    }

    #[test]
    fn the_state_of_an_agent_is_that_of_its_worst_op() {
        let (good, bad) = (Some(Code::Success), Some(Code::CommandFailed));
        check(&[("a", good), ("a", good)], "successed", &[("successed_agents", &["a"])]);
        check(
            &[("a", good), ("a", bad), ("b", good)],
            "failed",
            &[("failed_agents", &["a"]), ("successed_agents", &["b"])],
        );
        check(&[("a", bad), ("a", None)], "executing", &[("pending_agents", &["a"])]);
        check(
            &[("a", Some(Code::Timeout)), ("b", Some(Code::NoAgent))],
            "failed",
            &[("timeout_agents", &["a"]), ("offline_agents", &["b"])],
        );
        check(&[("a", Some(Code::NoAgent))], "failed", &[("offline_agents", &["a"])]);
        check(&[("a", Some(Code::Interrupted))], "failed", &[("restarted_agents", &["a"])]);
        check(&[("a", Some(Code::CommandTimeout))], "timeout", &[("timeout_agents", &["a"])]);
        check(
            &[("a", Some(Code::Timeout)), ("b", good)],
            "timeout",
            &[("timeout_agents", &["a"]), ("successed_agents", &["b"])],
        );
    }

    #[test]
    fn ops_are_counted() {
        let ops = [Some(Code::Success), None, Some(Code::NoAgent)].map(|code| ("a".to_owned(), code));
        let counts = json!({"total": 3, "open": 1, "succeeded": 1, "failed": 1});
        assert_eq!(json!(render("t", ops))["result"]["counts"], counts);
    }

    #[test]
    fn the_request_is_checked() {
        let query = get_task_state(&json!({"task_id": "t", "agent_id_list": ["a"], "x": 1})).expect("fine");
        assert_eq!(query, StateQuery { task: "t".to_owned(), agents: vec!["a".to_owned()] });
        let faults_text = get_task_state(&json!({"agent_id_list": [1]})).expect_err("faults").to_string();
        assert!(
            faults_text.contains("task_id: is required") && faults_text.contains("agent_id_list[0]: must be"),
            "{faults_text}"
        );
    }
}
