//! Probes: what they say, and that they are never the process, nor outlive whoever asked.

use crate::support::*;
use procfleet_agent::exec::{Containment, ExecContext, Probed, Prober, end_old_probes};
use procfleet_core::host_policy::Allow;
use procfleet_core::process::Cause;
use procfleet_core::spec::Detached;
use procfleet_core::supervise::{Leader, Signal};
use procfleet_core::{Exit, Sighting};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);

fn prober(proc: &Proc) -> Prober {
    Prober::new(proc.context.clone(), proc.key.clone())
}

fn said(exit: Exit, first: &str, last: &str) -> Probed {
    Probed::Exited { exit, first: first.to_owned(), last: last.to_owned() }
}

#[tokio::test]
async fn a_probe_reports_its_status_and_its_first_and_last_line() {
    let proc = Proc::new("probe-says");
    let prober = prober(&proc);
    let run = async |command: &str| prober.run("version", command, &proc.spec, LONG).await;
    assert_eq!(run("echo one; echo two >&2; echo; exit 3").await, said(Exit::Code(3), "one", "two"));
    assert_eq!(run("true").await, said(Exit::Code(0), "", ""), "nothing is left of the one before");
    assert_eq!(run("pwd -P; echo $PROCFLEET_NAME").await, {
        let folder = std::fs::canonicalize(proc.folder.path()).expect("our folder");
        said(Exit::Code(0), folder.to_str().expect("a plain path"), "probe-says")
    });
    let mut spec = proc.spec.clone();
    spec.identity.user = "no-such-user".to_owned();
    let refused = prober.run("version", "true", &spec, LONG).await;
    assert!(
        matches!(&refused, Probed::NotStarted { reason } if reason.contains("no-such-user")),
        "{refused:?}"
    );
    let allow = Allow { users: Some(["nobody".to_owned()].into()), ..Allow::default() };
    let host = ExecContext::open(proc.path("output"), Containment::Auto).expect("a host").allowing(allow);
    let refused =
        Prober::new(Arc::new(host), proc.key.clone()).run("version", "true", &proc.spec, LONG).await;
    assert!(matches!(&refused, Probed::NotStarted { reason } if reason.contains("policy")), "{refused:?}");
}

#[tokio::test]
async fn a_probe_that_takes_too_long_is_ended_with_all_that_it_started() {
    let proc = Proc::new("probe-late");
    let command = "sleep 1000 & echo $! > child; (setsid sleep 1000 & echo $! > far); sleep 1000";
    // On a busy machine its shell may not have come so far.
    for limit in [500, 5_000, 60_000] {
        let ended = prober(&proc).run("health", command, &proc.spec, Duration::from_millis(limit)).await;
        assert_eq!(ended, Probed::TimedOut);
        if ["child", "far"].iter().all(|file| proc.path(file).exists()) {
            break;
        }
    }
    until_gone(proc.pid_in("child").await).await;
    until_gone(proc.pid_in("far").await).await;
}

#[tokio::test]
async fn a_cancelled_probe_is_ended() {
    let mut proc = Proc::new("probe-dropped");
    let prober = prober(&proc);
    let spec = proc.spec.clone();
    let task =
        tokio::spawn(async move { prober.run("health", "echo $$ > shell; sleep 1000", &spec, LONG).await });
    let shell = proc.pid_in("shell").await;
    task.abort();
    until_gone(shell).await;
    until("it is reaped", || {
        proc.run("true");
        state_of(shell).is_none().then_some(())
    })
    .await;
}

/// Whatever it is called, wherever it runs and whatever it does with its environment.
#[tokio::test]
async fn a_probe_is_never_the_process_and_never_ended_with_it() {
    for (name, command) in [
        ("probe-named", "echo $$ > shell; exec ./web 1000"),
        ("probe-bare", "echo $$ > shell; exec env -i ./web 1000"),
    ] {
        let mut proc = Proc::new(name);
        let (prober, spec) = (prober(&proc), proc.spec.clone());
        let task = tokio::spawn(async move { prober.run("health", command, &spec, LONG).await });
        let probe = proc.pid_in("shell").await;
        until_called(probe, "web").await;
        assert!(matches!(cause(proc.settled()), Cause::NoSuchName { .. }), "{name}");
        assert!(matches!(cause(proc.recovered(None)), Cause::NoSuchName { .. }), "{name}");
        proc.spec.identity.pid_path = proc.path("web.pid").to_str().expect("a plain path").to_owned();
        proc.write("web.pid", probe.to_string());
        assert!(matches!(cause(proc.settled()), Cause::Stranger { .. }), "{name}");
        proc.spec.identity.pid_path.clear();

        let run = proc.run("exec ./web 1000");
        let process = until("the process is found", || match proc.launched(run, Leader::Refuse) {
            Sighting::Running(process) if comm(process.pid) == "web" => Some(process),
            Sighting::Running(_) | Sighting::Absent(_) => None,
        })
        .await;
        assert_ne!(process.pid, probe);
        proc.executor.sweep(Signal::Kill);
        proc.executor.signal(process, Signal::Kill, Detached::End);
        until_gone(process.pid).await;
        proc.executor.sweep(Signal::Kill);
        proc.executor.end_run(run);
        assert!(is_running(probe), "{name}");
        task.abort();
        until_gone(probe).await;
    }
}

/// The note is what an agent that was cut off leaves.
#[tokio::test]
async fn a_probe_of_the_previous_agent_is_ended_and_no_other_process() {
    let proc = Proc::new("probe-old");
    let (asker, spec) = (prober(&proc), proc.spec.clone());
    let command = "echo $$ > shell; sleep 1000 & (setsid sleep 1000 & echo $! > far); sleep 1000";
    let task = tokio::spawn(async move { asker.run("health", command, &spec, LONG).await });
    let (shell, far) = (proc.pid_in("shell").await, proc.pid_in("far").await);
    let note = until("it is written down", || {
        let mut files = std::fs::read_dir(proc.path("output")).ok()?.flatten();
        files.find(|file| file.file_name().to_string_lossy().ends_with(".running")).map(|file| file.path())
    })
    .await;
    let text = std::fs::read_to_string(&note).expect("our note");

    let mut stranger = Stranger::start("/bin/sleep", proc.folder.path());
    let (_, ticks) = text.split_once(' ').expect("a pid and a time");
    for other in [format!("{} {ticks}", stranger.pid()), format!("{shell} 1"), "nonsense".to_owned()] {
        std::fs::write(&note, other).expect("our note");
        end_old_probes(&proc.context);
        stranger.assert_unharmed();
        assert!(is_running(shell) && is_running(far));
    }
    std::fs::write(&note, text).expect("our note");
    end_old_probes(&proc.context);
    until_gone(shell).await;
    until_gone(far).await;
    stranger.assert_unharmed();
    assert!(matches!(task.await, Ok(Probed::Exited { .. })));
    assert!(!note.exists());
}
