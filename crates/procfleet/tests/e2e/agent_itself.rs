//! The agent itself: upgraded in place, with a journal that cannot be used, on a full disk. In all cases it
//! forgets, repeats and restarts nothing.

use crate::events::events_of;
use crate::{at_once, up};
use procfleet_testkit::{
    Disk, Finished, Joined, Op, PATIENCE, Proc, Program, Signal, Up, is_running, kill, let_pass, programs,
    start_time, wait_for, wait_until,
};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const IP: &str = "127.0.0.2";

/// A copy of the program, which may be replaced.
fn copy(of: &Path, to: &Path) -> PathBuf {
    // In a process of its own: a file that is open for writing in a child of another test cannot be run.
    let copied = Program::new("install").args(["-m", "755"]).args([of, to]).run();
    assert_eq!(copied.code, Some(0), "{copied:?}");
    to.to_owned()
}

fn upgrade(program: &Path, binary: &Path, data: &Path, more: &[&str]) -> Finished {
    Program::new(program)
        .args(["agent", "upgrade", "--binary"])
        .args([binary, Path::new("--data"), data])
        .args(more)
        .run()
}

fn procs(up: &Up) -> [Proc; 3] {
    [
        up.proc("daemon").with_pid_file().starts(&programs::daemon()),
        up.proc("foreground").starts(&programs::foreground()),
        up.proc("below").starts(&programs::foreground_below_shell()),
    ]
}

#[track_caller]
fn check_untouched(procs: &[Proc], pids: &[u32]) {
    for (proc, pid) in procs.iter().zip(pids) {
        let seen = proc.op(Op::Query);
        seen.assert_success().assert_hosted(true);
        assert_eq!((seen.pid(), proc.runs()), (Some(*pid), 1), "{}", proc.name);
        proc.op(Op::Start).assert(828, "no need to start");
    }
}

#[test]
fn an_agent_is_upgraded_in_place_without_touching_a_process() {
    let up = up();
    let (data, bin) = (up.folder("joined"), up.folder("bin"));
    let program = copy(up.binary(), &bin.join("procfleet"));
    let mut agent = Joined::start(&program, &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let procs = procs(&up).map(|proc| proc.on_host(IP));
    let pids = procs.each_ref().map(Proc::start);
    let (pid, born) = (agent.pid(), start_time(agent.pid()));

    // An unfit program is refused, and nothing is touched.
    let script = bin.join("script");
    fs::write(&script, "#!/bin/sh\necho procfleet 9.9.9\n").expect("our own folder");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("our own file");
    for (binary, reason) in [
        (bin.join("missing"), "No such file or directory"),
        (script, "is not a program for this machine"),
        (PathBuf::from("/bin/true"), "is not procfleet: `--version` printed"),
        (impostor(&bin, "older", "0.0.1"), "is 0.0.1, which is older than"),
        (impostor(&bin, "blind", "9.9.9-blind"), "cannot take up this agent: it cannot read that"),
    ] {
        let refused = upgrade(&program, &binary, &data, &[]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(reason), "{reason:?}: {refused:?}");
    }
    let refused = upgrade(&program, up.binary(), &up.folder("nobody"), &[]);
    assert!(refused.stderr.contains("no agent runs on"), "{refused:?}");
    assert!(!bin.join("procfleet.previous").exists());
    assert!(agent.is_running() && !agent.stderr().contains("renewed"));

    let done = upgrade(&program, up.binary(), &data, &[]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stdout.contains(&format!("as pid {pid}; 3 procs were taken up")), "{done:?}");
    assert!(bin.join("procfleet.previous").exists());
    assert_eq!((agent.pid(), start_time(pid)), (pid, born), "it is the same process");
    agent.wait_until_connected(&up, IP);
    check_untouched(&procs, &pids);
    // They are still its children, so it knows how they end, and it looks after them as before.
    at_once(procs, |proc| {
        let old = proc.pid().expect("it runs");
        kill(old, Signal::KILL);
        let new = wait_for(PATIENCE, "there is a replacement", || {
            proc.program_pid().filter(|other| *other != old && is_running(*other))
        });
        proc.row_with_pid(new);
        let words = format!("pid {old} was ended by signal 9");
        wait_until(PATIENCE, "its end is an event", || {
            events_of(&up, proc).iter().any(|event| event["message"] == words.as_str())
        });
        assert_eq!(proc.runs(), 2);
        proc.op(Op::Stop).assert_success();
    });
}

/// Processes get the limits that the agent was started with, also after the agent has re-executed itself.
/// Repeated requests to re-execute end no process.
#[test]
fn a_reexecuted_agent_passes_its_own_limits_on() {
    const FILES: &str = "500";
    const SPARED: &str = "-900";
    let up = up();
    let data = up.folder("joined");
    // Without the right to lower oom_score_adj, the write fails and the value stays.
    let command = format!(
        "echo {SPARED} 2> /dev/null > /proc/self/oom_score_adj; ulimit -Sn {FILES}; exec {} \"$@\"",
        up.binary().display()
    );
    let script = up.folder("bin").join("limited");
    fs::write(&script, format!("#!/bin/sh\n{command}\n")).expect("our own folder");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("our own file");
    let mut agent = Joined::start(&script, &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("limited").on_host(IP).starts("exec ./web 1000");
    let given = |pid: u32| {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
        let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
        let score = fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("it runs");
        (files.split_whitespace().next().map(str::to_owned), score.trim().to_owned())
    };
    let expected = (Some(FILES.to_owned()), "0".to_owned());
    assert_eq!(given(proc.start()), expected);
    proc.op(Op::Stop).assert_success();
    for round in 1..=3 {
        let ready = fs::read_to_string(data.join("agent.json")).expect("it is ready");
        wait_until(PATIENCE, "it re-executes, however often it is asked to", || {
            kill(agent.pid(), Signal::HUP);
            assert!(agent.is_running(), "round {round}: {}", agent.stderr());
            fs::read_to_string(data.join("agent.json")).is_ok_and(|now| now != ready)
        });
    }
    let settled = || agent.stderr().matches("agent is ending").count();
    let mut renewals = (settled(), Instant::now());
    wait_until(PATIENCE, "it has carried out all ops", || {
        if settled() != renewals.0 {
            renewals = (settled(), Instant::now());
        }
        renewals.1.elapsed() > Duration::from_millis(500)
    });
    assert_eq!(given(proc.start()), expected);
}

/// A program that says that it is procfleet, and then does nothing. `-blind`: it cannot read any journal.
fn impostor(folder: &Path, name: &str, version: &str) -> PathBuf {
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    let text = format!(
        "#include <stdio.h>\n#include <string.h>\n#include <unistd.h>\n\
         int main(int n, char **v) {{\n\
         if (n > 1 && !strcmp(v[1], \"--version\")) return puts(\"procfleet {version}\") < 0;\n\
         if (n > 2 && !strcmp(v[2], \"check\")) {{\n\
         if (strstr(\"{version}\", \"blind\")) return fputs(\"it cannot read that\\n\", stderr), 1;\n\
         return 0; }}\n\
         for (;;) pause(); }}\n"
    );
    fs::write(&source, text).expect("our own folder");
    let made = Program::new("cc").args([Path::new("-o"), &program, &source]).run();
    assert_eq!(made.code, Some(0), "{made:?}");
    program
}

/// The new program hangs: the old one is put back, and the service manager starts it.
#[test]
fn an_upgrade_that_fails_to_start_is_rolled_back() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let program = copy(Path::new(env!("CARGO_BIN_EXE_procfleet")), &folder.path().join("procfleet"));
    let up = Up::start(&program);
    let procs = procs(&up);
    let pids = procs.each_ref().map(Proc::start);
    let hanging = impostor(folder.path(), "hanging", "9.9.9");
    let data = up.data().join("agent");
    let refused = upgrade(&program, &hanging, &data, &["--timeout", "3"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let words = ["the new program was not ready within 3 s", "is as it was, and the agent runs it again"];
    words.iter().for_each(|words| assert!(refused.stderr.contains(words), "{refused:?}"));
    up.wait_for_agent();
    check_untouched(&procs, &pids);

    // `up` starts the agent from the file that is there now, also after an upgrade.
    let done = upgrade(&program, Path::new(env!("CARGO_BIN_EXE_procfleet")), &data, &[]);
    assert_eq!(done.code, Some(0), "{done:?}");
    up.kill_agent();
    check_untouched(&procs, &pids);
    let line = fs::read_to_string(format!("/proc/{}/cmdline", up.agent_pid())).expect("it runs");
    assert!(line.starts_with(program.to_str().expect("a plain path")), "{line}");
    assert!(!line.contains("previous"), "{line}");
}

#[test]
fn an_agent_with_a_broken_journal_says_so_and_starts_nothing_twice() {
    let up = up();
    let data = up.folder("joined");
    let start = |token: Option<&str>| Joined::start(up.binary(), &up.link(), &data, IP, token);
    let mut agent = start(Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let procs = procs(&up).map(|proc| proc.on_host(IP));
    let pids = procs.each_ref().map(Proc::start);
    let stopped = up.proc("stopped").on_host(IP).starts(&programs::foreground());
    stopped.start();
    stopped.op(Op::Stop).assert_success();
    agent.end(Signal::TERM);

    let journal = data.join("agent.db");
    let sound = fs::read(&journal).expect("it is there");
    let mut torn = sound.clone();
    torn[..32].fill(0);
    fs::write(&journal, &torn).expect("our own folder");
    let mut refused = start(None);
    let refused = refused.finish();
    assert_eq!(refused.code, Some(78), "{refused:?}");
    let command = format!("procfleet agent repair --data {}", data.display());
    let named = format!("{} cannot be used", journal.display());
    for words in [named.as_str(), &command, "processes of this host go on"] {
        assert!(refused.stderr.contains(words), "{words:?}: {refused:?}");
    }
    pids.iter().for_each(|pid| assert!(is_running(*pid)));
    assert_eq!(fs::read(&journal).expect("it is there"), torn, "it is left as it is");

    // Put right: everything is as it was.
    fs::write(&journal, &sound).expect("our own folder");
    let mut agent = start(None);
    agent.wait_until_connected(&up, IP);
    check_untouched(&procs, &pids);
    assert_eq!((stopped.pid(), stopped.runs()), (None, 1));
    let repair = |up: &Up| Program::new(up.binary()).args(["agent", "repair", "--data"]).args([&data]).run();
    let busy = repair(&up);
    assert!(busy.code == Some(1) && busy.stderr.contains("another agent uses the data folder"), "{busy:?}");
    agent.end(Signal::KILL);

    // A bit of what SQLite has not taken into the file yet: it would forget all that came after it.
    let log = data.join("agent.db-wal");
    let mut altered = fs::read(&log).expect("a kill leaves it");
    let middle = altered.len() / 2;
    altered[middle] ^= 1;
    fs::write(&log, &altered).expect("our own folder");
    let refused = start(None).finish();
    assert_eq!(refused.code, Some(78), "{refused:?}");
    for words in ["its write-ahead log was altered at byte ", &command] {
        assert!(refused.stderr.contains(words), "{words:?}: {refused:?}");
    }
    assert_eq!(fs::read(&log).expect("it is there"), altered, "it is left as it is");
    altered[middle] ^= 1;
    fs::write(&log, &altered).expect("our own folder");
    let mut agent = start(None);
    agent.wait_until_connected(&up, IP);
    check_untouched(&procs, &pids);
    agent.end(Signal::KILL);

    // Nothing can be read of it: nothing is known, nothing is started, and what runs goes on.
    fs::write(&journal, &torn).expect("our own folder");
    for file in ["agent.db-wal", "agent.db-shm"] {
        let _ = fs::remove_file(data.join(file));
    }
    let repaired = repair(&up);
    assert_eq!(repaired.code, Some(0), "{repaired:?}");
    assert!(repaired.stdout.contains("procs saved: none"), "{repaired:?}");
    // A message that was sent within the second of the repair may have been sent before it.
    let_pass(Duration::from_millis(1_100));
    let mut agent = start(None);
    agent.wait_until_connected(&up, IP);
    // Hosted again, each process is found and not started a second time.
    for (proc, pid) in procs.iter().zip(pids) {
        proc.op(Op::Host).assert_success().assert_hosted(true);
        assert_eq!((proc.pid(), proc.runs()), (Some(pid), 1), "{}", proc.name);
    }
    assert_eq!(stopped.runs(), 1);
}

#[test]
fn a_full_disk_makes_the_agent_forget_repeat_or_restart_nothing() {
    let up = up();
    let Some(disk) = Disk::mount(&up.folder("disk"), "16m") else { return };
    let data = disk.path().join("agent");
    let start = |token: Option<&str>| Joined::start(up.binary(), &up.link(), &data, IP, token);
    let mut agent = start(Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let procs = procs(&up).map(|proc| proc.on_host(IP));
    let pids = procs.each_ref().map(Proc::start);
    let stopped = up.proc("stopped").on_host(IP).starts(&programs::foreground());
    stopped.start();
    stopped.op(Op::Stop).assert_success();

    disk.fill();
    let refused = stopped.op(Op::Start);
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.message.contains("is the disk full?"), "{refused:?}");
    assert_eq!(stopped.runs(), 1, "what could not be written down was not done");
    // The agent comes back on the full disk or as soon as there is space; until then its processes go on.
    agent.end(Signal::KILL);
    let mut early = start(None);
    wait_until(PATIENCE, "it is up, or says why not", || {
        !early.is_running() || early.stderr().contains("agent is up")
    });
    pids.iter().for_each(|pid| assert!(is_running(*pid)));
    if early.is_running() {
        early.end(Signal::KILL);
    } else {
        let said = early.finish();
        assert_eq!(said.code, Some(1), "starting it again will help: {said:?}");
    }
    disk.free();
    let mut agent = start(None);
    agent.wait_until_connected(&up, IP);
    check_untouched(&procs, &pids);
    assert_eq!((stopped.pid(), stopped.runs()), (None, 1));
    stopped.start();
    agent.end(Signal::TERM);
}

/// A disk is most often filled by a process, and it must be possible to stop that process.
#[test]
fn on_a_full_disk_processes_can_still_be_queried_stopped_and_killed() {
    let Some((up, disk)) = Up::start_on_disk(env!("CARGO_BIN_EXE_procfleet"), "32m") else { return };
    let [queried, stopped, killed] =
        ["queried", "stopped", "killed"].map(|name| up.proc(name).starts(&programs::foreground()));
    let pids = [&queried, &stopped, &killed].map(Proc::start);

    disk.fill();
    let refused = up.client.post("/api/v2/proc/operate_proc_v2", up.proc("new").body(Op::Start));
    let says = "the disk of the server's data folder is full: until there is room, only stop, kill";
    refused.assert_refused(1000101, &[says, "and not start; nothing was changed"]);
    // More often than the space that was free by chance would do for.
    for _ in 0..100 {
        assert_eq!(queried.op(Op::Query).assert_success().pid(), Some(pids[0]));
    }
    stopped.op(Op::Stop).assert_success().assert_hosted(false);
    killed.op(Op::Kill).assert_success().assert_hosted(false);
    assert_eq!(pids.map(is_running), [true, false, false]);
    let says = "the disk of the agent's data folder is full";
    wait_until(PATIENCE, "the status says so", || {
        queried.row().is_some_and(|row| row["note"].as_str().is_some_and(|note| note.contains(says)))
    });

    // Also by an agent that was killed meanwhile.
    up.kill_agent();
    assert_eq!(queried.op(Op::Query).assert_success().pid(), Some(pids[0]));
    queried.op(Op::Stop).assert_success().assert_hosted(false);
    assert!(!is_running(pids[0]));

    disk.free();
    stopped.start();
    wait_until(PATIENCE, "the status no longer says so", || {
        queried.row().is_some_and(|row| row["note"] == "")
    });
}

/// The agent is away; this is its journal.
fn journal(data: &Path, sql: &str) {
    let journal = rusqlite::Connection::open(data.join("agent.db")).expect("the journal");
    let changed = journal.execute(sql, []).expect("a journal");
    assert_eq!(changed, 1, "{sql}");
}

/// The ops in the agent's journal that wait.
fn ops_not_begun(data: &Path) -> u32 {
    let journal = rusqlite::Connection::open(data.join("agent.db")).expect("the journal");
    let count = "SELECT count(*) FROM ops WHERE state = 0";
    journal.query_row(count, [], |row| row.get(0)).expect("a journal")
}

#[test]
fn a_proc_whose_record_cannot_be_read_is_left_alone() {
    let up = up();
    let data = up.folder("joined");
    let start = |token: Option<&str>| Joined::start(up.binary(), &up.link(), &data, IP, token);
    let mut agent = start(Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let procs = procs(&up).map(|proc| proc.on_host(IP));
    let pids = procs.each_ref().map(Proc::start);
    agent.end(Signal::TERM);
    journal(&data, "UPDATE procs SET record = '{\"torn' WHERE name = 'foreground'");
    let mut agent = start(None);
    agent.wait_until_connected(&up, IP);
    let [daemon, torn, below] = &procs;
    for op in [Op::Start, Op::Stop, Op::Restart, Op::Kill, Op::Unhost] {
        let refused = torn.op(op);
        assert_ne!(refused.code, 0, "{op:?}");
        assert!(refused.message.contains("was not begun: its record in the agent's journal"), "{refused:?}");
    }
    assert!(is_running(pids[1]) && torn.runs() == 1, "nothing was done to it");
    let note = wait_for(PATIENCE, "it is shown", || {
        torn.row()?["note"].as_str().filter(|note| note.contains("it is left alone")).map(str::to_owned)
    });
    assert!(note.contains("procfleet agent repair"), "{note}");
    check_untouched(&[daemon.clone(), below.clone()], &[pids[0], pids[2]]);
}

/// Another boot id: pids from before mean nothing, also where another process has one of them now.
#[test]
fn after_a_boot_only_hosted_procs_are_started() {
    let up = up();
    let data = up.folder("joined");
    let start = |token: Option<&str>| Joined::start(up.binary(), &up.link(), &data, IP, token);
    let mut agent = start(Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let procs = procs(&up).map(|proc| proc.on_host(IP));
    let pids = procs.each_ref().map(Proc::start);
    let [stopped, unhosted] = ["stopped", "unhosted"].map(|name| {
        let proc = up.proc(name).on_host(IP).starts(&programs::foreground());
        proc.start();
        proc
    });
    stopped.op(Op::Stop).assert_success();
    unhosted.op(Op::Unhost).assert_success();
    let slow = up.proc("slow").on_host(IP).starts("echo x >> runs; sleep 1000; exec ./web 1000");
    let cut_off = slow.submit(Op::Start);
    slow.wait_for_runs(1);
    let not_begun = slow.submit(Op::Restart);
    wait_until(PATIENCE, "the agent has stored the restart", || ops_not_begun(&data) == 1);
    agent.end(Signal::KILL);
    // As a host that goes down ends them.
    for pid in procs.iter().chain([&unhosted, &slow]).flat_map(Proc::pids) {
        kill(pid, Signal::KILL);
    }
    journal(&data, "UPDATE meta SET value = 'another boot' WHERE key = 'boot_id'");
    let mut agent = start(None);
    agent.wait_until_connected(&up, IP);
    let outcome = cut_off.outcome();
    assert_eq!(outcome.code, 805, "{outcome:?}");
    assert!(outcome.message.contains("was under way"), "{outcome:?}");
    let outcome = not_begun.outcome();
    assert_eq!(outcome.code, 805, "{outcome:?}");
    assert!(outcome.message.contains("restart was not begun"), "{outcome:?}");
    assert_eq!(outcome.content["value"][0]["procName"], "web", "{outcome:?}");
    for (proc, old) in procs.iter().zip(pids) {
        let new = wait_for(PATIENCE, "it is started", || proc.program_pid().filter(|new| *new != old));
        proc.row_with_pid(new);
        assert_eq!((proc.runs(), proc.program_pids().len()), (2, 1), "{}", proc.name);
    }
    for proc in [&stopped, &unhosted, &slow] {
        assert_eq!((proc.pid(), proc.runs()), (None, 1), "{}", proc.name);
    }
}

/// The upgrading program and the agent are killed: there is always a whole program, and no process is
/// touched.
#[test]
fn an_upgrade_that_is_cut_off_leaves_everything_whole() {
    let up = up();
    let (data, bin) = (up.folder("joined"), up.folder("bin"));
    let program = copy(up.binary(), &bin.join("procfleet"));
    let start = |token: Option<&str>| Joined::start(&program, &up.link(), &data, IP, token);
    let mut agent = start(Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let procs = procs(&up).map(|proc| proc.on_host(IP));
    let pids = procs.each_ref().map(Proc::start);
    let whole = || {
        let said = Program::new(&program).args(["--version"]).run();
        assert!(said.code == Some(0) && said.stdout.starts_with("procfleet "), "{said:?}");
    };
    for millis in [0, 30, 100, 300] {
        let mut upgrading = Program::new(up.binary()).args(["agent", "upgrade", "--binary"]).args([
            up.binary(),
            Path::new("--data"),
            &data,
        ]);
        upgrading.start();
        let began = Instant::now();
        wait_until(PATIENCE, "it is under way", || began.elapsed() >= Duration::from_millis(millis));
        if upgrading.is_running() {
            upgrading.end(Signal::KILL, PATIENCE);
        }
        whole();
        if millis == 300 {
            agent.end(Signal::KILL);
            whole();
            agent = start(None);
        }
        agent.wait_until_connected(&up, IP);
        assert!(agent.is_running());
    }
    check_untouched(&procs, &pids);
    let done = upgrade(&program, up.binary(), &data, &[]);
    assert_eq!(done.code, Some(0), "{done:?}");
    agent.wait_until_connected(&up, IP);
    check_untouched(&procs, &pids);
}

/// Without a server nothing waits for a report; later the server gets each event once.
#[test]
fn events_during_a_server_outage_arrive_once_afterwards() {
    let mut up = up();
    let data = up.folder("joined");
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("alone").on_host(IP).policy("start_retries", 10).starts(&programs::foreground());
    let mut dead = vec![proc.start()];
    up.kill_all();
    for _ in 0..3 {
        let old = *dead.last().expect("there is one");
        kill(old, Signal::KILL);
        let is_new = |pid: &u32| !dead.contains(pid) && is_running(*pid);
        let new = wait_for(PATIENCE, "it comes back without a server", || proc.program_pid().filter(is_new));
        dead.push(new);
    }
    up.again_with_the_same_link();
    agent.wait_until_connected(&up, IP);
    let proc = Proc { client: up.client.clone(), ..proc };
    let alive = dead.pop().expect("the last one runs");
    proc.row_with_pid(alive);
    // A process that was killed while its start was being checked is a start that failed.
    let ends = || {
        let events = events_of(&up, &proc);
        let is_end =
            |event: &&serde_json::Value| event["kind"] == "exited" || event["kind"] == "restart_failed";
        events.iter().filter(is_end).map(|event| event["message"].to_string()).collect::<Vec<_>>()
    };
    wait_until(PATIENCE, "each end is an event", || ends().len() >= dead.len());
    assert_eq!(ends().len(), dead.len(), "once: {:?}", ends());
    assert!(ends()[0].contains(&format!("pid {} was ended by signal 9", dead[0])), "{:?}", ends());
    assert_eq!((proc.pid(), proc.runs()), (Some(alive), 4));
}
