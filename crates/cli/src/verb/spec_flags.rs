//! A spec in flags: one for each field that a request can have.

use super::object::{Object, child, set};
use crate::Error;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The server's default for `stop_check_secs`.
const STOP_CHECK_SECS: u64 = 5;

/// Without any of these flags and without a file no spec is sent. On hosts with a stored spec of the process,
/// only the fields of the given flags are changed; on other hosts the remaining fields have defaults.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Spec (only what is given changes where the process is known already)")]
pub struct SpecFlags {
    /// Command that starts the process
    #[arg(long = "cmd", value_name = "COMMAND")]
    pub start_cmd: Option<String>,
    /// Command that stops the process [none: the stop signal]
    #[arg(long, value_name = "COMMAND")]
    pub stop_cmd: Option<String>,
    /// Command that restarts the process [none: stop, then start]
    #[arg(long, value_name = "COMMAND")]
    pub restart_cmd: Option<String>,
    /// Command that reloads the configuration [none: the reload signal]
    #[arg(long, value_name = "COMMAND")]
    pub reload_cmd: Option<String>,
    /// Signal that stops the process if there is no stop command: a name or a number [default: TERM]
    #[arg(long, value_name = "SIGNAL")]
    pub stop_signal: Option<String>,
    /// Signal that reloads the configuration if there is no reload command
    #[arg(long, value_name = "SIGNAL")]
    pub reload_signal: Option<String>,
    /// Command that kills the process [none: SIGKILL]
    #[arg(long, value_name = "COMMAND")]
    pub kill_cmd: Option<String>,
    /// Command that prints the version
    #[arg(long, value_name = "COMMAND")]
    pub version_cmd: Option<String>,
    /// Command that checks the health, run every 30 seconds
    #[arg(long, value_name = "COMMAND")]
    pub health_cmd: Option<String>,
    /// Pid file of the process, if it writes one; a relative path is relative to --setup-path
    #[arg(long, value_name = "PATH")]
    pub pid_file: Option<PathBuf>,
    /// Directory on the host in which commands run [default: this directory]
    #[arg(long, value_name = "DIR")]
    pub setup_path: Option<PathBuf>,
    /// OS account on the host that runs the commands [default: root]
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// File name of the program [default: NAME]
    #[arg(long, value_name = "NAME")]
    pub proc_name: Option<String>,
    /// Path of the configuration, passed to commands in PROCFLEET_CONFIG_PATH
    #[arg(long, value_name = "PATH")]
    pub config_path: Option<String>,
    /// Directory on the host for the output [default: the agent's data directory]
    #[arg(long, value_name = "PATH")]
    pub log_path: Option<String>,
    /// Reserved; has no effect
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub index_key: Option<String>,
    /// Type of the process [default: resident; periodic with --every or --cron]
    #[arg(long = "type", value_name = "TYPE", value_parser = ["resident", "periodic", "once"])]
    pub auto_type: Option<String>,
    /// Interval of a periodic process, from start to start
    #[arg(long = "every", value_name = "SECS", conflicts_with = "crontab_rule")]
    pub cycle_time: Option<u64>,
    /// Schedule of a periodic process, in the host's time zone: '*/5 * * * *', @daily
    #[arg(long = "cron", value_name = "RULE")]
    pub crontab_rule: Option<String>,
    /// Number of instances (1 to 64)
    #[arg(long = "instances", value_name = "N")]
    pub instance_num: Option<u64>,
    /// Seconds after which a start is checked: the process must be running then
    #[arg(long, value_name = "SECS")]
    pub start_check_secs: Option<u64>,
    /// Seconds that the process may take to exit
    #[arg(long, value_name = "SECS")]
    pub stop_check_secs: Option<u64>,
    /// Seconds after which a stop or restart kills the process; 0: never [default: as --stop-check-secs]
    #[arg(long, value_name = "SECS")]
    pub kill_after: Option<u64>,
    /// Seconds that a command may run
    #[arg(long, value_name = "SECS")]
    pub op_timeout: Option<u64>,
    /// Number of consecutive restarts before the agent gives up
    #[arg(long, value_name = "N")]
    pub start_retries: Option<u64>,
    /// Seconds between consecutive restarts, from start to start
    #[arg(long, value_name = "SECS")]
    pub start_interval: Option<u64>,
    /// Pauses between restarts: constant, or growing (exponential backoff) [default: constant]
    #[arg(long, value_name = "HOW")]
    pub restart_pause: Option<String>,
    /// CPU limit in per cent of the whole host; 0: no limit
    #[arg(long = "cpu-limit", value_name = "PERCENT")]
    pub cpu: Option<f64>,
    /// Memory limit in per cent of the host's memory; 0: no limit
    #[arg(long = "mem-limit", value_name = "PERCENT")]
    pub mem: Option<f64>,
    /// Maximum number of open files; 0: no limit
    #[arg(long = "fd-limit", value_name = "N")]
    pub fd: Option<u64>,
    /// Number of consecutive samples, 5 seconds apart, that must exceed a limit
    #[arg(long, value_name = "N")]
    pub limit_samples: Option<u64>,
    /// Reaction when health_cmd fails three times in a row: tell (create an event) or restart
    #[arg(long, value_name = "WHAT")]
    pub on_unhealthy: Option<String>,
    /// Treatment of detached descendants when the process stops: end or keep
    #[arg(long, value_name = "WHAT")]
    pub detached: Option<String>,
    /// Configuration file, with its MD5 if known; the status names a file that is missing or has changed.
    /// Repeatable
    #[arg(long = "config-file", value_name = "PATH[=MD5]", value_parser = config_file)]
    pub configmap: Vec<(String, String)>,
    /// Data id of the events of the process
    #[arg(long, value_name = "N")]
    pub report_id: Option<i64>,
}

/// A field with a given flag.
struct GivenField {
    /// The part of the spec with this field; empty: the spec itself.
    section: &'static str,
    field: &'static str,
    value: Value,
}

impl SpecFlags {
    /// In the order in which the API's document lists them.
    fn given(&self) -> Result<Vec<GivenField>, Error> {
        const IDENTITY: &str = "identity";
        const CONTROL: &str = "control";
        const POLICY: &str = "alive_monitor_policy";
        const RESOURCE: &str = "resource";
        let text = |text: &Option<String>| text.clone().map(Value::from);
        let number = |number: Option<u64>| number.map(Value::from);
        let setup_path = self.setup_path.as_deref().map(absolute).transpose()?;
        let pid_path = self.pid_file.as_deref().map(|path| match (path.is_absolute(), &setup_path) {
            (true, _) => in_unicode(path),
            (false, Some(setup_path)) => in_unicode(&Path::new(setup_path).join(path)),
            (false, None) => {
                Err(Error::Usage("--pid-file: a relative path needs --setup-path beside it".to_owned()))
            }
        });
        let auto_type = match (self.auto_type.as_deref(), &self.cycle_time, &self.crontab_rule) {
            (Some("resident"), ..) => Some(1),
            (Some("once"), ..) => Some(2),
            (Some(_), ..) | (None, Some(_), _) | (None, _, Some(_)) => Some(0),
            (None, None, None) => None,
        };
        let file = |(path, md5): &(String, String)| json!({"path": path, "md5": md5});
        let configmap: Vec<Value> = self.configmap.iter().map(file).collect();
        let fields = [
            (IDENTITY, "proc_name", text(&self.proc_name)),
            (IDENTITY, "setup_path", setup_path.clone().map(Value::from)),
            (IDENTITY, "pid_path", pid_path.transpose()?.map(Value::from)),
            (IDENTITY, "config_path", text(&self.config_path)),
            (IDENTITY, "log_path", text(&self.log_path)),
            (IDENTITY, "user", text(&self.user)),
            (IDENTITY, "index_key", text(&self.index_key)),
            (CONTROL, "start_cmd", text(&self.start_cmd)),
            (CONTROL, "stop_cmd", text(&self.stop_cmd)),
            (CONTROL, "restart_cmd", text(&self.restart_cmd)),
            (CONTROL, "reload_cmd", text(&self.reload_cmd)),
            (CONTROL, "kill_cmd", text(&self.kill_cmd)),
            (CONTROL, "version_cmd", text(&self.version_cmd)),
            (CONTROL, "health_cmd", text(&self.health_cmd)),
            (CONTROL, "stop_signal", text(&self.stop_signal)),
            (CONTROL, "reload_signal", text(&self.reload_signal)),
            (RESOURCE, "cpu", self.cpu.map(Value::from)),
            (RESOURCE, "mem", self.mem.map(Value::from)),
            (RESOURCE, "fd", number(self.fd)),
            (POLICY, "auto_type", auto_type.map(|kind: u32| json!(kind))),
            (POLICY, "cycle_time", number(self.cycle_time)),
            (POLICY, "crontab_rule", text(&self.crontab_rule)),
            (POLICY, "start_check_secs", number(self.start_check_secs)),
            (POLICY, "stop_check_secs", number(self.stop_check_secs)),
            (POLICY, "kill_after", number(self.kill_after)),
            (POLICY, "op_timeout", number(self.op_timeout)),
            (POLICY, "start_retries", number(self.start_retries)),
            (POLICY, "start_interval", number(self.start_interval)),
            (POLICY, "restart_pause", text(&self.restart_pause)),
            (POLICY, "limit_samples", number(self.limit_samples)),
            (POLICY, "on_unhealthy", text(&self.on_unhealthy)),
            (POLICY, "detached", text(&self.detached)),
            ("warn_report_policy", "report_id", self.report_id.map(Value::from)),
            ("", "configmap", Some(configmap).filter(|files| !files.is_empty()).map(Value::from)),
            ("", "instance_num", number(self.instance_num)),
        ];
        let given = fields
            .into_iter()
            .filter_map(|(section, field, value)| Some(GivenField { section, field, value: value? }));
        Ok(given.collect())
    }

    /// Writes the given flags into the body's spec and returns their fields. A flag takes precedence over the
    /// spec of a file, and defaults fill the remaining fields.
    pub(super) fn write(
        &self,
        name: &str,
        labels: bool,
        body: &mut Object,
    ) -> Result<Vec<&'static str>, Error> {
        let given = self.given()?;
        if given.is_empty() && !labels {
            return Ok(Vec::new());
        }
        let from_file = body.contains_key("spec");
        let spec = child(body, "spec");
        let mut change = Vec::new();
        for GivenField { section, field, value } in given {
            match section {
                "" => set(spec, field, value),
                section => set(child(spec, section), field, value),
            }
            // The schedule of a periodic process is part of its type.
            let name = if ["cycle_time", "crontab_rule"].contains(&field) { "auto_type" } else { field };
            if !change.contains(&name) {
                change.push(name);
            }
        }
        if labels {
            change.push("labels");
        }
        let identity = child(spec, "identity");
        let or =
            |object: &mut Object, field: &str, default: Value| _ = object.entry(field).or_insert(default);
        or(identity, "proc_name", json!(name));
        if !identity.contains_key("setup_path") {
            set(identity, "setup_path", json!(absolute(Path::new("."))?));
        }
        or(identity, "pid_path", json!(""));
        or(identity, "user", json!("root"));
        child(spec, "control");
        let policy = child(spec, "alive_monitor_policy");
        or(policy, "auto_type", json!(1));
        // GSE's callers get 836 when a process does not exit. A spec from flags kills it, unless a flag says
        // otherwise.
        if !from_file {
            let stop_check = self.stop_check_secs.filter(|secs| *secs > 0).unwrap_or(STOP_CHECK_SECS);
            or(policy, "kill_after", json!(stop_check));
        }
        Ok(change)
    }
}

fn absolute(path: &Path) -> Result<String, Error> {
    let path = std::path::absolute(path).map_err(|fault| {
        Error::Usage(format!("cannot make {} absolute: {fault}; give --setup-path in full", path.display()))
    })?;
    in_unicode(&path)
}

fn in_unicode(path: &Path) -> Result<String, Error> {
    let text = path
        .to_str()
        .ok_or_else(|| Error::Usage(format!("{} cannot be sent: its name is not Unicode", path.display())))?;
    Ok(text.to_owned())
}

fn config_file(text: &str) -> Result<(String, String), String> {
    match text.rsplit_once('=') {
        Some(("", _)) => Err("expected PATH or PATH=MD5".to_owned()),
        Some((path, md5)) => Ok((path.to_owned(), md5.to_owned())),
        None => Ok((text.to_owned(), String::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use procfleet_core::change;
    use procfleet_proto::http::operate::operate_proc_v2;
    use procfleet_proto::http::record::Recorder;
    use std::collections::BTreeSet;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: SpecFlags,
    }

    const ALL: &str = "--cmd a --stop-cmd b --restart-cmd c --reload-cmd d --kill-cmd e --version-cmd f --health-cmd g \
        --pid-file run/web.pid --setup-path /srv/web --user www --proc-name java --config-path h --log-path i \
        --index-key j --cron @daily --instances 2 --start-check-secs 1 --stop-check-secs 2 --op-timeout 3 \
        --stop-signal QUIT --reload-signal 1 --kill-after 0 --start-retries 4 --start-interval 5 --restart-pause growing --cpu-limit 6.5 --mem-limit 7 --fd-limit 8 --limit-samples 9 \
        --on-unhealthy restart --detached keep --config-file /etc/x=0123456789abcdef0123456789abcdef --report-id 10";

    fn flags(line: &str) -> SpecFlags {
        Command::try_parse_from(std::iter::once("start").chain(line.split_whitespace())).expect(line).flags
    }

    /// Each field of the spec needs a flag.
    #[test]
    fn every_field_of_a_spec_has_a_flag() {
        let recorder = Recorder::with(&[("op_type", 0), ("auto_type", 0)]);
        let _ = operate_proc_v2(&recorder);
        let record = recorder.into_record();
        let known: BTreeSet<String> = record.fields.into_iter().map(|(path, _)| path).collect();
        let mut given = BTreeSet::new();
        for line in [ALL, "--every 60"] {
            for GivenField { section, field, .. } in flags(line).given().expect("good flags") {
                let section = if section.is_empty() { String::new() } else { format!("{section}.") };
                given.insert(format!("spec.{section}{field}"));
            }
        }
        // Reserved, or another spelling.
        let without = ["spec.resource.disk", "spec.resource.net", "spec.alive_monitor_policy.crotab_rule"];
        let is_object = |path: &str| known.iter().any(|other| other.starts_with(&format!("{path}.")));
        let leaves = known.iter().filter(|path| path.starts_with("spec.") && !path.contains("[]"));
        for path in leaves.filter(|path| !is_object(path) && !without.contains(&path.as_str())) {
            assert!(given.contains(path), "{path} has no flag");
        }
    }

    /// Each field can be changed alone.
    #[test]
    fn every_flag_is_the_name_of_a_field_that_can_be_changed() {
        let mut body = Object::new();
        let named = flags(ALL).write("web", true, &mut body).expect("good flags");
        let known: BTreeSet<&str> = change::FIELDS.iter().copied().collect();
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), known);
    }

    #[test]
    fn a_spec_from_flags_has_a_kill_after() {
        for (line, file, kill_after) in [
            ("--cmd a", json!({}), json!(5)),
            ("--cmd a --stop-check-secs 9", json!({}), json!(9)),
            ("--cmd a --kill-after 0", json!({}), json!(0)),
            ("--cmd a", json!({"spec": {"identity": {}}}), Value::Null),
        ] {
            let mut body = file.as_object().expect("an object").clone();
            let change = flags(line).write("web", false, &mut body).expect("good flags");
            assert_eq!(body["spec"]["alive_monitor_policy"]["kill_after"], kill_after, "{line} {file}");
            assert_eq!(
                change.contains(&"kill_after"),
                line.contains("--kill-after"),
                "where it is stored: {line}"
            );
        }
    }

    #[test]
    fn a_relative_pid_file_needs_the_setup_path() {
        assert!(flags("--pid-file x.pid").given().is_err());
        assert!(flags("--pid-file /run/x.pid").given().is_ok());
    }
}
