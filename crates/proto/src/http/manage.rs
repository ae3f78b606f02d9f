//! The requests that manage apps, businesses and agents, below `/api/v1/`.
//!
//! Unlike GSE's callers, ours are told about fields that mean nothing: a misspelt list of grants must not be taken for an
//! empty one.

use super::fault::Faults;
use super::native::{BusinessRow, BusinessSetRow, CreateApp, GrantLists};
use super::read::Reader;
use procfleet_core::access::{Dimension, Grants};
use procfleet_core::id::{AgentId, BusinessId};
use serde_json::Value;

const LONGEST_CODE: usize = 64;
const LONGEST_NAME: usize = 128;
/// Apps of ours: the administrator, and what the audit names where no app asked.
const RESERVED: &str = "procfleet-";
/// The login may stand beside a request's own fields.
const LOGIN: [&str; 4] = ["bk_app_code", "bk_app_secret", "bk_username", "bk_token"];

pub fn create_app(body: &Value) -> Result<CreateApp, Faults> {
    read(body, &["code", "trusted"], |reader, faults| {
        let code = reader.required_text("code", LONGEST_CODE, faults);
        if let Some(odd) = code.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(*c)) {
            faults.add("code", format!("contains {odd:?}; letters, digits and -_. are allowed"));
        }
        if code.starts_with(RESERVED) {
            faults.add("code", format!("begins with {RESERVED}, which is kept for procfleet itself"));
        }
        CreateApp { code, trusted: flag(body, "trusted", faults) }
    })
}

/// `{"all": true}`, or some of the four lists.
pub fn change_grants(body: &Value) -> Result<Grants, Faults> {
    let lists = [
        ("businesses", Dimension::Business),
        ("namespaces", Dimension::Namespace),
        ("ops", Dimension::Op),
        ("accounts", Dimension::Account),
    ];
    read(body, &["all", "businesses", "namespaces", "ops", "accounts"], |reader, faults| {
        if flag(body, "all", faults) {
            return Grants::everything();
        }
        let mut grants = Grants::default();
        for (field, dimension) in lists {
            for (path, text) in reader.texts(field, faults) {
                if let Err(reason) = grants.add(dimension, text) {
                    faults.add(path, reason.to_string());
                }
            }
        }
        if grants.is_empty() && faults.is_empty() {
            faults.add("", "names nothing: give businesses, namespaces, ops, accounts or all");
        }
        grants
    })
}

pub fn grant_lists(grants: &Grants) -> GrantLists {
    let mut lists = GrantLists::default();
    for (dimension, text) in grants.words() {
        match dimension {
            Dimension::Business => lists.businesses.push(text),
            Dimension::Namespace => lists.namespaces.push(text),
            Dimension::Op => lists.ops.push(text),
            Dimension::Account => lists.accounts.push(text),
        }
    }
    lists
}

pub fn create_business(body: &Value) -> Result<BusinessRow, Faults> {
    read(body, &["bk_biz_id", "bk_biz_name"], |reader, faults| BusinessRow {
        bk_biz_id: required_id(reader, "bk_biz_id", faults),
        bk_biz_name: name(reader, "bk_biz_name", faults),
    })
}

pub fn create_business_set(body: &Value) -> Result<BusinessSetRow, Faults> {
    read(body, &["bk_biz_set_id", "bk_biz_set_name", "bk_biz_ids"], |reader, faults| BusinessSetRow {
        bk_biz_set_id: required_id(reader, "bk_biz_set_id", faults),
        bk_biz_set_name: name(reader, "bk_biz_set_name", faults),
        bk_biz_ids: business_ids(body, "bk_biz_ids", faults),
    })
}

/// The url that events are to be sent to.
pub fn create_webhook(body: &Value) -> Result<String, Faults> {
    read(body, &["url"], |reader, faults| reader.required_text("url", 2_048, faults))
}

/// The agents as they were named, and the business that they go to.
pub fn assign_agents(body: &Value) -> Result<(Vec<AgentId>, BusinessId), Faults> {
    read(body, &["agents", "bk_biz_id"], |reader, faults| {
        let mut agents = Vec::new();
        let texts = reader.texts("agents", faults);
        if texts.is_empty() && faults.is_empty() {
            faults.add("agents", "is required and must not be empty");
        }
        for (path, text) in texts {
            match text.parse() {
                Ok(agent) => agents.push(agent),
                Err(reason) => faults.add(path, format!("{reason}")),
            }
        }
        (agents, BusinessId(required_id(reader, "bk_biz_id", faults)))
    })
}

/// Reads with `fields`, and adds the fields that nobody knows to the faults.
pub(super) fn read<T>(
    body: &Value,
    known: &[&str],
    fields: impl FnOnce(&Reader<'_>, &mut Faults) -> T,
) -> Result<T, Faults> {
    let mut faults = Faults::default();
    let made = Reader::root(body, &mut faults).map(|reader| fields(&reader, &mut faults));
    for name in body.as_object().into_iter().flat_map(|fields| fields.keys()) {
        if !known.contains(&name.as_str()) && !LOGIN.contains(&name.as_str()) {
            faults.add(name.as_str(), format!("is not known here; there are {}", known.join(", ")));
        }
    }
    match made {
        Some(made) if faults.is_empty() => Ok(made),
        _ => Err(faults),
    }
}

fn flag(body: &Value, field: &str, faults: &mut Faults) -> bool {
    match body.get(field) {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => *flag,
        Some(_) => {
            faults.add(field, "must be true or false");
            false
        }
    }
}

fn required_id(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> u32 {
    if !reader.has(field) {
        reader.missing(field, faults);
    }
    let id = reader.integer(field, 1..=i64::from(u32::MAX), faults);
    id.and_then(|id| u32::try_from(id).ok()).unwrap_or_default()
}

fn business_ids(body: &Value, field: &str, faults: &mut Faults) -> Vec<u32> {
    let listed = match body.get(field) {
        None | Some(Value::Null) => &[],
        Some(Value::Array(listed)) => listed.as_slice(),
        Some(_) => {
            faults.add(field, "must be an array of integers");
            return Vec::new();
        }
    };
    if listed.is_empty() {
        faults.add(field, "is required and must not be empty");
    }
    let mut ids = Vec::new();
    for (place, value) in listed.iter().enumerate() {
        match value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id > 0) {
            Some(id) => ids.push(id),
            None => faults.add(format!("{field}[{place}]"), "must be an integer from 1 on"),
        }
    }
    ids
}

fn name(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> String {
    let name = reader.required_text(field, LONGEST_NAME, faults);
    if name.chars().any(char::is_control) {
        faults.add(field, "contains a control character");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check<T: std::fmt::Debug>(read: Result<T, Faults>, expected: &[&str]) {
        let said = read.expect_err("it has faults").to_string();
        let starts: Vec<&str> = said.split("; ").collect();
        for word in expected {
            assert!(starts.iter().any(|start| start.starts_with(word)), "{word:?} is not in {said:?}");
        }
    }

    #[test]
    fn every_fault_is_named_at_once() {
        check(
            create_app(&json!({"code": "a b", "trusted": 1, "x": 2})),
            &["code: contains", "trusted: ", "x: "],
        );
        check(create_app(&json!({"code": "procfleet-x"})), &["code: begins with"]);
        check(create_app(&json!({})), &["code: is required"]);
        check(
            change_grants(
                &json!({"businesses": ["0"], "ops": ["status"], "namespaces": ["a*b"], "account": []}),
            ),
            &["businesses[0]: ", "ops[0]: ", "namespaces[0]: ", "account: is not known"],
        );
        check(change_grants(&json!({})), &["names nothing"]);
        check(create_business(&json!({"bk_biz_id": 0})), &["bk_biz_id: is 0", "bk_biz_name: is required"]);
        check(
            create_business_set(&json!({"bk_biz_set_id": 1, "bk_biz_set_name": "s", "bk_biz_ids": [1, "x"]})),
            &["bk_biz_ids[1]: "],
        );
        check(assign_agents(&json!({"agents": ["a b"]})), &["agents[0]: ", "bk_biz_id: is required"]);
        check(assign_agents(&json!([])), &["must be an object"]);
    }

    #[test]
    fn the_login_may_stand_beside_the_request() {
        let body = json!({"bk_app_code": "x", "bk_app_secret": "y", "bk_username": "z", "code": "ops"});
        assert_eq!(create_app(&body), Ok(CreateApp { code: "ops".to_owned(), trusted: false }));
    }

    #[test]
    fn grants_read_back_what_they_show() {
        let body = json!({"businesses": ["2"], "namespaces": ["web*"], "ops": ["start"], "accounts": ["*"]});
        let grants = change_grants(&body).expect("grants");
        assert_eq!(serde_json::to_value(grant_lists(&grants)).expect("JSON"), body);
        assert_eq!(change_grants(&json!({"all": true})), Ok(Grants::everything()));
    }
}
