//! The API's document: it is complete, its examples match it, and the checked-in file is up to date.

use procfleet_proto::http::document::apis::{self, APIS};
use procfleet_proto::http::record::Recorder;
use procfleet_proto::http::{document as document_shape, login};
use procfleet_server::http::document;
use procfleet_testkit::schema_faults;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn json() -> Value {
    document::document().json
}

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            all.push((method.clone(), path.clone(), operation.clone()));
        }
    }
    all
}

#[test]
fn every_api_and_field_has_a_text_in_both_languages() {
    let faults = document::document().faults;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_checked_in_api_document_is_up_to_date() {
    let kept = include_str!("../../../docs/api/openapi.json");
    assert!(
        kept == document::text(),
        "docs/api/openapi.json is stale; refresh it with: cargo run -- openapi > docs/api/openapi.json"
    );
}

#[test]
fn every_api_is_documented_once() {
    let document = json();
    let mut ids: Vec<String> = Vec::new();
    for (method, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path}")).to_owned();
        assert!(!ids.contains(&id), "{id} is there twice");
        ids.push(id);
    }
    for api in APIS {
        assert!(ids.iter().any(|id| id == api.name), "{} is not there", api.name);
    }
}

#[test]
fn every_reference_of_the_api_document_resolves() {
    fn walk(document: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(pointer)) = fields.get("$ref") {
                    assert!(document.pointer(pointer.trim_start_matches('#')).is_some(), "{pointer}");
                }
                fields.values().for_each(|value| walk(document, value));
            }
            Value::Array(values) => values.iter().for_each(|value| walk(document, value)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let document = json();
    walk(&document, &document);
}

#[test]
fn the_examples_match_their_schemas() {
    let document = json();
    for (method, path, operation) in operations(&document) {
        for content in [
            &operation["requestBody"]["content"]["application/json"],
            &operation["responses"]["200"]["content"]["application/json"],
        ] {
            let example = &content["example"];
            let document_itself = path == "/api/openapi.json";
            assert!(
                content.is_null() || document_itself || !example.is_null(),
                "{method} {path}: no example"
            );
            if !example.is_null() {
                let faults = schema_faults(&document, &content["schema"], example);
                assert!(faults.is_empty(), "{method} {path}: {faults:#?}");
            }
        }
    }
}

/// The reading code and the schema agree on the example requests and on what is left out of them.
#[test]
fn the_schema_requires_the_fields_that_the_reader_requires() {
    let document = json();
    for (method, path, operation) in operations(&document) {
        let content = &operation["requestBody"]["content"]["application/json"];
        let Some(fields) = content["example"].as_object() else { continue };
        let required = content["schema"]["required"].as_array().cloned().unwrap_or_default();
        for name in fields.keys() {
            let mut less = content["example"].clone();
            less.as_object_mut().expect("an object").remove(name);
            let refused = !schema_faults(&document, &content["schema"], &less).is_empty();
            let either = content["schema"]["allOf"].to_string().contains(&format!("\"{name}\""));
            let needed = required.iter().any(|required| required == name) || either;
            assert_eq!(refused, needed, "{method} {path} without {name}");
        }
    }
}

/// A strict API refuses every field that it does not read.
#[test]
fn strict_apis_know_the_fields_that_they_read() {
    let mut strict = 0;
    for api in APIS {
        let Some(read) = api.read else { continue };
        let recorder = Recorder::default();
        let _ = read((&recorder).into());
        let record = recorder.into_record();
        let Some(mut known) = record.only else { continue };
        let mut asked: Vec<String> = record.fields.into_iter().map(|(path, _)| path).collect();
        asked.retain(|path| !path.contains(['.', '[']));
        known.sort();
        asked.sort();
        assert_eq!(known, asked, "{}", api.name);
        strict += 1;
    }
    assert!(strict > 5, "the administrators' APIs are strict");
}

/// A row of `docs/api/fields.md`.
struct FieldRow {
    field: String,
    tests: Vec<String>,
}

/// The rows of one kind in the table of one API.
fn rows(api: &str, kind: &str) -> Vec<FieldRow> {
    let table = include_str!("../../../docs/api/fields.md");
    let section = table.split("\n## ").find(|section| section.contains(&format!("<!-- api: {api} -->")));
    let section = section.unwrap_or_else(|| panic!("fields.md has no section for {api}"));
    let mut inside = false;
    let mut rows = Vec::new();
    for line in section.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells[..] {
            [head, "here", "tests"] => inside = head == kind,
            [field, _, tests] if inside && field.starts_with('`') => {
                let names = tests.split(',').map(|name| name.trim().trim_matches('`').to_owned());
                rows.push(FieldRow {
                    field: field.trim_matches('`').to_owned(),
                    tests: names.filter(|name| !name.is_empty()).collect(),
                });
            }
            _ => {}
        }
    }
    rows
}

const SEEDS: [&str; 5] =
    ["operate_proc_v2", "job.operate_proc", "register_proc_info", "job.operate_process", "job.manage_proc"];

/// The request fields in the tables of the five documents. The login is the same in all.
const DOCUMENTS: [(&str, &str); 5] = [
    (
        "operate_proc_v2",
        "meta hosts op_type spec meta.namespace meta.name meta.labels hosts[].ip hosts[].bk_cloud_id \
         spec.identity spec.control spec.alive_monitor_policy spec.warn_report_policy spec.configmap \
         spec.identity.proc_name spec.identity.setup_path spec.identity.pid_path spec.identity.config_path \
         spec.identity.log_path spec.identity.user spec.control.start_cmd spec.control.stop_cmd \
         spec.control.restart_cmd spec.control.reload_cmd spec.control.kill_cmd spec.control.version_cmd \
         spec.control.health_cmd spec.alive_monitor_policy.auto_type spec.alive_monitor_policy.start_check_secs \
         spec.alive_monitor_policy.stop_check_secs spec.alive_monitor_policy.start_retries \
         spec.alive_monitor_policy.start_interval spec.alive_monitor_policy.crontab_rule \
         spec.alive_monitor_policy.op_timeout spec.warn_report_policy.report_id spec.configmap[].path \
         spec.configmap[].md5",
    ),
    (
        "job.operate_proc",
        "bk_biz_id op_type process_infos process_infos[].setup_path process_infos[].proc_name \
         process_infos[].pid_path process_infos[].account process_infos[].cmd_shell_ext process_infos[].cpu_lmt \
         process_infos[].mem_lmt process_infos[].ip_list process_infos[].ip_list[].bk_cloud_id \
         process_infos[].ip_list[].ip",
    ),
    (
        "register_proc_info",
        "meta hosts spec meta.namespace meta.name meta.labels hosts[].ip hosts[].bk_cloud_id \
         hosts[].bk_supplier_id spec.identity spec.control spec.resource spec.monitor_policy \
         spec.warn_report_policy spec.configmap spec.identity.proc_name spec.identity.setup_path \
         spec.identity.pid_path spec.identity.config_path spec.identity.log_path spec.identity.user \
         spec.control.start_cmd spec.control.stop_cmd spec.control.restart_cmd spec.control.reload_cmd \
         spec.control.kill_cmd spec.control.version_cmd spec.control.health_cmd spec.resource.cpu \
         spec.resource.mem spec.resource.fd spec.resource.disk spec.resource.net spec.monitor_policy.auto_type \
         spec.monitor_policy.start_check_secs spec.monitor_policy.stop_check_secs \
         spec.monitor_policy.start_retries spec.monitor_policy.start_interval spec.monitor_policy.crontab_rule \
         spec.warn_report_policy.report_id spec.configmap[].path spec.configmap[].md5",
    ),
    (
        "job.operate_process",
        "bk_biz_id op_type process_infos process_infos[].setup_path process_infos[].proc_name \
         process_infos[].pid_path process_infos[].cfg_path process_infos[].log_path process_infos[].contact \
         process_infos[].start_cmd process_infos[].stop_cmd process_infos[].restart_cmd \
         process_infos[].reload_cmd process_infos[].kill_cmd process_infos[].func_id \
         process_infos[].instance_id process_infos[].value_key process_infos[].type process_infos[].cycle_time \
         process_infos[].instance_num process_infos[].start_check_begin_time \
         process_infos[].start_check_end_time process_infos[].op_timeout process_infos[].account \
         process_infos[].cpu_lmt process_infos[].mem_lmt process_infos[].ip_list \
         process_infos[].ip_list[].bk_cloud_id process_infos[].ip_list[].ip",
    ),
    (
        "job.manage_proc",
        "bk_scope_type bk_scope_id op_type process_infos process_infos[].proc_name process_infos[].proc_owner \
         process_infos[].setup_path process_infos[].pid_path process_infos[].cfg_path process_infos[].log_path \
         process_infos[].start_cmd process_infos[].stop_cmd process_infos[].restart_cmd \
         process_infos[].reload_cmd process_infos[].kill_cmd process_infos[].func_id \
         process_infos[].instance_id process_infos[].value_key process_infos[].type process_infos[].cpu_lmt \
         process_infos[].mem_lmt process_infos[].cycle_time process_infos[].instance_num \
         process_infos[].op_timeout process_infos[].start_check_begin_time \
         process_infos[].start_check_end_time process_infos[].ip_list process_infos[].ip_list[].bk_cloud_id \
         process_infos[].ip_list[].ip",
    ),
];

#[test]
fn every_field_that_is_read_has_a_row() {
    // Both names are one thing.
    let plain = |path: &str| path.replace("spec.alive_monitor_policy", "spec.monitor_policy");
    for name in SEEDS {
        let api = apis::find(name).expect("it is documented");
        let read: BTreeSet<String> = document_shape::fields_of(api)
            .iter()
            .map(|path| plain(path))
            .chain(login::FIELDS.map(str::to_owned))
            .collect();
        let told: BTreeSet<String> = rows(name, "request").iter().map(|row| plain(&row.field)).collect();
        let missing: Vec<&String> = read.difference(&told).collect();
        let surplus: Vec<&String> = told.difference(&read).collect();
        assert!(
            missing.is_empty() && surplus.is_empty(),
            "{name}: no row for {missing:?}; none reads {surplus:?}"
        );
        assert!(rows(name, "answer").len() >= 5, "{name}: the answer's fields have rows too");
    }
}

#[test]
fn every_field_of_the_five_documents_has_a_row() {
    for (name, fields) in DOCUMENTS {
        let told: BTreeSet<String> = rows(name, "request").into_iter().map(|row| row.field).collect();
        let missing: Vec<&str> = fields.split_whitespace().filter(|field| !told.contains(*field)).collect();
        assert!(missing.is_empty(), "{name}: no row for {missing:?}");
    }
}

/// The Rust code of all crates, by file.
fn rust_code() -> Vec<(PathBuf, String)> {
    let mut code = Vec::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|ending| ending == "rs") {
                let text = std::fs::read_to_string(&entry).expect("a file");
                code.push((entry, text));
            }
        }
    }
    code
}

#[test]
fn every_row_names_existing_tests() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let code = rust_code();
    let mut gone = BTreeSet::new();
    for FieldRow { field, tests } in
        SEEDS.iter().flat_map(|name| rows(name, "request").into_iter().chain(rows(name, "answer")))
    {
        assert!(!tests.is_empty(), "{field} names no test");
        gone.extend(tests.into_iter().filter(|test| match test.strip_prefix("conformance/") {
            Some(case) => !cases.join(format!("{case}.json")).exists(),
            None => !code.iter().any(|(_, text)| text.contains(&format!("fn {test}()"))),
        }));
    }
    assert!(gone.is_empty(), "fields.md names tests that are not there: {gone:#?}");
}

/// Recorded cases that fail if the server ignores the field whose row names them. Most cases record the shape
/// of an answer, which is the same whether a field has an effect or not.
const OBSERVING_CASES: [&str; 11] = [
    "gse_operate_proc_v2/index_key_reserved",
    "gse_operate_proc_v2/periodic_crotab_rule",
    "gse_operate_proc_v2/seed",
    "gse_register_proc_info/seed",
    "job_manage_proc/seed_unknown_host",
    "job_operate_proc/every_operation",
    "job_operate_proc/seed_unknown_host",
    "job_operate_process/every_operation",
    "job_operate_process/seed_unknown_host",
    "job_operate_process/start_check_end_time",
    "job_operate_process/value_key",
];

/// A test that only reads a request would not notice that a field has no effect. So each row names a test
/// that runs the supervisor, the agent or the whole program, and the last table says what that test would see
/// if the field were ignored.
#[test]
fn every_field_of_a_request_has_a_test_that_observes_its_effect() {
    let code = rust_code();
    let only_reads = |file: &Path| {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        ["proto", "cli"].iter().any(|room| file.starts_with(crates.join(room)))
    };
    let observes = |test: &String| {
        let defined = format!("fn {test}()");
        match test.strip_prefix("conformance/") {
            Some(case) => OBSERVING_CASES.contains(&case),
            None => code.iter().any(|(file, text)| !only_reads(file) && text.contains(&defined)),
        }
    };
    let table = include_str!("../../../docs/api/fields.md").split("## If a field were ignored").nth(1);
    let told: BTreeSet<&str> = table
        .expect("the table of ignored fields")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .filter(|(_, seen)| seen.trim_matches(['|', ' ']).len() > 10)
        .map(|(field, _)| field)
        .collect();
    let mut faults = Vec::new();
    let mut unnamed = BTreeSet::from(OBSERVING_CASES);
    for name in SEEDS {
        for FieldRow { field, tests } in rows(name, "request") {
            unnamed.retain(|case| !tests.contains(&format!("conformance/{case}")));
            if !tests.iter().any(observes) {
                faults.push(format!("{name}: no test of {field} observes an effect: {tests:?}"));
            }
            if !told.contains(field.replace("alive_monitor_policy", "monitor_policy").as_str()) {
                faults.push(format!(
                    "{name}: nothing says what the tests of {field} would see if it were ignored"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    assert!(unnamed.is_empty(), "no row names {unnamed:?}");
}
