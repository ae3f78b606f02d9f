//! `permission`: the grants that a denied call lacks, in the shape in which JOB names missing permissions.
//!
//! One action for each dimension of grants (business, namespace, operation, account), with the instances that
//! were not granted. The ids are those of `procfleet app grant`.

use procfleet_core::grants::Denial;
use schemars::JsonSchema;
use serde::Serialize;

const SYSTEM: &str = "procfleet";
/// The wildcard of a dimension, as in a grant.
const EVERYTHING: &str = "*";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Permission {
    pub system_id: String,
    pub system_name: String,
    pub actions: Vec<PermissionAction>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PermissionAction {
    pub id: String,
    pub name: String,
    pub related_resource_types: [PermissionResources; 1],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PermissionResources {
    pub system_id: String,
    pub system_name: String,
    pub r#type: String,
    pub type_name: String,
    /// Each instance is a path of one element.
    pub instances: Vec<[PermissionInstance; 1]>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct PermissionInstance {
    pub r#type: String,
    pub type_name: String,
    pub id: String,
    pub name: String,
}

impl Permission {
    /// `None`: no grant is missing.
    pub fn of_missing(denials: &[Denial]) -> Option<Permission> {
        let mut actions: Vec<PermissionAction> = Vec::new();
        for denial in denials {
            let (kind, type_name, id) = resource(denial);
            let instance = PermissionInstance {
                r#type: kind.to_owned(),
                type_name: type_name.to_owned(),
                id,
                name: denial.to_string(),
            };
            let action_id = format!("use_{kind}");
            match actions.iter_mut().find(|action| action.id == action_id) {
                Some(PermissionAction { related_resource_types: [resources], .. }) => {
                    resources.instances.push([instance]);
                }
                None => {
                    let resources = PermissionResources {
                        system_id: SYSTEM.to_owned(),
                        system_name: SYSTEM.to_owned(),
                        r#type: kind.to_owned(),
                        type_name: type_name.to_owned(),
                        instances: vec![[instance]],
                    };
                    let name = format!("use of {type_name}");
                    actions.push(PermissionAction {
                        id: action_id,
                        name,
                        related_resource_types: [resources],
                    });
                }
            }
        }
        let (system_id, system_name) = (SYSTEM.to_owned(), SYSTEM.to_owned());
        (!actions.is_empty()).then_some(Permission { system_id, system_name, actions })
    }
}

/// The type, its name and the id of a missing grant.
fn resource(denial: &Denial) -> (&'static str, &'static str, String) {
    match denial {
        Denial::Business(business) => ("business", "a business", business.to_string()),
        Denial::Namespace(namespace) => ("namespace", "a namespace", namespace.clone()),
        Denial::Op(verb) => ("op", "an operation", (*verb).to_owned()),
        Denial::Account(account) => ("account", "an OS account", account.clone()),
        Denial::UnnamedAccount { .. } | Denial::EveryAccount => {
            ("account", "an OS account", EVERYTHING.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::id::BusinessId;
    use serde_json::{Value, json};

    #[test]
    fn permission_names_each_missing_grant_once_by_its_dimension() {
        assert_eq!(Permission::of_missing(&[]), None);
        let denials = [
            Denial::Business(BusinessId(7)),
            Denial::Business(BusinessId(9)),
            Denial::Op("kill"),
            Denial::EveryAccount,
        ];
        let permission = serde_json::to_value(Permission::of_missing(&denials)).expect("JSON");
        let ids = |index: usize| -> Vec<Value> {
            let instances = &permission["actions"][index]["related_resource_types"][0]["instances"];
            instances.as_array().expect("a list").iter().map(|path| path[0]["id"].clone()).collect()
        };
        let actions: Vec<&Value> = (0..3).map(|index| &permission["actions"][index]["id"]).collect();
        assert_eq!(actions, ["use_business", "use_op", "use_account"]);
        assert_eq!(
            (ids(0), ids(1), ids(2)),
            (vec![json!("7"), json!("9")], vec![json!("kill")], vec![json!("*")])
        );
        assert_eq!(permission["system_id"], "procfleet");
    }
}
