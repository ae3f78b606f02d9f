//! Requirements of tests that not every machine meets.
//!
//! A test whose requirement is not met fails and names it, because a passed test would claim something that
//! was not tested. Requirements that a machine cannot meet are named in `PROCFLEET_TESTS_WITHOUT`;
//! `scripts/test` then lists at its end what was not tested.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Root,
    Cgroups,
    MemoryCgroup,
    Mount,
    ChosenPids,
    ProcessNumbers,
    CollapsibleFiles,
}

/// The requirements that may be left out, separated by commas.
const WITHOUT: &str = "PROCFLEET_TESTS_WITHOUT";
/// The file that lists the tests that were left out.
const NOT_TESTED: &str = "PROCFLEET_NOT_TESTED";

impl Need {
    const ALL: [Need; 7] = [
        Need::Root,
        Need::Cgroups,
        Need::MemoryCgroup,
        Need::Mount,
        Need::ChosenPids,
        Need::ProcessNumbers,
        Need::CollapsibleFiles,
    ];

    fn name(self) -> &'static str {
        match self {
            Need::Root => "root",
            Need::Cgroups => "cgroups",
            Need::MemoryCgroup => "oom",
            Need::Mount => "disk",
            Need::ChosenPids => "pids",
            Need::ProcessNumbers => "serials",
            Need::CollapsibleFiles => "collapse",
        }
    }

    /// The permission or resource that the machine must provide.
    fn means(self) -> &'static str {
        match self {
            Need::Root => "tests to run as root",
            Need::Cgroups => {
                "cgroups of version 2 below the test's own to be made (root, or a delegated group)"
            }
            Need::MemoryCgroup => "a cgroup with a limit of its memory to be made (root)",
            Need::Mount => "a tmpfs to be mounted (root, or CAP_SYS_ADMIN)",
            Need::ChosenPids => "the next pid to be chosen in /proc/sys/kernel/ns_last_pid (root)",
            Need::ProcessNumbers => {
                "processes to be told apart by the inodes of their pidfds (Linux 6.9 or newer)"
            }
            Need::CollapsibleFiles => "parts to be cut out of files in the temp folder (ext4, xfs)",
        }
    }
}

/// Returns the resource. If it is missing, the test fails here, unless it is excluded: then the answer is
/// `None`.
#[track_caller]
pub fn need<T, E: Display>(need: Need, found: Result<T, E>) -> Option<T> {
    let why = match found {
        Ok(found) => return Some(found),
        Err(why) => why.to_string(),
    };
    let without = setting(WITHOUT).unwrap_or_default();
    match left_out(need, &why, &without) {
        Ok(note) => {
            let test = std::thread::current().name().unwrap_or("a test").to_owned();
            let line = format!("{test}: {note}\n");
            eprint!("NOT TESTED: {line}");
            if let Some(list) = setting(NOT_TESTED) {
                let list = OpenOptions::new().append(true).create(true).open(list);
                list.and_then(|mut list| list.write_all(line.as_bytes()))
                    .expect("what was left out is written down");
            }
            None
        }
        Err(fault) => panic!("{fault}"),
    }
}

/// [`need`] of a property that the machine has or lacks.
#[track_caller]
pub fn has(what: Need, there: bool) -> bool {
    need(what, there.then_some(()).ok_or("it is not so")).is_some()
}

/// The note about a test that is left out, or the reason why it must not be.
fn left_out(need: Need, why: &str, without: &str) -> Result<String, String> {
    let named: Vec<&str> = without.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    let known = Need::ALL.map(Need::name);
    if let Some(odd) = named.iter().find(|name| !known.contains(name)) {
        return Err(format!("{WITHOUT} names {odd:?}, and there are only {}", known.join(", ")));
    }
    let (name, means) = (need.name(), need.means());
    match named.contains(&name) {
        true => Ok(format!("this machine does not allow {means}: {why}")),
        false => Err(format!(
            "this test needs a machine that allows {means}: {why}. To do without it: {WITHOUT}={name}"
        )),
    }
}

#[expect(clippy::disallowed_methods, reason = "a test harness has no arguments of its own")]
pub(crate) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_need_fails_the_test_unless_it_is_excluded() {
        let judged = |without| left_out(Need::Mount, "Operation not permitted", without);
        let missing = "a tmpfs to be mounted (root, or CAP_SYS_ADMIN): Operation not permitted";
        let rows = [
            (
                "",
                Err(format!(
                    "this test needs a machine that allows {missing}. To do without it: {WITHOUT}=disk"
                )),
            ),
            ("oom,root", judged("")),
            ("disk", Ok(format!("this machine does not allow {missing}"))),
            ("oom, disk,", judged("disk")),
            (
                "disk,dusk",
                Err(format!(
                    "{WITHOUT} names \"dusk\", and there are only root, cgroups, oom, disk, pids, serials, collapse"
                )),
            ),
        ];
        for (without, expected) in rows {
            assert_eq!(judged(without), expected, "{without:?}");
        }
    }

    #[test]
    fn a_need_that_is_met_returns_its_value() {
        assert_eq!(need(Need::Root, Ok::<u8, &str>(7)), Some(7));
        assert!(has(Need::Cgroups, true));
    }
}
