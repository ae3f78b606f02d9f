//! One operation on one process at one host, and how it ended.

use crate::code::Code;
use crate::grant_scope::GrantScope;
use crate::health::HealthReport;
use crate::spec::{LEAST_LIFE, Policy, Spec};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The kind of an operation. The numbers up to 9 are GSE's `op_type`; 5 and 6 are undefined. Numbers from 100
/// on are ours, for operations that have their own APIs in GSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OpKind {
    Start,
    Stop,
    Query,
    Host,
    Unhost,
    Restart,
    Reload,
    Kill,
    /// Make the spec known; refused if there is one.
    Register,
    /// Make the spec known, or replace it.
    Update,
    /// Delete the stored spec. The process keeps running.
    Unregister,
    /// Set the process groups of a namespace. It is about no proc: the key has no name.
    Group,
}

impl OpKind {
    pub const ALL: [OpKind; 12] = [
        OpKind::Start,
        OpKind::Stop,
        OpKind::Query,
        OpKind::Host,
        OpKind::Unhost,
        OpKind::Restart,
        OpKind::Reload,
        OpKind::Kill,
        OpKind::Register,
        OpKind::Update,
        OpKind::Unregister,
        OpKind::Group,
    ];

    pub fn number(self) -> u32 {
        match self {
            OpKind::Start => 0,
            OpKind::Stop => 1,
            OpKind::Query => 2,
            OpKind::Host => 3,
            OpKind::Unhost => 4,
            OpKind::Restart => 7,
            OpKind::Reload => 8,
            OpKind::Kill => 9,
            OpKind::Register => 100,
            OpKind::Update => 101,
            OpKind::Unregister => 102,
            OpKind::Group => 103,
        }
    }

    /// The operation that a caller's `op_type` means.
    pub fn from_op_type(number: u64) -> Option<OpKind> {
        OpKind::from_number(number).filter(|kind| kind.number() < 100)
    }

    pub fn from_number(number: u64) -> Option<OpKind> {
        OpKind::ALL.into_iter().find(|kind| u64::from(kind.number()) == number)
    }

    /// The verb in messages, logs and the CLI.
    pub fn verb(self) -> &'static str {
        match self {
            OpKind::Start => "start",
            OpKind::Stop => "stop",
            OpKind::Query => "query",
            OpKind::Host => "host",
            OpKind::Unhost => "unhost",
            OpKind::Restart => "restart",
            OpKind::Reload => "reload",
            OpKind::Kill => "kill",
            OpKind::Register => "register",
            OpKind::Update => "update",
            OpKind::Unregister => "unregister",
            OpKind::Group => "group",
        }
    }

    /// Whether the op only reads: its outcome is a status, and nothing is changed.
    pub fn is_query(self) -> bool {
        self == OpKind::Query
    }

    /// Whether the op ends the process.
    pub fn ends_process(self) -> bool {
        matches!(self, OpKind::Stop | OpKind::Kill)
    }

    /// Whether callers see the content of the outcome. GSE's documents show an empty one for the others.
    pub fn has_content(self) -> bool {
        match self {
            OpKind::Start
            | OpKind::Stop
            | OpKind::Query
            | OpKind::Host
            | OpKind::Unhost
            | OpKind::Restart
            | OpKind::Reload
            | OpKind::Kill => true,
            OpKind::Register | OpKind::Update | OpKind::Unregister | OpKind::Group => false,
        }
    }

    /// Whether the op is accepted when a disk is full: it ends a process, stores nothing new, or frees space.
    pub fn is_taken_on_a_full_disk(self) -> bool {
        match self {
            OpKind::Stop
            | OpKind::Kill
            | OpKind::Query
            | OpKind::Unhost
            | OpKind::Reload
            | OpKind::Unregister => true,
            OpKind::Start
            | OpKind::Host
            | OpKind::Restart
            | OpKind::Register
            | OpKind::Update
            | OpKind::Group => false,
        }
    }

    /// How long the op may take on an idle proc, at most: its commands and checks one after the other.
    pub fn budget(self, policy: &Policy) -> Duration {
        let command = policy.op_timeout;
        // A process that appears at the end of the check is checked itself, and so is its successor.
        let check = policy.launch_check() + policy.sight_check() + LEAST_LIFE;
        // The processes of a failed launch are ended before its outcome.
        let launch = command + check + policy.stop_check + LEFTOVER_GRACE;
        let end = match policy.kill_after {
            Some(kill_after) => command + policy.stop_check.max(kill_after) + KILL_GRACE + LEFTOVER_GRACE,
            None => command + policy.stop_check + LEFTOVER_GRACE,
        };
        match self {
            OpKind::Query
            | OpKind::Unhost
            | OpKind::Register
            | OpKind::Update
            | OpKind::Unregister
            | OpKind::Group => Duration::from_secs(5),
            OpKind::Start | OpKind::Host => launch,
            OpKind::Stop | OpKind::Kill => end,
            OpKind::Restart => end + launch,
            // The process must survive its reload, and so must its successor.
            OpKind::Reload => command + policy.start_check + LEAST_LIFE + LEAST_LIFE,
        }
    }
}

/// How long a process that was killed may take to be gone.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// How long the leftovers of a process may take to be stopped, killed and reaped.
const LEFTOVER_GRACE: Duration = Duration::from_secs(2);

/// How an op ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub code: Code,
    pub message: String,
    pub content: Content,
}

impl Outcome {
    pub fn new(code: Code, message: impl Into<String>, content: Content) -> Self {
        Outcome { code, message: message.into(), content }
    }

    /// An outcome without a status of the proc: the op was refused or could not be carried out.
    pub fn without_status(code: Code, message: impl Into<String>, kind: OpKind) -> Self {
        let content = if kind.is_query() {
            Content::Status(Box::default())
        } else {
            Content::Control { hosted: false, proc_name: String::new(), setup_path: String::new() }
        };
        Outcome::new(code, message, content)
    }
}

/// The content of an outcome. `proto` renders it as JSON for callers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Control {
        hosted: bool,
        /// The identity that the op was carried out with; empty where the server had to answer alone.
        #[serde(default)]
        proc_name: String,
        #[serde(default)]
        setup_path: String,
    },
    Status(Box<ProcStatus>),
}

/// A proc as its agent saw it at one moment. The default is a proc of which nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcStatus {
    pub hosted: bool,
    /// Empty, or why it is not as it should be.
    pub note: String,
    /// `None`: not running.
    pub instance: Option<Instance>,
    /// The second and further instances, where the spec asks for several.
    #[serde(default)]
    pub more: Vec<Option<Instance>>,
    /// The last results of `version_cmd` and `health_cmd`.
    #[serde(default)]
    pub version: String,
    #[serde(default)]
    pub health: HealthReport,
    /// Seconds since 1970, UTC; 0 where it never happened.
    pub registered_at: i64,
    pub started_at: i64,
    pub reported_at: i64,
    /// The offset of the host's local time from UTC.
    pub utc_offset_secs: i32,
}

/// A running process, as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Instance {
    pub pid: u32,
    pub command_line: String,
    /// The kernel's one-letter state.
    pub state: String,
    /// Seconds since 1970, UTC.
    pub began_at: i64,
    pub elapsed_secs: u64,
    pub threads: u64,
    /// Per cent of the whole host: lately, and over the process's life.
    pub cpu_now: f64,
    pub cpu_average: f64,
    pub memory_percent: f64,
    pub memory_kib: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
}

/// An order as an agent receives it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    pub op: crate::id::OpId,
    pub kind: OpKind,
    /// `None`: use the spec that the agent has stored.
    pub spec: Option<Spec>,
    /// The op must not begin after this time.
    pub start_by: crate::boot_time::BootTime,
    /// The OS accounts that the op's app may use. The op is refused if the stored spec, the running process
    /// or the replaced spec has another account.
    #[serde(default = "GrantScope::all", skip_serializing_if = "GrantScope::is_all")]
    pub accounts: GrantScope<String>,
}
