//! Deaths with a reason of their own: by the OOM killer, and with a core dump.

use crate::events::events_of;
use crate::up;
use procfleet_testkit::{Need, Op, PATIENCE, Proc, Signal, Up, kill, let_pass, need, wait_for, wait_until};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A memory cgroup of our own with a small limit, removed at the end.
struct Cell(PathBuf);

impl Cell {
    /// A cgroup with this limit, version 1 or 2. `None`: PROCFLEET_TESTS_WITHOUT excludes it.
    #[track_caller]
    fn new(up: &Up, mebibytes: u64) -> Option<Cell> {
        need(Need::MemoryCgroup, Cell::make(up, mebibytes))
    }

    fn make(up: &Up, mebibytes: u64) -> Result<Cell, String> {
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let path_of = |is: &dyn Fn(&str, &str) -> bool| {
            own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                let (number, controllers) = (fields.next()?, fields.next()?);
                is(number, controllers)
                    .then(|| fields.next().unwrap_or("/").trim_start_matches('/').to_owned())
            })
        };
        let first = path_of(&|_, controllers| controllers.split(',').any(|name| name == "memory"))
            .map(|path| (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"));
        let second = path_of(&|number, _| number == "0")
            .map(|path| (Path::new("/sys/fs/cgroup").join(path), "memory.max"));
        let bytes = (mebibytes << 20).to_string();
        let mut refusals = Vec::new();
        for (parent, limit) in [first, second].into_iter().flatten() {
            let path = parent.join(format!("procfleet-test-{}", up.namespace));
            let made = fs::create_dir(&path).map(|()| Cell(path.clone()));
            match made.and_then(|cell| fs::write(cell.0.join(limit), &bytes).map(|()| cell)) {
                Ok(cell) => return Ok(cell),
                Err(error) => refusals.push(format!("{}: {error}", path.display())),
            }
        }
        Err(refusals.join("; "))
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // It can be removed once its processes are gone.
        let gone = || fs::remove_dir(&self.0).is_ok();
        wait_until(PATIENCE, "the cgroup is removed", gone);
    }
}

fn exited(up: &Up, proc: &Proc) -> Value {
    wait_for(PATIENCE, "its death is an event", || {
        events_of(up, proc).into_iter().find(|event| event["kind"] == "exited")
    })
}

#[test]
fn an_oom_kill_is_reported_as_such() {
    let up = up();
    // The parser and the counters have tests of their own in the agent's `exec/watch/oom.rs`.
    let Some(cell) = Cell::new(&up, 16) else { return };
    let join = format!("echo $$ > {}/cgroup.procs", cell.0.display());
    // It buffers an endless line once the file `go` is there.
    let proc = up
        .proc("hungry")
        .policy("start_interval", 1)
        .script("wait", "#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.05; done\nrm go\nexec tail /dev/zero\n")
        .starts(&format!("echo run >> runs; {join} && exec ./wait"));
    let pid = proc.start();
    let_pass(Duration::from_millis(1_200));
    fs::write(proc.folder.join("go"), "").expect("its own folder");
    let event = exited(&up, &proc);
    let told = format!("pid {pid} was killed by the kernel: out of memory");
    assert_eq!(
        (&event["message"], &event["details"]["exited"]["exit"]),
        (&Value::from(told.as_str()), &Value::from("OutOfMemory"))
    );
    let row = wait_for(PATIENCE, "it comes back", || {
        proc.row().filter(|row| row["state"] == "running" && row["pid"] != pid)
    });
    assert_eq!(row["note"], told, "until it runs stably again");
    let shown = up.cli(&["events", "--kind", "exited"]);
    assert!(shown.stdout.contains(&told), "{shown:?}");
    let metrics = up.client.page("/metrics").text;
    assert!(metrics.contains("procfleet_exits_total{how=\"out_of_memory\"} 1"), "{metrics}");
    // A kill by anybody else is none.
    let other = up.proc("other").policy("start_interval", 1).starts("exec ./web 1000");
    let pid = other.start();
    kill(pid, Signal::KILL);
    assert_eq!(exited(&up, &other)["message"], format!("pid {pid} was ended by signal 9"));
    for proc in [proc, other] {
        proc.op(Op::Kill).assert_success();
    }
}

/// Whether the kernel writes a core is the host's own setting.
#[test]
fn a_core_dump_is_reported() {
    let up = up();
    let proc = up
        .proc("crashing")
        .policy("start_interval", 1)
        .starts("ulimit -c unlimited; echo run >> runs; exec ./web 1000");
    let pid = proc.start();
    kill(pid, Signal::SEGV);
    let message = exited(&up, &proc)["message"].as_str().expect("a message").to_owned();
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let unlimited = limits.lines().any(|line| {
        line.starts_with("Max core file size") && line.split_whitespace().nth(5) == Some("unlimited")
    });
    println!("core_pattern is {:?}: {message}", pattern.trim());
    let dumped = format!("pid {pid} was ended by signal 11 and dumped core");
    // A plain name is a file in the process's folder. The effect of a core_pattern that names a program is
    // not known.
    match pattern.trim() {
        "" => assert_eq!(message, format!("pid {pid} was ended by signal 11")),
        name if unlimited && !name.starts_with(['|', '/', '@']) => assert_eq!(message, dumped),
        _ => assert!(dumped.starts_with(&message), "{message}"),
    }
    proc.op(Op::Kill).assert_success();
}
