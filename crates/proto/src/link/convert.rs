//! Conversions between the messages and `core`'s types.

use super::{
    AccountList, AgentMessage, GroupsMessage, Op, OutcomeMessage, ProcStateMessage, Report, ServerMessage,
    Welcome, agent_message, op, read_log, read_spec, server_message,
};
use crate::state::{ProcReport, ProcState};
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{BadId, Epoch, OpId, ProcKey};
use procfleet_core::op::{Content, OpKind, Outcome};
use procfleet_core::spec::{ProcessGroup, Spec};
use prost::Message;
use std::time::Duration;

/// Why a message of a peer is invalid. The text names the field and never repeats the bytes.
#[derive(Debug, thiserror::Error)]
pub enum BadMessage {
    #[error("not a message of this protocol")]
    Frame(#[from] prost::DecodeError),
    #[error("an empty message, or one that has no place here")]
    Empty,
    /// The sender is newer. The receiver skips such a message, and the session continues.
    #[error("a message of a kind that this version does not know")]
    Unknown,
    #[error("a bad op id")]
    OpId(#[from] BadId),
    #[error("an unknown operation {0}")]
    Kind(u32),
    #[error("a message that does not state the accounts it is limited to")]
    AccountsOmitted,
    #[error("a bad {field}")]
    Json {
        field: &'static str,
        #[source]
        source: serde_json::Error,
    },
}

pub fn decode_agent(bytes: &[u8]) -> Result<agent_message::Body, BadMessage> {
    AgentMessage::decode(bytes)?.body.ok_or(without_body(bytes))
}

pub fn decode_server(bytes: &[u8]) -> Result<server_message::Body, BadMessage> {
    ServerMessage::decode(bytes)?.body.ok_or(without_body(bytes))
}

/// Protobuf skips fields that the receiver does not know, so a newer kind of message has bytes and no body.
fn without_body(bytes: &[u8]) -> BadMessage {
    if bytes.is_empty() { BadMessage::Empty } else { BadMessage::Unknown }
}

impl agent_message::Body {
    pub fn into_bytes(self) -> Vec<u8> {
        AgentMessage { body: Some(self) }.encode_to_vec()
    }
}

impl server_message::Body {
    pub fn into_bytes(self) -> Vec<u8> {
        ServerMessage { body: Some(self) }.encode_to_vec()
    }
}

/// An [`Op`] in `core`'s types.
#[derive(Clone, Debug, PartialEq)]
pub struct OpOrder {
    pub op: OpId,
    pub epoch: Epoch,
    pub proc: ProcKey,
    pub kind: OpKind,
    pub start_within: Duration,
    pub spec: Option<Spec>,
    /// The OS accounts that its app may use.
    pub accounts: GrantScope<String>,
}

/// How to read a message that does not state the accounts it is limited to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OmittedAccounts {
    /// From a server of an earlier version.
    MeanEverybody,
    /// From a server that always states them ([`Welcome::limits_accounts`]).
    AreRefused,
}

impl OmittedAccounts {
    pub fn of(welcome: &Welcome) -> OmittedAccounts {
        if welcome.limits_accounts { OmittedAccounts::AreRefused } else { OmittedAccounts::MeanEverybody }
    }

    /// `earlier` is the list of servers of the first versions.
    fn scope(self, earlier: &[String]) -> Result<GrantScope<String>, BadMessage> {
        match self {
            OmittedAccounts::AreRefused => Err(BadMessage::AccountsOmitted),
            OmittedAccounts::MeanEverybody if earlier.is_empty() => Ok(GrantScope::All),
            OmittedAccounts::MeanEverybody => Ok(GrantScope::Only(earlier.iter().cloned().collect())),
        }
    }
}

/// `None`: every account.
pub(super) fn account_list(scope: &GrantScope<String>) -> Option<AccountList> {
    match scope {
        GrantScope::All => None,
        GrantScope::Only(some) => Some(AccountList { names: some.iter().cloned().collect() }),
    }
}

pub(super) fn scope_of(list: &AccountList) -> GrantScope<String> {
    GrantScope::Only(list.names.iter().cloned().collect())
}

impl super::ReadLog {
    /// The OS accounts whose output may be read.
    pub fn readable_accounts(&self, omitted: OmittedAccounts) -> Result<GrantScope<String>, BadMessage> {
        let stated = self.accounts.as_ref().map(read_log::Accounts::scope);
        stated.map_or_else(|| omitted.scope(&self.earlier_accounts), Ok)
    }
}

impl super::ReadSpec {
    /// The OS accounts whose specs may be read.
    pub fn readable_accounts(&self, omitted: OmittedAccounts) -> Result<GrantScope<String>, BadMessage> {
        let stated = self.accounts.as_ref().map(read_spec::Accounts::scope);
        stated.map_or_else(|| omitted.scope(&self.earlier_accounts), Ok)
    }
}

impl Op {
    /// `spec` is the JSON text of a [`Spec`], made once for all targets of a request.
    pub fn new(
        op: OpId,
        epoch: Epoch,
        proc: &ProcKey,
        kind: OpKind,
        start_within: Duration,
        spec: Option<&[u8]>,
        accounts: &GrantScope<String>,
    ) -> Op {
        Op {
            id: op.to_string(),
            epoch: epoch.0,
            namespace: proc.namespace.clone(),
            name: proc.name.clone(),
            kind: kind.number(),
            start_within_ms: u64::try_from(start_within.as_millis()).unwrap_or(u64::MAX),
            spec: spec.unwrap_or_default().to_vec(),
            accounts: Some(accounts.into()),
        }
    }
}

impl Op {
    /// How many bytes it takes in a message.
    pub fn size(&self) -> usize {
        self.encoded_len()
    }
}

impl OpOrder {
    pub fn read(op: Op, omitted: OmittedAccounts) -> Result<OpOrder, BadMessage> {
        let accounts = match op.accounts.as_ref().map(op::Accounts::scope) {
            Some(stated) => stated,
            None => omitted.scope(&[])?,
        };
        let spec = match op.spec.as_slice() {
            [] => None,
            json => Some(from_json("spec", json)?),
        };
        Ok(OpOrder {
            op: op.id.parse()?,
            epoch: Epoch(op.epoch),
            proc: ProcKey { namespace: op.namespace, name: op.name },
            kind: OpKind::from_number(u64::from(op.kind)).ok_or(BadMessage::Kind(op.kind))?,
            start_within: Duration::from_millis(op.start_within_ms),
            spec,
            accounts,
        })
    }
}

/// A [`Report`] in `core`'s types; `None` is "taken, not done".
pub type Done = (OpId, Option<Outcome>);

impl Report {
    /// How many bytes it takes in a message.
    pub fn size(&self) -> usize {
        self.encoded_len()
    }

    pub fn taken(op: OpId) -> Report {
        Report { op: op.to_string(), done: None }
    }

    pub fn done(op: OpId, outcome: &Outcome) -> Report {
        let done = OutcomeMessage {
            code: outcome.code.number(),
            message: outcome.message.clone(),
            content: to_json(&outcome.content),
        };
        Report { op: op.to_string(), done: Some(done) }
    }
}

impl TryFrom<Report> for (OpId, Option<Outcome>) {
    type Error = BadMessage;
    fn try_from(report: Report) -> Result<Done, BadMessage> {
        let outcome = report
            .done
            .map(|done| {
                let content = match from_json("content", &done.content) {
                    Err(fault) if fault.is_of_a_newer_peer() => {
                        return Ok(unknown_content(done.code, &done.message));
                    }
                    content => content?,
                };
                Ok::<_, BadMessage>(match Code::from_number(done.code) {
                    Some(code) => Outcome::new(code, done.message, content),
                    None => Outcome::new(Code::SystemError, unknown_code(done.code, &done.message), content),
                })
            })
            .transpose()?;
        Ok((report.op.parse()?, outcome))
    }
}

/// A newer agent may have more codes. Refusing its report would make the agent repeat it until the server is
/// upgraded.
fn unknown_code(number: u32, message: &str) -> String {
    format!(
        "the agent answered with code {number}, which this server does not know; upgrade the server: {message}"
    )
}

/// A newer agent may have more kinds of content. As with a code, refusing the report would make the agent
/// repeat it until the server is upgraded.
fn unknown_content(code: u32, message: &str) -> Outcome {
    let reason = format!(
        "the agent answered with code {code} and content of a kind that this server does not know; upgrade the \
         server: {message}"
    );
    let content = Content::Control { hosted: false, proc_name: String::new(), setup_path: String::new() };
    Outcome::new(Code::SystemError, reason, content)
}

impl BadMessage {
    /// Whether the text is well-formed JSON with a field or value that this version does not know. Malformed
    /// JSON is a fault of the peer and not a sign of its age.
    pub fn is_of_a_newer_peer(&self) -> bool {
        matches!(self, BadMessage::Json { source, .. } if source.is_data())
    }
}

/// The note of a proc whose report cannot be read.
const UNREADABLE_STATE: &str =
    "the agent reports this state in a form that this server does not know; upgrade the server";

impl ProcStateMessage {
    /// `None`: the proc is forgotten.
    pub fn new(proc: &ProcKey, revision: u64, report: Option<&ProcReport>) -> ProcStateMessage {
        ProcStateMessage {
            namespace: proc.namespace.clone(),
            name: proc.name.clone(),
            revision,
            report: report.map(to_json).unwrap_or_default(),
            forgotten: report.is_none(),
        }
    }

    /// Checks that the report can be read. The server stores its text.
    pub fn report(&self) -> Result<Option<ProcReport>, BadMessage> {
        if self.forgotten { Ok(None) } else { from_json("state", &self.report).map(Some) }
    }

    /// The part of a newer agent's report that every version knows.
    pub fn unreadable_report(&self) -> ProcReport {
        let json: serde_json::Value = serde_json::from_slice(&self.report).unwrap_or_default();
        ProcReport {
            state: ProcState::Unknown,
            hosted: json["hosted"].as_bool().unwrap_or_default(),
            pid: json["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()),
            user: json["user"].as_str().unwrap_or_default().to_owned(),
            ..ProcReport::left_alone(UNREADABLE_STATE.to_owned())
        }
    }
}

impl super::EventMessage {
    /// How many bytes it takes in a message.
    pub fn size(&self) -> usize {
        self.encoded_len()
    }
}

impl GroupsMessage {
    pub fn new(namespace: &str, revision: u64, groups: &[ProcessGroup]) -> GroupsMessage {
        GroupsMessage { namespace: namespace.to_owned(), revision, groups: to_json(&groups) }
    }

    pub fn groups(&self) -> Result<Vec<ProcessGroup>, BadMessage> {
        from_json("list of process groups", &self.groups)
    }
}

fn from_json<T: serde::de::DeserializeOwned>(field: &'static str, json: &[u8]) -> Result<T, BadMessage> {
    serde_json::from_slice(json).map_err(|source| BadMessage::Json { field, source })
}

fn to_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("our own types have only text keys, so they are always JSON")
}
