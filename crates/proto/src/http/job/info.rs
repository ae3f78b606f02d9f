//! One element of `process_infos`, as each of the three APIs has it.

use super::script;
use crate::http::batch::LONGEST_NAME;
use crate::http::fault::Faults;
use crate::http::operate::{LONGEST_CYCLE, LONGEST_PATH, LONGEST_WAIT, read_control, warn_of_relative_paths};
use crate::http::read::Reader;
use procfleet_core::id::ProcKey;
use procfleet_core::op::OpKind;
use procfleet_core::spec::{Identity, Instances, JobFacts, Kind, Policy, Resource, Schedule, Shell, Spec};
use ring::digest::{SHA256, digest};
use std::time::Duration;

/// The contact of `operate_proc`'s processes in JOB's own server.
const CONTACT: &str = "mapleleaf";
const ACCOUNT: &str = "root";
/// The time limit of JOB's own server for the scripts of `operate_proc` and the processes that they start.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(10);
const SCRIPT_START_CHECK: Duration = Duration::from_secs(5);
/// The default of JOB's own server for an invalid percentage in `operate_proc`.
const ODD_CPU_LIMIT: f64 = 50.0;
const ODD_MEM_LIMIT: f64 = 30.0;
/// The working directory of a process without a folder.
const NO_FOLDER: &str = "/";

pub(super) struct Info {
    pub(super) proc: ProcKey,
    pub(super) spec: Spec,
}

/// `operate_proc`: the caller says which shell its scripts are for.
pub(super) fn with_scripts(r: &Reader<'_>, faults: &mut Faults) -> Info {
    let mut identity = read_identity(r, Paths::Required, faults);
    let shell = match r.text("cmd_shell_ext", LONGEST_NAME, faults).as_str() {
        "" | "sh" => Shell::Sh,
        "bat" => Shell::Bat,
        "ps1" => Shell::Ps1,
        other => {
            let reason = format!("is {other:?}, must be \"sh\", \"bat\" or \"ps1\"");
            faults.add(r.path("cmd_shell_ext"), reason);
            Shell::Sh
        }
    };
    let control = script::commands(shell, &identity.proc_name).unwrap_or_else(|reason| {
        faults.add(r.path("proc_name"), reason);
        Default::default()
    });
    let separator = match shell {
        Shell::Sh => '/',
        Shell::Bat | Shell::Ps1 => '\\',
    };
    let mut limit = |field: &str, otherwise: f64| {
        let limit = r.integer(field, i64::MIN..=i64::MAX, faults)?;
        let limit = u8::try_from(limit).ok().filter(|limit| *limit <= 100).map_or(otherwise, f64::from);
        Some(limit).filter(|limit| *limit > 0.0)
    };
    let resource =
        Resource { cpu: limit("cpu_lmt", ODD_CPU_LIMIT), mem: limit("mem_lmt", ODD_MEM_LIMIT), fd: None };
    let policy = Policy { start_check: SCRIPT_START_CHECK, op_timeout: SCRIPT_TIMEOUT, ..Policy::default() };
    let job = JobFacts { contact: CONTACT.to_owned(), ..JobFacts::default() };
    warn_of_relative_paths(r, &mut identity, ["pid_path", "cfg_path", "log_path"], faults);
    let proc = key(&identity, separator);
    Info { proc, spec: Spec { identity, control, resource, policy, job, ..Spec::default() } }
}

/// `operate_process`.
pub(super) fn with_commands(r: &Reader<'_>, kind: Option<OpKind>, faults: &mut Faults) -> Info {
    let identity = read_identity(r, Paths::Required, faults);
    let life = read_kind(r, kind, DefaultKind::ByCycle, faults);
    let contact = r.text("contact", LONGEST_NAME, faults);
    whole(r, identity, life, contact, faults)
}

/// `manage_proc`. Its document requires neither paths nor commands.
pub(super) fn to_be_hosted(r: &Reader<'_>, kind: Option<OpKind>, faults: &mut Faults) -> Info {
    let identity = read_identity(r, Paths::Optional, faults);
    let life = read_kind(r, kind, DefaultKind::Periodic, faults);
    let contact = r.required_text("proc_owner", LONGEST_NAME, faults);
    whole(r, identity, life, contact, faults)
}

/// The common fields of `operate_process` and `manage_proc`.
fn whole(r: &Reader<'_>, mut identity: Identity, kind: Kind, contact: String, faults: &mut Faults) -> Info {
    let value_key = r.text("value_key", LONGEST_PATH, faults);
    identity.index_key = plain(r, "value_key", value_key, faults);
    identity.config_path = r.text("cfg_path", LONGEST_PATH, faults);
    identity.log_path = r.text("log_path", LONGEST_PATH, faults);
    warn_of_relative_paths(r, &mut identity, ["pid_path", "cfg_path", "log_path"], faults);
    let proc = key(&identity, '/');
    if identity.setup_path.is_empty() {
        identity.setup_path = NO_FOLDER.to_owned();
    }
    let control = read_control(r, faults);
    let job = JobFacts {
        contact,
        func_id: r.text_or_integer("func_id", LONGEST_NAME, faults),
        instance_id: r.text_or_integer("instance_id", LONGEST_NAME, faults),
    };
    let mut limit = |field: &str| {
        let limit = r.integer(field, 0..=100, faults).and_then(|limit| u8::try_from(limit).ok());
        limit.filter(|limit| *limit > 0).map(f64::from)
    };
    let resource = Resource { cpu: limit("cpu_lmt"), mem: limit("mem_lmt"), fd: None };
    let instances = r.integer("instance_num", 0..=i64::from(Instances::MAX), faults);
    let instances = instances.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0).map(Instances);
    let policy = Policy { kind, ..read_times(r, faults) };
    let instances = instances.unwrap_or_default();
    Info { proc, spec: Spec { identity, control, resource, policy, instances, job, ..Spec::default() } }
}

/// Whether `setup_path` and `pid_path` must be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paths {
    Required,
    Optional,
}

fn read_identity(r: &Reader<'_>, paths: Paths, faults: &mut Faults) -> Identity {
    let path = |field: &str, faults: &mut Faults| match paths {
        Paths::Required => r.required_text(field, LONGEST_PATH, faults),
        Paths::Optional => r.text(field, LONGEST_PATH, faults),
    };
    let proc_name = r.required_text("proc_name", LONGEST_NAME, faults);
    let proc_name = plain(r, "proc_name", proc_name, faults);
    let setup_path = path("setup_path", faults);
    let setup_path = plain(r, "setup_path", setup_path, faults);
    let pid_path = path("pid_path", faults);
    let pid_path = plain(r, "pid_path", pid_path, faults);
    let account = r.text("account", LONGEST_NAME, faults);
    let account = plain(r, "account", account, faults);
    Identity {
        pid_path: pid_file(pid_path, &setup_path, &proc_name),
        proc_name,
        setup_path,
        user: if account.is_empty() { ACCOUNT.to_owned() } else { account },
        ..Identity::default()
    }
}

/// A text for people and logs. A blank text counts as absent.
fn plain(r: &Reader<'_>, field: &str, text: String, faults: &mut Faults) -> String {
    if text.trim().is_empty() {
        return String::new();
    }
    // The reader has reported NUL already.
    if text.chars().any(|c| c.is_control() && c != '\0') {
        faults.add(r.path(field), "contains a control character");
    }
    text
}

/// The document calls it the path of the pid file, but its example is a folder. A path that ends in a
/// separator, or is the folder of the program, is a folder.
fn pid_file(path: String, setup_path: &str, proc_name: &str) -> String {
    const SEPARATORS: [char; 2] = ['/', '\\'];
    let folder = path.trim_end_matches(SEPARATORS);
    let is_folder = folder.len() < path.len() || folder == setup_path.trim_end_matches(SEPARATORS);
    if path.is_empty() || !is_folder {
        return path;
    }
    let separator = if path.contains('\\') && !path.contains('/') { '\\' } else { '/' };
    format!("{folder}{separator}{proc_name}.pid")
}

/// `value_key`, or else the path of the program: one separator between the two, however the folder is
/// written.
fn key(identity: &Identity, separator: char) -> ProcKey {
    let Identity { index_key, setup_path, proc_name, .. } = identity;
    let name = match (index_key.as_str(), setup_path.as_str()) {
        ("", "") => proc_name.clone(),
        ("", folder) => {
            let folder = folder.trim_end_matches(['/', separator]);
            format!("{folder}{separator}{proc_name}")
        }
        (key, _) => key.to_owned(),
    };
    ProcKey::of_job(bounded(name))
}

/// Longer names are replaced by a prefix and a hash. Names of up to this many bytes stay as they are: earlier
/// versions accepted them, and agents have procs with these names.
const LONGEST_PLAIN: usize = 1_024;
/// Bytes of the name that remain before the hash. With the hash the name has more than [`LONGEST_PLAIN`]
/// bytes, so that no plain name equals a hashed one.
const PREFIX: usize = 1_000;

/// A name that every part of procfleet can store: a path may have 4,096 characters. The number of an instance
/// remains.
fn bounded(name: String) -> String {
    let (ProcKey { name: whole, .. }, instance) = ProcKey::of_job(name.clone()).whole();
    if whole.len() <= LONGEST_PLAIN {
        return name;
    }
    let hash = digest(&SHA256, whole.as_bytes());
    let mut short = whole[..whole.floor_char_boundary(PREFIX)].to_owned();
    short.push_str("…sha256:");
    for byte in hash.as_ref() {
        short.push_str(&format!("{byte:02x}"));
    }
    ProcKey::of_job(short).instance(instance).name
}

/// The kind of a process whose `type` is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DefaultKind {
    /// As `manage_proc`'s document says.
    Periodic,
    /// Periodic if there is a cycle, else resident: `operate_process`'s document says nothing.
    ByCycle,
}

fn read_kind(r: &Reader<'_>, kind: Option<OpKind>, default_kind: DefaultKind, faults: &mut Faults) -> Kind {
    let before = faults.list().len();
    let number = r.integer("type", 0..=2, faults);
    let cycle = seconds(r, "cycle_time", LONGEST_CYCLE, faults);
    if faults.list().len() > before {
        // Other missing fields cannot be determined.
        return Kind::Resident;
    }
    match (number, cycle, default_kind) {
        (Some(1), _, _) | (None, None, DefaultKind::ByCycle) => Kind::Resident,
        (Some(2), _, _) => Kind::Once,
        (_, Some(cycle), _) => Kind::Periodic(Schedule::Every(cycle)),
        (_, None, _) => {
            // An operation that only ends or shows a process does not need its kind.
            if matches!(kind, Some(OpKind::Start | OpKind::Host | OpKind::Restart)) {
                let verb = if number.is_some() { "is" } else { "was left out, which is" };
                let reason =
                    format!("is required, for type {verb} 0 (periodic); type 1 is resident, and 2 runs once");
                faults.add(r.path("cycle_time"), reason);
            }
            Kind::Resident
        }
    }
}

fn read_times(r: &Reader<'_>, faults: &mut Faults) -> Policy {
    let default = Policy::default();
    let begin = seconds(r, "start_check_begin_time", LONGEST_WAIT, faults);
    let end = seconds(r, "start_check_end_time", LONGEST_WAIT, faults);
    // If both are equal, there is a single check, at that time.
    let (check_begin, start_check) = match (begin, end) {
        (begin, Some(end)) if end > begin.unwrap_or_default() => (begin.unwrap_or_default(), end),
        (Some(begin), _) => (default.check_begin, begin),
        (None, _) => (default.check_begin, default.start_check),
    };
    let op_timeout = seconds(r, "op_timeout", LONGEST_WAIT, faults).unwrap_or(default.op_timeout);
    Policy { check_begin, start_check, op_timeout, ..default }
}

/// 0 is what callers send for "not set".
fn seconds(r: &Reader<'_>, field: &str, longest: i64, faults: &mut Faults) -> Option<Duration> {
    let secs = r.integer(field, 0..=longest, faults).and_then(|secs| u64::try_from(secs).ok())?;
    (secs > 0).then(|| Duration::from_secs(secs))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_value_key(name: &str) -> ProcKey {
        key(&Identity { index_key: name.to_owned(), ..Identity::default() }, '/')
    }

    #[test]
    fn a_long_name_becomes_a_prefix_and_a_hash_and_keeps_its_instance() {
        let long = |bytes: usize| format!("/{}", "p".repeat(bytes - 1));
        for plain in [long(1_024), format!("{}#64", long(1_024)), "ä".repeat(512)] {
            assert_eq!(of_value_key(&plain).name, plain, "a name of an earlier version stays");
        }
        for name in [long(1_025), long(4_096), "ä".repeat(4_096), format!("a{}", "語".repeat(4_095))] {
            let key = of_value_key(&name);
            assert!((LONGEST_PLAIN + 1..=ProcKey::LONGEST_WHOLE).contains(&key.name.len()), "{key}");
            assert_eq!(key.check(), Ok(()), "{key}");
            let prefix = key.name.split_once('…').expect("a prefix").0;
            assert!(name.starts_with(prefix) && prefix.len() > 990, "{prefix}");
            assert_eq!(of_value_key(&name), key, "the same in every call");
            assert_ne!(of_value_key(&format!("{name}x")), key);
            assert_eq!(of_value_key(&format!("{name}#2")), key.instance(2));
        }
    }

    /// Stored by agents and servers, so it must not change.
    #[test]
    fn the_hashed_form_of_a_name_never_changes() {
        let name = of_value_key(&"k".repeat(2_000)).name;
        let hash = "1c8123314be794fecd4622dd336c932c8c1592f8e3aa12eebf2e98aba92efd11";
        assert_eq!(name, format!("{}…sha256:{hash}", "k".repeat(1_000)));
    }
}
