//! Containment of a proc's processes: where it is shown, and when its cgroups are removed.

use procfleet_testkit::{Need, Op, PATIENCE, Signal, Up, is_running, kill, need, wait_for, wait_until};
use std::fs;
use std::path::{Path, PathBuf};

/// The folder that holds the groups of the agent's procs, if the agent makes any.
fn cgroup_dir(up: &Up) -> Option<PathBuf> {
    let places = fs::read_to_string(up.data().join("agent/output/.cgroup")).unwrap_or_default();
    places.lines().next().map(PathBuf::from)
}

#[track_caller]
fn check_told(up: &Up, containment: &str) {
    up.wait_for_agent();
    let agents = up.client.data("/api/v1/agents");
    assert_eq!(agents[0]["containment"], containment);
    let table = up.cli(&["agents"]);
    assert!(table.stdout.contains("CONTAINMENT") && table.stdout.contains(containment), "{table:?}");
    let metrics = up.client.page("/metrics").text;
    let line = format!("procfleet_agent_sessions{{containment=\"{containment}\"}} 1\n");
    assert!(metrics.contains(&line), "{metrics}");
}

#[test]
fn the_server_knows_which_containment_an_agent_has() {
    check_told(&Up::start_with(env!("CARGO_BIN_EXE_procfleet"), &["--containment", "tree"]), "tree");
    let up = crate::up();
    if need(Need::Cgroups, cgroup_dir(&up).ok_or("the agent makes none")).is_some() {
        check_told(&up, "cgroup");
    }
}

#[test]
fn the_cgroups_of_finished_runs_are_removed() {
    let up = crate::up();
    let Some(cgroup_dir) = need(Need::Cgroups, cgroup_dir(&up).ok_or("the agent makes none")) else { return };
    let home = |name: &str| cgroup_dir.join(format!("{}+{name}", up.namespace));
    let is_gone = |home: &Path| wait_until(PATIENCE, "the groups are removed", || !home.exists());
    // Nothing outlives the command.
    let once = up.proc("once").policy("auto_type", 2).starts("echo run >> runs");
    once.op(Op::Start).assert_success();
    is_gone(&home("once"));
    // A process outlives the command and ends later, without any op meanwhile.
    let leaves = "(sh -c 'echo $$ > left.new; mv left.new left; exec sleep 1000' </dev/null >/dev/null 2>&1 &); \
                  until test -s left; do sleep 0.01; done";
    let once = up.proc("leaves").policy("auto_type", 2).policy("detached", "keep").starts(leaves);
    once.op(Op::Start).assert_success();
    let periodic = up.proc("cycle").policy("auto_type", 0).policy("cycle_time", 3600).starts(leaves);
    periodic.op(Op::Host).assert_success();
    for proc in [&once, &periodic] {
        let left: u32 = wait_for(PATIENCE, "something is left", || proc.read("left").trim().parse().ok());
        assert!(home(&proc.name).exists() && is_running(left));
        kill(left, Signal::KILL);
        is_gone(&home(&proc.name));
    }
}
