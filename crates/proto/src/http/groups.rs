//! `set_process_group_info` and `get_process_group_info`: limits for all processes of a namespace together on
//! a host.

use super::batch::{LONGEST_NAME, Suppliers, finish, read_query_targets, read_targets};
use super::fault::Faults;
use super::names::read_name;
use super::read::{Reader, RequestBody};
use super::status::ProcMeta;
use procfleet_core::id::{Host, ProcKey};
use procfleet_core::op::OpKind;
use procfleet_core::request::{Request, Target};
use procfleet_core::spec::{ProcessGroup, Spec, Weight};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// The groups of one namespace on some hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupQuery {
    pub namespace: String,
    pub targets: Vec<Target>,
}

pub fn set_process_group_info<'v>(body: impl Into<RequestBody<'v>>) -> Result<Vec<Request>, Faults> {
    let mut faults = Faults::default();
    let request = Reader::root(body, &mut faults).map(|reader| {
        let proc = ProcKey { namespace: read_namespace(&reader, &mut faults), name: String::new() };
        let targets = read_targets(&reader, Suppliers::Required, &mut faults);
        let groups = reader
            .object("spec", &mut faults)
            .map(|spec| read_groups(&spec, &mut faults))
            .unwrap_or_default();
        Request {
            proc,
            kind: OpKind::Group,
            spec: Some(Spec { groups, ..Spec::default() }),
            targets,
            refused: None,
        }
    });
    let requests = finish(request.into_iter().collect(), &mut faults, |_| String::new());
    if faults.is_empty() { Ok(requests) } else { Err(faults) }
}

pub fn get_process_group_info<'v>(body: impl Into<RequestBody<'v>>) -> Result<GroupQuery, Faults> {
    let mut faults = Faults::default();
    let Some(reader) = Reader::root(body, &mut faults) else { return Err(faults) };
    let namespace = read_namespace(&reader, &mut faults);
    let targets = read_query_targets(&reader, Suppliers::Required, &mut faults);
    if faults.is_empty() { Ok(GroupQuery { namespace, targets }) } else { Err(faults) }
}

/// `get_process_group_info`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GroupInfos {
    pub process_group_infos: Vec<GroupInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GroupInfo {
    /// A group has a namespace; the name is empty and there are no labels.
    pub meta: ProcMeta,
    pub host: GroupHost,
    pub id: String,
    pub resource: GroupResource,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GroupHost {
    pub ip: String,
    pub bk_cloud_id: u32,
    pub bk_supplier_id: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GroupResource {
    pub cpu_pool_limit: f64,
    pub mem_pool_limit: f64,
    pub cpu_pool_weight: i64,
    pub mem_pool_weight: i64,
}

/// One element of `process_group_infos`.
pub fn group_info(namespace: &str, host: Host, supplier: u32, group: &ProcessGroup) -> GroupInfo {
    let (namespace, name) = (namespace.to_owned(), String::new());
    GroupInfo {
        meta: ProcMeta { namespace, name, labels: BTreeMap::new() },
        host: GroupHost { ip: host.ip.to_string(), bk_cloud_id: host.cloud.0, bk_supplier_id: supplier },
        id: group.id.clone(),
        resource: GroupResource {
            cpu_pool_limit: group.cpu_pool_limit.unwrap_or_default(),
            mem_pool_limit: group.mem_pool_limit.unwrap_or_default(),
            cpu_pool_weight: group.cpu_pool_weight.number().into(),
            mem_pool_weight: group.mem_pool_weight.number().into(),
        },
    }
}

/// `meta.namespace`. Callers send an empty name and labels beside it, which are ignored.
fn read_namespace(reader: &Reader<'_>, faults: &mut Faults) -> String {
    let Some(meta) = reader.object("meta", faults) else { return String::new() };
    read_name(&meta, "namespace", faults)
}

/// An empty list is valid: it removes the limits.
fn read_groups(spec: &Reader<'_>, faults: &mut Faults) -> Vec<ProcessGroup> {
    spec.require("process_group", faults);
    let mut ids = HashSet::new();
    let mut groups = Vec::new();
    for element in spec.objects("process_group", faults) {
        let id = element.required_text("id", LONGEST_NAME, faults);
        if !id.is_empty() && !ids.insert(id.clone()) {
            faults.add(element.path("id"), format!("{id:?} is the id of another group before it"));
        }
        let group = element.object("resource", faults).map(|resource| {
            for field in ["cpu_pool_limit", "mem_pool_limit", "cpu_pool_weight", "mem_pool_weight"] {
                resource.require(field, faults);
            }
            let mut limit =
                |field: &str| resource.number(field, 0.0..=100.0, faults).filter(|limit| *limit > 0.0);
            let (cpu_pool_limit, mem_pool_limit) = (limit("cpu_pool_limit"), limit("mem_pool_limit"));
            let mut weight = |field: &str| match resource.integer(field, 0..=1, faults) {
                Some(1) => Weight::Limit,
                Some(_) | None => Weight::Usage,
            };
            let (cpu_pool_weight, mem_pool_weight) = (weight("cpu_pool_weight"), weight("mem_pool_weight"));
            ProcessGroup { id, cpu_pool_limit, mem_pool_limit, cpu_pool_weight, mem_pool_weight }
        });
        groups.extend(group);
    }
    let size = serde_json::to_vec(&groups).map_or(usize::MAX, |json| json.len());
    if size > Spec::LARGEST / 2 {
        let reason = format!("has {size} bytes, at most {} are allowed", Spec::LARGEST / 2);
        faults.add(spec.path("process_group"), reason);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn body(groups: Value) -> Value {
        json!({
            "meta": {"namespace": "gse", "name": "", "labels": {}},
            "hosts": [{"ip": "10.0.0.1", "bk_cloud_id": 1, "bk_supplier_id": 2}],
            "spec": {"process_group": groups},
        })
    }

    fn resource(cpu: f64, mem: f64, cpu_weight: i64, mem_weight: i64) -> Value {
        json!({"cpu_pool_limit": cpu, "mem_pool_limit": mem, "cpu_pool_weight": cpu_weight,
               "mem_pool_weight": mem_weight})
    }

    #[test]
    fn the_documents_example_is_read_and_shown_again() {
        let example = json!([{"id": "gse", "resource": resource(20.0, 0.0, 0, 1)}]);
        let requests = set_process_group_info(&body(example)).expect("fine");
        let [request] = requests.as_slice() else { panic!("one request: {requests:?}") };
        assert_eq!(request.kind, OpKind::Group);
        let target = &request.targets[0];
        assert_eq!(target.first_generation_key(&request.proc), "1:2:10.0.0.1:gse");
        let [group] = request.spec.as_ref().expect("a spec").groups.as_slice() else { panic!("one group") };
        assert_eq!((group.cpu_pool_limit, group.mem_pool_limit), (Some(20.0), None), "0 is no limit");
        let shown = group_info("gse", target.host().expect("a host"), 2, group);
        let expected = json!({
            "meta": {"namespace": "gse", "name": "", "labels": {}},
            "host": {"ip": "10.0.0.1", "bk_cloud_id": 1, "bk_supplier_id": 2},
            "id": "gse",
            "resource": resource(20.0, 0.0, 0, 1),
        });
        assert_eq!(json!(shown), expected);
        assert!(set_process_group_info(&body(json!([]))).is_ok(), "an empty list takes back");
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let groups = json!([
            {"id": "a", "resource": resource(-1.0, 100.5, 2, 0)},
            {"id": "a", "resource": {"cpu_pool_limit": "x"}},
            {"resource": resource(1.0, 1.0, 0, 0)},
            {"id": "b"},
        ]);
        let faults_text = set_process_group_info(&body(groups)).expect_err("faults").to_string();
        for word in [
            "spec.process_group[0].resource.cpu_pool_limit: is -1",
            "spec.process_group[0].resource.mem_pool_limit: is 100.5",
            "spec.process_group[0].resource.cpu_pool_weight: is 2",
            "spec.process_group[1].id: \"a\" is the id of another",
            "spec.process_group[1].resource.cpu_pool_limit: must be",
            "spec.process_group[1].resource.mem_pool_limit: is required",
            "spec.process_group[2].id: is required",
            "spec.process_group[3].resource: is required",
        ] {
            assert!(faults_text.contains(word), "{word:?} is not in {faults_text:?}");
        }
        let faults_text = set_process_group_info(&json!({"spec": {}})).expect_err("faults").to_string();
        for word in ["meta: is required", "hosts: is required", "spec.process_group: is required"] {
            assert!(faults_text.contains(word), "{word:?} is not in {faults_text:?}");
        }
        let many: Vec<Value> =
            (0..400).map(|id| json!({"id": id.to_string(), "resource": resource(1.0, 1.0, 0, 0)})).collect();
        let faults_text = set_process_group_info(&body(json!(many))).expect_err("too large").to_string();
        assert!(faults_text.starts_with("spec.process_group: has "), "{faults_text}");
        let faults_text = get_process_group_info(&json!({"meta": {}})).expect_err("faults").to_string();
        assert!(
            faults_text.contains("meta.namespace: is required") && faults_text.contains("hosts: is required"),
            "{faults_text}"
        );
    }
}
