//! The definition of a proc, with all defaults filled in.
//!
//! Only `proto` creates a `Spec`, from a checked request, so zero and missing times have already become
//! defaults. Checks that need the host (does this folder exist?) are made by the agent.
//!
//! The serde form is the only format in which a spec is stored (server, agent journal) and sent (link). An
//! older peer ignores fields that it does not know; fields that it does not send get their defaults.

use crate::id::{MAX_INSTANCES, ProcKey};
use crate::signal::SignalNumber;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spec {
    pub identity: Identity,
    pub control: Control,
    pub resource: Resource,
    pub policy: Policy,
    pub labels: BTreeMap<String, String>,
    pub report_id: Option<i64>,
    pub configmap: Vec<ConfigFile>,
    /// Number of processes that run side by side.
    pub instances: Instances,
    /// JOB's own names for the process, and its contact. They appear only in answers.
    pub job: JobFacts,
    /// The process groups of a namespace. Only [`crate::op::OpKind::Group`] has them, and it has nothing
    /// else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ProcessGroup>,
    /// The only fields that count on a host that has a spec of the proc stored; empty: all of them. See
    /// [`crate::change`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<String>,
}

impl Spec {
    /// Maximum bytes of the JSON of a spec. A spec travels to an agent in one frame of the link, whose limit
    /// is 64 KiB.
    pub const LARGEST: usize = 48 * 1024;

    /// The proc of this spec and the number of the instance, if `name` has one. A number beyond the spec's
    /// instances is part of an independent proc's name.
    pub fn instance(&self, key: &ProcKey) -> (ProcKey, u32) {
        match key.whole() {
            (proc, number) if number <= self.instances.0 => (proc, number),
            _ => (key.clone(), 1),
        }
    }

    /// The spec of one instance of many: the second and further instances have their own pid files.
    #[must_use]
    pub fn of_instance(mut self, number: u32) -> Spec {
        let counted = (2..=self.instances.0).contains(&number);
        if counted && !self.identity.pid_path.is_empty() {
            self.identity.pid_path.push_str(&format!(".{number}"));
        }
        self
    }
}

/// How many processes of one proc run side by side: at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Instances(pub u32);

impl Instances {
    /// Maximum number of instances in one request.
    pub const MAX: u32 = MAX_INSTANCES;
}

impl Default for Instances {
    fn default() -> Self {
        Instances(1)
    }
}

/// Properties of JOB's requests that are not needed to run the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobFacts {
    /// `contact` or `proc_owner`.
    pub contact: String,
    pub func_id: String,
    pub instance_id: String,
}

/// The identity of the process on its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Identity {
    /// The file name of the program, such as `nginx` or `java`.
    pub proc_name: String,
    /// The working directory of commands.
    pub setup_path: String,
    /// Empty: the process writes no pid file.
    pub pid_path: String,
    pub config_path: String,
    pub log_path: String,
    /// The OS account that commands run as.
    pub user: String,
    pub index_key: String,
}

/// The command of each operation. Empty: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Control {
    pub start_cmd: String,
    pub stop_cmd: String,
    pub restart_cmd: String,
    pub reload_cmd: String,
    pub kill_cmd: String,
    pub version_cmd: String,
    pub health_cmd: String,
    pub shell: Shell,
    /// The signal that stops the process if there is no `stop_cmd`.
    #[serde(skip_serializing_if = "is_default")]
    pub stop_signal: StopSignal,
    /// The signal that reloads the configuration if there is no `reload_cmd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reload_signal: Option<SignalNumber>,
}

/// A signal that ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StopSignal(pub SignalNumber);

impl Default for StopSignal {
    fn default() -> Self {
        StopSignal(SignalNumber::TERM)
    }
}

/// The interpreter of the commands (`cmd_shell_ext`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shell {
    #[default]
    Sh,
    /// cmd.exe.
    Bat,
    /// PowerShell, where the host has it.
    Ps1,
}

/// Limits in per cent of the whole host. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resource {
    pub cpu: Option<f64>,
    pub mem: Option<f64>,
    pub fd: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Policy {
    pub kind: Kind,
    /// When a start is judged: a process must be alive then, and must have been for at least [`LEAST_LIFE`].
    pub start_check: Duration,
    /// The check begins after this time: until then the process may die and come back. Zero: the check begins
    /// at once.
    pub check_begin: Duration,
    /// A stopped process may take this long to be gone.
    pub stop_check: Duration,
    /// How often in a row a hosted process is started again before the agent gives up.
    pub start_retries: u32,
    /// Time from one start to the next after a run that was not stable.
    pub start_interval: Duration,
    #[serde(skip_serializing_if = "is_default")]
    pub restart_pause: RestartPause,
    /// How long one command may run.
    pub op_timeout: Duration,
    /// Number of consecutive samples above a limit that count as overuse.
    #[serde(skip_serializing_if = "is_default")]
    pub limit_samples: LimitSamples,
    #[serde(skip_serializing_if = "is_default")]
    pub on_unhealthy: OnUnhealthy,
    #[serde(skip_serializing_if = "is_default")]
    pub detached: Detached,
    /// How long after the stop a process that has not exited is killed. `None`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_after: Option<Duration>,
}

/// How the pauses between restarts in a row follow from `start_interval`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestartPause {
    /// Each is `start_interval`.
    #[default]
    Constant,
    /// Exponential back-off with jitter, which begins with `start_interval`.
    Growing,
}

/// Number of consecutive samples above a limit that count as overuse. A single one is a peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LimitSamples(pub u32);

impl Default for LimitSamples {
    fn default() -> Self {
        LimitSamples(3)
    }
}

/// The reaction to a `health_cmd` that fails several times in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnUnhealthy {
    /// Only report an event.
    #[default]
    Tell,
    /// Also end the process. If it is hosted, the restart policy starts it again.
    Restart,
}

/// The treatment of detached descendants: children in their own sessions, and orphans of a dead main process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Detached {
    /// Detached descendants end with the process.
    #[default]
    End,
    /// Leave them running: only the process, its descendants and its session are ended.
    Keep,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A process that has been alive for less than this does not count as started, whatever `start_check` says.
pub const LEAST_LIFE: Duration = Duration::from_secs(1);

/// A run that was not longer than this is not stable, however short `start_interval` is.
const LEAST_STABLE: Duration = Duration::from_secs(10);

impl Policy {
    /// A run that was longer is stable. Any other run counts as part of a crash loop.
    pub fn stable_after(&self) -> Duration {
        self.start_interval.max(self.start_check).max(LEAST_STABLE)
    }

    /// How long a launch is checked. There is at least one look, at `check_begin`.
    pub fn launch_check(&self) -> Duration {
        self.start_check.max(self.check_begin)
    }

    /// When a start is judged, counted from the first sight of a process. There are no looks before
    /// `check_begin`, so that part of the check has passed by then.
    pub fn sight_check(&self) -> Duration {
        self.start_check.saturating_sub(self.check_begin).max(LEAST_LIFE)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Policy {
            kind: Kind::Resident,
            start_check: Duration::from_secs(5),
            check_begin: Duration::ZERO,
            stop_check: Duration::from_secs(5),
            start_retries: 4,
            start_interval: Duration::from_secs(10),
            restart_pause: RestartPause::default(),
            op_timeout: Duration::from_secs(60),
            limit_samples: LimitSamples::default(),
            on_unhealthy: OnUnhealthy::default(),
            detached: Detached::default(),
            kill_after: None,
        }
    }
}

/// `auto_type`: the life cycle of the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Runs until it is stopped.
    Resident,
    /// Runs to its end; success is exit 0. There is no liveness check.
    Once,
    /// Runs to its end repeatedly, and never twice at once.
    Periodic(Schedule),
}

impl Kind {
    /// `None`: it does not run by a schedule.
    pub fn schedule(&self) -> Option<&Schedule> {
        match self {
            Kind::Periodic(schedule) => Some(schedule),
            Kind::Resident | Kind::Once => None,
        }
    }
}

/// When a periodic process runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Schedule {
    /// `cycle_time`: the interval from start to start.
    Every(Duration),
    /// `crontab_rule`, in the host's time zone. It was checked where the request was read.
    Cron(String),
}

/// Limits for all processes of a namespace together on a host. [`crate::groups`] enforces them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessGroup {
    pub id: String,
    /// Per cent of the whole host. `None`: no limit.
    pub cpu_pool_limit: Option<f64>,
    pub mem_pool_limit: Option<f64>,
    pub cpu_pool_weight: Weight,
    pub mem_pool_weight: Weight,
}

/// The order in which processes are ended when a pool is overused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// 0: the process with the highest usage first.
    #[default]
    Usage,
    /// 1: the process with the highest usage relative to its own limit first.
    Limit,
}

impl Weight {
    pub fn number(self) -> u32 {
        match self {
            Weight::Usage => 0,
            Weight::Limit => 1,
        }
    }
}

/// A file that the caller expects on the host (`configmap`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigFile {
    pub path: String,
    /// Empty: the content when the process is started is the expected one.
    pub md5: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_instances_have_pid_files_of_their_own() {
        let path = |pid_path: &str, instances: u32, number: u32| {
            let identity = Identity { pid_path: pid_path.to_owned(), ..Identity::default() };
            let spec = Spec { identity, instances: Instances(instances), ..Spec::default() };
            spec.of_instance(number).identity.pid_path
        };
        assert_eq!(path("/run/web.pid", 3, 1), "/run/web.pid");
        assert_eq!(path("/run/web.pid", 3, 2), "/run/web.pid.2");
        assert_eq!(path("/run/web.pid", 3, 4), "/run/web.pid", "a proc that is merely called so");
        assert_eq!(path("", 3, 2), "");
        let spec = Spec { instances: Instances(3), ..Spec::default() };
        let key = |name: &str| ProcKey { namespace: "web".to_owned(), name: name.to_owned() };
        assert_eq!(spec.instance(&key("nginx")), (key("nginx"), 1));
        assert_eq!(spec.instance(&key("nginx#3")), (key("nginx"), 3));
        assert_eq!(spec.instance(&key("nginx#4")), (key("nginx#4"), 1));
    }
}
