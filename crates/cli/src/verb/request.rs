//! The body of `POST /api/v1/operate`, from flags and a file.
//!
//! Checks that need the server or the host are left to them: they report all faults of a request at once.

use super::object::{Object, child, set};
use super::spec_flags::SpecFlags;
use super::targets::Targets;
use crate::Error;
use procfleet_core::op::OpKind;
use procfleet_proto::http::operate::unread_fields;
use procfleet_proto::http::typos::Unread;
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;

/// The login of the connection is used; login fields of a file are not sent.
const LOGIN_FIELDS: [&str; 4] = ["bk_app_code", "bk_app_secret", "bk_token", "bk_username"];

/// The flags that a request is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestFlags<'a> {
    pub(super) targets: &'a Targets,
    pub(super) labels: &'a [(String, String)],
    pub(super) spec: &'a SpecFlags,
}

/// Reads a request body, or a bare spec, which is put into a body.
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

/// The API accepts unknown fields because GSE's callers send some. In a file for this client they are
/// mistakes.
fn refuse_unread(object: &Object, shown: &str) -> Result<(), Error> {
    let unread = unread_fields(object).into_iter();
    let unread = unread.filter(|unread| !LOGIN_FIELDS.contains(&unread.path.as_str()));
    let unknown: Vec<String> = unread
        .map(|Unread { path, meant }| match meant {
            Some(meant) => format!("{path} is not known; did you mean {meant}?"),
            None => format!("{path} is not known"),
        })
        .collect();
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(Error::Usage(format!("{shown}: {}", unknown.join("; ")))),
    }
}

/// The file's body with the flags written over it.
pub(super) fn body(flags: RequestFlags<'_>, kind: OpKind, file: Option<Object>) -> Result<Object, Error> {
    let mut body = file.unwrap_or_default();
    for field in LOGIN_FIELDS {
        body.shift_remove(field);
    }
    flags.targets.write(&mut body)?;
    let labels = child(child(&mut body, "meta"), "labels");
    for (key, value) in flags.labels {
        set(labels, key, json!(value));
    }
    set(&mut body, "op_type", json!(kind.number()));
    // A file's spec is a whole one and replaces what hosts have stored.
    let whole = body.get("spec").is_some_and(Value::is_object);
    let labelled = !flags.labels.is_empty();
    let change = flags.spec.write(flags.targets.first_name(), labelled, &mut body)?;
    if !whole && !change.is_empty() {
        set(&mut body, "change", json!(change));
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verb::operate::Operate;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        operate: Operate,
    }

    fn operate(line: &str) -> Operate {
        Command::try_parse_from(std::iter::once("start").chain(line.split_whitespace())).expect(line).operate
    }

    fn body(operate: &Operate, kind: OpKind, file: Option<Object>) -> Result<Object, Error> {
        super::body(operate.request_flags(), kind, file)
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
            "nginx --host 127.0.0.1",
            None,
            json!({
                "meta": {"namespace": "default", "name": "nginx", "labels": {}},
                "hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}],
                "op_type": 0,
            }),
        );
    }

    /// Hosts that know the process change one field; other hosts get a whole spec.
    #[test]
    fn one_spec_flag_changes_one_field() {
        let here = std::env::current_dir().expect("a current folder");
        check(
            "nginx --namespace web --agent a1 --agent a2 --stop-cmd ./stop",
            None,
            json!({
                "meta": {"namespace": "web", "name": "nginx", "labels": {}},
                "agent_id_list": ["a1", "a2"],
                "op_type": 0,
                "spec": {
                    "control": {"stop_cmd": "./stop"},
                    "identity": {"proc_name": "nginx", "setup_path": here, "pid_path": "", "user": "root"},
                    "alive_monitor_policy": {"auto_type": 1, "kill_after": 5},
                },
                "change": ["stop_cmd"],
            }),
        );
    }

    #[test]
    fn spec_flags_are_written_to_their_fields() {
        check(
            "web --cmd a --pid-file run/web.pid --setup-path /srv/web --user www --every 60 --cpu-limit 50 --instances 2",
            None,
            json!({
                "meta": {"namespace": "default", "name": "web", "labels": {}},
                "op_type": 0,
                "spec": {
                    "identity": {
                        "proc_name": "web", "setup_path": "/srv/web", "pid_path": "/srv/web/run/web.pid", "user": "www",
                    },
                    "control": {"start_cmd": "a"},
                    "resource": {"cpu": 50.0},
                    "alive_monitor_policy": {"auto_type": 0, "cycle_time": 60, "kill_after": 5},
                    "instance_num": 2,
                },
                "change": ["setup_path", "pid_path", "user", "start_cmd", "cpu", "auto_type", "instance_num"],
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
    fn several_names_and_all_of_a_namespace() {
        let names = |line: &str| {
            let body = body(&operate(line), OpKind::Restart, None).expect("a good line");
            (body["meta"].clone(), body.get("names").cloned())
        };
        let meta = |name: &str| json!({"namespace": "web", "name": name, "labels": {}});
        assert_eq!(names("web* api --namespace web"), (meta("web*"), Some(json!(["api"]))));
        assert_eq!(names("--all --namespace web"), (meta("*"), None));
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
            "new --host 1:10.0.0.1 --label b=3 --cmd fresh --pid-file /opt/p/x.pid",
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
    fn a_label_alone_is_a_change_of_the_spec() {
        let body = body(&operate("web --label a=b=c --label d="), OpKind::Host, None).expect("a good line");
        assert_eq!(body["meta"]["labels"], json!({"a": "b=c", "d": ""}));
        assert_eq!(body["change"], json!(["labels"]));
    }

    #[test]
    fn a_request_file_may_name_the_target() {
        let target = |target: Value| {
            let body =
                body(&operate("web"), OpKind::Start, Some(file(&target.to_string()).expect("a request")));
            let body = body.expect("a good line");
            ["hosts", "agent_id_list"].map(|way| body.get(way).cloned())
        };
        let hosts = json!([{"ip": "10.0.0.1", "bk_cloud_id": 1}]);
        assert_eq!(target(json!({"hosts": hosts})), [Some(hosts.clone()), None]);
        assert_eq!(target(json!({"hosts": hosts, "agent_id_list": ["a"]})), [None, Some(json!(["a"]))]);
        assert_eq!(target(json!({"hosts": [], "agent_id_list": []})), [None, None]);
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
            assert_eq!(error.exit(), crate::VerbExit::Usage);
        }
        let missing = read_file(Path::new("/nowhere/spec.json"), &mut std::io::empty()).expect_err("no file");
        assert!(missing.to_string().starts_with("cannot read /nowhere/spec.json: "), "{missing}");
    }

    #[test]
    fn hosts_and_agents_together_are_refused() {
        let line = ["start", "nginx", "--host", "0:127.0.0.1", "--agent", "a"];
        assert!(Command::try_parse_from(line).is_err());
        assert!(Command::try_parse_from(["start", "nginx", "--label", "=x"]).is_err());
        assert!(Command::try_parse_from(["start", "nginx", "--host", "localhost"]).is_err());
        assert!(Command::try_parse_from(["start", "--all"]).is_err(), "--all needs --namespace");
        assert!(Command::try_parse_from(["start"]).is_err());
    }
}
