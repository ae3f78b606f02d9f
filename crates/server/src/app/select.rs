//! Which hosts a selection means at one moment. What is sent afterwards is sent to these, whatever changes meanwhile.

use super::{App, AppError, Caller};
use crate::store::AgentRecord;
use procfleet_core::id::Host;
use procfleet_core::select::{Candidate, Term, means};
use procfleet_proto::http::fault::Faults;

/// The hosts, in the order of their addresses: those of the caller's businesses that may come in at all, here or away. A term
/// that means none of them is a fault.
pub async fn hosts(app: &App, caller: &Caller, terms: &[Term]) -> Result<Vec<Host>, AppError> {
    let agents = app.store.agents().await?;
    let usable =
        |agent: &&AgentRecord| agent.revoked.is_none() && caller.rights.businesses().allows(&agent.business);
    let agents: Vec<&AgentRecord> = agents.iter().filter(usable).collect();
    let mut hosts: Vec<Host> =
        agents.iter().filter(|agent| means(terms, &candidate(agent))).map(|agent| agent.host).collect();
    let mut faults = Faults::default();
    for (place, term) in terms.iter().enumerate() {
        if !agents.iter().any(|agent| term.matches(&candidate(agent))) {
            let reason = format!("{term} means none of the {} agents that the app may use", agents.len());
            faults.add(format!("select[{place}]"), reason);
        }
    }
    if faults.is_empty() && hosts.is_empty() {
        faults.add(
            "select",
            "each of its terms means some agent, but no agent is meant by all of them together",
        );
    }
    hosts.sort_unstable();
    if faults.is_empty() { Ok(hosts) } else { Err(faults.into()) }
}

pub(super) fn candidate(agent: &AgentRecord) -> Candidate<'_> {
    Candidate { host: agent.host, agent: &agent.agent, labels: &agent.labels }
}
