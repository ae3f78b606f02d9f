//! The body of `operate_proc_v2`, from flags and a file.
//!
//! What only the server or the host can judge is left to them: they say all faults of a request at once.

use super::operate::{Operate, SpecFlags};
use crate::Error;
use procfleet_core::op::OpKind;
use procfleet_proto::http::typos::{self, Unread};
use serde_json::{Map, Value, json};
use std::io::Read;
use std::path::{Path, PathBuf};

/// `auto_type` of a process that runs until somebody stops it, the only kind that flags can describe.
const RESIDENT: u32 = 1;
/// The login is the connection's. One that a file holds would be a second truth, and need not travel.
const LOGIN_FIELDS: [&str; 4] = ["bk_app_code", "bk_app_secret", "bk_token", "bk_username"];

type Object = Map<String, Value>;

/// Reads a request body or a bare spec; a bare one is put where it belongs in a body.
pub(super) fn read_file(path: &Path, stdin: &mut dyn Read) -> Result<Object, Error> {
    let (shown, bytes) = if path == Path::new("-") {
        let mut bytes = Vec::new();
        ("stdin".to_owned(), stdin.read_to_end(&mut bytes).map(|_| bytes))
    } else {
        (path.display().to_string(), std::fs::read(path))
    };
    let bytes = bytes.map_err(|fault| Error::Usage(format!("cannot read {shown}: {fault}")))?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|fault| Error::Usage(format!("{shown} is not JSON: {fault}")))?;
    let Value::Object(object) = value else {
        return Err(Error::Usage(format!(
            "{shown} is neither a request nor a spec: it is not a JSON object"
        )));
    };
    let object = if ["spec", "meta", "hosts", "agent_id_list"].iter().any(|key| object.contains_key(*key)) {
        for part in ["spec", "meta"] {
            if object.get(part).is_some_and(|value| !value.is_object()) {
                return Err(Error::Usage(format!("{part:?} in {shown} is not a JSON object")));
            }
        }
        object
    } else if object.contains_key("identity") {
        Object::from_iter([("spec".to_owned(), Value::Object(object))])
    } else {
        return Err(Error::Usage(format!(
            "{shown} is neither a request (it has no \"spec\") nor a spec (it has no \"identity\")"
        )));
    };
    refuse_unread(&object, &shown)?;
    Ok(object)
}

/// The API accepts fields that it does not know, for other callers send some. In a file that somebody wrote by hand they are mistakes.
fn refuse_unread(object: &Object, shown: &str) -> Result<(), Error> {
    let unread = typos::in_request(object).into_iter();
    let unread = unread.filter(|unread| !LOGIN_FIELDS.contains(&unread.path.as_str()));
    let said: Vec<String> = unread
        .map(|Unread { path, meant }| match meant {
            Some(meant) => format!("{path} is not known; did you mean {meant}?"),
            None => format!("{path} is not known"),
        })
        .collect();
    match said.is_empty() {
        true => Ok(()),
        false => Err(Error::Usage(format!("{shown}: {}", said.join("; ")))),
    }
}

/// The file's body with the flags written over it.
pub(super) fn body(operate: &Operate, kind: OpKind, file: Option<Object>) -> Result<Object, Error> {
    let mut body = file.unwrap_or_default();
    for field in LOGIN_FIELDS {
        body.shift_remove(field);
    }
    let meta = child(&mut body, "meta");
    match &operate.namespace {
        Some(namespace) => set(meta, "namespace", json!(namespace)),
        None => _ = meta.entry("namespace").or_insert_with(|| json!("default")),
    }
    set(meta, "name", json!(operate.name));
    let labels = child(meta, "labels");
    for (key, value) in &operate.labels {
        set(labels, key, json!(value));
    }
    set(&mut body, "op_type", json!(kind.number()));
    if !operate.hosts.is_empty() || !operate.agents.is_empty() {
        body.shift_remove("hosts");
        body.shift_remove("agent_id_list");
    }
    if !operate.hosts.is_empty() {
        let hosts = operate.hosts.iter().map(|host| json!({"ip": host.ip, "bk_cloud_id": host.cloud}));
        set(&mut body, "hosts", hosts.collect());
    }
    if !operate.agents.is_empty() {
        set(&mut body, "agent_id_list", json!(operate.agents));
    }
    if operate.spec.any() {
        write_spec(&operate.spec, &operate.name, &mut body)?;
    }
    Ok(body)
}

pub(super) fn has_target(body: &Object) -> bool {
    ["hosts", "agent_id_list"]
        .iter()
        .any(|key| body.get(*key).and_then(Value::as_array).is_some_and(|list| !list.is_empty()))
}

impl SpecFlags {
    fn commands(&self) -> [(&'static str, Option<&String>); 5] {
        [
            ("start_cmd", self.start_cmd.as_ref()),
            ("stop_cmd", self.stop_cmd.as_ref()),
            ("restart_cmd", self.restart_cmd.as_ref()),
            ("reload_cmd", self.reload_cmd.as_ref()),
            ("kill_cmd", self.kill_cmd.as_ref()),
        ]
    }

    fn numbers(&self) -> [(&'static str, Option<u64>); 6] {
        [
            ("start_check_secs", self.start_check_secs),
            ("stop_check_secs", self.stop_check_secs),
            ("op_timeout", self.op_timeout),
            ("start_retries", self.start_retries),
            ("start_interval", self.start_interval),
            ("limit_samples", self.limit_samples),
        ]
    }

    fn words(&self) -> [(&'static str, Option<&String>); 2] {
        [("on_unhealthy", self.on_unhealthy.as_ref()), ("detached", self.detached.as_ref())]
    }

    fn any(&self) -> bool {
        self.commands().iter().any(|(_, command)| command.is_some())
            || self.numbers().iter().any(|(_, number)| number.is_some())
            || self.words().iter().any(|(_, word)| word.is_some())
            || self.pid_file.is_some()
            || self.setup_path.is_some()
            || self.user.is_some()
            || self.proc_name.is_some()
    }
}

/// A flag that was given always counts; the default of one that was not fills only what the file left out.
fn write_spec(flags: &SpecFlags, name: &str, body: &mut Object) -> Result<(), Error> {
    let spec = child(body, "spec");
    let identity = child(spec, "identity");
    let proc_name = flags.proc_name.as_deref();
    flag_or_default(identity, "proc_name", proc_name.map(Value::from), || Ok(json!(name)))?;
    let setup_path = flags.setup_path.as_deref().map(|path| absolute(path).map(Value::from)).transpose()?;
    flag_or_default(identity, "setup_path", setup_path, || absolute(Path::new(".")).map(Value::from))?;
    let setup_path = PathBuf::from(identity["setup_path"].as_str().unwrap_or_default());
    let pid_path =
        flags.pid_file.as_deref().map(|path| text(&setup_path.join(path)).map(Value::from)).transpose()?;
    flag_or_default(identity, "pid_path", pid_path, || Ok(json!("")))?;
    flag_or_default(identity, "user", flags.user.as_deref().map(Value::from), || Ok(json!("root")))?;
    let control = child(spec, "control");
    for (key, command) in flags.commands() {
        if let Some(command) = command {
            set(control, key, json!(command));
        }
    }
    let policy = child(spec, "alive_monitor_policy");
    flag_or_default(policy, "auto_type", None, || Ok(json!(RESIDENT)))?;
    for (key, number) in flags.numbers() {
        if let Some(number) = number {
            set(policy, key, json!(number));
        }
    }
    for (key, word) in flags.words() {
        if let Some(word) = word {
            set(policy, key, json!(word));
        }
    }
    Ok(())
}

fn flag_or_default(
    object: &mut Object,
    key: &str,
    flag: Option<Value>,
    default: impl FnOnce() -> Result<Value, Error>,
) -> Result<(), Error> {
    match flag {
        Some(value) => set(object, key, value),
        None if object.contains_key(key) => {}
        None => set(object, key, default()?),
    }
    Ok(())
}

fn set(object: &mut Object, key: &str, value: Value) {
    object.insert(key.to_owned(), value);
}

/// The object below a key. What is there and is none (`"labels": null`) is replaced.
fn child<'a>(object: &'a mut Object, key: &str) -> &'a mut Object {
    let value = object.entry(key).or_insert_with(|| json!({}));
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("it was just made one")
}

fn absolute(path: &Path) -> Result<String, Error> {
    let path = std::path::absolute(path).map_err(|fault| {
        Error::Usage(format!("cannot make {} absolute: {fault}; give --setup-path in full", path.display()))
    })?;
    text(&path)
}

fn text(path: &Path) -> Result<String, Error> {
    let text = path
        .to_str()
        .ok_or_else(|| Error::Usage(format!("{} cannot be sent: its name is not Unicode", path.display())))?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        operate: Operate,
    }

    fn operate(line: &str) -> Operate {
        Command::try_parse_from(std::iter::once("start").chain(line.split_whitespace())).expect(line).operate
    }

    fn file(text: &str) -> Result<Object, Error> {
        read_file(Path::new("-"), &mut text.as_bytes())
    }

    #[track_caller]
    fn check(line: &str, in_file: Option<Value>, wanted: Value) {
        let in_file = in_file.map(|value| file(&value.to_string()).expect("a good file"));
        let body = body(&operate(line), OpKind::Start, in_file).expect("a good line");
        assert_eq!(Value::Object(body), wanted, "{line}");
    }

    #[test]
    fn without_spec_flags_no_spec_is_sent() {
        check(
            "nginx --host 0:127.0.0.1 --label a=b=c --label d=",
            None,
            json!({
                "meta": {"namespace": "default", "name": "nginx", "labels": {"a": "b=c", "d": ""}},
                "op_type": 0,
                "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}],
            }),
        );
    }

    #[test]
    fn one_spec_flag_makes_a_whole_spec() {
        let here = std::env::current_dir().expect("a current folder");
        check(
            "nginx --namespace web --agent a1 --agent a2 --stop-cmd ./stop",
            None,
            json!({
                "meta": {"namespace": "web", "name": "nginx", "labels": {}},
                "op_type": 0,
                "agent_id_list": ["a1", "a2"],
                "spec": {
                    "identity": {"proc_name": "nginx", "setup_path": here, "pid_path": "", "user": "root"},
                    "control": {"stop_cmd": "./stop"},
                    "alive_monitor_policy": {"auto_type": 1},
                },
            }),
        );
    }

    #[test]
    fn every_spec_flag_has_its_place() {
        check(
            "web --cmd a --stop-cmd b --restart-cmd c --reload-cmd d --kill-cmd e --pid-file run/web.pid \
             --setup-path /srv/web --user www --proc-name java --start-check-secs 1 --stop-check-secs 2 \
             --op-timeout 3 --start-retries 4 --start-interval 5 --limit-samples 6 --on-unhealthy restart --detached keep",
            None,
            json!({
                "meta": {"namespace": "default", "name": "web", "labels": {}},
                "op_type": 0,
                "spec": {
                    "identity": {
                        "proc_name": "java", "setup_path": "/srv/web", "pid_path": "/srv/web/run/web.pid",
                        "user": "www",
                    },
                    "control": {
                        "start_cmd": "a", "stop_cmd": "b", "restart_cmd": "c", "reload_cmd": "d", "kill_cmd": "e",
                    },
                    "alive_monitor_policy": {
                        "auto_type": 1, "start_check_secs": 1, "stop_check_secs": 2, "op_timeout": 3,
                        "start_retries": 4, "start_interval": 5, "limit_samples": 6,
                        "on_unhealthy": "restart", "detached": "keep",
                    },
                },
            }),
        );
    }

    #[test]
    fn a_relative_setup_path_is_made_absolute() {
        let body = body(&operate("web --setup-path deep/er"), OpKind::Start, None).expect("a good line");
        let here = std::env::current_dir().expect("a current folder");
        assert_eq!(body["spec"]["identity"]["setup_path"], json!(here.join("deep/er")));
    }

    #[test]
    fn a_bare_spec_is_sent_as_it_is() {
        let spec = json!({"identity": {"proc_name": "x"}, "control": {}, "resource": {"cpu": 10.5}});
        check(
            "nginx --agent a1",
            Some(spec.clone()),
            json!({
                "spec": spec,
                "meta": {"namespace": "default", "name": "nginx", "labels": {}},
                "op_type": 0,
                "agent_id_list": ["a1"],
            }),
        );
    }

    #[test]
    fn flags_win_over_a_request_file_and_the_rest_of_it_stays() {
        let whole = json!({
            "bk_app_code": "other", "bk_app_secret": "other", "bk_username": "other",
            "meta": {"namespace": "gse", "name": "old", "labels": {"a": "1", "b": "2"}},
            "op_type": 9,
            "agent_id_list": ["a9"],
            "spec": {
                "identity": {"proc_name": "p", "setup_path": "/opt/p", "pid_path": "/p.pid", "user": "app"},
                "control": {"start_cmd": "old", "stop_cmd": "stop"},
                "alive_monitor_policy": {"auto_type": 2, "op_timeout": 9},
                "warn_report_policy": {"report_id": 7},
            },
        });
        check(
            "new --host 1:10.0.0.1 --label b=3 --cmd fresh --pid-file x.pid",
            Some(whole),
            json!({
                "meta": {"namespace": "gse", "name": "new", "labels": {"a": "1", "b": "3"}},
                "op_type": 0,
                "hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 1}],
                "spec": {
                    "identity": {
                        "proc_name": "p", "setup_path": "/opt/p", "pid_path": "/opt/p/x.pid", "user": "app",
                    },
                    "control": {"start_cmd": "fresh", "stop_cmd": "stop"},
                    "alive_monitor_policy": {"auto_type": 2, "op_timeout": 9},
                    "warn_report_policy": {"report_id": 7},
                },
            }),
        );
    }

    #[test]
    fn a_request_file_may_name_the_target() {
        let with = |target: Value| has_target(target.as_object().expect("an object"));
        assert!(with(json!({"hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 1}]})));
        assert!(with(json!({"agent_id_list": ["a"]})));
        assert!(!with(json!({"hosts": []})));
        assert!(!with(json!({})));
    }

    #[test]
    fn files_that_cannot_be_used_are_refused_in_words() {
        for (text, words) in [
            ("{", "stdin is not JSON"),
            ("[]", "stdin is neither a request nor a spec: it is not a JSON object"),
            ("{}", "stdin is neither a request (it has no \"spec\") nor a spec (it has no \"identity\")"),
            (r#"{"spec": 1}"#, "\"spec\" in stdin is not a JSON object"),
        ] {
            let error = file(text).expect_err(text);
            assert!(error.to_string().starts_with(words), "{error}");
            assert_eq!(error.exit(), crate::Exit::Usage);
        }
        let missing = read_file(Path::new("/nowhere/spec.json"), &mut std::io::empty()).expect_err("no file");
        assert!(missing.to_string().starts_with("cannot read /nowhere/spec.json: "), "{missing}");
    }

    #[test]
    fn hosts_and_agents_together_are_refused() {
        let line = ["start", "nginx", "--host", "0:127.0.0.1", "--agent", "a"];
        assert!(Command::try_parse_from(line).is_err());
        assert!(Command::try_parse_from(["start", "nginx", "--label", "=x"]).is_err());
        assert!(Command::try_parse_from(["start", "nginx", "--host", "127.0.0.1"]).is_err());
    }
}
