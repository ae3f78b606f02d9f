//! The stored spec of a proc: only its agent knows it, so the server asks the agent. The question runs
//! nothing on the host.

use super::logs::find;
use super::support::peer_fault::of_peer;
use super::{AppError, Caller, Services};
use crate::sessions::{AskError, Unanswered};
use procfleet_core::code::Code;
use procfleet_core::spec::Spec;
use procfleet_proto::http::logs::LogOf;
use procfleet_proto::http::native::SpecView;
use procfleet_proto::http::spec_form;
use procfleet_proto::link::{ReadSpec, SpecRead};
use tracing::warn;

pub async fn show(services: &Services, caller: &Caller, of: LogOf) -> Result<SpecView, AppError> {
    let (agent, host) = find(services, caller, &of).await?;
    let failed = |code: Code, reason: String| Err(AppError::Unanswered { code, reason });
    let question = ReadSpec {
        namespace: of.proc.namespace.clone(),
        name: of.proc.name.clone(),
        accounts: Some(caller.rights.accounts().into()),
        ..ReadSpec::default()
    };
    let answer = match services.questions.read_spec(&agent, question).await {
        Ok(answer) => answer,
        Err(AskError::Store(error)) => return Err(error.into()),
        Err(AskError::Peer(fault)) => return Err(of_peer(host, &fault)),
        Err(AskError::Agent(Unanswered::Away)) => {
            let reason = format!(
                "Can not find Agent by ip {host}: its agent is not connected, and only it knows the spec"
            );
            return failed(Code::NoAgent, reason);
        }
        Err(AskError::Agent(Unanswered::TooOld | Unanswered::Unchecked)) => {
            let reason =
                format!("the agent of host {host} is of a version that cannot show specs; upgrade it");
            return failed(Code::NoAgent, reason);
        }
        Err(AskError::Agent(Unanswered::Silent)) => {
            let reason = format!("the agent of host {host} did not answer in time; ask again");
            return failed(Code::Timeout, reason);
        }
    };
    let SpecRead { code, message, spec, .. } = answer;
    if code != Code::Success.number() {
        let code = Code::from_number(code).unwrap_or(Code::SystemError);
        return failed(code, format!("host {host}: {message}"));
    }
    let spec: Spec = match serde_json::from_slice(&spec) {
        Ok(spec) => spec,
        Err(error) => {
            warn!(%agent, proc = %of.proc, %error, "the spec in an agent's answer cannot be read; the call was refused");
            return failed(Code::SystemError, format!("the agent of host {host} sent no readable spec"));
        }
    };
    Ok(SpecView {
        bk_agent_id: agent.to_string(),
        bk_cloud_id: host.cloud.0,
        ip: host.ip.to_string(),
        meta: spec_form::meta(&of.proc, &spec),
        spec: spec_form::spec(&spec),
    })
}
