//! The host owner's policy: limits on what the server may do on the host. The server cannot change it.

use crate::op::OpKind;
use crate::spec::Spec;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// `None`: no restriction of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Allow {
    /// OS accounts that commands may run as.
    pub users: Option<BTreeSet<String>>,
    /// Folders; the paths of a spec must be in one of them.
    pub paths: Option<Vec<PathBuf>>,
    pub ops: Option<BTreeSet<OpKind>>,
}

impl Allow {
    /// Why this order is not carried out here; `None`: it is.
    pub fn refusal(&self, kind: OpKind, spec: Option<&Spec>) -> Option<String> {
        if self.ops.as_ref().is_some_and(|ops| !ops.contains(&kind)) {
            return Some(format!("this host does not allow {}: its policy says so", kind.verb()));
        }
        // A query changes nothing, and a group has limits but no command.
        spec.filter(|_| !matches!(kind, OpKind::Query | OpKind::Group))
            .and_then(|spec| self.spec_refusal(spec))
    }

    /// Why nothing of this spec is run here; `None`: it may be.
    pub fn spec_refusal(&self, spec: &Spec) -> Option<String> {
        let identity = &spec.identity;
        if self.users.as_ref().is_some_and(|users| !users.contains(&identity.user)) {
            return Some(format!("this host does not allow user {:?}: its policy says so", identity.user));
        }
        let paths = [
            ("setup_path", &identity.setup_path),
            ("pid_path", &identity.pid_path),
            ("config_path", &identity.config_path),
            ("log_path", &identity.log_path),
        ];
        // The agent reads them, with the rights of the account.
        let files = spec.configmap.iter().map(|file| ("configmap path", &file.path));
        let outside =
            paths.into_iter().chain(files).find(|(_, path)| !path.is_empty() && !self.holds(Path::new(path)));
        outside.map(|(field, path)| format!("this host does not allow {field} {path:?}: its policy says so"))
    }

    /// Whether the path is in one of the folders. A path with `..` counts as outside.
    pub fn holds(&self, path: &Path) -> bool {
        let Some(folders) = &self.paths else { return true };
        let straight = !path.components().any(|part| part == Component::ParentDir);
        straight && folders.iter().any(|folder| path.starts_with(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ConfigFile;

    fn allow() -> Allow {
        Allow {
            users: Some(["www".to_owned()].into()),
            paths: Some(vec!["/srv".into(), "/data/apps/".into()]),
            ops: Some([OpKind::Start, OpKind::Query].into()),
        }
    }

    fn spec(user: &str, setup_path: &str) -> Spec {
        let mut spec = Spec::default();
        (spec.identity.user, spec.identity.setup_path) = (user.to_owned(), setup_path.to_owned());
        spec
    }

    fn check(kind: OpKind, spec: Option<&Spec>, refused: Option<&str>) {
        let refusal = allow().refusal(kind, spec);
        match refused {
            None => assert_eq!(refusal, None, "{kind:?} {spec:?}"),
            Some(word) => {
                assert!(refusal.as_ref().is_some_and(|r| r.contains(word)), "{kind:?}: {refusal:?}")
            }
        }
    }

    #[test]
    fn only_allowed_operations_are_carried_out() {
        check(OpKind::Start, Some(&spec("www", "/srv")), None);
        check(OpKind::Start, Some(&spec("www", "/data/apps/x/y")), None);
        check(OpKind::Start, None, None);
        check(OpKind::Query, Some(&spec("root", "/etc")), None);
        check(OpKind::Kill, Some(&spec("www", "/srv")), Some("kill"));
        check(OpKind::Start, Some(&spec("root", "/srv")), Some("\"root\""));
        check(OpKind::Start, Some(&spec("www", "/srvx")), Some("setup_path"));
        check(OpKind::Start, Some(&spec("www", "/srv/../etc")), Some("setup_path"));
        check(OpKind::Start, Some(&spec("www", "/data")), Some("setup_path"));
        let mut elsewhere = spec("www", "/srv");
        elsewhere.identity.log_path = "/var/log".to_owned();
        check(OpKind::Start, Some(&elsewhere), Some("log_path"));
        let mut reading = spec("www", "/srv");
        reading.configmap = vec![ConfigFile { path: "/etc/shadow".to_owned(), md5: "0".repeat(32) }];
        check(OpKind::Start, Some(&reading), Some("configmap path"));
    }

    #[test]
    fn without_a_policy_everything_is_allowed() {
        let anything = spec("root", "/etc/../root");
        assert_eq!(Allow::default().refusal(OpKind::Kill, Some(&anything)), None);
    }
}
