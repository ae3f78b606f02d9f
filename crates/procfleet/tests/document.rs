//! The API's document: it is complete, its examples are true, and what is checked in is what the code says.

use procfleet_proto::http::document::apis::{self, APIS};
use procfleet_proto::http::record::Recorder;
use procfleet_proto::http::{document as document_shape, login};
use procfleet_server::http::document;
use procfleet_testkit::schema_faults;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

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
fn everything_has_words_in_both_languages() {
    let faults = document::document().faults;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_checked_in_is_what_the_code_says() {
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
fn references_lead_somewhere() {
    fn walk(document: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(place)) = fields.get("$ref") {
                    assert!(document.pointer(place.trim_start_matches('#')).is_some(), "{place}");
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
fn the_examples_are_true() {
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
fn what_the_schema_requires_is_what_the_reader_requires() {
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

/// What an API refuses is everything but what it reads.
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

/// The rows of one kind in the table of one API: field, and the tests that show it.
fn rows(api: &str, kind: &str) -> Vec<(String, Vec<String>)> {
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
                rows.push((
                    field.trim_matches('`').to_owned(),
                    names.filter(|name| !name.is_empty()).collect(),
                ));
            }
            _ => {}
        }
    }
    rows
}

const SEEDS: [&str; 5] =
    ["operate_proc_v2", "job.operate_proc", "register_proc_info", "job.operate_process", "job.manage_proc"];

#[test]
fn every_field_of_the_seeds_has_a_row() {
    // Both names are one thing.
    let plain = |path: &str| path.replace("spec.alive_monitor_policy", "spec.monitor_policy");
    for name in SEEDS {
        let api = apis::find(name).expect("it is documented");
        let read: BTreeSet<String> = document_shape::fields_of(api)
            .iter()
            .map(|path| plain(path))
            .chain(login::FIELDS.map(str::to_owned))
            .collect();
        let told: BTreeSet<String> = rows(name, "request").iter().map(|(field, _)| plain(field)).collect();
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
fn every_row_names_tests_that_are_there() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut code = String::new();
    let mut folders = vec![crates.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path())
        {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|ending| ending == "rs") {
                code.push_str(&std::fs::read_to_string(&entry).expect("a file"));
            }
        }
    }
    let mut gone = Vec::new();
    for (field, tests) in SEEDS.iter().flat_map(|name| [rows(name, "request"), rows(name, "answer")].concat())
    {
        assert!(!tests.is_empty(), "{field} names no test");
        gone.extend(tests.into_iter().filter(|test| match test.strip_prefix("conformance/") {
            Some(case) => !crates.join(format!("procfleet/tests/conformance/{case}.json")).exists(),
            None => !code.contains(&format!("fn {test}()")),
        }));
    }
    gone.sort();
    gone.dedup();
    assert!(gone.is_empty(), "fields.md names tests that are not there: {gone:#?}");
}
