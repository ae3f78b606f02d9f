//! The messages of outcomes. Callers may match on GSE's own wording, so our messages begin with it where it
//! is known.

use super::{CommandEnd, Event, OtherAccount};
use crate::op::OpKind;
use crate::process::{Cause, Exit, Process};
use crate::spec::Spec;
use crate::stagger;
use std::time::Duration;

pub(super) const SUCCESS: &str = "success";

pub(super) fn already_running(spec: &Spec, name: &str) -> String {
    format!("no need to start the process {}({name}) repeatedly that is already running", subject(spec, name))
}

pub(super) fn not_running(kind: OpKind, spec: &Spec, name: &str, cause: &Cause) -> String {
    let base = format!("no need to {} the process({}) that is not running", kind.verb(), subject(spec, name));
    if is_odd_absence(cause) || *cause == Cause::NoIdentity { format!("{base}: {cause}") } else { base }
}

/// Whether an operator should know why the process was not found. A missing pid file, or one of a dead
/// process, is normal for a stopped process.
pub(super) fn is_odd_absence(cause: &Cause) -> bool {
    match cause {
        Cause::NoPidFile { .. }
        | Cause::DeadPid { .. }
        | Cause::NoSuchName { .. }
        | Cause::NoRun
        | Cause::NoIdentity => false,
        Cause::BadPidFile { .. }
        | Cause::Stranger { .. }
        | Cause::AnotherAccounts { .. }
        | Cause::AnotherProcs { .. }
        | Cause::AnotherAgents { .. }
        | Cause::Untrusted { .. } => true,
    }
}

pub(super) fn spec_of_another(user: &str) -> String {
    format!("the spec that this host has for the process is for user {user:?}, which the app may not use")
}

pub(super) fn sent_for_another(user: &str) -> String {
    format!("the spec is for user {user:?}, which the app may not use")
}

pub(super) fn process_of_another(other: &OtherAccount) -> String {
    format!("pid {} runs as user {:?}, which the app may not use", other.pid, other.user)
}

pub(super) const ALREADY_REGISTERED: &str = "Fail to register, for the process info already exists.";

pub(super) fn not_registered(name: &str) -> String {
    format!("no need to unregister the process({name}) that is not registered")
}

pub(super) fn not_of_a_proc(kind: OpKind) -> String {
    format!("{} is about a namespace, and not about one process of it", kind.verb())
}

pub(super) fn no_command(kind: OpKind, field: &str) -> String {
    format!("{} is not possible: the spec has no {field}", kind.verb())
}

pub(super) fn no_spec(kind: OpKind) -> String {
    format!("{} is not possible: this agent has no spec for the process and none was sent", kind.verb())
}

pub(super) fn no_identity() -> String {
    "the agent does not know this process, and spec.identity names neither a pid_path nor a proc_name with a \
     setup_path to find it by"
        .to_owned()
}

pub(super) fn command_failed(field: &str, exit: Exit, output: &str) -> String {
    format!("Script exit code non-zero. Error message: [{}] ({field} {exit})", output.trim_end())
}

/// The command of a start or restart that had succeeded.
pub(super) fn command_failed_later(field: &str, op: Option<OpKind>, exit: Exit, output: &str) -> String {
    let base = match op {
        Some(kind) => format!("{field} {exit} after the {} had succeeded", kind.verb()),
        None => format!("{field} {exit} after the agent had started the process again"),
    };
    with_output(base, output)
}

pub(super) fn command_timeout(field: &str, limit: Duration, output: &str) -> String {
    let base =
        format!("{field} did not end within {} (op_timeout) and was ended with all it started", secs(limit));
    with_output(base, output)
}

/// A scheduled run took too long and could not be killed.
pub(super) fn run_not_ended(limit: Duration, pid: u32) -> String {
    format!(
        "start_cmd did not end within {} (op_timeout), and pid {pid} was killed and is still there",
        secs(limit)
    )
}

/// The start command took too long, and the process was not seen meanwhile.
pub(super) fn launch_timeout(field: &str, limit: Duration, missing: Option<&Cause>, output: &str) -> String {
    let base = command_timeout(field, limit, "");
    let base = missing.map_or(base.clone(), |cause| format!("{base}; {cause}"));
    with_output(base, output)
}

pub(super) fn post_check(kind: OpKind, spec: &Spec, name: &str, why: &str, output: &str) -> String {
    let base = format!(
        "{} process ({}) failed, for post-check status not alive: {why}",
        kind.verb(),
        subject(spec, name)
    );
    with_output(base, output)
}

/// Why a start failed whose process was there for a while.
pub(super) fn died_in_check(pid: u32, exit: Exit) -> String {
    format!("pid {pid} {exit}, and no other was there at the end of the check (start_check_secs)")
}

/// A failed launch has left this process running.
pub(super) fn goes_on(message: &str, pid: u32) -> String {
    format!("{message}; pid {pid} is running")
}

/// A failed launch had started this process, which was ended.
pub(super) fn was_ended(message: &str, pid: u32) -> String {
    format!(
        "{message}; pid {pid}, which it had started, was not recognised and was ended with all that was left of it"
    )
}

/// Why a start failed before the end of its check.
pub(super) fn was_command(field: &str, missing: &str) -> String {
    format!("{field} was the process itself and has ended with all it started; {missing}")
}

pub(super) fn still_alive(
    kind: OpKind,
    spec: &Spec,
    name: &str,
    pid: u32,
    limit: Duration,
    note: &str,
) -> String {
    let base = format!(
        "{} process ({}) failed, for post-check status still alive: pid {pid} is running {} (stop_check_secs) \
         after it was told to end",
        kind.verb(),
        subject(spec, name),
        secs(limit)
    );
    if note.is_empty() { base } else { format!("{base}; {note}") }
}

/// Callers may match on the word of success, so the message begins with it.
pub(super) fn success_but(note: &str) -> String {
    format!("{SUCCESS}: {note}")
}

pub(super) fn had_to_be_killed(pid: u32, limit: Duration, note: &str) -> String {
    let base = format!(
        "pid {pid} was still running {} (kill_after) after it was told to end, and had to be killed",
        secs(limit)
    );
    if note.is_empty() { base } else { format!("{base}; {note}") }
}

/// A command that was run for each of several instances has left one of them running.
pub(super) fn missed_by_command(pid: u32, field: &str) -> String {
    format!("pid {pid} was still running after {field}, was told to end, and had to be killed")
}

/// Something that the process had started cannot be ended.
pub(super) fn left_behind(kind: OpKind, spec: &Spec, name: &str, pid: u32, note: &str) -> String {
    let base = format!(
        "{} process ({}) failed, for post-check status still alive: the process is gone, but pid {pid}, which belonged to \
         it, was killed and is still there",
        kind.verb(),
        subject(spec, name)
    );
    if note.is_empty() { base } else { format!("{base}; {note}") }
}

/// The message about a failed stop command whose process is still alive.
pub(super) fn command_note(field: &str, end: Option<&CommandEnd>) -> String {
    match end {
        None => format!("{field} ran out of time and was ended"),
        Some(CommandEnd::Exited { exit: Exit::Code(0), output }) if output.trim().is_empty() => String::new(),
        Some(CommandEnd::Exited { exit, output }) => with_output(format!("{field} {exit}"), output),
        Some(CommandEnd::NotStarted { reason, .. }) => not_run(field, reason),
    }
}

pub(super) fn overtaken(kind: OpKind, by: OpKind) -> String {
    format!("{} was cancelled: a later {} overtook it", kind.verb(), by.verb())
}

pub(super) fn cancelled(kind: OpKind) -> String {
    format!("cancelled: {} had not begun, and nothing was done", kind.verb())
}

pub(super) fn cancelled_under_way(kind: OpKind) -> String {
    format!(
        "cancelled: {} was under way; what it has begun goes on, and the status of the process tells how it ended",
        kind.verb()
    )
}

pub(super) fn came_late(kind: OpKind) -> String {
    format!(
        "{} was not begun: the host was so busy that it came to the process after its deadline",
        kind.verb()
    )
}

pub(super) fn expired(kind: OpKind) -> String {
    format!("{} was not begun: other operations on the process took until its deadline", kind.verb())
}

pub(super) fn queue_full(kind: OpKind, limit: usize) -> String {
    format!("{} was not begun: {limit} operations already wait for this process", kind.verb())
}

/// The state of the process when the agent came back.
#[derive(Clone, Copy)]
pub(super) enum Left {
    Process(u32),
    /// The start command, which has not brought the process yet.
    Command(u32),
    Nothing,
}

pub(super) fn interrupted(kind: OpKind, left: Left) -> String {
    let seen = match left {
        Left::Process(pid) => format!("is running now with pid {pid}"),
        Left::Command(pid) => {
            format!("is not running yet: its start command is still at work with pid {pid}")
        }
        Left::Nothing => "is not running now".to_owned(),
    };
    format!(
        "interrupted: the agent ended while {} was under way and does not repeat it; the process {seen}",
        kind.verb()
    )
}

/// Why a start by the previous agent process is counted.
pub(super) const CUT_OFF: &str = "its start was cut off by the end of the agent";

/// `pid`: the start command, if it is still running.
pub(super) fn start_cut_off(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => {
            format!("the agent ended during its start; the start command is still at work with pid {pid}")
        }
        None => {
            "the agent ended during its start; the start command has ended, and its process has not been \
                 found yet"
                .to_owned()
        }
    }
}

/// A program that has replaced itself, and whose old processes have not ended yet.
pub(super) fn generations(older: &[Process]) -> String {
    let pids: Vec<String> = older.iter().map(|process| process.pid.to_string()).collect();
    match pids.as_slice() {
        [pid] => format!("pid {pid}, whose place it took, is still running"),
        _ => format!("pids {}, whose place it took, are still running", pids.join(", ")),
    }
}

pub(super) fn gave_up(restarts: u32, last: &str) -> String {
    let times = if restarts == 1 { "1 restart".to_owned() } else { format!("{restarts} restarts in a row") };
    format!("gave up after {times} without a stable run; the last one: {last}; to retry, send start or host")
}

pub(super) fn no_way_back(last: &str) -> String {
    format!(
        "{last}; the spec has no start_cmd to start it again; to retry, send start or host with a start_cmd"
    )
}

pub(super) const WAITING: &str = "waiting for its next run";

pub(super) const RUN_OVER: &str = "the run has ended meanwhile";

pub(super) fn no_plan(reason: &str) -> String {
    format!("its schedule cannot be followed: {reason}; to retry, send start or host")
}

pub(super) fn not_run(field: &str, reason: &str) -> String {
    format!("{field} could not be run: {reason}")
}

/// Why the agent ended it, as the event says it.
pub(super) fn over_limit(event: &Event) -> String {
    format!("it was ended: {event}")
}

pub(super) fn was_unhealthy(reason: &str) -> String {
    format!("it was ended: it was unhealthy: {reason}")
}

/// Why a restart is waited for.
pub(super) fn retry(restarts: u32, most: u32, last: &str) -> String {
    format!("restart {restarts} of {most}; {last}")
}

pub(super) fn staggered(cause: stagger::StaggerCause) -> &'static str {
    match cause {
        stagger::StaggerCause::Boot => "the host has just booted",
        stagger::StaggerCause::AgentRestart => "the agent has just come back, and many are to be started",
        stagger::StaggerCause::Simultaneous => "many are to be started again at this moment",
    }
}

pub(super) fn starts_in(wait: Duration, why: &str) -> String {
    let secs = wait.as_millis().div_ceil(1_000);
    if why.is_empty() { format!("starts in {secs} s") } else { format!("starts in {secs} s: {why}") }
}

fn with_output(base: String, output: &str) -> String {
    match output.trim_end() {
        "" => base,
        output => format!("{base}; output: [{output}]"),
    }
}

fn subject<'a>(spec: &'a Spec, name: &'a str) -> &'a str {
    if spec.identity.proc_name.is_empty() { name } else { &spec.identity.proc_name }
}

fn secs(limit: Duration) -> String {
    format!("{} s", limit.as_secs_f64())
}
