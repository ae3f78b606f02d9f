//! The table of `procfleet status`, from the outcomes of a query.
//!
//! The content is GSE's JSON text. It is read leniently, field by field: a missing or odd field empties its
//! cell and not the row.

use crate::VerbExit;
use crate::output::{span, yes_no};
use crate::wait::is_open;
use procfleet_core::code::Code;
use procfleet_proto::http::native::OpRow;
use serde_json::Value;

pub(super) const HEADER: [&str; 12] = [
    "HOST",
    "NAMESPACE",
    "NAME",
    "STATE",
    "HOSTED",
    "PID",
    "CPU%",
    "MEM%",
    "MEMORY",
    "UP",
    "VERSION",
    "HEALTH",
];

/// The column of the state in a row, and its texts.
const STATE: usize = 3;
const RUNNING: &str = "running";
const STOPPED: &str = "stopped";

pub(super) fn rows(ops: &[OpRow]) -> Vec<[String; 12]> {
    ops.iter().flat_map(op_rows).collect()
}

/// The exit status: all running, some stopped, some unknown.
pub(super) fn exit(ops: &[OpRow]) -> VerbExit {
    let rows = rows(ops);
    let any = |word: &str| rows.iter().any(|row| row[STATE] == word);
    match rows.iter().all(|row| row[STATE] == RUNNING || row[STATE] == STOPPED) && !rows.is_empty() {
        false => VerbExit::Unknown,
        true if any(STOPPED) => VerbExit::Stopped,
        true => VerbExit::Done,
    }
}

fn op_rows(op: &OpRow) -> Vec<[String; 12]> {
    if is_open(op) {
        return vec![row(op, "no answer yet", &Value::Null)];
    }
    if op.error_code != Code::Success.number() {
        return vec![row(op, &format!("unknown ({})", op.error_code), &Value::Null)];
    }
    let content: Value = serde_json::from_str(&op.content).unwrap_or(Value::Null);
    let instances: Vec<&Value> = list(&content["process"]).flat_map(|proc| list(&proc["instance"])).collect();
    if instances.is_empty() {
        return vec![row(op, "unknown", &Value::Null)];
    }
    instances
        .into_iter()
        .map(|instance| {
            let state = match instance["pid"].as_i64() {
                Some(pid) if pid > 0 => RUNNING,
                Some(_) => STOPPED,
                None => "unknown",
            };
            row(op, state, instance)
        })
        .collect()
}

fn row(op: &OpRow, state: &str, instance: &Value) -> [String; 12] {
    // A stopped process has zeros for all of these, which would look like measurements.
    let alive = instance["pid"].as_i64().is_some_and(|pid| pid > 0);
    let measured = |key: &str| if alive { &instance[key] } else { &Value::Null };
    [
        op.target.clone(),
        op.namespace.clone(),
        op.name.clone(),
        state.to_owned(),
        instance["isAuto"].as_bool().map(yes_no).unwrap_or_default(),
        measured("pid").as_i64().map(|pid| pid.to_string()).unwrap_or_default(),
        measured("cpuUsage").as_f64().map(|cpu| format!("{cpu:.1}")).unwrap_or_default(),
        measured("phyMemUsage").as_f64().map(|mem| format!("{mem:.1}")).unwrap_or_default(),
        measured("usePhyMem").as_f64().map(memory).unwrap_or_default(),
        measured("elapsedTime").as_i64().map(span).unwrap_or_default(),
        instance["version"].as_str().unwrap_or_default().to_owned(),
        measured("health").as_str().unwrap_or_default().to_owned(),
    ]
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn memory(kib: f64) -> String {
    const STEP: f64 = 1024.0;
    match kib {
        _ if kib < STEP => format!("{kib:.0} KiB"),
        _ if kib < STEP * STEP => format!("{:.1} MiB", kib / STEP),
        _ => format!("{:.1} GiB", kib / STEP / STEP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(error_code: u32, content: &str) -> OpRow {
        OpRow {
            op_id: "20261115000000-1-0".to_owned(),
            key: String::new(),
            kind: "query".to_owned(),
            target: "0:127.0.0.1".to_owned(),
            namespace: "web".to_owned(),
            name: "nginx".to_owned(),
            error_code,
            error_msg: String::new(),
            content: content.to_owned(),
            late_at: 0,
            late_code: 0,
            late_msg: String::new(),
        }
    }

    fn check(error_code: u32, content: &str, wanted: &[[&str; 9]]) {
        let rows = rows(&[op(error_code, content)]);
        let shown: Vec<&[String]> = rows.iter().map(|row| &row[3..]).collect();
        assert_eq!(shown, wanted.iter().map(|row| row.as_slice()).collect::<Vec<_>>(), "{content}");
    }

    #[test]
    fn contents() {
        check(
            0,
            r#"{"process":[{"procname":"nginx","instance":[{"pid":42,"isAuto":true,"cpuUsage":1.25,
               "phyMemUsage":0.13,"usePhyMem":10412,"elapsedTime":61,"version":"1.2","health":"healthy"}]}]}"#,
            &[["running", "yes", "42", "1.2", "0.1", "10.2 MiB", "61s", "1.2", "healthy"]],
        );
        check(
            0,
            r#"{"process":[{"instance":[{"pid":-1,"isAuto":false,"cpuUsage":0.0,"elapsedTime":0}]}]}"#,
            &[["stopped", "no", "", "", "", "", "", "", ""]],
        );
        check(0, r#"{"process":[{"instance":[{}]}]}"#, &[["unknown", "", "", "", "", "", "", "", ""]]);
        check(0, r#"{"process":[]}"#, &[["unknown", "", "", "", "", "", "", "", ""]]);
        check(0, "not json", &[["unknown", "", "", "", "", "", "", "", ""]]);
        check(117, "", &[["unknown (117)", "", "", "", "", "", "", "", ""]]);
        check(115, "", &[["no answer yet", "", "", "", "", "", "", "", ""]]);
    }

    #[test]
    fn exits() {
        let running = op(0, r#"{"process":[{"instance":[{"pid":42}]}]}"#);
        let stopped = op(0, r#"{"process":[{"instance":[{"pid":-1}]}]}"#);
        let (unknown, open) = (op(801, ""), op(115, ""));
        for (ops, expected) in [
            (&[&running][..], VerbExit::Done),
            (&[&running, &running], VerbExit::Done),
            (&[&running, &stopped], VerbExit::Stopped),
            (&[&stopped, &unknown], VerbExit::Unknown),
            (&[&running, &open], VerbExit::Unknown),
            (&[], VerbExit::Unknown),
        ] {
            let ops: Vec<OpRow> = ops.iter().map(|op| (*op).clone()).collect();
            assert_eq!(exit(&ops), expected);
        }
    }
}
