//! Which fields of a spec an order changes where its host has stored a spec of the proc already.
//!
//! A spec that names fields in [`Spec::change`] is a whole spec for hosts that do not know the proc. On all
//! others only the named fields count, and the rest of the stored spec stays as it is.

use crate::spec::Spec;

/// Fields that this version does not know: the peer is newer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this version knows no field {} of a spec", names.join(", "))]
pub struct UnknownFields {
    pub names: Vec<String>,
}

/// Labels are added to the stored ones; every other field replaces the stored one.
const LABELS: &str = "labels";

macro_rules! fields {
    ($($name:literal => $($part:ident).+;)*) => {
        /// The fields that can be changed one by one, by their names in a request.
        pub const FIELDS: &[&str] = &[$($name,)* LABELS];

        fn copy(name: &str, from: &Spec, to: &mut Spec) -> bool {
            match name {
                $($name => to.$($part).+.clone_from(&from.$($part).+),)*
                LABELS => to.labels.extend(from.labels.clone()),
                _ => return false,
            }
            true
        }
    };
}

fields! {
    "proc_name" => identity.proc_name;
    "setup_path" => identity.setup_path;
    "pid_path" => identity.pid_path;
    "config_path" => identity.config_path;
    "log_path" => identity.log_path;
    "user" => identity.user;
    "index_key" => identity.index_key;
    "start_cmd" => control.start_cmd;
    "stop_cmd" => control.stop_cmd;
    "restart_cmd" => control.restart_cmd;
    "reload_cmd" => control.reload_cmd;
    "kill_cmd" => control.kill_cmd;
    "version_cmd" => control.version_cmd;
    "health_cmd" => control.health_cmd;
    "stop_signal" => control.stop_signal;
    "reload_signal" => control.reload_signal;
    "cpu" => resource.cpu;
    "mem" => resource.mem;
    "fd" => resource.fd;
    // With cycle_time and crontab_rule, which say when a periodic process runs.
    "auto_type" => policy.kind;
    "start_check_secs" => policy.start_check;
    "stop_check_secs" => policy.stop_check;
    "kill_after" => policy.kill_after;
    "start_retries" => policy.start_retries;
    "start_interval" => policy.start_interval;
    "restart_pause" => policy.restart_pause;
    "op_timeout" => policy.op_timeout;
    "limit_samples" => policy.limit_samples;
    "on_unhealthy" => policy.on_unhealthy;
    "detached" => policy.detached;
    "report_id" => report_id;
    "configmap" => configmap;
    "instance_num" => instances;
}

impl Spec {
    /// The effect of an order with this spec on a host with a `stored` spec.
    pub fn changing(mut self, stored: Option<&Spec>) -> Result<Spec, UnknownFields> {
        let change = std::mem::take(&mut self.change);
        let Some(stored) = stored.filter(|_| !change.is_empty()) else { return Ok(self) };
        let mut spec = stored.clone();
        let names: Vec<String> = change.into_iter().filter(|name| !copy(name, &self, &mut spec)).collect();
        if names.is_empty() { Ok(spec) } else { Err(UnknownFields { names }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Instances, Kind};
    use std::time::Duration;

    fn stored() -> Spec {
        let mut spec = Spec::default();
        spec.identity.user = "www".to_owned();
        spec.control.start_cmd = "./start".to_owned();
        spec.policy.op_timeout = Duration::from_secs(7);
        spec.labels.insert("team".to_owned(), "shop".to_owned());
        spec.instances = Instances(3);
        spec
    }

    #[test]
    fn only_the_named_fields_of_a_stored_spec_change() {
        let mut sent = Spec::default();
        sent.identity.user = "root".to_owned();
        sent.policy.start_retries = 10;
        sent.policy.kind = Kind::Once;
        sent.labels.insert("tier".to_owned(), "1".to_owned());
        sent.change = ["start_retries", "labels"].map(str::to_owned).to_vec();
        let mut expected = stored();
        expected.policy.start_retries = 10;
        expected.labels.insert("tier".to_owned(), "1".to_owned());
        assert_eq!(sent.clone().changing(Some(&stored())), Ok(expected));

        let whole = Spec { change: Vec::new(), ..sent.clone() };
        assert_eq!(sent.clone().changing(None), Ok(whole.clone()), "a host that does not know the proc");
        assert_eq!(
            whole.clone().changing(Some(&stored())),
            Ok(whole),
            "a whole spec replaces the stored one"
        );

        sent.change.push("colour".to_owned());
        let unknown = UnknownFields { names: vec!["colour".to_owned()] };
        assert_eq!(sent.changing(Some(&stored())), Err(unknown));
    }

    #[test]
    fn every_field_is_copied_by_its_name() {
        for name in FIELDS {
            assert!(copy(name, &Spec::default(), &mut stored()), "{name}");
        }
    }
}
