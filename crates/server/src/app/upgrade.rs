//! `upgrade_to_agent_id`: whether hosts are addressed by the ids that the caller has for them.
//!
//! It changes nothing. An agent of ours has one id from its enrolment on, and its procs are kept under that id from the
//! beginning, however callers name its host; so a host whose agent has the given id is as the caller wants it. One whose agent
//! has another id cannot be made so, and one that is not known, or belongs to a business that the app may not use, is not the
//! caller's to ask about: these have failed.

use super::{App, AppError, Caller};
use crate::store::Found;
use procfleet_core::id::{AgentId, Host};
use procfleet_core::task::Target;
use procfleet_proto::http::upgrade::{Upgraded, render};

pub async fn to_agent_id(
    app: &App,
    caller: &Caller,
    hosts: Vec<(Host, AgentId)>,
) -> Result<Upgraded, AppError> {
    let targets: Vec<Target> = hosts.iter().map(|(host, _)| Target::Host(*host)).collect();
    let found = app.store.resolve_within(&targets, caller.rights.businesses()).await?;
    let so = hosts.into_iter().zip(found).map(|((host, id), found)| (host, found == Found::Agent(id)));
    Ok(render(so))
}
