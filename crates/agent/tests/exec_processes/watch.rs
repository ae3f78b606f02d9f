//! Reports of exits, and what an inspection says.

use crate::support::*;
use procfleet_core::Exit;
use procfleet_core::process::Found;
use procfleet_core::spec::Detached;
use procfleet_core::supervise::{CommandEnd, Leader, Signal};
use procfleet_testkit::played_apart;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[tokio::test]
async fn a_command_that_is_the_process_is_reported_as_both() {
    for (command, exit) in
        [("exec ./web 1000", Exit::Signal(9)), ("trap 'exit 7' TERM; echo; read x < fifo", Exit::Code(7))]
    {
        let mut proc = Proc::new(&format!("both-{exit:?}"));
        let fifo = proc.path("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a fifo");
        let run = proc.run(command);
        let process = running(proc.launched(run, Leader::Accept));
        proc.executor.watch(process);
        proc.executor.watch(process);
        match exit {
            Exit::Signal(_) | Exit::Dumped(_) | Exit::OutOfMemory => {
                proc.executor.signal(process, Signal::Kill, Detached::End)
            }
            Exit::Code(_) | Exit::Unknown => {
                let output = proc.path("output");
                until("the trap is set", || {
                    let folders = std::fs::read_dir(&output).ok()?.flatten();
                    let files = folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten();
                    let mut files = files.flatten().map(|entry| entry.path());
                    let file = files.find(|path| path.extension().is_some_and(|ending| ending == "out"))?;
                    (!std::fs::read(file).ok()?.is_empty()).then_some(())
                })
                .await;
                proc.executor.signal(process, Signal::Term, Detached::End);
            }
        }
        assert_eq!(proc.exit_of(process).await, exit);
        let CommandEnd::Exited { exit: seen, .. } = proc.end_of(run).await else { panic!("it did start") };
        assert_eq!(seen, exit);
        assert_eq!(state_of(process.pid), None, "it was reaped");
        proc.assert_silent();
        // Watching what is gone reports at once.
        proc.executor.watch(process);
        assert_eq!(proc.exit_of(process).await, exit);
    }
}

#[tokio::test]
async fn the_exit_of_another_processs_child_is_reported() {
    for (ending, expected) in [("kill -9 $$", Exit::Signal(9)), ("exit 5", Exit::Code(5))] {
        let mut proc = Proc::with_pid_file(&format!("orphan-{expected:?}"));
        let fifo = proc.path("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a fifo");
        proc.script("web.sh", &format!("echo $$ > web.pid\nread x < fifo\n{ending}\n"));
        // Its parent waits for it, so that it is reaped as soon as it is dead.
        let (_, _) = proc.output_of("(setsid sh -c './web.sh; true' &)").await;
        let pid = proc.pid_in("web.pid").await;
        let process = running(proc.settled());
        assert_eq!((process.pid, process.found), (pid, Found::PidFile));
        proc.executor.watch(process);
        proc.assert_silent();
        std::fs::write(&fifo, "go\n").expect("somebody reads");
        let exit = proc.exit_of(process).await;
        if kernel() >= (6, 15) {
            assert_eq!(exit, expected);
        }
    }
}

#[tokio::test]
async fn an_exit_before_the_watch_is_reported_at_once() {
    let mut proc = Proc::new("gone");
    let mut stranger = Stranger::start("/bin/sleep", proc.folder.path());
    let mut recycled = process(stranger.pid());
    recycled.start_ticks -= 1;
    proc.executor.watch(recycled);
    assert_eq!(proc.exit_of(recycled).await, Exit::Unknown);
    stranger.assert_unharmed();
    assert_eq!(proc.executor.inspect(&recycled), None);
}

#[tokio::test]
async fn an_inspection_describes_the_process() {
    let unix_secs = || {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs();
        i64::try_from(now).expect("a time that fits")
    };
    let earliest = unix_secs();
    let mut proc = Proc::new("inspect");
    let run = proc.run("exec ./web 1000");
    let process = until("it is web", || {
        let process = running(proc.launched(run, Leader::Refuse));
        (comm(process.pid) == "web").then_some(process)
    })
    .await;
    until("it sleeps", || (state_of(process.pid) == Some('S')).then_some(())).await;
    let instance = proc.executor.inspect(&process).expect("it is running");
    assert_eq!((instance.pid, instance.command_line.as_str()), (process.pid, "./web 1000"));
    assert_eq!((instance.state.as_str(), instance.threads), ("S", 1));
    assert!(instance.memory_kib > 0 && instance.memory_percent > 0.0 && instance.memory_percent < 100.0);
    assert!((0.0..=100.0).contains(&instance.cpu_now) && (0.0..=100.0).contains(&instance.cpu_average));
    // The kernel counts from the boot, whose time is rounded to seconds.
    assert!((earliest - 1..=unix_secs() + 1).contains(&instance.began_at), "{instance:?}");
    proc.executor.signal(process, Signal::Kill, Detached::End);
    until_gone(process.pid).await;
    assert_eq!(proc.executor.inspect(&process), None);
}

fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    let mut numbers = release.split(|cut: char| !cut.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Neither a pidfd nor `/proc/PID/stat` can be opened then, or only the first of them.
#[tokio::test]
async fn a_process_that_cannot_be_looked_at_is_not_reported_as_gone() {
    // The limit is the whole program's.
    if played_apart(&[]) {
        return;
    }
    for spare in [0, 1] {
        let mut proc = Proc::with_pid_file(&format!("no-files-{spare}"));
        let run = proc.run("(setsid ./web 1000 > /dev/null 2>&1 & echo $! > pid.new; mv pid.new web.pid)");
        let pid = proc.pid_in("web.pid").await;
        until_called(pid, "web").await;
        proc.end_of(run).await;
        let process = running(proc.settled());
        // An agent that comes back watches it anew.
        proc.forget();
        let given = getrlimit(Resource::Nofile);
        let next = std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/dev/null").expect("a file"));
        let few = Some(u64::try_from(next).expect("a number") + spare);
        setrlimit(Resource::Nofile, Rlimit { current: few, ..given }).expect("it is lower");
        let seen = proc.recovered(Some(process));
        proc.executor.watch(process);
        let polls = std::time::Duration::from_millis(400);
        let exit = tokio::time::timeout(polls, proc.exit_of(process)).await;
        setrlimit(Resource::Nofile, given).expect("it may be raised again");
        assert_eq!(exit.ok(), None, "{spare}: it lives");
        assert_eq!(running(seen).pid, pid, "{spare}");
        kill(pid);
        proc.exit_of(process).await;
    }
}
