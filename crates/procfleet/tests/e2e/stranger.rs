//! The stranger test: pid files that name a live stranger, a recycled pid or another proc's process. No op
//! and no end of the agent touches the stranger, and the status says what is wrong.

use crate::events::events_of;
use crate::{at_once, up};
use procfleet_testkit::{
    Joined, Need, Op, PATIENCE, Proc, Program, Signal, Stranger, Up, account, has, is_running, kill, need,
    programs, start_time, wait_for, wait_until,
};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
use std::path::Path;

const IP: &str = "127.0.0.2";
fn write_pid_file(proc: &Proc, pid: u32) {
    fs::write(proc.folder.join(programs::PID_FILE), format!("{pid}\n")).expect("our own folder");
}

/// Every op that ends or changes a process, while the pid file names a process of another proc.
#[track_caller]
fn check_left_alone(proc: &Proc, says: &str) {
    for op in [Op::Stop, Op::Kill, Op::Reload] {
        proc.op(op).assert(829, "no need to").assert_says(says);
    }
    let seen = proc.op(Op::Query);
    seen.assert_success().assert_hosted(false);
    assert_eq!(seen.pid(), None, "{seen:?}");
    wait_for(PATIENCE, &format!("the list says {says:?}"), || {
        proc.row().filter(|row| row["note"].as_str().is_some_and(|note| note.contains(says)))
    });
}

/// Ends the agent and starts it again on the same folder.
fn again(agent: &mut Joined, up: &procfleet_testkit::Up, data: &Path, signal: Signal) {
    agent.end(signal);
    *agent = Joined::start(up.binary(), &up.link(), data, IP, None);
    agent.wait_until_connected(up, IP);
}

#[test]
fn a_stranger_is_untouched_by_every_op_and_by_the_agents_end() {
    let up = up();
    let data = up.folder("joined");
    let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let mut stranger = Stranger::start(&up.folder("elsewhere"));
    let proc = |name: &str| {
        let proc = up.proc(name).on_host(IP).with_pid_file().control("reload_cmd", "echo r >> reloads");
        // Every process exceeds this limit, so the agent would end a stranger that it took for the proc.
        let mut proc = proc.starts(&programs::daemon());
        proc.request["spec"]["resource"] = json!({"fd": 1});
        proc
    };
    let (down, up_and_away, hosted) = (proc("down"), proc("running"), proc("hosted"));
    let neighbour = up.proc("neighbour").on_host(IP).starts(&programs::foreground());
    let neighbours = neighbour.start();
    let born = start_time(neighbours);
    let strange = format!("names pid {}, which is another program (tail)", stranger.pid());
    let theirs = format!("names pid {neighbours}, which was started for {}:neighbour", up.namespace);

    // The proc is stopped, and its pid file names a stranger.
    down.op(Op::Host).assert_success();
    down.op(Op::Stop).assert_success();
    for (pid, says) in [(stranger.pid(), &strange), (neighbours, &theirs)] {
        write_pid_file(&down, pid);
        check_left_alone(&down, says);
        for signal in [Signal::KILL, Signal::TERM] {
            again(&mut agent, &up, &data, signal);
            check_left_alone(&down, says);
        }
    }

    // The proc runs, and its pid file comes to name a stranger: the stranger is not taken for its successor,
    // and the process is restarted and stopped as if the file were not there.
    let mut running = up_and_away.clone();
    running.request["spec"]["resource"] = json!({});
    let first = running.start();
    write_pid_file(&running, stranger.pid());
    again(&mut agent, &up, &data, Signal::KILL);
    assert_eq!(running.pid(), Some(first), "the agent knows it still");
    running.op(Op::Restart).assert_success();
    let second = running.pid().expect("it runs");
    assert!(second != first && !is_running(first));
    write_pid_file(&running, neighbours);
    running.op(Op::Stop).assert_success();
    assert!(!is_running(second));

    // The process dies while its pid file names a stranger: it is started again, and its limits end it and
    // not the stranger.
    let first = hosted.start();
    write_pid_file(&hosted, stranger.pid());
    kill(first, Signal::KILL);
    wait_for(PATIENCE, "there is a replacement", || hosted.program_pid().filter(|pid| *pid != first));
    write_pid_file(&hosted, stranger.pid());
    wait_until(PATIENCE, "it is found over its limit", || {
        events_of(&up, &hosted).iter().any(|event| event["kind"] == "over_limit")
    });
    hosted.op(Op::Kill);
    wait_until(PATIENCE, "all of it has ended", || hosted.pids().is_empty());

    stranger.assert_unharmed();
    assert_eq!(start_time(neighbours), born, "the neighbour goes on");
    assert_eq!((neighbour.pid(), neighbour.runs()), (Some(neighbours), 1));
    assert_eq!(down.read("reloads"), "");
}

/// BlueKing's plugins all live in one folder. A stale pid file names a sibling that was started by hand.
#[test]
fn a_sibling_in_the_same_setup_path_is_a_stranger() {
    let up = up();
    let folder = up.folder("plugins");
    for name in ["basereport", "processbeat"] {
        symlink("/bin/sleep", folder.join(name)).expect("our own folder");
    }
    let pid_file = folder.join("basereport.pid");
    let proc = Proc::new(up.client.clone(), &up.namespace, "basereport", folder.clone())
        .identity("proc_name", "basereport")
        .identity("pid_path", pid_file.to_str().expect("a plain path"))
        .control("reload_cmd", "echo r >> reloads")
        .starts("echo $$ > basereport.pid; exec ./basereport 1000");
    let mut sibling = Program::new(folder.join("processbeat")).args(["1000"]).current_dir(&folder);
    sibling.start();
    proc.op(Op::Host).assert_success();
    proc.op(Op::Stop).assert_success();
    fs::write(&pid_file, format!("{}\n", sibling.pid())).expect("our own folder");
    let says = format!("names pid {}, which is another program", sibling.pid());
    check_left_alone(&proc, &says);
    up.kill_agent();
    check_left_alone(&proc, &says);
    let ours = proc.start();
    assert_ne!(ours, sibling.pid());
    fs::write(&pid_file, format!("{}\n", sibling.pid())).expect("our own folder");
    proc.op(Op::Restart).assert_success();
    fs::write(&pid_file, format!("{}\n", sibling.pid())).expect("our own folder");
    proc.op(Op::Kill).assert_success();
    assert!(sibling.is_running(), "the sibling was ended");
    assert_eq!(proc.read("reloads"), "");
    assert!(proc.pids().is_empty());
}

/// An unprivileged user lays a link where a spec of root's expects its pid file. It leads to the pid file of
/// another process of root's, which fits the spec.
#[test]
fn a_pid_file_behind_a_strangers_link_is_not_trusted() {
    if !has(Need::Root, account() == "root") {
        return;
    }
    let up = up();
    let nobody = Some(65_534);
    let proc = up.proc("linked").starts(&programs::silent_daemon());
    let mut victim = Program::new(proc.folder.join(programs::NAME)).args(["1000"]).current_dir(&proc.folder);
    victim.start();
    let victims = up.folder("run").join("victim.pid");
    fs::write(&victims, format!("{}\n", victim.pid())).expect("our own folder");
    let (theirs, shared) = (up.folder("theirs"), up.folder("shared"));
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).expect("our own folder");
    for folder in [&theirs, &shared] {
        symlink(&victims, folder.join(programs::PID_FILE)).expect("our own folder");
        lchown(folder.join(programs::PID_FILE), nobody, None).expect("root may");
    }
    chown(&theirs, nobody, None).expect("root may");
    for (folder, says) in [
        (&theirs, format!("is not believed: the folder {}", theirs.display())),
        (&shared, format!("is not believed: the link {}", shared.join(programs::PID_FILE).display())),
    ] {
        let path = folder.join(programs::PID_FILE);
        let proc = proc.clone().identity("pid_path", path.to_str().expect("a plain path"));
        for op in [Op::Stop, Op::Kill] {
            proc.op(op).assert(829, "no need to").assert_says(&says);
        }
        proc.op(Op::Restart).assert_success();
        assert_ne!(proc.pid(), Some(victim.pid()), "it was taken over");
        proc.op(Op::Restart).assert_success();
        proc.op(Op::Kill).assert_success();
        assert!(victim.is_running(), "root's process was ended");
    }
    // Without the link the file is trusted.
    let proc = proc.identity("pid_path", victims.to_str().expect("a plain path"));
    proc.op(Op::Kill).assert_success();
    wait_until(PATIENCE, "what root's own file names is ended", || !victim.is_running());
}

/// A process of ours dies while the agent is away, and another process gets its pid.
#[test]
fn a_recycled_pid_is_a_stranger() {
    let up = up();
    // Now and then a third one gets the number first; then others must die.
    let mut rounds = (1..=5).map(|round| recycle(&up, round));
    assert!(rounds.any(|played| played == Played::Whole), "the numbers were always taken by others");
}

#[derive(PartialEq, Eq)]
enum Played {
    Whole,
    /// Another process has the pid.
    Taken,
}

fn recycle(up: &Up, round: u32) -> Played {
    let data = up.folder(&format!("joined-{round}"));
    let ip = format!("127.0.0.{}", 100 + round);
    let mut agent = Joined::start(up.binary(), &up.link(), &data, &ip, Some(&up.token(&[])));
    agent.wait_until_connected(up, &ip);
    let [proc, unhosted] = ["recycled", "unhosted"].map(|name| {
        let proc = up.proc(&format!("{name}-{round}")).on_host(&ip);
        proc.with_pid_file().starts(&programs::daemon())
    });
    let pids = [proc.start(), unhosted.start()];
    unhosted.op(Op::Unhost).assert_success();
    agent.end(Signal::KILL);
    let mut strangers = Vec::new();
    for pid in pids {
        kill(pid, Signal::KILL);
        wait_until(PATIENCE, "its number is free", || !Path::new(&format!("/proc/{pid}")).exists());
        match need(Need::ChosenPids, sleep_with_pid(pid)) {
            Some(Some(stranger)) => strangers.push(stranger),
            Some(None) => return Played::Taken,
            None => return Played::Whole,
        }
    }
    agent = Joined::start(up.binary(), &up.link(), &data, &ip, None);
    agent.wait_until_connected(up, &ip);
    let second = wait_for(PATIENCE, "the hosted one is started again", || proc.program_pid());
    proc.row_with_pid(second);
    assert_eq!((proc.pid(), proc.runs()), (Some(second), 2));
    let says = format!("names pid {}, which is another program (sleep)", pids[1]);
    for op in [Op::Stop, Op::Kill] {
        unhosted.op(op).assert(829, "no need to").assert_says(&says);
    }
    assert_eq!(unhosted.runs(), 1);
    proc.op(Op::Kill).assert_success();
    for (stranger, pid) in strangers.iter_mut().zip(pids) {
        assert!(stranger.is_running() && is_running(pid), "the stranger was ended");
    }
    Played::Whole
}

/// A process of another program with this very pid.
fn sleep_with_pid(pid: u32) -> std::io::Result<Option<Program>> {
    let sleep = || {
        let mut program = Program::new("/bin/sleep").args(["1000"]).current_dir(Path::new("/"));
        program.start();
        program
    };
    procfleet_testkit::with_pid(pid, sleep, Program::pid)
}

/// As nginx does it on SIGUSR2: the new master writes the pid file while the old one goes on, and the old one
/// ends later.
#[test]
fn a_program_that_upgrades_itself_is_followed_without_a_restart() {
    let up = up();
    let body = "#!/bin/sh\n\
        successor() { setsid ./upgrade </dev/null >/dev/null 2>&1 & }\n\
        trap successor USR2\n\
        trap 'exit 0' USR1\n\
        echo start >> starts\n\
        echo $$ > web.pid.new; mv web.pid.new web.pid\n\
        while :; do sleep 1000 & wait $!; done\n";
    let proc = |name: &str| {
        let mut proc = up.proc(name).script("upgrade", body).with_pid_file().identity("proc_name", "upgrade");
        // So that it is looked at every 5 s.
        proc.request["spec"]["resource"] = json!({"mem": 90});
        proc.starts("echo run >> runs; (setsid ./upgrade </dev/null >/dev/null 2>&1 &)")
    };
    let (beside, at_once_gone) = (proc("beside"), proc("gone"));
    at_once([beside, at_once_gone], |proc| {
        let old = proc.start();
        kill(old, Signal::USR2);
        let new = wait_for(PATIENCE, "the new one says its pid", || {
            proc.read(programs::PID_FILE).trim().parse::<u32>().ok().filter(|pid| *pid != old)
        });
        if proc.name == "gone" {
            kill(old, Signal::USR1);
        }
        wait_for(PATIENCE, "the new one is watched", || proc.row().filter(|row| row["pid"] == new));
        if proc.name == "beside" {
            assert!(is_running(old), "the old one goes on for a while");
            kill(old, Signal::USR1);
        }
        wait_until(PATIENCE, "the old one has ended", || !is_running(old));
        let told = wait_for(PATIENCE, "there is an event", || {
            events_of(&up, proc).into_iter().find(|event| event["kind"] == "took_over")
        });
        // The agent may have looked in the moment in which both were there.
        let beside = format!("pid {new} took the place of pid {old}");
        let after = format!("pid {new} took its place");
        let said = told["message"].as_str().expect("a message");
        assert!(said == beside || (proc.name == "gone" && said == after), "{said}");
        assert_eq!((proc.pid(), proc.runs(), proc.read("starts").lines().count()), (Some(new), 1, 2));
        let kinds: Vec<String> = events_of(&up, proc).iter().map(|event| event["kind"].to_string()).collect();
        assert!(!kinds.iter().any(|kind| kind.contains("restart")), "{kinds:?}");
        // The agent watches the new process now.
        kill(new, Signal::KILL);
        proc.wait_for_runs(2);
        proc.op(Op::Kill).assert_success();
        wait_until(PATIENCE, "all of it has ended", || proc.pids().is_empty());
    });
}

/// Two agents on one machine with the same proc: the second takes nothing over while the first lives, and
/// everything when the first is gone for good.
#[test]
fn a_second_agent_does_not_adopt_processes_of_a_running_one() {
    let up = up();
    let mut agent = Joined::start(up.binary(), &up.link(), &up.folder("second"), IP, Some(&up.token(&[])));
    agent.wait_until_connected(&up, IP);
    let proc = up.proc("shared").with_pid_file().starts(&programs::daemon());
    let first = proc.clone().on_host(IP);
    let pid = first.start();
    let says =
        format!("names pid {pid}, which another agent on this host has started for {}:shared", up.namespace);
    for op in [Op::Stop, Op::Kill] {
        proc.op(op).assert(829, "no need to").assert_says(&says);
    }
    assert_eq!(proc.op(Op::Query).pid(), None);
    assert_eq!((first.pid(), proc.runs()), (Some(pid), 1), "it goes on");
    agent.end(Signal::KILL);
    assert_eq!(proc.op(Op::Query).pid(), Some(pid), "the agent that has started it is gone");
    proc.op(Op::Stop).assert_success();
    assert!(!is_running(pid));
}
