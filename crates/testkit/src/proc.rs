//! A proc of this host: its request, its ops, and its files and processes.

use crate::client::{Client, Outcome};
use crate::process::{self, account};
use crate::programs;
use crate::wait::{PATIENCE, wait_for};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// `op_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Start = 0,
    Stop = 1,
    Query = 2,
    Host = 3,
    Unhost = 4,
    Restart = 7,
    Reload = 8,
    Kill = 9,
}

/// A proc with its own folder, which holds the program [`programs::NAME`].
#[derive(Clone, Debug)]
pub struct Proc {
    pub client: Client,
    pub folder: PathBuf,
    pub name: String,
    pub namespace: String,
    /// The request; `op_type` is added when it is sent.
    pub request: Value,
}

/// A task of one op.
#[derive(Clone, Debug)]
pub struct Task {
    pub id: String,
    client: Client,
}

impl Proc {
    /// A proc of the host 127.0.0.1 whose program is put into this folder.
    pub fn new(client: Client, namespace: &str, name: &str, folder: PathBuf) -> Proc {
        // A link, because a file that was just written may still be open in a child of another test, and then
        // it cannot be executed.
        let program = folder.join(programs::NAME);
        if !program.exists() {
            symlink("/bin/sleep", program).expect("our own folder");
        }
        let request = json!({
            "meta": {"namespace": namespace, "name": name, "labels": {"proc_name": programs::NAME}},
            "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}],
            "spec": {
                "identity": {
                    "index_key": "",
                    "proc_name": programs::NAME,
                    "setup_path": folder,
                    "pid_path": "",
                    "config_path": "",
                    "log_path": "",
                    "user": account(),
                },
                "control": {
                    "start_cmd": "", "stop_cmd": "", "restart_cmd": "", "reload_cmd": "", "kill_cmd": "",
                    "version_cmd": "", "health_cmd": "",
                },
                "alive_monitor_policy": {
                    "auto_type": 1, "start_check_secs": 1, "stop_check_secs": 10, "start_retries": 3,
                    "start_interval": 1, "op_timeout": 60,
                },
            },
        });
        Proc { client, folder, name: name.to_owned(), namespace: namespace.to_owned(), request }
    }

    /// Sets `start_cmd`.
    pub fn starts(self, command: &str) -> Proc {
        self.control("start_cmd", command)
    }

    pub fn control(mut self, field: &str, command: &str) -> Proc {
        self.request["spec"]["control"][field] = json!(command);
        self
    }

    pub fn policy(mut self, field: &str, value: impl Into<Value>) -> Proc {
        self.request["spec"]["alive_monitor_policy"][field] = value.into();
        self
    }

    pub fn identity(mut self, field: &str, value: impl Into<Value>) -> Proc {
        self.request["spec"]["identity"][field] = value.into();
        self
    }

    /// The process writes its pid into [`programs::PID_FILE`].
    pub fn with_pid_file(self) -> Proc {
        let path = self.folder.join(programs::PID_FILE);
        self.identity("pid_path", path.to_str().expect("a plain path"))
    }

    pub fn on_host(mut self, ip: &str) -> Proc {
        self.request["hosts"] = json!([{"ip": ip, "bk_cloud_id": 0}]);
        self
    }

    /// The request without a spec, as callers send it who rely on the stored one.
    pub fn without_spec(mut self) -> Proc {
        self.request.as_object_mut().expect("a request is an object").remove("spec");
        self
    }

    /// A file in its folder, which can be run.
    pub fn script(self, name: &str, text: &str) -> Proc {
        let path = self.folder.join(name);
        fs::write(&path, text).expect("our own folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own file");
        self
    }

    pub fn body(&self, op: Op) -> Value {
        let mut body = self.request.clone();
        body["op_type"] = json!(op as u32);
        body
    }

    /// The key of its results.
    pub fn key(&self) -> String {
        let host = &self.request["hosts"][0];
        format!(
            "{}:{}:{}:{}",
            host["bk_cloud_id"],
            host["ip"].as_str().expect("an ip"),
            self.namespace,
            self.name
        )
    }

    #[track_caller]
    pub fn submit(&self, op: Op) -> Task {
        Task { id: self.client.operate(self.body(op)), client: self.client.clone() }
    }

    /// Sends the op and waits for its outcome.
    #[track_caller]
    pub fn op(&self, op: Op) -> Outcome {
        self.submit(op).outcome()
    }

    #[track_caller]
    pub fn timed(&self, op: Op) -> (Outcome, Duration) {
        let began = Instant::now();
        (self.op(op), began.elapsed())
    }

    /// Starts the proc, which must succeed, and returns its pid.
    #[track_caller]
    pub fn start(&self) -> u32 {
        self.op(Op::Start).assert_success().assert_hosted(true);
        self.pid().expect("what was started runs")
    }

    /// The pid that a query sees. It is the pid of a process of this proc.
    #[track_caller]
    pub fn pid(&self) -> Option<u32> {
        let seen = self.op(Op::Query);
        seen.assert_success();
        let pid = seen.pid();
        if let Some(pid) = pid {
            let marked = self.pids();
            assert!(marked.contains(&pid) || !process::is_running(pid), "pid {pid} is not one of {marked:?}");
        }
        pid
    }

    /// All running processes that were started for the proc.
    pub fn pids(&self) -> Vec<u32> {
        process::pids_marked(&format!("{}:{}", self.namespace, self.name))
    }

    /// The processes of the proc that run the program [`programs::NAME`].
    pub fn program_pids(&self) -> Vec<u32> {
        let name = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.pids()
            .into_iter()
            .filter(|pid| name(pid).trim() == programs::NAME)
            .map(process::remember)
            .collect()
    }

    /// Waits until its process has become the program. Until then it is a shell.
    #[track_caller]
    pub fn wait_for_program(&self) -> u32 {
        wait_for(PATIENCE, &format!("{} runs its program", self.name), || self.program_pid())
    }

    pub fn program_pid(&self) -> Option<u32> {
        self.program_pids().first().copied()
    }

    /// Its row in the native API, as it is now.
    #[track_caller]
    pub fn row(&self) -> Option<Value> {
        let rows =
            self.client.data(&format!("/api/v1/procs?namespace={}&name={}", self.namespace, self.name));
        let rows = rows.as_array().expect("procs are a list");
        assert!(rows.len() <= 1, "{rows:?}");
        rows.first().cloned()
    }

    /// Waits for a row with this state. Reports of the agent may be late: a row from before a change may
    /// still be there after it.
    #[track_caller]
    pub fn row_when(&self, deadline: Duration, state: &str) -> Value {
        wait_for(deadline, &format!("{} is {state}", self.name), || {
            self.row().filter(|row| row["state"] == state)
        })
    }

    /// Its row as soon as it runs with this pid.
    #[track_caller]
    pub fn row_with_pid(&self, pid: u32) -> Value {
        wait_for(PATIENCE, &format!("{} runs with pid {pid}", self.name), || {
            self.row().filter(|row| row["state"] == "running" && row["pid"] == pid)
        })
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.folder.join(file)).unwrap_or_default()
    }

    /// Makes a file in its folder for which a command waits; see [`programs::gate`].
    pub fn open_gate(&self, file: &str) {
        fs::write(self.folder.join(file), "").expect("our own folder");
    }

    /// The lines of [`programs::RUNS`]: how often something was run.
    pub fn runs(&self) -> usize {
        self.read(programs::RUNS).lines().count()
    }

    /// Waits for this number of runs.
    #[track_caller]
    pub fn wait_for_runs(&self, count: usize) {
        wait_for(PATIENCE, &format!("{} was run {count} times", self.name), || {
            (self.runs() >= count).then_some(())
        });
    }

    /// The pid in [`programs::PID_FILE`], as soon as it is there.
    #[track_caller]
    pub fn pid_in_file(&self) -> u32 {
        wait_for(PATIENCE, "the pid file is written", || {
            self.read(programs::PID_FILE).strip_suffix('\n')?.parse().ok().map(process::remember)
        })
    }
}

impl Task {
    #[track_caller]
    pub fn outcome(&self) -> Outcome {
        self.client.outcome(&self.id)
    }

    /// Whether all of its ops have ended.
    #[track_caller]
    pub fn has_ended(&self) -> bool {
        self.client.results_now(&self.id).values().all(|result| result["error_code"] != 115)
    }
}
