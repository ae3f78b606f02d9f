//! `upgrade_to_agent_id`: whether hosts can be addressed by the ids that the caller has for them.
//!
//! It changes nothing. An agent has one id from its enrolment on, and its procs are stored under that id
//! however callers name its host. A host succeeds if its agent has the given id. It fails if its agent has
//! another id, if it is not known, or if it belongs to a business that the app may not use.

use super::{AppError, Caller, Services};
use procfleet_core::request::Target;
use procfleet_proto::http::upgrade::{Upgraded, Wanted, render};
use procfleet_store::FoundTarget;

pub async fn to_agent_id(
    services: &Services,
    caller: &Caller,
    hosts: Vec<Wanted>,
) -> Result<Upgraded, AppError> {
    let targets = hosts.iter().filter_map(|(named, _)| named.host.map(Target::Host));
    let targets: Vec<Target> = targets.collect();
    let found = services.store.resolve_within(&targets, caller.rights.businesses()).await?;
    let mut found = found.into_iter();
    let matches = hosts.into_iter().map(|(named, id)| {
        let agent = named.host.and_then(|_| found.next()).and_then(FoundTarget::agent);
        let has_id = agent.is_some() && agent == id;
        (named, has_id)
    });
    Ok(render(matches))
}
