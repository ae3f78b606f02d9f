//! Patterns: the values that they match, and the messages when they do not.

use procfleet_testkit::pattern::mismatches;
use serde_json::{Value, json};

#[track_caller]
fn check(pattern: Value, answer: Value, expected: &[&str]) {
    assert_eq!(mismatches(&pattern, &answer), expected, "{pattern} against {answer}");
}

#[test]
fn values_match_themselves() {
    for value in [
        json!(null),
        json!(1),
        json!(-1),
        json!(1.5),
        json!("a"),
        json!(true),
        json!([1, "a"]),
        json!({"a": {}}),
    ] {
        check(value.clone(), value, &[]);
    }
    check(json!(1), json!(2), &["the answer: 1 expected, 2 found"]);
    check(json!("1"), json!(1), &["the answer: \"1\" expected, 1 found"]);
    check(json!({"a": [1, {"b": 2}]}), json!({"a": [1, {"b": 3}]}), &["a[1].b: 2 expected, 3 found"]);
    check(json!([1]), json!([1, 2]), &["the answer: 1 elements expected, 2 found"]);
    check(json!({}), json!([]), &["the answer: {} expected, [] found"]);
}

#[test]
fn objects_have_exactly_the_keys() {
    check(json!({"a": 1}), json!({"a": 1, "b": 2}), &["the answer: \"b\" was not expected: 2"]);
    check(json!({"a": 1, "b": "…"}), json!({"a": 1}), &["b: missing"]);
    check(json!({"…": "…", "a": 1}), json!({"a": 1, "b": 2}), &[]);
    check(json!({"…": "…", "a": 1}), json!({"b": 2}), &["a: missing"]);
    check(json!({"x": {"a": 1}}), json!({"x": {"b": 1}}), &["x.a: missing", "x: \"b\" was not expected: 1"]);
}

#[test]
fn kinds() {
    for value in [json!(null), json!(1), json!("a"), json!([]), json!({})] {
        check(json!("…"), value, &[]);
    }
    check(json!("…int"), json!(-3), &[]);
    check(json!("…int"), json!(1.5), &["the answer: \"…int\" expected, 1.5 found"]);
    check(json!("…number"), json!(1.5), &[]);
    check(json!("…number"), json!("1"), &["the answer: \"…number\" expected, \"1\" found"]);
    check(json!("…text"), json!(""), &[]);
    check(json!("…text"), json!(null), &["the answer: \"…text\" expected, null found"]);
    check(json!("…bool"), json!(false), &[]);
    check(json!("…bool"), json!(0), &["the answer: \"…bool\" expected, 0 found"]);
    check(json!({"…over": 1}), json!(2), &[]);
    check(json!({"…over": 1}), json!(1), &["the answer: a number over 1 expected, 1 found"]);
    check(json!({"…not": 7}), json!(8), &[]);
    check(json!({"…not": 7}), json!(7), &["the answer: anything but 7 expected, 7 found"]);
    check(json!({"…nonsense": 7}), json!(7), &["the answer: no such pattern: …nonsense 7"]);
}

#[test]
fn texts() {
    let rows = [
        ("no …", "no task", true),
        ("no …", "not", false),
        ("… task", "no task", true),
        ("a…b", "ab", true),
        ("a…b", "a", false),
        ("ab…b", "ab", false),
        ("a…b…c", "a1b2c", true),
        ("a…b…c", "a1c2b", false),
        ("a…b…b", "ab", false),
        ("a…b…b", "abb", true),
    ];
    for (pattern, text, fits) in rows {
        assert_eq!(mismatches(&json!(pattern), &json!(text)).is_empty(), fits, "{pattern} against {text}");
    }
    check(json!({"…has": ["a", "b"]}), json!("b and a"), &[]);
    check(json!({"…has": ["a", "b"]}), json!("a"), &["the answer: \"b\" is not in \"a\""]);
    check(json!({"…has": ["a"]}), json!(7), &["the answer: \"a\" is not in 7"]);
}

#[test]
fn json_inside_a_text() {
    check(json!({"c": {"…json": {"pid": "…int"}}}), json!({"c": "{\"pid\": 7}"}), &[]);
    check(
        json!({"c": {"…json": {"pid": -1}}}),
        json!({"c": "{\"pid\": 7}"}),
        &["c(json).pid: -1 expected, 7 found"],
    );
    check(json!({"c": {"…json": {}}}), json!({"c": ""}), &["c: no text that holds JSON: \"\""]);
    check(json!({"c": {"…json": {}}}), json!({"c": {}}), &["c: no text that holds JSON: {}"]);
}
