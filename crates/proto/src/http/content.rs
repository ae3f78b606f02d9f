//! The `content` of a result, in GSE 2's shape.
//!
//! Callers parse it even on failure and count its elements, so there is always exactly one `value`, or one
//! `process` with one `instance`, unless the spec itself asks for several.

use super::result::About;
use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use procfleet_core::op::{Content, Instance, Outcome, ProcStatus};
use procfleet_core::spec::JobFacts;
use serde_json::{Value, json};

pub fn render(about: About<'_>, outcome: &Outcome) -> Value {
    match &outcome.content {
        Content::Control { hosted, proc_name, setup_path } => {
            // What the caller sent is what it expects to see; without it, what the agent used.
            let (sent, none) = (about.spec, JobFacts::default());
            let job = sent.map_or(&none, |spec| &spec.job);
            let (proc_name, setup_path) =
                sent.map_or((proc_name, setup_path), |s| (&s.identity.proc_name, &s.identity.setup_path));
            json!({"value": [{
                "procName": proc_name,
                "setupPath": setup_path,
                "funcID": job.func_id,
                "instanceID": job.instance_id,
                "result": outcome.message,
                "isAuto": hosted,
            }]})
        }
        Content::Status(status) => self::status(about, status),
    }
}

fn status(about: About<'_>, status: &ProcStatus) -> Value {
    let zone = Offset::from_seconds(status.utc_offset_secs).unwrap_or(Offset::UTC);
    let ip = about.target.host().map(|host| host.ip.to_string()).unwrap_or_default();
    let seen = std::iter::once(&status.instance).chain(&status.more);
    let instances: Vec<Value> = seen.map(|seen| instance(about, status, seen.as_ref(), zone)).collect();
    json!({
        "ip": ip,
        "bk_agent_id": about.agent.map_or("", |agent| agent.as_str()),
        "utctime": clock(status.reported_at, zone, "%Y-%m-%d %H:%M:%S"),
        "utctime2": clock(status.reported_at, Offset::UTC, "%Y-%m-%d %H:%M:%S"),
        "timezone": status.utc_offset_secs / 3600,
        "process": [{
            "procname": about.proc.name,
            "instance": instances,
        }],
    })
}

fn instance(about: About<'_>, status: &ProcStatus, seen: Option<&Instance>, zone: Offset) -> Value {
    let stopped = Instance::default();
    let i = seen.unwrap_or(&stopped);
    json!({
        "cmdline": i.command_line,
        "processName": about.proc.name,
        "version": status.version,
        "health": status.health,
        "isAuto": status.hosted,
        "cpuUsage": rounded(i.cpu_now),
        "cpuUsageAve": rounded(i.cpu_average),
        "phyMemUsage": rounded(i.memory_percent),
        "usePhyMem": i.memory_kib,
        "diskSize": -1,
        // 0 is running to one caller and stopped to another; -1 is stopped to all.
        "pid": seen.map_or(-1, |i| i64::from(i.pid)),
        "startTime": seen.map_or_else(String::new, |i| clock(i.began_at, zone, "%a %b %e %H:%M:%S %Y")),
        "stat": i.state,
        "utime": i.user_ticks.to_string(),
        "stime": i.system_ticks.to_string(),
        "threadCount": i.threads,
        "elapsedTime": i.elapsed_secs,
        "register_time": status.registered_at,
        "last_start_time": status.started_at,
        "report_time": status.reported_at,
    })
}

/// Empty for a time that never was.
fn clock(seconds: i64, zone: Offset, format: &str) -> String {
    match Timestamp::from_second(seconds) {
        Ok(at) if seconds != 0 => at.to_zoned(TimeZone::fixed(zone)).strftime(format).to_string(),
        Ok(_) | Err(_) => String::new(),
    }
}

fn rounded(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
