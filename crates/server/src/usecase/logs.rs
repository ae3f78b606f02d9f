//! Reads the log of a proc from its agent: logs are not in the store.
//!
//! Asking runs nothing and changes nothing on the host. An answer is bounded, and so is the time that it may
//! take.

use super::support::peer_fault::of_peer;
use super::{AppError, Caller, Services, access};
use crate::sessions::{AskError, Unanswered};
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{AgentId, Host};
use procfleet_core::request::Target;
use procfleet_proto::http::cursor::AgentOrder;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::logs::{LogOf, LogsQuery, LogsView, split};
use procfleet_proto::link::{LOG_BYTES, LogRead, ReadLog};
use procfleet_store::{AgentFilter, FoundTarget, ProcFilter};
use std::time::Duration;
use tokio::time::Instant;

/// How many bytes of a log one answer has at most.
const MOST: usize = 256 * 1024;
/// On a slow link an answer has the lines that arrived within this time, and at least one line. The caller
/// asks again for the rest.
const COLLECTING: Duration = Duration::from_secs(5);
/// Number of attempts for a question that is not answered in time. Each attempt asks for less.
const TRIES: usize = 3;

/// The newest lines, or the lines after a cursor; if there are none, the lines that arrive while the caller
/// waits.
pub async fn read(services: &Services, caller: &Caller, question: LogsQuery) -> Result<LogsView, AppError> {
    let LogsQuery { of, lines, since, wait } = question;
    let found = find(services, caller, &of).await?;
    let (agent, host) = &found;
    let until = Instant::now() + wait;
    let mut skipped_bytes = 0;
    let (mut at, mut beyond) = (since, since);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let first =
            ask(services, caller, &found, &of, Part { at, lines, wait: left.as_millis(), beyond }).await?;
        let LogRead { begin, mut bytes, mut end, skipped, file, message: note, .. } = first;
        skipped_bytes = skipped.saturating_add(skipped_bytes);
        // Then the lines that follow and are already there.
        let collecting = Instant::now();
        while !bytes.is_empty() && bytes.len() < MOST && begin + (bytes.len() as u64) < end {
            let has_line = bytes.contains(&b'\n');
            if has_line && collecting.elapsed() > COLLECTING {
                break;
            }
            let at = Some(begin + bytes.len() as u64);
            let next =
                match ask(services, caller, &found, &of, Part { at, lines, wait: 0, beyond: None }).await {
                    Err(error) if has_line && is_late(&error) => break,
                    next => next?,
                };
            // The next answer reports lines that were rotated away meanwhile.
            if next.skipped > 0 || next.bytes.is_empty() {
                break;
            }
            end = next.end;
            bytes.extend(next.bytes);
        }
        let split = split(&bytes, lines as usize, MOST);
        let over = since.is_none() || left <= Duration::from_millis(1);
        if !split.lines.is_empty() || skipped_bytes > 0 || over {
            return Ok(LogsView {
                bk_agent_id: agent.to_string(),
                bk_cloud_id: host.cloud.0,
                ip: host.ip.to_string(),
                file,
                lines: split.lines,
                rest: split.rest,
                cursor: (begin + split.taken as u64).to_string(),
                end: end.to_string(),
                skipped_bytes,
                lossy: split.lossy,
                note,
            });
        }
        // Waits for the end of an incomplete line.
        (at, beyond) = (Some(begin), Some(end));
    }
}

/// The requested part of a log.
struct Part {
    at: Option<u64>,
    lines: u32,
    /// Milliseconds.
    wait: u128,
    beyond: Option<u64>,
}

async fn ask(
    services: &Services,
    caller: &Caller,
    agent: &(AgentId, Host),
    of: &LogOf,
    part: Part,
) -> Result<LogRead, AppError> {
    let Part { at, lines, wait, beyond } = part;
    let (wait_ms, beyond) = match beyond {
        Some(beyond) => (u64::try_from(wait).unwrap_or_default(), beyond),
        None => (0, 0),
    };
    let most = u32::try_from(LOG_BYTES).unwrap_or(u32::MAX);
    let mut question = ReadLog { at, lines, most, wait_ms, beyond, ..question(caller, of) };
    for _ in 1..TRIES {
        match answered(services, &agent.0, agent.1, question.clone()).await {
            Err(error) if is_late(&error) => question.wait_ms = 0,
            answer => return answer,
        }
    }
    answered(services, &agent.0, agent.1, question).await
}

fn is_late(error: &AppError) -> bool {
    matches!(error, AppError::Unanswered { code: Code::Timeout, .. })
}

fn question(caller: &Caller, of: &LogOf) -> ReadLog {
    ReadLog {
        namespace: of.proc.namespace.clone(),
        name: of.proc.name.clone(),
        accounts: Some(caller.rights.accounts().into()),
        ..ReadLog::default()
    }
}

async fn answered(
    services: &Services,
    agent: &AgentId,
    host: Host,
    question: ReadLog,
) -> Result<LogRead, AppError> {
    let failed = |code: Code, reason: String| Err(AppError::Unanswered { code, reason });
    let unanswered = match services.questions.read_log(agent, question).await {
        Ok(answer) if answer.code == Code::Success.number() => return Ok(answer),
        Ok(answer) => {
            let code = Code::from_number(answer.code).unwrap_or(Code::SystemError);
            return failed(code, format!("host {host}: {}", answer.message));
        }
        Err(AskError::Agent(unanswered)) => unanswered,
        Err(AskError::Store(error)) => return Err(error.into()),
        Err(AskError::Peer(fault)) => return Err(of_peer(host, &fault)),
    };
    match unanswered {
        Unanswered::Away => failed(
            Code::NoAgent,
            format!(
                "Can not find Agent by ip {host}: its agent is not connected; its logs can be read when it is back"
            ),
        ),
        Unanswered::TooOld => failed(
            Code::NoAgent,
            format!("the agent of host {host} is of a version that cannot read logs; upgrade it"),
        ),
        Unanswered::Unchecked => failed(
            Code::NotAllowed,
            format!(
                "the app is limited to some OS accounts, and the agent of host {host} is of a version that does not know which \
                 account wrote what; upgrade it"
            ),
        ),
        Unanswered::Silent => {
            failed(Code::Timeout, format!("the agent of host {host} did not answer in time; ask again"))
        }
    }
}

/// The agent of the request, if the caller may see it.
pub(super) async fn find(
    services: &Services,
    caller: &Caller,
    of: &LogOf,
) -> Result<(AgentId, Host), AppError> {
    access::permit_reading(caller, &of.proc.namespace)?;
    let fault = |field: &str, reason: String| {
        let mut faults = Faults::default();
        faults.add(field, reason);
        Err(AppError::Faults(faults))
    };
    let named = match (&of.agent, of.host) {
        (Some(agent), _) => Some((Target::Agent(agent.clone()), "agent", agent.to_string())),
        (None, Some(host)) => Some((Target::Host(host), "host", host.to_string())),
        (None, None) => None,
    };
    if let Some((target, field, name)) = named {
        let found = services.store.resolve_within(&[target], caller.rights.businesses()).await?;
        let found = found.into_iter().next().and_then(FoundTarget::agent);
        let records = services.store.agents_with(found.into_iter().collect()).await?;
        return match records.into_iter().next() {
            Some((agent, record)) => Ok((agent, record.host)),
            None => fault(field, format!("no agent is known for {name}")),
        };
    }
    // A revoked agent does not answer, so it is used only if it is named.
    let usable = AgentFilter::usable(caller.rights.businesses());
    let filter = ProcFilter {
        agents: usable.clone(),
        within: GrantScope::All,
        namespace: Some(of.proc.namespace.clone()),
        name: Some(of.proc.name.clone()),
        ..ProcFilter::default()
    };
    let having = services.store.find_procs(filter, 2).await?;
    match having.as_slice() {
        [(agent, host, _)] => Ok((agent.clone(), *host)),
        [] => {
            let page = services.store.list_agents(usable, AgentOrder::Id, None, 1).await?;
            match (page.agents.into_iter().next(), page.next) {
                // The proc may have been unregistered while its output is still there.
                (Some(only), None) => Ok((only.agent, only.host)),
                (_, _) => fault("name", format!("no host is known to have {}; name the host", of.proc)),
            }
        }
        [(_, one, _), (_, other, _), ..] => {
            fault("host", format!("is required: several hosts have {} (such as {one} and {other})", of.proc))
        }
    }
}
