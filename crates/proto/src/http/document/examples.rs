//! A request and an answer of each API, as they may look. The tests hold the requests to the reading code and
//! the answers to the document.

use serde_json::{Value, json};

const TASK: &str = "GSETASK:20261116080000:8";
const AGENT: &str = "0200000000525400f355781710390005465c";

/// `None` for an API without a request.
pub fn request(api: &str) -> Option<Value> {
    let hosts = json!([{"ip": "10.0.0.1", "bk_cloud_id": 1}]);
    let pool =
        json!({"cpu_pool_limit": 20.0, "mem_pool_limit": 10.0, "cpu_pool_weight": 0, "mem_pool_weight": 1});
    let supplied = json!([{"ip": "10.0.0.1", "bk_cloud_id": 1, "bk_supplier_id": 2}]);
    Some(match api {
        "operate_proc_v2" => json!({"meta": meta(), "op_type": 0, "hosts": hosts, "spec": spec()}),
        "operate_proc_multi" => json!({"proc_operate_req": [
            {"meta": meta(), "op_type": 0, "agent_id_list": [AGENT], "spec": spec()},
        ]}),
        "operate_proc" => json!({"meta": meta(), "op_type": 1, "hosts": supplied}),
        "register_proc_info" | "update_proc_info" => {
            let mut spec = spec();
            let policy = spec.as_object_mut().and_then(|spec| spec.shift_remove("alive_monitor_policy"));
            spec["monitor_policy"] = policy.unwrap_or_default();
            spec["resource"] = json!({"cpu": 10.0, "mem": 10.0, "fd": 10000, "disk": 0, "net": 0});
            json!({"meta": meta(), "hosts": supplied, "spec": spec})
        }
        "unregister_proc_info" | "get_proc_status" => json!({"meta": meta(), "hosts": supplied}),
        "get_proc_status_v2" => json!({"meta": meta(), "hosts": hosts}),
        "get_proc_operate_result" | "get_proc_operate_result_v2" => json!({"task_id": TASK}),
        "sync_proc_status" => json!({"meta": {"namespace": "gse"}, "page": {"start": 0, "limit": 100}}),
        "get_agent_status" | "get_agent_info" => json!({"hosts": hosts}),
        "list_agent_state" | "list_agent_info" => json!({"agent_id_list": [AGENT]}),
        "app_create" => json!({"code": "deployer", "trusted": false}),
        "app_grant" => json!({"businesses": ["1"], "namespaces": ["web*"], "ops": ["start", "stop"],
            "accounts": ["www"]}),
        "app_revoke" => json!({"ops": ["stop"]}),
        "token_create" => json!({"ttl_secs": 3600, "uses": 20, "bk_cloud_id": 0, "bk_biz_id": 1}),
        "agents_assign" => json!({"agents": ["0:10.0.0.5"], "bk_biz_id": 7}),
        "agents_forget" => json!({"agents": ["0:10.0.0.5"]}),
        "agents_revoke" => json!({"agents": ["0:10.0.0.5"], "reason": "the disk was stolen"}),
        "task_cancel" | "task_retry" => json!({}),
        "agents_label" => json!({"agents": ["0:10.0.0.5"], "set": {"role": "web"}, "remove": ["old"]}),
        "operate" => {
            json!({"meta": meta(), "names": ["proc-*"], "op_type": 0, "spec": spec(), "change": ["start_cmd"],
            "select": ["10.0.0.0/24", "role=web*"], "dry_run": false})
        }
        "ca_retire" => json!({"force": false}),
        "business_create" => json!({"bk_biz_id": 7, "bk_biz_name": "shop"}),
        "set_process_group_info" => json!({"meta": {"namespace": "gse"}, "hosts": supplied,
            "spec": {"process_group": [{"id": "gse", "resource": pool}]}}),
        "get_process_group_info" => json!({"meta": {"namespace": "gse"}, "hosts": supplied}),
        "spec" => json!({"namespace": "gse", "name": "proc-test", "host": "1:10.0.0.1"}),
        "logs" => json!({"namespace": "gse", "name": "proc-test", "host": "1:10.0.0.1", "lines": 2}),
        "get_task_state" => json!({"task_id": TASK}),
        "upgrade_to_agent_id" => {
            json!({"hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 1, "bk_agent_id": AGENT}]})
        }
        "job.operate_proc" => json!({"bk_biz_id": 1, "op_type": 1, "process_infos": [{
            "setup_path": "/usr/local/demo", "proc_name": "demo", "pid_path": "/usr/local/demo/demo.pid",
            "account": "root", "cmd_shell_ext": "sh", "cpu_lmt": 50, "mem_lmt": 30,
            "ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}]}]}),
        "job.operate_process" => json!({"bk_biz_id": 1, "op_type": 0, "process_infos": [{
            "setup_path": "/usr/local/demo", "proc_name": "demo", "pid_path": "/usr/local/demo/demo.pid",
            "contact": "ann", "start_cmd": "./demo --daemon", "stop_cmd": "./demo --stop", "type": 1,
            "account": "root", "cpu_lmt": 50, "mem_lmt": 30,
            "ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}]}]}),
        "job.manage_proc" => {
            json!({"bk_scope_type": "biz", "bk_scope_id": "1", "op_type": 1, "process_infos": [{
            "proc_name": "nginx", "proc_owner": "root", "setup_path": "/data/home/nginx/bin/",
            "cfg_path": "/data/etc/nginx.conf", "log_path": "/data/logs/nginx/",
            "pid_path": "/data/var/run/nginx.pid", "start_cmd": "./nginx", "stop_cmd": "./nginx -s stop",
            "reload_cmd": "./nginx -s reload", "value_key": "key_test", "type": 1, "cpu_lmt": 20, "mem_lmt": 30,
            "instance_num": 1, "start_check_begin_time": 5, "start_check_end_time": 5, "op_timeout": 5,
            "ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}]}]})
        }
        "job.get_proc_result" => json!({"bk_biz_id": 1, "bk_gse_taskid": TASK}),
        "job.get_agent_status" => json!({"bk_biz_id": 1, "ip_list": [{"bk_cloud_id": 0, "ip": "10.0.0.1"}]}),
        "user_create" => json!({"name": "ann"}),
        "user_token" => json!({"ttl_secs": 28800}),
        "server_drain" => json!({"name": "s1", "drain": true}),
        "webhook_create" => json!({"url": "https://alarms.example.com/procfleet"}),
        "business_set_create" => {
            json!({"bk_biz_set_id": 2, "bk_biz_set_name": "retail", "bk_biz_ids": [1, 7]})
        }
        _ => return None,
    })
}

/// The `data` of an answer.
pub(super) fn data(api: &str) -> Option<Value> {
    let started = json!({"error_code": 0, "error_msg": "success", "content": control()});
    let kept = json!({"error_code": 0, "error_msg": "success", "content": ""});
    let app = json!({"code": "deployer", "trusted": false, "administrator": false, "disabled": false,
        "created_at": 1794787200, "grants": {"businesses": ["1"], "namespaces": ["web*"],
        "ops": ["start", "stop"], "accounts": ["www"]}});
    let agent = json!({"bk_agent_id": AGENT, "bk_cloud_id": 0, "ip": "10.0.0.5", "version": "0.1.0",
        "containment": "cgroup", "connected": true, "since": 1794787200, "heard_at": 1794790800, "enrolled_at": 1794700800, "bk_biz_id": 7, "bk_biz_name": "shop",
        "certificate_expires_at": 1826236800, "revoked_at": 0, "revoked_why": "", "labels": {"role": "web"}});
    let secret = json!({"code": "deployer", "secret": "…", "trusted": false});
    let business = json!({"bk_biz_id": 7, "bk_biz_name": "shop"});
    let set = json!({"bk_biz_set_id": 2, "bk_biz_set_name": "retail", "bk_biz_ids": [1, 7]});
    let mut token = json!({"id": "3e75e0c70ab9", "bk_cloud_id": 0, "bk_biz_id": 1, "created_at": 1794787200,
        "expires_at": 1794790800, "uses_left": 20, "replace": false, "state": "usable"});
    let user = json!({"name": "ann", "disabled": false, "created_at": 1794787200, "tokens": 1});
    let mut server = json!({"name": "s1", "state": "up", "url": "https://s1.example.com:48668", "version": "0.1.0",
        "started_at": 1794787200, "agents": 5012, "open_ops": 3, "leases": ["retention", "unheld", "webhooks"],
        "wakeups": "notified", "answering": true});
    let webhook = json!({"id": 1, "url": "https://alarms.example.com/procfleet", "created_at": 1794787200,
        "waiting": 0, "trouble": ""});
    let state = json!({"bk_agent_id": AGENT, "bk_cloud_id": 0, "version": "0.1.0", "run_mode": 1,
        "status_code": 2, "report_time": 1794787200});
    Some(match api {
        "operate_proc_v2" | "operate_proc_multi" | "operate_proc" => json!({"task_id": TASK}),
        "get_proc_operate_result_v2" => json!({"1:10.0.0.1:gse:proc-test": started}),
        "get_proc_operate_result" => json!({"1:2:10.0.0.1:gse:proc-test": started}),
        "register_proc_info" | "update_proc_info" | "unregister_proc_info" => {
            json!({"1:2:10.0.0.1:gse:proc-test": kept})
        }
        "get_proc_status_v2" | "get_proc_status" => json!({"proc_infos": [proc_info()]}),
        "sync_proc_status" => json!({"count": 1, "proc_infos": [proc_info()]}),
        "get_agent_status" => {
            json!({"1:10.0.0.1": {"ip": "10.0.0.1", "bk_cloud_id": 1, "bk_agent_alive": 1}})
        }
        "get_agent_info" => json!({"1:10.0.0.1": {"ip": "10.0.0.1", "version": "0.1.0", "bk_cloud_id": 1,
            "parent_ip": "", "parent_port": 0}}),
        "list_agent_state" => json!([state]),
        "list_agent_info" => {
            let mut all = state;
            let more = json!({"bk_host_ip": "10.0.0.1", "bk_os_type": "linux", "bk_cpu_architecture": "x86_64",
                "parent_ip": "", "parent_port": 0, "cpu_rate": 0.0, "mem_rate": 0.0, "conn_cycle_time": 0, "cpu_num": 8, "mem_size": 32768, "start_time": 1794700800,
                "last_work_time": 1794787200, "status": "running", "last_status": "running",
                "last_status_code": 2, "remark": ""});
            if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
                all.extend(more);
            }
            json!([all])
        }
        "agents" | "agents_assign" | "agents_forget" | "agents_revoke" | "agents_label" => json!([agent]),
        "operate" => json!({"task_id": TASK, "count": 2, "hosts": ["0:10.0.0.5", "0:10.0.0.6"], "procs": [
            {"namespace": "gse", "name": "proc-test", "hosts": ["0:10.0.0.5", "0:10.0.0.6"]}]}),
        "spec" => {
            json!({"bk_agent_id": AGENT, "bk_cloud_id": 1, "ip": "10.0.0.1", "meta": meta(), "spec": spec()})
        }
        "ca_show" | "ca_rotate" | "ca_retire" | "ca_reseal" => {
            json!({"sha256": "5f3a…", "next_sha256": null, "agents": 120,
            "tokens": 1, "agent_certificate_secs": 31536000, "seal": {"key": "72cd6e8422c407fb",
            "under_other_keys": 0, "other_keys": [], "servers_without_key": []}})
        }
        "procs" => json!([{"bk_agent_id": AGENT, "bk_cloud_id": 1, "ip": "10.0.0.1", "namespace": "gse",
            "name": "proc-test", "labels": {}, "state": "running", "hosted": true, "pid": 4437, "note": "",
            "version": "1.2.19", "health": "healthy", "started_at": 1794787200, "reported_at": 1794787205, "fresh": true}]),
        "tasks" => json!([task()]),
        "task_cancel" => task(),
        "task_retry" => json!({"task_id": TASK}),
        "events" => json!({"last": 7, "events": [{"number": 7, "at": 1794787200000_i64,
            "received_at": 1794787200020_i64, "bk_agent_id": AGENT, "bk_cloud_id": 1, "ip": "10.0.0.1",
            "namespace": "gse", "name": "proc-test", "kind": "restart_succeeded",
            "message": "it was started again as pid 4438", "details": {"pid": 4438}}]}),
        "logs" => json!({"bk_agent_id": AGENT, "bk_cloud_id": 1, "ip": "10.0.0.1",
            "file": "/var/lib/procfleet/output/gse+proc-test/out.log", "lines": ["listening on 8080", "ready"],
            "rest": "", "cursor": "10486024", "end": "10486024", "skipped_bytes": 0, "lossy": false, "note": ""}),
        "get_task_state" => {
            json!({"task_id": TASK, "result": {"state": "executing", "successed_agents": [AGENT],
            "timeout_agents": [], "failed_agents": [], "pending_agents": ["0:10.0.0.2"], "offline_agents": [],
            "restarted_agents": [], "counts": {"total": 2, "open": 1, "succeeded": 1, "failed": 0}}})
        }
        "set_process_group_info" => json!({"1:2:10.0.0.1:gse": kept}),
        "get_process_group_info" => json!({"process_group_infos": [{
            "meta": {"namespace": "gse", "name": "", "labels": {}},
            "host": {"ip": "10.0.0.1", "bk_cloud_id": 1, "bk_supplier_id": 2}, "id": "gse",
            "resource": {"cpu_pool_limit": 20.0, "mem_pool_limit": 10.0, "cpu_pool_weight": 0,
            "mem_pool_weight": 1}}]}),
        "upgrade_to_agent_id" => json!({"success": ["1:10.0.0.1"], "failed": []}),
        "job.operate_proc" | "job.operate_process" | "job.manage_proc" => json!({"bk_gse_taskid": TASK}),
        "job.get_proc_result" => json!({"status": 0, "result": {"/usr/local/demo/demo:0:10.0.0.1": {
            "content": {"value": [{"procName": "demo", "setupPath": "/usr/local/demo", "funcID": "",
            "instanceID": "", "result": "success", "isAuto": true}]}, "error_code": 0, "error_msg": "success"}}}),
        "job.get_agent_status" => json!([{"ip": "10.0.0.1", "bk_cloud_id": 0, "bk_agent_alive": 1}]),
        "user_list" => json!([user]),
        "user_create" | "user_disable" | "user_enable" | "user_revoke" => user,
        "user_token" => json!({"name": "ann", "token": "…", "expires_at": 1794816000}),
        "token_list" => json!([token]),
        "token_revoke" => {
            token["state"] = json!("revoked");
            token
        }
        "server_list" => json!([server]),
        "server_drain" => {
            server["state"] = json!("draining");
            json!([server])
        }
        "webhook_create" => webhook,
        "webhook_list" | "webhook_remove" => json!([webhook]),
        "task" => {
            let mut view = task();
            view["ops"] = json!([{"op_id": "20261116080000-8-0", "key": "1:10.0.0.1:gse:proc-test", "kind": "start",
                "target": "1:10.0.0.1", "namespace": "gse", "name": "proc-test", "error_code": 0,
                "error_msg": "success", "content": control(), "late_at": 0, "late_code": 0, "late_msg": ""}]);
            view
        }
        "app_list" => json!([app]),
        "app_show" | "app_disable" | "app_enable" | "app_grant" | "app_revoke" => app,
        "app_create" | "app_rotate" => secret,
        "token_create" => {
            json!({"token": "…", "bk_cloud_id": 0, "bk_biz_id": 1, "uses": 20, "replace": false,
            "expires_at": 1794790800, "link_port": 48668})
        }
        "business_list" => json!([business]),
        "business_create" => business,
        "business_set_list" => json!([set]),
        "business_set_create" => set,
        "audit" => {
            json!([{"at": 1794787200, "bk_app_code": "deployer", "bk_username": "", "from": "10.0.0.9",
            "action": "operate_proc_v2", "subject": TASK, "code": 0, "detail": "start gse:proc-test",
            "times": 1, "last_at": 1794787200}])
        }
        _ => return None,
    })
}

fn meta() -> Value {
    json!({"namespace": "gse", "name": "proc-test", "labels": {"proc_name": "proc-test"}})
}

fn spec() -> Value {
    json!({
        "identity": {
            "index_key": "", "proc_name": "proc-test", "setup_path": "/data/gsetest/",
            "pid_path": "/data/gsetest/proc-test.pid", "config_path": "/data/gsetest/proc-test.conf",
            "log_path": "/data/gsetest/logs/", "user": "root",
        },
        "control": {
            "start_cmd": "./start.sh", "stop_cmd": "./stop.sh", "restart_cmd": "./restart.sh",
            "reload_cmd": "./reload.sh", "kill_cmd": "./kill.sh", "version_cmd": "./version.sh",
            "health_cmd": "./health.sh",
        },
        "alive_monitor_policy": {
            "auto_type": 1, "start_check_secs": 5, "stop_check_secs": 5, "start_retries": 3, "start_interval": 20,
        },
        "warn_report_policy": {"report_id": 0},
    })
}

fn control() -> String {
    let value = json!({"procName": "proc-test", "setupPath": "/data/gsetest/", "funcID": "", "instanceID": "",
        "result": "success", "isAuto": true});
    json!({"value": [value]}).to_string()
}

fn task() -> Value {
    json!({"task_id": TASK, "created_at": 1794787200, "bk_app_code": "deployer", "bk_username": "",
        "summary": "start gse:proc-test", "counts": {"total": 1, "open": 0, "succeeded": 1, "failed": 0},
        "cancelled_at": 0, "retry_of": ""})
}

fn proc_info() -> Value {
    json!({"meta": meta(), "host": {"ip": "10.0.0.1", "bk_cloud_id": 1, "bk_supplier_id": 0, "bk_agent_id": AGENT},
        "bk_agent_id": AGENT, "flag": 1, "status": 1, "isauto": true, "message": "", "pid": 4437, "version": "1.2.19",
        "register_time": 1794787200, "last_start_time": 1794787200, "report_time": 1794787205, "cpu_usage": 0.1,
        "mem_usage": 0.1, "fd": 12, "disk": 0, "net": 0})
}
