//! Between the messages and `core`'s types.

use super::{
    AccountList, AgentMessage, GroupsMessage, Op, OutcomeMessage, ProcStateMessage, Report, ServerMessage,
    agent_message, server_message,
};
use crate::state::ProcReport;
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::{BadId, Epoch, OpId, ProcKey};
use procfleet_core::op::{OpKind, Outcome};
use procfleet_core::spec::{ProcessGroup, Spec};
use prost::Message;
use std::time::Duration;

/// What a peer sent cannot be used. The text names the field and never repeats the bytes.
#[derive(Debug, thiserror::Error)]
pub enum BadMessage {
    #[error("not a message of this protocol")]
    Frame(#[from] prost::DecodeError),
    #[error("an empty message, or one that has no place here")]
    Empty,
    /// The sender is newer. In a session the receiver skips such a message and goes on.
    #[error("a message of a kind that this version does not know")]
    Unknown,
    #[error("a bad op id")]
    OpId(#[from] BadId),
    #[error("an unknown operation {0}")]
    Kind(u32),
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

impl AccountList {
    /// `None`: everybody.
    pub fn of(accounts: &GrantScope<String>) -> Option<AccountList> {
        match accounts {
            GrantScope::All => None,
            GrantScope::Only(some) => Some(AccountList { names: some.iter().cloned().collect() }),
        }
    }

    pub fn scope(list: Option<AccountList>) -> GrantScope<String> {
        list.map_or(GrantScope::All, |list| GrantScope::Only(list.names.into_iter().collect()))
    }

    /// `earlier` is the list that servers of earlier versions sent; there an empty one was everybody.
    fn scope_or(list: Option<&AccountList>, earlier: &[String]) -> GrantScope<String> {
        match list {
            Some(list) => AccountList::scope(Some(list.clone())),
            None if earlier.is_empty() => GrantScope::All,
            None => GrantScope::Only(earlier.iter().cloned().collect()),
        }
    }
}

impl super::ReadLog {
    /// Whose lines may be read.
    pub fn readers_accounts(&self) -> GrantScope<String> {
        AccountList::scope_or(self.only_accounts.as_ref(), &self.accounts)
    }
}

impl super::ReadSpec {
    /// Whose spec may be read.
    pub fn readers_accounts(&self) -> GrantScope<String> {
        AccountList::scope_or(self.only_accounts.as_ref(), &self.accounts)
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
            only_accounts: AccountList::of(accounts),
        }
    }
}

impl TryFrom<Op> for OpOrder {
    type Error = BadMessage;
    fn try_from(op: Op) -> Result<OpOrder, BadMessage> {
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
            accounts: AccountList::scope(op.only_accounts),
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
                let content = from_json("content", &done.content)?;
                Ok::<_, BadMessage>(match Code::from_number(done.code) {
                    Some(code) => Outcome::new(code, done.message, content),
                    None => Outcome::new(Code::SystemError, unknown_code(done.code, &done.message), content),
                })
            })
            .transpose()?;
        Ok((report.op.parse()?, outcome))
    }
}

/// A newer agent may have more codes. Refusing its report would make the agent send it for ever.
fn unknown_code(number: u32, message: &str) -> String {
    format!(
        "the agent answered with code {number}, which this server does not know; upgrade the server: {message}"
    )
}

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

    /// Checks that the report can be read; what is stored is its text.
    pub fn report(&self) -> Result<Option<ProcReport>, BadMessage> {
        if self.forgotten { Ok(None) } else { from_json("state", &self.report).map(Some) }
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
