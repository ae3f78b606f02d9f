//! The requests that manage apps, businesses and agents, below `/api/v1/`.
//!
//! Unlike GSE's APIs, these refuse unknown fields: a misspelt list of grants must not count as an empty one.

use super::fault::Faults;
use super::login;
use super::native::{BusinessRow, BusinessSetRow, CreateApp, CreateToken, GrantLists};
use super::read::{Reader, RequestBody};
use procfleet_core::grants::{Dimension, Grants};
use procfleet_core::id::{AgentId, BusinessId};
use procfleet_core::select::good_label;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const LONGEST_CODE: usize = 64;
const LONGEST_NAME: usize = 128;
/// Built-in apps: the administrator, and the actor of audit records without an app.
const RESERVED: &str = "procfleet-";
const ID: RangeInclusive<i64> = 1..=u32::MAX as i64;
/// Maximum lifetime of a join token. A token that is valid longer may be leaked.
const LONGEST_TTL_SECS: i64 = 30 * 86_400;
const MOST_USES: i64 = 100_000;

pub fn create_app<'v>(body: impl Into<RequestBody<'v>>) -> Result<CreateApp, Faults> {
    read(body.into(), &["code", "trusted"], |reader, faults| {
        let code = reader.required_text("code", LONGEST_CODE, faults);
        if let Some(odd) = code.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(*c)) {
            faults.add("code", format!("contains {odd:?}; letters, digits and -_. are allowed"));
        }
        if code.starts_with(RESERVED) {
            faults.add("code", format!("begins with {RESERVED}, which is kept for procfleet itself"));
        }
        CreateApp { code, trusted: reader.flag("trusted", faults) }
    })
}

/// `{"all": true}`, or some of the four lists.
pub fn change_grants<'v>(body: impl Into<RequestBody<'v>>) -> Result<Grants, Faults> {
    let lists = [
        ("businesses", Dimension::Business),
        ("namespaces", Dimension::Namespace),
        ("ops", Dimension::Op),
        ("accounts", Dimension::Account),
    ];
    read(body.into(), &["all", "businesses", "namespaces", "ops", "accounts"], |reader, faults| {
        if reader.flag("all", faults) {
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

pub fn create_business<'v>(body: impl Into<RequestBody<'v>>) -> Result<BusinessRow, Faults> {
    read(body.into(), &["bk_biz_id", "bk_biz_name"], |reader, faults| BusinessRow {
        bk_biz_id: required_id(reader, "bk_biz_id", faults),
        bk_biz_name: name(reader, "bk_biz_name", faults),
    })
}

pub fn create_business_set<'v>(body: impl Into<RequestBody<'v>>) -> Result<BusinessSetRow, Faults> {
    read(body.into(), &["bk_biz_set_id", "bk_biz_set_name", "bk_biz_ids"], |reader, faults| BusinessSetRow {
        bk_biz_set_id: required_id(reader, "bk_biz_set_id", faults),
        bk_biz_set_name: name(reader, "bk_biz_set_name", faults),
        bk_biz_ids: reader
            .required_integers("bk_biz_ids", ID, faults)
            .into_iter()
            .filter_map(|id| u32::try_from(id).ok())
            .collect(),
    })
}

/// The url that events are to be sent to.
pub fn create_webhook<'v>(body: impl Into<RequestBody<'v>>) -> Result<String, Faults> {
    read(body.into(), &["url"], |reader, faults| reader.required_text("url", 2_048, faults))
}

/// The agents as they were named, and the business that they go to.
pub fn assign_agents<'v>(body: impl Into<RequestBody<'v>>) -> Result<(Vec<AgentId>, BusinessId), Faults> {
    read(body.into(), &["agents", "bk_biz_id"], |reader, faults| {
        (read_agents(reader, faults), BusinessId(required_id(reader, "bk_biz_id", faults)))
    })
}

/// The agents as they were named, and the reason of the revocation.
pub fn revoke_agents<'v>(body: impl Into<RequestBody<'v>>) -> Result<(Vec<AgentId>, String), Faults> {
    read(body.into(), &["agents", "reason"], |reader, faults| {
        let agents = read_agents(reader, faults);
        let reason = reader.text("reason", LONGEST_NAME, faults);
        if reason.chars().any(char::is_control) {
            faults.add("reason", "contains a control character");
        }
        (agents, reason)
    })
}

/// The agents as they were named.
pub fn forget_agents<'v>(body: impl Into<RequestBody<'v>>) -> Result<Vec<AgentId>, Faults> {
    read(body.into(), &["agents"], read_agents)
}

/// The labels to set and to remove for some agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelChange {
    /// As they were named.
    pub agents: Vec<AgentId>,
    pub set: BTreeMap<String, String>,
    pub remove: Vec<String>,
}

pub fn label_agents<'v>(body: impl Into<RequestBody<'v>>) -> Result<LabelChange, Faults> {
    read(body.into(), &["agents", "set", "remove"], |reader, faults| {
        let agents = read_agents(reader, faults);
        let set: BTreeMap<String, String> = reader.labels("set", faults).into_iter().collect();
        for (key, value) in &set {
            if let Err(reason) = good_label(key, value) {
                faults.add(format!("set.{key}"), reason);
            }
        }
        let remove: Vec<String> =
            reader.texts("remove", faults).into_iter().map(|(_, text)| text.to_owned()).collect();
        if set.is_empty() && remove.is_empty() && faults.is_empty() {
            faults.add("", "changes nothing: give set or remove");
        }
        LabelChange { agents, set, remove }
    })
}

/// Whether the old CA is retired although agents or tokens need it.
pub fn retire_ca<'v>(body: impl Into<RequestBody<'v>>) -> Result<bool, Faults> {
    read(body.into(), &["force"], |reader, faults| reader.flag("force", faults))
}

/// Agent ids, or hosts as `CLOUD:IP`.
fn read_agents(reader: &Reader<'_>, faults: &mut Faults) -> Vec<AgentId> {
    let mut agents = Vec::new();
    for (path, text) in reader.required_texts("agents", faults) {
        match text.parse() {
            Ok(agent) => agents.push(agent),
            Err(reason) => faults.add(path, format!("{reason}")),
        }
    }
    agents
}

/// A join token for new agents. Whether the business exists is checked later.
pub fn create_token<'v>(body: impl Into<RequestBody<'v>>) -> Result<CreateToken, Faults> {
    read(body.into(), &["bk_cloud_id", "bk_biz_id", "ttl_secs", "uses", "replace"], |reader, faults| {
        let small = |id: Option<i64>| id.and_then(|id| u32::try_from(id).ok());
        reader.require("ttl_secs", faults);
        let ttl = reader.integer("ttl_secs", 1..=LONGEST_TTL_SECS, faults);
        reader.require("uses", faults);
        CreateToken {
            uses: small(reader.integer("uses", 1..=MOST_USES, faults)).unwrap_or_default(),
            ttl_secs: ttl.and_then(|secs| u64::try_from(secs).ok()).unwrap_or_default(),
            bk_cloud_id: small(reader.integer("bk_cloud_id", 0..=i64::from(u32::MAX), faults))
                .unwrap_or_default(),
            bk_biz_id: small(reader.integer("bk_biz_id", ID, faults)).unwrap_or(BusinessId::DEFAULT.0),
            replace: reader.flag("replace", faults),
        }
    })
}

/// Reads with `fields`, and adds unknown fields to the faults.
pub(super) fn read<T>(
    body: RequestBody<'_>,
    known: &[&str],
    fields: impl FnOnce(&Reader<'_>, &mut Faults) -> T,
) -> Result<T, Faults> {
    let mut faults = Faults::default();
    let made = Reader::root(body, &mut faults).map(|reader| {
        let made = fields(&reader, &mut faults);
        reader.only(known, &login::FIELDS, &mut faults);
        made
    });
    match made {
        Some(made) if faults.is_empty() => Ok(made),
        _ => Err(faults),
    }
}

fn required_id(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> u32 {
    reader.require(field, faults);
    let id = reader.integer(field, ID, faults);
    id.and_then(|id| u32::try_from(id).ok()).unwrap_or_default()
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
        let faults_text = read.expect_err("it has faults").to_string();
        let starts: Vec<&str> = faults_text.split("; ").collect();
        for word in expected {
            assert!(starts.iter().any(|start| start.starts_with(word)), "{word:?} is not in {faults_text:?}");
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
        check(revoke_agents(&json!({"agents": [], "reason": 1})), &["agents: is required", "reason: "]);
        check(retire_ca(&json!({"force": "yes"})), &["force: "]);
        check(
            label_agents(&json!({"agents": ["a"], "set": {"a b": "c", "d": "*"}, "remove": [1]})),
            &["set.a b: has a key", "set.d: has a value", "remove[0]: "],
        );
        check(label_agents(&json!({"agents": ["a"]})), &["changes nothing"]);
        check(assign_agents(&json!([])), &["must be an object"]);
        check(
            create_token(&json!({"ttl_secs": 0, "bk_biz_id": 0, "hosts": 1, "replace": "yes"})),
            &["ttl_secs: is 0", "uses: is required", "bk_biz_id: is 0", "hosts: is not known", "replace: "],
        );
        check(
            create_token(&json!({"ttl_secs": 31 * 86_400, "uses": 100_001})),
            &["ttl_secs: is 2678400", "uses: is 100001"],
        );
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
