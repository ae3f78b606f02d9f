//! The messages between server and agent: one WebSocket binary frame each, prost-encoded.
//!
//! Every message may arrive twice, late or never. Ops and reports carry the op's id; an op carries the epoch
//! of the session that sends it. A spec and an outcome's content travel in the one JSON form in which they
//! are also stored, so there is only one format to keep compatible. Times are durations: the two clocks are
//! never compared.

mod convert;
pub mod token;

pub use convert::{BadMessage, Done, OmittedAccounts, OpOrder, decode_agent, decode_server};

/// The path of the link, and of enrolment, on the server's link port.
pub const LINK_PATH: &str = "/link/v1";
pub const ENROLL_PATH: &str = "/enroll/v1";
/// No message may be larger than this, and no frame larger than [`MAX_FRAME`].
pub const MAX_MESSAGE: usize = 1024 * 1024;
pub const MAX_FRAME: usize = 64 * 1024;
/// Maximum bytes of the JSON of one proc's state. The labels of the largest spec (48 KiB) fit; with both
/// names the state fits a frame.
pub const STATE: usize = 56 * 1024;
/// Agents send states and outcomes in messages up to this size, unless one item alone is larger: for each
/// session the server keeps a buffer of the size of the largest message. A message of events has up to
/// 40 KiB.
pub const BATCH: usize = 8 * 1024;
/// Read and write buffers of the WebSocket: its default of 128 KiB would be most of an agent's memory.
pub const BUFFER: usize = 4 * 1024;

/// From an agent to the server.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AgentMessage {
    #[prost(oneof = "agent_message::Body", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub body: Option<agent_message::Body>,
}

pub mod agent_message {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        #[prost(message, tag = "1")]
        Hello(super::Hello),
        #[prost(message, tag = "2")]
        Reports(super::Reports),
        #[prost(message, tag = "3")]
        States(super::States),
        #[prost(message, tag = "4")]
        Enroll(super::Enroll),
        #[prost(message, tag = "5")]
        Events(super::Events),
        #[prost(message, tag = "6")]
        LogRead(super::LogRead),
        #[prost(message, tag = "7")]
        Renew(super::Renew),
        #[prost(message, tag = "8")]
        SpecRead(super::SpecRead),
    }
}

/// From the server to an agent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerMessage {
    #[prost(oneof = "server_message::Body", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub body: Option<server_message::Body>,
}

pub mod server_message {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        #[prost(message, tag = "1")]
        Welcome(super::Welcome),
        #[prost(message, tag = "2")]
        Op(super::Op),
        #[prost(message, tag = "3")]
        Ack(super::Ack),
        #[prost(message, tag = "4")]
        Drain(super::Drain),
        #[prost(message, tag = "5")]
        Refused(super::Refused),
        #[prost(message, tag = "6")]
        Enrolled(super::Enrolled),
        #[prost(message, tag = "7")]
        EventsStored(super::EventsStored),
        #[prost(message, tag = "8")]
        ReadLog(super::ReadLog),
        #[prost(message, tag = "9")]
        Cancel(super::Cancel),
        #[prost(message, tag = "10")]
        Renewed(super::Renewed),
        #[prost(message, tag = "11")]
        ReadSpec(super::ReadSpec),
        #[prost(message, tag = "12")]
        ServerList(super::ServerList),
    }
}

/// The first message of a session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Hello {
    #[prost(string, tag = "1")]
    pub agent: String,
    #[prost(string, tag = "2")]
    pub boot_id: String,
    #[prost(string, tag = "3")]
    pub version: String,
    /// The ops that the agent has in its journal without an outcome: they need not be sent again.
    #[prost(string, repeated, tag = "4")]
    pub taken: Vec<String>,
    /// Facts about the host; absent from agents of the first version.
    #[prost(message, optional, tag = "5")]
    pub host: Option<HostFacts>,
    /// Whether this agent understands [`Renewed`] and [`Cancel`]; one of an earlier version would end the
    /// session.
    #[prost(bool, tag = "9")]
    pub renews: bool,
    #[prost(bool, tag = "10")]
    pub cancels: bool,
    /// Whether this agent answers [`ReadLog`]; one of the first version does not know it, and would end the
    /// session.
    #[prost(bool, tag = "11")]
    pub reads_logs: bool,
    /// Whether this agent answers [`ReadSpec`], and changes single fields of a stored spec
    /// ([`procfleet_core::spec::Spec::change`]); one of an earlier version would replace the whole spec.
    #[prost(bool, tag = "12")]
    pub changes_specs: bool,
    /// Whether this agent checks [`Op::accounts`], [`ReadLog::accounts`] and [`ReadSpec::accounts`]. An agent
    /// of an earlier version ignores them, so the server sends it no op and no question of an app that is
    /// limited to accounts.
    #[prost(bool, tag = "13")]
    pub limits_accounts: bool,
    /// The configured address of the host; empty: the address of the connection.
    #[prost(string, tag = "14")]
    pub ip: String,
    /// The highest epoch of all welcomes of this agent. After a database failover or a restored backup, the
    /// server's own number can be lower, and the server continues after this one. 0 from agents of earlier
    /// versions.
    #[prost(uint64, tag = "15")]
    pub highest_epoch: u64,
}

/// Properties that do not change while an agent runs.
#[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// `linux`.
    #[prost(string, tag = "1")]
    pub os: String,
    /// `x86_64`, `aarch64`.
    #[prost(string, tag = "2")]
    pub architecture: String,
    #[prost(uint64, tag = "3")]
    pub cpus: u64,
    #[prost(uint64, tag = "4")]
    pub memory_mib: u64,
    /// When the agent started; seconds since 1970.
    #[prost(int64, tag = "5")]
    pub started_at: i64,
    /// The containment of the agent: `cgroup` or `tree`. Empty from agents of earlier versions.
    #[prost(string, tag = "6")]
    pub containment: String,
}

/// The answer to [`Hello`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct Welcome {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    /// Milliseconds since 1970: for the agent's log, never for a decision.
    #[prost(int64, tag = "2")]
    pub server_time: i64,
    #[prost(uint64, tag = "3")]
    pub heartbeat_ms: u64,
    /// Whether this server accepts [`Events`]. A server of the first version does not, and would end the
    /// session.
    #[prost(bool, tag = "4")]
    pub takes_events: bool,
    /// When the agent should ask for its next certificate; absent from servers that do not renew
    /// certificates.
    #[prost(uint64, optional, tag = "9")]
    pub renew_in_ms: Option<u64>,
    /// Whether this server always states the accounts of [`Op`], [`ReadLog`] and [`ReadSpec`]. The agent then
    /// refuses a message that omits them. Servers of earlier versions omit them to say "everybody".
    #[prost(bool, tag = "10")]
    pub limits_accounts: bool,
    /// The URLs of the living servers that agents should connect to: not of draining ones, nor of servers
    /// without an address. The agent stores the list. Empty: the server does not say; the agent keeps the
    /// list that it has.
    #[prost(string, repeated, tag = "11")]
    pub servers: Vec<String>,
}

/// An op, to be carried out once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Op {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "4")]
    pub name: String,
    /// GSE's number of the operation.
    #[prost(uint32, tag = "5")]
    pub kind: u32,
    /// The op must begin within this time from now.
    #[prost(uint64, tag = "6")]
    pub start_within_ms: u64,
    /// JSON; empty: use the stored one.
    #[prost(bytes = "vec", tag = "7")]
    pub spec: Vec<u8>,
    /// Refuse the op if it involves any other OS account. Servers of earlier versions omit it for
    /// "everybody".
    #[prost(oneof = "op::Accounts", tags = "8, 9")]
    pub accounts: Option<op::Accounts>,
}

/// OS accounts by their names. An empty list is nobody.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AccountList {
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}

/// Every OS account.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Everybody {}

/// The OS accounts that a message is limited to. "Everybody" and "nobody" are different variants on the wire,
/// so neither a forgotten field nor an empty list means "everybody". The tags of a protobuf oneof belong to
/// its message, so each message has its own.
macro_rules! accounts {
    ($message:ident, only = $only:tt, everybody = $everybody:tt) => {
        pub mod $message {
            #[derive(Clone, PartialEq, prost::Oneof)]
            pub enum Accounts {
                #[prost(message, tag = $only)]
                Only(super::AccountList),
                #[prost(message, tag = $everybody)]
                Everybody(super::Everybody),
            }

            impl From<&procfleet_core::grants::GrantScope<String>> for Accounts {
                fn from(scope: &procfleet_core::grants::GrantScope<String>) -> Accounts {
                    match super::convert::account_list(scope) {
                        Some(list) => Accounts::Only(list),
                        None => Accounts::Everybody(super::Everybody {}),
                    }
                }
            }

            impl Accounts {
                pub fn scope(&self) -> procfleet_core::grants::GrantScope<String> {
                    match self {
                        Accounts::Only(list) => super::convert::scope_of(list),
                        Accounts::Everybody(_) => procfleet_core::grants::GrantScope::All,
                    }
                }
            }
        }
    };
}

accounts!(op, only = "8", everybody = "9");
accounts!(read_log, only = "11", everybody = "12");
accounts!(read_spec, only = "5", everybody = "6");

#[derive(Clone, PartialEq, prost::Message)]
pub struct Reports {
    #[prost(message, repeated, tag = "1")]
    pub reports: Vec<Report>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Report {
    #[prost(string, tag = "1")]
    pub op: String,
    /// Absent: the op is in the journal and has no outcome yet.
    #[prost(message, optional, tag = "2")]
    pub done: Option<OutcomeMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct OutcomeMessage {
    #[prost(uint32, tag = "1")]
    pub code: u32,
    #[prost(string, tag = "2")]
    pub message: String,
    /// JSON.
    #[prost(bytes = "vec", tag = "3")]
    pub content: Vec<u8>,
}

/// These outcomes are durable: they need not be reported again.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ack {
    #[prost(string, repeated, tag = "1")]
    pub ops: Vec<String>,
}

/// Procs whose state has changed; all of them after a connect.
#[derive(Clone, PartialEq, prost::Message)]
pub struct States {
    #[prost(bool, tag = "1")]
    pub all: bool,
    #[prost(message, repeated, tag = "2")]
    pub procs: Vec<ProcStateMessage>,
    /// Namespaces whose process groups have changed; after a connect, all namespaces with groups. Absent from
    /// agents that do not know groups.
    #[prost(message, repeated, tag = "3")]
    pub groups: Vec<GroupsMessage>,
    /// Number of lines of its own log that the agent has lost since its last report.
    #[prost(uint64, tag = "4")]
    pub log_lines_dropped: u64,
    /// The complete list goes on in the next message. Servers that do not know this field take the first
    /// message for the complete list, and store the others as changes.
    #[prost(bool, tag = "5")]
    pub continues: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GroupsMessage {
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Grows with every change that this agent reports.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// JSON of a list of [`procfleet_core::spec::ProcessGroup`]; an empty list if the groups were removed.
    #[prost(bytes = "vec", tag = "3")]
    pub groups: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ProcStateMessage {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// Grows with every change that this agent reports.
    #[prost(uint64, tag = "3")]
    pub revision: u64,
    /// JSON of [`crate::state::ProcReport`]; empty if the proc is forgotten.
    #[prost(bytes = "vec", tag = "4")]
    pub report: Vec<u8>,
    /// The proc was unregistered.
    #[prost(bool, tag = "5")]
    pub forgotten: bool,
}

/// Events of procs. Each is sent until it is confirmed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Events {
    #[prost(message, repeated, tag = "1")]
    pub events: Vec<EventMessage>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EventMessage {
    /// The unique name of the agent's journal, and an increasing number within it.
    #[prost(string, tag = "1")]
    pub journal: String,
    #[prost(uint64, tag = "2")]
    pub number: u64,
    /// By the host's clock; milliseconds since 1970.
    #[prost(int64, tag = "3")]
    pub at: i64,
    #[prost(string, tag = "4")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    pub name: String,
    /// `exited`, `gave_up`, ...
    #[prost(string, tag = "6")]
    pub kind: String,
    /// The event in words.
    #[prost(string, tag = "7")]
    pub message: String,
    /// JSON of `core`'s event.
    #[prost(bytes = "vec", tag = "8")]
    pub details: Vec<u8>,
    /// The alarm that the spec names; 0: none.
    #[prost(int64, tag = "9")]
    pub report_id: i64,
    /// The program's name.
    #[prost(string, tag = "10")]
    pub proc_name: String,
    /// The OS account of the spec at that time; empty from agents of earlier versions.
    #[prost(string, tag = "11")]
    pub user: String,
}

/// Everything of this journal up to this number is durable.
#[derive(Clone, PartialEq, prost::Message)]
pub struct EventsStored {
    #[prost(string, tag = "1")]
    pub journal: String,
    #[prost(uint64, tag = "2")]
    pub up_to: u64,
}

/// Asks for the output of a proc. This is a query and not an op: no command is run, nothing is journalled,
/// and the question is not repeated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadLog {
    /// The answer has the same number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub name: String,
    /// The offset of the first byte; absent: the last `lines`.
    #[prost(uint64, optional, tag = "4")]
    pub at: Option<u64>,
    #[prost(uint32, tag = "5")]
    pub lines: u32,
    /// The maximum number of bytes; the agent may return fewer.
    #[prost(uint32, tag = "6")]
    pub most: u32,
    /// How long to wait for the log to grow beyond the offset `beyond`.
    #[prost(uint64, tag = "7")]
    pub wait_ms: u64,
    #[prost(uint64, tag = "8")]
    pub beyond: u64,
    /// Only from servers of earlier versions: give a renamed log its name back. Agents refuse it. The tag
    /// stays reserved, because an agent that does not know it would answer as if it had been done.
    #[prost(bool, tag = "9")]
    pub reopen: bool,
    /// The list of servers of the first versions: only if the log is of one of these OS accounts. An empty
    /// list was everybody.
    #[prost(string, repeated, tag = "10")]
    pub earlier_accounts: Vec<String>,
    /// Only the output of runs of these OS accounts.
    #[prost(oneof = "read_log::Accounts", tags = "11, 12")]
    pub accounts: Option<read_log::Accounts>,
}

/// The answer to [`ReadLog`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct LogRead {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// 0: it was read. Else the message says why not.
    #[prost(uint32, tag = "2")]
    pub code: u32,
    #[prost(string, tag = "3")]
    pub message: String,
    /// The offset of the first byte.
    #[prost(uint64, tag = "4")]
    pub begin: u64,
    #[prost(bytes = "vec", tag = "5")]
    pub bytes: Vec<u8>,
    /// The offset after the last byte of the log.
    #[prost(uint64, tag = "6")]
    pub end: u64,
    /// Number of bytes between the requested offset and `begin` that are lost.
    #[prost(uint64, tag = "7")]
    pub skipped: u64,
    /// The path of the log on the host.
    #[prost(string, tag = "8")]
    pub file: String,
}

/// Asks for the stored spec of a proc; a query like [`ReadLog`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReadSpec {
    /// The answer has the same number.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub name: String,
    /// The list of servers of the first versions: only if the spec is of one of these OS accounts. An empty
    /// list was everybody.
    #[prost(string, repeated, tag = "4")]
    pub earlier_accounts: Vec<String>,
    /// Only if the spec is of one of these OS accounts.
    #[prost(oneof = "read_spec::Accounts", tags = "5, 6")]
    pub accounts: Option<read_spec::Accounts>,
}

/// The answer to [`ReadSpec`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct SpecRead {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// 0: the spec is here. Else the message says why not.
    #[prost(uint32, tag = "2")]
    pub code: u32,
    #[prost(string, tag = "3")]
    pub message: String,
    /// JSON of [`procfleet_core::spec::Spec`].
    #[prost(bytes = "vec", tag = "4")]
    pub spec: Vec<u8>,
}

/// As much of a log as one message holds, so that it fits a frame.
pub const LOG_BYTES: usize = 40 * 1024;

/// The servers of the fleet have changed since the welcome. Agents of earlier versions ignore it, and learn
/// of them at their next session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerList {
    /// As in the welcome.
    #[prost(string, repeated, tag = "1")]
    pub servers: Vec<String>,
}

/// The server is stopping, or has too many agents: disconnect, and reconnect later.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Drain {
    /// Reconnect after this time, plus a random part of `spread_ms` (jitter).
    #[prost(uint64, tag = "1")]
    pub after_ms: u64,
    #[prost(uint64, tag = "2")]
    pub spread_ms: u64,
    /// Connect to another server, and not to this one for a while. An agent of an earlier version, or one
    /// that knows no other server, reconnects to this one.
    #[prost(bool, tag = "3")]
    pub elsewhere: bool,
}

/// The session is refused. The reason is for the agent's log.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Refused {
    #[prost(string, tag = "1")]
    pub reason: String,
}

/// A host asks to become an agent.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Enroll {
    #[prost(string, tag = "1")]
    pub token: String,
    /// A certificate signing request in DER.
    #[prost(bytes = "vec", tag = "2")]
    pub csr: Vec<u8>,
    /// The address of the host; empty: the address of the connection.
    #[prost(string, tag = "3")]
    pub ip: String,
    #[prost(string, tag = "4")]
    pub version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Enrolled {
    #[prost(string, tag = "1")]
    pub agent: String,
    /// The agent's certificate in DER.
    #[prost(bytes = "vec", tag = "2")]
    pub certificate: Vec<u8>,
    /// The CA's certificate in DER.
    #[prost(bytes = "vec", tag = "3")]
    pub ca: Vec<u8>,
    /// Further CAs that the server may use, in DER: there are two during a rotation.
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub more_cas: Vec<Vec<u8>>,
}

/// An agent asks for its next certificate, and says when it has kept it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Renew {
    /// A certificate signing request in DER, for a new key; empty: the message confirms `kept`.
    #[prost(bytes = "vec", tag = "1")]
    pub csr: Vec<u8>,
    /// The SHA-256 of a certificate that is safe on the agent's disk: it uses this certificate from its next
    /// connection on.
    #[prost(bytes = "vec", tag = "2")]
    pub kept: Vec<u8>,
}

/// With a certificate: the answer to [`Renew`]. Without: the agent should renew its certificate in
/// `renew_in_ms`. Instead of a [`Welcome`] it means that the agent's certificate has expired, and that only
/// its renewal is accepted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Renewed {
    /// In DER.
    #[prost(bytes = "vec", tag = "1")]
    pub certificate: Vec<u8>,
    /// All CAs that the agent is to trust from now on, in DER.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub cas: Vec<Vec<u8>>,
    #[prost(uint64, tag = "3")]
    pub renew_in_ms: u64,
}

/// These ops are cancelled: an op that has not begun must not begin, and each gets its outcome soon.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Cancel {
    #[prost(string, repeated, tag = "1")]
    pub ops: Vec<String>,
}
