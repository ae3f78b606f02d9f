//! `upgrade_to_agent_id`: whether hosts are addressed by the ids that the caller has for them.
//!
//! It changes nothing. An agent of ours has one id from its enrolment on, and its procs are kept under that
//! id from the beginning, however callers name its host; so a host whose agent has the given id is as the
//! caller wants it. One whose agent has another id cannot be made so, and one that is not known, or belongs
//! to a business that the app may not use, is not the caller's to ask about: these have failed.

use super::{AppError, Caller, Services};
use crate::store::FoundTarget;
use procfleet_core::request::Target;
use procfleet_proto::http::upgrade::{Upgraded, Wanted, render};

pub async fn to_agent_id(
    services: &Services,
    caller: &Caller,
    hosts: Vec<Wanted>,
) -> Result<Upgraded, AppError> {
    let targets = hosts.iter().filter_map(|(named, _)| named.host.map(Target::Host));
    let targets: Vec<Target> = targets.collect();
    let found = services.store.resolve_within(&targets, caller.rights.businesses()).await?;
    let mut found = found.into_iter();
    let so = hosts.into_iter().map(|(named, id)| {
        let agent = named.host.and_then(|_| found.next()).and_then(FoundTarget::agent);
        let so = agent.is_some() && agent == id;
        (named, so)
    });
    Ok(render(so))
}
