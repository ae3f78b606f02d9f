//! Reads the requests of GSE's operation APIs and of `POST /api/v1/operate` into `core`'s `Request`.

use super::batch::{
    LONGEST_NAME, MOST_OPS, ReadElement, Suppliers, finish, read_host, read_targets, sort_out,
};
use super::fault::{Faults, Warnings};
use super::login;
pub use super::names::is_glob;
use super::names::{read_name, read_names};
use super::read::{Reader, RequestBody};
use super::record::Recorder;
use super::typos::{KnownFields, Unread};
use crate::cron::CronRule;
use procfleet_core::change;
use procfleet_core::id::ProcKey;
use procfleet_core::op::OpKind;
use procfleet_core::request::{Request, Target};
use procfleet_core::select::Term;
use procfleet_core::signal::SignalNumber;
use procfleet_core::spec::{
    ConfigFile, Control, Detached, Identity, Instances, Kind, LimitSamples, OnUnhealthy, Policy, Resource,
    RestartPause, Schedule, Shell, Spec, StopSignal,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};
use std::sync::OnceLock;
use std::time::Duration;

pub(super) const LONGEST_PATH: usize = 4_096;
const LONGEST_COMMAND: usize = 32_768;
/// A day, the maximum of every time limit.
pub(super) const LONGEST_WAIT: i64 = 86_400;
/// A year, the maximum of an interval.
pub(super) const LONGEST_CYCLE: i64 = 31_536_000;
/// More than an hour, at one sample every 5 s.
const MOST_SAMPLES: i64 = 1_000;
/// Maximum number of terms of a selection. SQLite refuses an expression that is nested 1,000 deep.
pub(super) const MOST_TERMS: usize = 900;
/// The operations that a caller may ask for.
pub const OP_TYPES: [i64; 8] = [0, 1, 2, 3, 4, 7, 8, 9];
/// The operations of our own API, which includes unregister.
pub const OWN_OP_TYPES: [i64; 9] = [0, 1, 2, 3, 4, 7, 8, 9, 102];

/// The requests of a call, and its warnings.
#[derive(Clone, Debug, PartialEq)]
pub struct OperateCall {
    pub requests: Vec<Request>,
    pub warnings: Warnings,
}

/// The answer to a call that made a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TaskAccepted {
    pub task_id: String,
}

/// `operate_proc_v2`: one process on many hosts.
pub fn operate_proc_v2<'v>(body: impl Into<RequestBody<'v>>) -> Result<OperateCall, Faults> {
    operate(body.into(), Suppliers::None)
}

/// `operate_proc`, the first generation: with suppliers, and usually without a spec.
pub fn operate_proc<'v>(body: impl Into<RequestBody<'v>>) -> Result<OperateCall, Faults> {
    operate(body.into(), Suppliers::Required)
}

fn operate(body: RequestBody<'_>, suppliers: Suppliers) -> Result<OperateCall, Faults> {
    let mut faults = Faults::default();
    let request = Reader::root(body, &mut faults).map(|reader| {
        let kind = read_op_type(&reader, &mut faults);
        read_request(&reader, kind, suppliers, &mut faults)
    });
    operate_call(request.into_iter().collect(), faults)
}

/// `register_proc_info`: makes a spec known. The first generation's document requires limits.
pub fn register_proc_info<'v>(body: impl Into<RequestBody<'v>>) -> Result<OperateCall, Faults> {
    keep_info(body.into(), OpKind::Register, Suppliers::Required)
}

/// `update_proc_info`: like `register_proc_info`, or replaces the stored spec. The supplier is optional.
pub fn update_proc_info<'v>(body: impl Into<RequestBody<'v>>) -> Result<OperateCall, Faults> {
    keep_info(body.into(), OpKind::Update, Suppliers::Optional)
}

fn keep_info(body: RequestBody<'_>, kind: OpKind, suppliers: Suppliers) -> Result<OperateCall, Faults> {
    let mut faults = Faults::default();
    let request = Reader::root(body, &mut faults).map(|reader| {
        reader.require("spec", &mut faults);
        read_request(&reader, kind, suppliers, &mut faults)
    });
    operate_call(request.into_iter().collect(), faults)
}

/// `unregister_proc_info`: only a name and hosts.
pub fn unregister_proc_info<'v>(body: impl Into<RequestBody<'v>>) -> Result<OperateCall, Faults> {
    let mut faults = Faults::default();
    let request = Reader::root(body, &mut faults).map(|reader| {
        let (proc, _) = read_meta(&reader, &mut faults);
        let targets = read_targets(&reader, Suppliers::Required, &mut faults);
        Request { proc, kind: OpKind::Unregister, spec: None, targets, refused: None }
    });
    operate_call(request.into_iter().collect(), faults)
}

/// `operate_proc_multi`: many such requests in one task.
pub fn operate_proc_multi<'v>(body: impl Into<RequestBody<'v>>) -> Result<OperateCall, Faults> {
    const LIST: &str = "proc_operate_req";
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    reader.require_filled_list(LIST, &mut faults);
    let elements = reader.elements(LIST, &mut faults).into_iter().map(read_element).collect();
    let requests = sort_out(elements, &mut faults, |index| format!("{LIST}[{index}]"));
    let warnings = faults.take_warnings();
    if faults.is_empty() { Ok(OperateCall { requests, warnings }) } else { Err(faults) }
}

fn read_element(element: Result<Reader<'_>, Faults>) -> ReadElement<Request> {
    let reader = match element {
        Ok(reader) => reader,
        Err(own) => return (None, own),
    };
    let mut own = Faults::default();
    let kind = read_op_type(&reader, &mut own);
    let request = read_request(&reader, kind, Suppliers::None, &mut own);
    let named = !request.proc.namespace.is_empty() && !request.proc.name.is_empty();
    (named.then_some(request), own)
}

/// The request of `POST /api/v1/operate`.
#[derive(Clone, Debug, PartialEq)]
pub struct Selected {
    /// Its name may be a glob. Without targets yet.
    pub request: Request,
    /// More names or globs.
    pub names: Vec<String>,
    pub targets: OperateTargets,
    pub sending: Sending,
    pub warnings: Warnings,
}

/// The targets of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum OperateTargets {
    /// The hosts that these terms select.
    Select(Vec<Term>),
    Targets(Vec<Target>),
    /// Every host that has the process.
    HostsOfProc,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    ForReal,
    /// A dry run: nothing is stored or sent.
    DryRun,
}

/// `POST /api/v1/operate`: processes by names and globs, on the hosts that are named, selected or known to
/// have them.
pub fn operate_selected<'v>(body: impl Into<RequestBody<'v>>) -> Result<Selected, Faults> {
    let known = ["meta", "names", "op_type", "spec", "change", "select", "hosts", "agent_id_list", "dry_run"];
    let mut faults = Faults::default();
    let made = Reader::root(body, &mut faults).map(|reader| {
        let kind = read_own_op_type(&reader, &mut faults);
        let (proc, labels) = read_meta(&reader, &mut faults);
        let mut spec = read_own_spec(&reader, kind, labels, &mut faults);
        let change = read_change(&reader, spec.is_some(), &mut faults);
        if let Some(spec) = &mut spec {
            spec.change = change;
            check_size(spec, reader.path("spec"), &mut faults);
        }
        // Without these the call means every host, and is carried out.
        for field in ["select", "hosts", "agent_id_list", "dry_run"] {
            reader.refuse_null(field, &mut faults);
        }
        let names = read_names(&reader, &proc.name, &mut faults);
        let targets = read_operate_targets(&reader, &mut faults);
        let sending = if reader.flag("dry_run", &mut faults) { Sending::DryRun } else { Sending::ForReal };
        reader.only(&known, &login::FIELDS, &mut faults);
        let request = Request { proc, kind, spec, targets: Vec::new(), refused: None };
        Selected { request, names, targets, sending, warnings: Warnings::default() }
    });
    let warnings = faults.take_warnings();
    match made {
        Some(made) if faults.is_empty() => Ok(Selected { warnings, ..made }),
        _ => Err(faults),
    }
}

/// The fields of the spec that change on hosts that have one stored.
fn read_change(reader: &Reader<'_>, has_spec: bool, faults: &mut Faults) -> Vec<String> {
    let mut change: Vec<String> = Vec::new();
    for (path, name) in reader.texts("change", faults) {
        match change::FIELDS.contains(&name) {
            true if change.iter().any(|known| known == name) => {}
            true => change.push(name.to_owned()),
            false => {
                faults.add(
                    path,
                    format!("{name:?} is no field of a spec; there are {}", change::FIELDS.join(", ")),
                );
            }
        }
    }
    if !change.is_empty() && !has_spec {
        faults.add("change", "names fields of spec, and there is no spec");
    }
    change
}

fn read_operate_targets(reader: &Reader<'_>, faults: &mut Faults) -> OperateTargets {
    const FIELDS: [&str; 3] = ["select", "hosts", "agent_id_list"];
    let within = [("select", MOST_TERMS), ("agent_id_list", MOST_OPS), ("hosts", MOST_OPS)]
        .map(|(field, most)| reader.at_most(field, most, faults));
    if within.contains(&false) {
        return OperateTargets::HostsOfProc;
    }
    let mut select = Vec::new();
    for (path, text) in reader.texts("select", faults) {
        match text.parse() {
            Ok(term) => select.push(term),
            Err(reason) => faults.add(path, format!("{reason}")),
        }
    }
    let agents = read_agent_ids(reader, faults);
    let hosts = reader.objects("hosts", faults);
    let hosts: Vec<Target> =
        hosts.iter().filter_map(|host| read_host(host, faults)).map(Target::Host).collect();
    let given: Vec<&str> = FIELDS.into_iter().filter(|field| reader.has(field)).collect();
    // An empty list does not mean every host.
    for field in given.iter().filter(|field| reader.is_empty_list(field)) {
        faults.add(*field, "must not be empty; leave it out for every host that has the process");
    }
    if let [first, others @ ..] = given.as_slice()
        && !others.is_empty()
    {
        faults.add(*first, format!("cannot be combined with {}", others.join(" and ")));
    }
    match (select.is_empty(), agents.is_empty() && hosts.is_empty()) {
        (false, _) => OperateTargets::Select(select),
        (true, false) => OperateTargets::Targets(agents.into_iter().chain(hosts).collect()),
        (true, true) => OperateTargets::HostsOfProc,
    }
}

fn operate_call(requests: Vec<Request>, mut faults: Faults) -> Result<OperateCall, Faults> {
    let requests = finish(requests, &mut faults, |_| String::new());
    let warnings = faults.take_warnings();
    if faults.is_empty() { Ok(OperateCall { requests, warnings }) } else { Err(faults) }
}

fn read_request(reader: &Reader<'_>, kind: OpKind, suppliers: Suppliers, faults: &mut Faults) -> Request {
    let (proc, labels) = read_meta(reader, faults);
    let targets = read_targets(reader, suppliers, faults);
    let spec = read_own_spec(reader, kind, labels, faults);
    if let Some(spec) = &spec {
        check_size(spec, reader.path("spec"), faults);
    }
    Request { proc, kind, spec, targets, refused: None }
}

/// Without a spec the agent uses the one it has stored; several callers rely on it. Its size is checked by
/// the caller, who may add fields.
fn read_own_spec(
    reader: &Reader<'_>,
    kind: OpKind,
    labels: Vec<(String, String)>,
    faults: &mut Faults,
) -> Option<Spec> {
    reader.optional_object("spec", faults).map(|spec| {
        for Unread { path, meant } in spec.unread("spec", known_fields) {
            // GSE's callers send additional fields, so only fields that look like a typo cause a warning.
            if let Some(meant) = meant {
                faults.warn(path, format!("unknown and not used; did you mean {meant}?"));
            }
        }
        let mut spec = read_spec(&spec, kind, faults);
        spec.labels = labels.into_iter().collect();
        spec
    })
}

/// All unknown fields of an `operate_proc_v2` request.
pub fn unread_fields(request: &Map<String, Value>) -> Vec<Unread> {
    known_fields().unread(request, "", "")
}

/// The fields that the parsing code reads: it runs against a recorder, as for the API's document.
fn known_fields() -> &'static KnownFields {
    static KNOWN: OnceLock<KnownFields> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let mut known = KnownFields::default();
        // The parsing code branches on these two. register_proc_info reads the same fields and requires more
        // of them.
        for auto_type in 0..=2 {
            for op_type in OP_TYPES {
                let recorder = Recorder::with(&[("op_type", op_type), ("auto_type", auto_type)]);
                // Only the recording is of interest; an empty request always fails to parse.
                let _ = operate_proc_v2(RequestBody::from(&recorder));
                known.add(&recorder.into_record());
            }
        }
        known
    })
}

pub(super) fn check_size(spec: &Spec, path: String, faults: &mut Faults) {
    let size = serde_json::to_vec(spec).map_or(usize::MAX, |json| json.len());
    if size > Spec::LARGEST {
        faults.add(path, format!("has {size} bytes, at most {} are allowed", Spec::LARGEST));
    }
}

pub(super) fn read_meta(reader: &Reader<'_>, faults: &mut Faults) -> (ProcKey, Vec<(String, String)>) {
    let Some(meta) = reader.object("meta", faults) else {
        return (ProcKey { namespace: String::new(), name: String::new() }, Vec::new());
    };
    let proc =
        ProcKey { namespace: read_name(&meta, "namespace", faults), name: read_name(&meta, "name", faults) };
    (proc, meta.labels("labels", faults))
}

fn read_op_type(reader: &Reader<'_>, faults: &mut Faults) -> OpKind {
    // Absent is 0: callers that leave out zero values mean start. `null` is refused: its sender may have
    // meant another operation.
    reader.refuse_null("op_type", faults);
    let Some(number) = reader.choice("op_type", &OP_TYPES, faults) else { return OpKind::Start };
    u64::try_from(number).ok().and_then(OpKind::from_op_type).unwrap_or_else(|| {
        faults.add_unknown_op(reader.path("op_type"), no_operation(number));
        OpKind::Start
    })
}

fn read_own_op_type(reader: &Reader<'_>, faults: &mut Faults) -> OpKind {
    reader.refuse_null("op_type", faults);
    let Some(number) = reader.choice("op_type", &OWN_OP_TYPES, faults) else { return OpKind::Start };
    let known = Some(number).filter(|number| OWN_OP_TYPES.contains(number));
    known.and_then(|number| OpKind::from_number(u64::try_from(number).ok()?)).unwrap_or_else(|| {
        let reason = format!("{}, and here 102 unregister", no_operation(number));
        faults.add_unknown_op(reader.path("op_type"), reason);
        OpKind::Start
    })
}

pub(super) fn no_operation(number: i64) -> String {
    format!(
        "{number} is no operation; there are 0 start, 1 stop, 2 query, 3 host, 4 unhost, 7 restart, 8 reload, 9 kill"
    )
}

fn read_agent_ids(reader: &Reader<'_>, faults: &mut Faults) -> Vec<Target> {
    let mut agents = Vec::new();
    for (path, text) in reader.texts("agent_id_list", faults) {
        match text.parse() {
            Ok(agent) => agents.push(Target::Agent(agent)),
            Err(reason) => faults.add(path, format!("{reason}")),
        }
    }
    agents
}

fn read_spec(spec: &Reader<'_>, kind: OpKind, faults: &mut Faults) -> Spec {
    // A query may name just enough to find the process; callers send empty texts for the rest.
    let lenient = kind == OpKind::Query;
    let section = |field: &str, faults: &mut Faults| match lenient {
        true => spec.optional_object(field, faults),
        false => spec.object(field, faults),
    };
    let identity =
        section("identity", faults).map(|r| read_identity(&r, lenient, faults)).unwrap_or_default();
    let control = section("control", faults).map(|r| read_own_control(&r, faults)).unwrap_or_default();
    // Only the document of register_proc_info requires limits.
    let resource = match kind {
        OpKind::Register => spec.object("resource", faults),
        _ => spec.optional_object("resource", faults),
    };
    let resource = resource.map(|r| read_resource(&r, kind, faults)).unwrap_or_default();
    // The gateway's name for it is `monitor_policy`; the older one is accepted everywhere too.
    let policy_name = spec.name_of("alive_monitor_policy", "monitor_policy");
    let policy = section(policy_name, faults).map(|r| read_policy(&r, lenient, faults)).unwrap_or_default();
    let warn = spec.optional_object("warn_report_policy", faults);
    let report_id = warn.and_then(|r| r.integer("report_id", i64::MIN..=i64::MAX, faults));
    let configmap =
        spec.objects("configmap", faults).iter().filter_map(|r| read_config_file(r, faults)).collect();
    // Our own field; GSE has no equivalent.
    let instances = spec.integer("instance_num", 1..=i64::from(Instances::MAX), faults);
    let instances = instances.and_then(|n| u32::try_from(n).ok()).map_or_else(Instances::default, Instances);
    Spec { identity, control, resource, policy, report_id, configmap, instances, ..Spec::default() }
}

/// Callers send an entry without a path for "none".
fn read_config_file(r: &Reader<'_>, faults: &mut Faults) -> Option<ConfigFile> {
    let path = r.text("path", LONGEST_PATH, faults);
    let md5 = r.text("md5", 64, faults);
    if !md5.is_empty() && (md5.len() != 32 || !md5.bytes().all(|byte| byte.is_ascii_hexdigit())) {
        faults.add(r.path("md5"), "must be 32 hexadecimal digits");
    }
    if path.is_empty() {
        if !md5.is_empty() {
            faults.warn(r.path("md5"), "not used: the entry has no path");
        }
        return None;
    }
    if !path.starts_with('/') {
        faults.add(r.path("path"), format!("{path:?} is not an absolute path"));
    }
    Some(ConfigFile { path, md5: md5.to_ascii_lowercase() })
}

fn read_identity(r: &Reader<'_>, lenient: bool, faults: &mut Faults) -> Identity {
    let needed = |field: &str, longest: usize, faults: &mut Faults| match lenient {
        true => r.text(field, longest, faults),
        false => r.required_text(field, longest, faults),
    };
    // The field is required, but may be empty for a process without a pid file.
    if !lenient {
        r.require("pid_path", faults);
    }
    let index_key = r.text("index_key", LONGEST_PATH, faults);
    if !index_key.trim().is_empty() {
        faults.warn(r.path("index_key"), "reserved, the process is known by its namespace and name");
    }
    let mut identity = Identity {
        proc_name: needed("proc_name", LONGEST_NAME, faults),
        setup_path: needed("setup_path", LONGEST_PATH, faults),
        pid_path: r.text("pid_path", LONGEST_PATH, faults),
        config_path: r.text("config_path", LONGEST_PATH, faults),
        log_path: r.text("log_path", LONGEST_PATH, faults),
        user: needed("user", LONGEST_NAME, faults),
        index_key,
    };
    if !lenient {
        warn_of_relative_paths(r, &mut identity, ["pid_path", "config_path", "log_path"], faults);
    }
    identity
}

/// Warns of relative paths where the document wants absolute ones, and says what is done instead. A relative
/// pid_path is left out of the spec, so that every later look finds the process in the same way. `fields` are
/// the names of the pid file, the configuration and the log in the request.
pub(super) fn warn_of_relative_paths(
    r: &Reader<'_>,
    identity: &mut Identity,
    fields: [&str; 3],
    faults: &mut Faults,
) {
    let Identity { pid_path, config_path, log_path, .. } = &*identity;
    let instead = [
        "not used, the process is found by proc_name",
        "commands get it as it is, and run in setup_path",
        "not used, the output goes to the agent's folder",
    ];
    for ((field, path), instead) in fields.into_iter().zip([pid_path, config_path, log_path]).zip(instead) {
        if !path.is_empty() && !is_absolute(path) {
            faults.warn(r.path(field), format!("is not an absolute path: {instead}"));
        }
    }
    if !is_absolute(&identity.pid_path) {
        identity.pid_path.clear();
    }
}

/// Also as Windows has it: JOB's callers name such hosts in the same call.
fn is_absolute(path: &str) -> bool {
    let drive = matches!(path.as_bytes(), [letter, b':', b'/' | b'\\', ..] if letter.is_ascii_alphabetic());
    path.starts_with(['/', '\\']) || drive
}

pub(super) fn read_control(r: &Reader<'_>, faults: &mut Faults) -> Control {
    let mut command = |field: &str| {
        let text = r.text(field, LONGEST_COMMAND, faults);
        if text.trim().is_empty() { String::new() } else { text }
    };
    Control {
        start_cmd: command("start_cmd"),
        stop_cmd: command("stop_cmd"),
        restart_cmd: command("restart_cmd"),
        reload_cmd: command("reload_cmd"),
        kill_cmd: command("kill_cmd"),
        version_cmd: command("version_cmd"),
        health_cmd: command("health_cmd"),
        shell: Shell::Sh,
        ..Control::default()
    }
}

/// With procfleet's own fields. JOB's calls do not have them.
fn read_own_control(r: &Reader<'_>, faults: &mut Faults) -> Control {
    let control = read_control(r, faults);
    let stop_signal = read_signal(r, "stop_signal", faults);
    if stop_signal.is_some_and(SignalNumber::ends_nothing) {
        faults.add(r.path("stop_signal"), "does not end a process");
    }
    let reload_signal = read_signal(r, "reload_signal", faults);
    if reload_signal.is_some_and(|signal| signal == SignalNumber::KILL || signal.halts_or_wakes()) {
        faults.add(r.path("reload_signal"), "cannot make a process read its configuration");
    }
    let stop_signal = stop_signal.map_or_else(StopSignal::default, StopSignal);
    Control { stop_signal, reload_signal, ..control }
}

/// A signal by name or number; absent, empty and 0 are none.
fn read_signal(r: &Reader<'_>, field: &str, faults: &mut Faults) -> Option<SignalNumber> {
    let text = r.text_or_integer(field, LONGEST_NAME, faults);
    if matches!(text.trim(), "" | "0") {
        return None;
    }
    match text.parse() {
        Ok(signal) => Some(signal),
        Err(error) => {
            faults.add(r.path(field), format!("is {text:?}, {error}"));
            None
        }
    }
}

fn read_resource(r: &Reader<'_>, kind: OpKind, faults: &mut Faults) -> Resource {
    for field in ["cpu", "mem"] {
        if kind == OpKind::Register {
            r.require(field, faults);
        }
    }
    let mut per_cent = |field: &str| r.number(field, 0.0..=100.0, faults).filter(|limit| *limit > 0.0);
    let (cpu, mem) = (per_cent("cpu"), per_cent("mem"));
    let fd = r.integer("fd", 0..=i64::MAX, faults).and_then(|fd| u64::try_from(fd).ok()).filter(|fd| *fd > 0);
    for reserved in ["disk", "net"] {
        if let Some(sent @ 1..) = r.integer(reserved, 0..=i64::MAX, faults) {
            faults.warn(r.path(reserved), format!("reserved, no limit is enforced ({sent} was sent)"));
        }
    }
    Resource { cpu, mem, fd }
}

/// Both spellings are in use.
const RULES: [&str; 2] = ["crontab_rule", "crotab_rule"];

/// The schedule of a periodic process: a rule or an interval. `None` comes with a fault.
fn read_schedule(r: &Reader<'_>, faults: &mut Faults) -> Option<Schedule> {
    let before = faults.list().len();
    let texts = RULES.map(|field| (field, r.text(field, LONGEST_NAME, faults).trim().to_owned()));
    let mut rules = texts.into_iter().filter(|(_, text)| !text.is_empty());
    let rule = rules.next();
    if let (Some((field, text)), Some((other, second))) = (&rule, rules.next())
        && *text != second
    {
        faults
            .add(r.path(field), format!("is {text:?}, and {other} is {second:?}: only one can be followed"));
    }
    // 0 is what callers send for "not set".
    let cycle = r.integer("cycle_time", 0..=LONGEST_CYCLE, faults).and_then(|secs| u64::try_from(secs).ok());
    match (rule, cycle.filter(|secs| *secs > 0)) {
        (Some((field, text)), None) => {
            if let Err(reason) = CronRule::parse(&text) {
                faults.add(r.path(field), reason.to_string());
            }
            Some(Schedule::Cron(text))
        }
        (None, Some(secs)) => Some(Schedule::Every(Duration::from_secs(secs))),
        (Some((field, _)), Some(_)) => {
            faults.add(r.path(field), "cannot be combined with cycle_time: only one can say when it runs");
            None
        }
        // A field that could not be read has its own fault.
        (None, None) if faults.list().len() > before => None,
        (None, None) => {
            faults.add(
                r.path("auto_type"),
                "is 0 (periodic), which needs crontab_rule, or cycle_time in seconds",
            );
            None
        }
    }
}

fn read_policy(r: &Reader<'_>, lenient: bool, faults: &mut Faults) -> Policy {
    if !lenient {
        r.require("auto_type", faults);
    }
    let auto_type = r.integer("auto_type", 0..=2, faults);
    let schedule = match auto_type {
        Some(0) if !lenient => read_schedule(r, faults),
        // It is used only with auto_type 0, and never by a query.
        _ => {
            for rule in RULES {
                r.text(rule, LONGEST_NAME, faults);
            }
            r.integer("cycle_time", i64::MIN..=i64::MAX, faults);
            None
        }
    };
    let kind = match (auto_type, schedule) {
        (_, Some(schedule)) => Kind::Periodic(schedule),
        (Some(2), None) => Kind::Once,
        (_, None) => Kind::Resident,
    };
    let default = Policy::default();
    // 0 is what callers send for "not set"; a check or limit of 0 s would always fail.
    let mut secs = |field: &str, default: Duration| {
        let given = r.integer(field, 0..=LONGEST_WAIT, faults).and_then(|secs| u64::try_from(secs).ok());
        given.filter(|secs| *secs > 0).map_or(default, Duration::from_secs)
    };
    // Here 0 means that the process is never killed, as if the field was not sent.
    let kill_after = secs("kill_after", Duration::ZERO);
    Policy {
        kind,
        kill_after: (!kill_after.is_zero()).then_some(kill_after),
        start_check: secs("start_check_secs", default.start_check),
        stop_check: secs("stop_check_secs", default.stop_check),
        start_interval: secs("start_interval", default.start_interval),
        op_timeout: secs("op_timeout", default.op_timeout),
        start_retries: r
            .integer("start_retries", 0..=1_000_000, faults)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| *n > 0)
            .unwrap_or(default.start_retries),
        // Our own fields; GSE has no equivalents.
        limit_samples: r
            .integer("limit_samples", 0..=MOST_SAMPLES, faults)
            .and_then(|n| u32::try_from(n).ok())
            .filter(|n| *n > 0)
            .map_or(default.limit_samples, LimitSamples),
        restart_pause: read_word(
            r,
            "restart_pause",
            [("constant", RestartPause::Constant), ("growing", RestartPause::Growing)],
            faults,
        ),
        on_unhealthy: read_word(
            r,
            "on_unhealthy",
            [("tell", OnUnhealthy::Tell), ("restart", OnUnhealthy::Restart)],
            faults,
        ),
        detached: read_word(r, "detached", [("end", Detached::End), ("keep", Detached::Keep)], faults),
        ..default
    }
}

/// One of two words; absent or empty is the default.
fn read_word<T: Copy + Default>(
    r: &Reader<'_>,
    field: &str,
    words: [(&str, T); 2],
    faults: &mut Faults,
) -> T {
    let text = r.text(field, LONGEST_NAME, faults);
    let text = text.trim();
    let known = words.iter().find(|(word, _)| *word == text);
    if known.is_none() && !text.is_empty() {
        let [(one, _), (other, _)] = words;
        faults.add(r.path(field), format!("is {text:?}, must be {one:?} or {other:?}"));
    }
    known.map(|(_, value)| *value).unwrap_or_default()
}
