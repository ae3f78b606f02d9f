//! The processes and hosts of a verb. The server resolves globs and selections.

use super::object::{Object, child, set};
use crate::Error;
use procfleet_core::id::{AgentId, Host};
use serde_json::json;
use std::net::IpAddr;

/// The help of `--namespace` for verbs without `--file`.
pub(super) const NAMESPACE_WITHOUT_FILE: &str = "Namespace of the processes [default: \"default\"]";

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Targets {
    /// Names of the processes in their namespace; * and ? are wildcards: 'web*' matches all known
    /// processes with this prefix
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub names: Vec<String>,
    /// Namespace of the processes [default: that of the file, else "default"]
    #[arg(long, value_name = "NS")]
    pub namespace: Option<String>,
    /// Every known process of --namespace
    #[arg(long, requires = "namespace")]
    pub all: bool,
    /// Host, as CLOUD:IP, or IP for cloud area 0; repeatable. Without a target: every host that
    /// has the process
    #[arg(long = "host", value_name = "HOST", value_parser = host, conflicts_with_all = ["agents", "select"])]
    pub hosts: Vec<Host>,
    /// Host by its agent id; repeatable
    #[arg(long = "agent", value_name = "ID", conflicts_with = "select")]
    pub agents: Vec<AgentId>,
    /// Select hosts: addresses (10.0.0.1), ranges (10.0.0.1-10.0.0.50), blocks (10.0.0.0/24), globs
    /// (10.0.*), agent ids, labels (role=web*). Repeatable: a host must match one of the addresses and all
    /// labels
    #[arg(long, value_name = "TERM")]
    pub select: Vec<String>,
}

impl Targets {
    /// The first name; with `--all` a glob.
    pub(super) fn first_name(&self) -> &str {
        self.names.first().map_or("*", String::as_str)
    }

    pub(super) fn names_targets(&self) -> bool {
        !self.hosts.is_empty() || !self.agents.is_empty() || !self.select.is_empty()
    }

    /// Writes names and targets into the body of `POST /api/v1/operate`. The command line takes precedence
    /// over a file.
    pub(super) fn write(&self, body: &mut Object) -> Result<(), Error> {
        let meta = child(body, "meta");
        match &self.namespace {
            Some(namespace) => set(meta, "namespace", json!(namespace)),
            None => _ = meta.entry("namespace").or_insert_with(|| json!("default")),
        }
        set(meta, "name", json!(self.first_name()));
        child(meta, "labels");
        if self.names.len() > 1 {
            set(body, "names", json!(self.names[1..]));
        }
        const TARGET_FIELDS: [&str; 3] = ["select", "hosts", "agent_id_list"];
        if self.names_targets() {
            TARGET_FIELDS.iter().for_each(|field| _ = body.shift_remove(*field));
        }
        if !self.select.is_empty() {
            set(body, "select", json!(self.select));
        }
        if !self.hosts.is_empty() {
            let hosts = self.hosts.iter().map(|host| json!({"ip": host.ip, "bk_cloud_id": host.cloud}));
            set(body, "hosts", hosts.collect());
        }
        if !self.agents.is_empty() {
            set(body, "agent_id_list", json!(self.agents));
        }
        // As in operate_proc_v2, where agents win over hosts and an empty list is none.
        let empty =
            |field: &&&str| body.get(**field).and_then(|list| list.as_array()).is_some_and(Vec::is_empty);
        let empty: Vec<&str> = TARGET_FIELDS.iter().filter(empty).copied().collect();
        empty.into_iter().for_each(|field| _ = body.shift_remove(field));
        if body.contains_key("agent_id_list") {
            body.shift_remove("hosts");
        }
        Ok(())
    }
}

/// `CLOUD:IP`, or an address in cloud area 0.
pub(crate) fn host(text: &str) -> Result<Host, String> {
    let whole = text.parse::<Host>();
    match (whole, text.parse::<IpAddr>()) {
        (Ok(host), _) => Ok(host),
        (Err(_), Ok(ip)) => format!("0:{ip}").parse().map_err(|reason| format!("{reason}")),
        (Err(_), Err(_)) => Err("expected CLOUD:IP or IP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_named_with_or_without_their_cloud_area() {
        for (text, expected) in [
            ("10.0.0.5", "0:10.0.0.5"),
            ("0:10.0.0.5", "0:10.0.0.5"),
            ("3:10.0.0.5", "3:10.0.0.5"),
            ("fe80::1", "0:fe80::1"),
            ("3:fe80::1", "3:fe80::1"),
        ] {
            assert_eq!(host(text).map(|host| host.to_string()), Ok(expected.to_owned()), "{text}");
        }
        for text in ["", "web1", "x:10.0.0.5", "10.0.0", "10.0.0.5:52030"] {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
