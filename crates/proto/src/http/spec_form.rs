//! A stored spec in the form in which requests have it, so that it can be shown, edited and sent again.
//!
//! Properties that only JOB's requests have (contact, func_id, the shell, the begin of a check) are not in
//! this form.

use super::native::SpecMeta;
use procfleet_core::id::ProcKey;
use procfleet_core::spec::{
    ConfigFile, Detached, Instances, Kind, OnUnhealthy, RestartPause, Schedule, Spec, StopSignal,
};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// `meta` of a request about this proc.
pub fn meta(proc: &ProcKey, spec: &Spec) -> SpecMeta {
    SpecMeta { namespace: proc.namespace.clone(), name: proc.name.clone(), labels: spec.labels.clone() }
}

/// `spec` of a request. Optional fields that have their defaults are left out.
pub fn spec(spec: &Spec) -> Value {
    let Spec { identity, control, resource, policy, .. } = spec;
    let mut named = json!({
        "proc_name": identity.proc_name,
        "setup_path": identity.setup_path,
        "pid_path": identity.pid_path,
        "user": identity.user,
    });
    let texts = [
        ("config_path", &identity.config_path),
        ("log_path", &identity.log_path),
        ("index_key", &identity.index_key),
    ];
    add_texts(&mut named, &texts);
    let mut commands = json!({});
    let texts = [
        ("start_cmd", &control.start_cmd),
        ("stop_cmd", &control.stop_cmd),
        ("restart_cmd", &control.restart_cmd),
        ("reload_cmd", &control.reload_cmd),
        ("kill_cmd", &control.kill_cmd),
        ("version_cmd", &control.version_cmd),
        ("health_cmd", &control.health_cmd),
    ];
    add_texts(&mut commands, &texts);
    if control.stop_signal != StopSignal::default() {
        commands["stop_signal"] = json!(control.stop_signal.0.name());
    }
    if let Some(signal) = control.reload_signal {
        commands["reload_signal"] = json!(signal.name());
    }
    let mut monitored = json!({
        "auto_type": 1,
        "start_check_secs": secs(policy.start_check),
        "stop_check_secs": secs(policy.stop_check),
        "start_retries": policy.start_retries,
        "start_interval": secs(policy.start_interval),
        "op_timeout": secs(policy.op_timeout),
        "limit_samples": policy.limit_samples.0,
        "restart_pause": match policy.restart_pause {
            RestartPause::Constant => "constant",
            RestartPause::Growing => "growing",
        },
        "on_unhealthy": match policy.on_unhealthy {
            OnUnhealthy::Tell => "tell",
            OnUnhealthy::Restart => "restart",
        },
        "detached": match policy.detached {
            Detached::End => "end",
            Detached::Keep => "keep",
        },
    });
    if let Some(time) = policy.kill_after {
        monitored["kill_after"] = json!(secs(time));
    }
    match &policy.kind {
        Kind::Resident => {}
        Kind::Once => monitored["auto_type"] = json!(2),
        Kind::Periodic(schedule) => {
            monitored["auto_type"] = json!(0);
            match schedule {
                Schedule::Every(time) => monitored["cycle_time"] = json!(secs(*time)),
                Schedule::Cron(rule) => monitored["crontab_rule"] = json!(rule),
            }
        }
    }
    let mut whole = json!({"identity": named, "control": commands, "alive_monitor_policy": monitored});
    let limits: Map<String, Value> = [
        ("cpu", resource.cpu.map(Value::from)),
        ("mem", resource.mem.map(Value::from)),
        ("fd", resource.fd.map(Value::from)),
    ]
    .into_iter()
    .filter_map(|(name, limit)| Some((name.to_owned(), limit?)))
    .collect();
    if !limits.is_empty() {
        whole["resource"] = Value::Object(limits);
    }
    if let Some(report_id) = spec.report_id {
        whole["warn_report_policy"] = json!({"report_id": report_id});
    }
    if !spec.configmap.is_empty() {
        let file = |ConfigFile { path, md5 }: &ConfigFile| json!({"path": path, "md5": md5});
        whole["configmap"] = spec.configmap.iter().map(file).collect();
    }
    if spec.instances != Instances::default() {
        whole["instance_num"] = json!(spec.instances.0);
    }
    whole
}

fn add_texts(object: &mut Value, texts: &[(&str, &String)]) {
    for (name, text) in texts.iter().filter(|(_, text)| !text.is_empty()) {
        object[*name] = json!(text);
    }
}

fn secs(time: Duration) -> u64 {
    time.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::operate::operate_proc_v2;

    #[test]
    fn the_shown_spec_is_read_back_as_the_stored_one() {
        let policies = [
            json!({"auto_type": 1, "start_check_secs": 7, "start_retries": 9, "on_unhealthy": "restart", "restart_pause": "growing"}),
            json!({"auto_type": 2, "op_timeout": 3, "detached": "keep", "limit_samples": 8, "kill_after": 6}),
            json!({"auto_type": 0, "cycle_time": 60, "stop_check_secs": 4, "start_interval": 2}),
            json!({"auto_type": 0, "crontab_rule": "*/5 * * * *"}),
        ];
        for policy in policies {
            let request = json!({
                "meta": {"namespace": "web", "name": "nginx", "labels": {"team": "shop"}},
                "hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 0}],
                "op_type": 0,
                "spec": {
                    "identity": {"proc_name": "nginx", "setup_path": "/srv", "pid_path": "/run/n.pid", "user": "www",
                        "config_path": "/etc/n", "log_path": "/var/log/n", "index_key": "k"},
                    "control": {"start_cmd": "a", "stop_cmd": "b", "restart_cmd": "c", "reload_cmd": "d",
                        "kill_cmd": "e", "version_cmd": "f", "health_cmd": "g", "stop_signal": "QUIT", "reload_signal": 1},
                    "alive_monitor_policy": policy,
                    "resource": {"cpu": 10.5, "mem": 20, "fd": 30},
                    "warn_report_policy": {"report_id": 7},
                    "configmap": [{"path": "/etc/n", "md5": "0123456789abcdef0123456789abcdef"}],
                    "instance_num": 2,
                },
            });
            let stored = operate_proc_v2(&request).expect("a good request").requests.remove(0);
            let sent = stored.spec.expect("a spec");
            let mut again = request.clone();
            again["spec"] = spec(&sent);
            again["meta"] = serde_json::to_value(meta(&stored.proc, &sent)).expect("JSON");
            let read = operate_proc_v2(&again).expect("a good request").requests.remove(0);
            assert_eq!((read.proc, read.spec), (stored.proc, Some(sent)), "{again}");
        }
    }
}
