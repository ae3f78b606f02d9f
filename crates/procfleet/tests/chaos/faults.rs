//! Disks that are full or fail, ways that lose bytes or stand still, a server that stops for a while, clocks
//! that are wrong.

use crate::flood::Flood;
use crate::history::{self, REFUSED};
use crate::overtake;
use crate::preload::{HOUR, WallClock, failing_sync};
use crate::table::Row;
use crate::world::{AGENT, LONG_OP_TIMEOUT, SERVER, Side, World, folder};
use crate::{Job, Part};
use procfleet_failpoint::Point;
use procfleet_testkit::{Disk, Op, PATIENCE, Proc, Signal, Way, ask_again, kill, programs, wait_until};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// How much of the workload goes on before and after a fault.
const BEFORE: usize = 6;
const AFTER: usize = 12;
/// How many syncs of an agent's life fail, one in each life, and how many ops it is sent in each.
const SYNCS: u64 = 14;
const OPS_EACH: usize = 4;
/// The server cannot write it down, and does not take it.
const SERVER_REFUSED: u64 = 1_000_101;
/// Its agent is not there.
pub(crate) const NO_AGENT: u64 = 117;
/// It did not end by its deadline.
pub(crate) const TIMEOUT: u64 = 120;
/// How long an op may wait for an agent that is away: 5 s by rule, and the rest for a loaded machine. Much
/// less than an hour.
pub(crate) const ABSENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(50);
const RULE_PATIENCE: Duration = Duration::from_secs(75);

pub(crate) fn jobs(_seed: u64, quick: bool) -> Vec<Job> {
    let secs = move |whole: u64, short: u64| Duration::from_secs(if quick { short } else { whole });
    let job = |name: &'static str, play: Box<dyn FnOnce() -> Row + Send>| Job {
        part: Part::Faults,
        name: name.to_owned(),
        play,
    };
    vec![
        job("disk full: server", Box::new(|| disk_full("disk full: server", SERVER))),
        job("disk full: agent", Box::new(|| disk_full("disk full: agent", AGENT))),
        job("fsync error: server", Box::new(|| fsync("fsync error: server", SERVER, Point::ServerCommit))),
        job("fsync error: agent", Box::new(|| fsync("fsync error: agent", AGENT, Point::AgentCommit))),
        job("fsync error and kill: agent", Box::new(|| fsync_and_kill("fsync error and kill: agent"))),
        job("torn database: server", Box::new(|| torn("torn database: server", SERVER))),
        job("torn journal: agent", Box::new(|| torn("torn journal: agent", AGENT))),
        job("half of all frames lost", Box::new(move || lossy("half of all frames lost", secs(20, 4)))),
        job(
            "partition in the middle of an op",
            Box::new(move || partition("partition in the middle of an op", secs(10, 4))),
        ),
        job(
            "stops that overtake slow starts",
            Box::new(|| overtake::game("stops that overtake slow starts")),
        ),
        job(
            "an agent floods the server",
            Box::new(move || flooded("an agent floods the server", secs(20, 4))),
        ),
        job("server stopped", Box::new(move || stopped("server stopped", secs(60, 4)))),
        job("agent's clock an hour ahead", Box::new(|| clock("agent's clock an hour ahead", AGENT, HOUR))),
        job("agent's clock an hour behind", Box::new(|| clock("agent's clock an hour behind", AGENT, -HOUR))),
        job(
            "server's clock jumps an hour ahead",
            Box::new(|| clock("server's clock jumps an hour ahead", SERVER, HOUR)),
        ),
        job(
            "server's clock jumps an hour back",
            Box::new(|| clock("server's clock jumps an hour back", SERVER, -HOUR)),
        ),
        job(
            "server's clock is set while it runs",
            Box::new(|| server_clock_is_set("server's clock is set while it runs")),
        ),
        job(
            "agent's clock is set while it runs",
            Box::new(|| agent_clock_is_set("agent's clock is set while it runs")),
        ),
    ]
}

/// Lets the fault happen in the middle of the workload, and judges all of it.
fn play(name: &str, mut world: World, fault: impl FnOnce(&mut World) -> Vec<String>) -> Row {
    let workload = world.workload();
    workload.wait_for(BEFORE);
    let trouble = fault(&mut world);
    workload.wait_for(AFTER);
    let sent = workload.end();
    world.wait_until_connected();
    let verdict = world.judge(&sent);
    Row::played(name, 1, verdict, trouble)
}

fn wait(time: Duration) {
    let began = Instant::now();
    wait_until(time + PATIENCE, "the time is over", || began.elapsed() >= time);
}

fn disk_full(name: &str, side: Side) -> Row {
    let folder = folder();
    let Some(disk) = Disk::mount(&folder.path().join("disk"), "24m") else {
        return Row::left_out(name, "not played: only root may mount a disk");
    };
    let on_disk = disk.path().join("data");
    let dir = folder.path().to_owned();
    let (server, agent) = match side {
        Side::Server(_) => (on_disk, folder.path().join("agent")),
        Side::Agent(_) => (folder.path().join("server"), on_disk),
    };
    let world = World::start_in(folder, server, vec![agent], Vec::new());
    let row = play(name, world, |world| {
        let own = |name: &str| world.own_proc(name).starts(&programs::foreground());
        let procs = ["queried", "stopped", "killed"].map(own);
        let (pids, refused) = (procs.each_ref().map(Proc::start), own("refused"));
        disk.fill();
        let mut trouble = check_full_disk(side, &procs, pids, &refused);
        wait(Duration::from_secs(3));
        // A program that dies while the disk is full starts again when there is space.
        world.kill(side);
        disk.free();
        world.start_side(side, "");
        world.wait_until_connected();
        let runs = [&procs[0], &procs[1], &procs[2], &refused].map(|proc| (proc.pids(), proc.runs()));
        if runs != [(vec![pids[0]], 1), (Vec::new(), 1), (Vec::new(), 1), (Vec::new(), 0)] {
            trouble.push(format!("of {pids:?}, these run when there is room again, and so often: {runs:?}"));
        }
        if procs[0].op(Op::Kill).code != 0 || refused.op(Op::Start).code != 0 {
            trouble.push("not all is as before when there is room again".to_owned());
        }
        refused.op(Op::Kill);
        // A server does not store what it refuses.
        world.others += 12 + usize::from(side == AGENT);
        trouble
    });
    drop(disk);
    // The mount kept this folder from being removed with the world.
    let _ = fs::remove_dir_all(dir);
    row
}

/// Checks that procs can be queried, stopped and killed on a full disk, and that nothing else is accepted.
fn check_full_disk(side: Side, procs: &[Proc; 3], pids: [u32; 3], refused: &Proc) -> Vec<String> {
    let mut trouble = Vec::new();
    let said = match side {
        Side::Server(_) => {
            let answer = refused.client.post("/api/v2/proc/operate_proc_v2", refused.body(Op::Start)).body;
            (answer["code"].as_u64(), answer["message"].to_string())
        }
        Side::Agent(_) => {
            let outcome = refused.op(Op::Start);
            (Some(outcome.code), outcome.message)
        }
    };
    let code = if side == SERVER { SERVER_REFUSED } else { REFUSED };
    if said.0 != Some(code) || !said.1.contains("full") {
        trouble.push(format!("start on a full disk: {said:?}"));
    }
    for ((proc, pid), op) in procs.iter().zip(pids).zip([Op::Query, Op::Stop, Op::Kill]) {
        let outcome = proc.op(op);
        let runs = proc.pids().contains(&pid);
        if outcome.code != 0 || runs != (op == Op::Query) {
            trouble.push(format!("{op:?} on a full disk (pid {pid} runs: {runs}): {outcome:?}"));
        }
    }
    trouble
}

/// An agent sends events and states without end, and the server is killed meanwhile.
fn flooded(name: &str, time: Duration) -> Row {
    let world = World::start();
    let flood = Flood::start(&world);
    let row = play(name, world, |world| {
        let client = world.client.clone();
        wait_until(PATIENCE * 4, "the server drops what is too much", || {
            ["events", "states"].iter().all(|what| {
                let counter = format!("procfleet_agent_dropped_total{{what=\"{what}\"}} ");
                let page = client.page("/metrics").text;
                page.lines().any(|line| line.strip_prefix(&counter).is_some_and(|count| count != "0"))
            })
        });
        world.kill(SERVER);
        world.start_side(SERVER, "");
        wait(time);
        Vec::new()
    });
    drop(flood);
    row
}

/// Commits fail now and then, and sometimes several in a row.
fn fsync(name: &str, side: Side, point: Point) -> Row {
    let plan: Vec<String> =
        [3, 5, 6, 7, 12, 20, 21, 33].iter().map(|nth| format!("{}=fail@{nth}", point.name())).collect();
    play(name, World::start(), |world| {
        world.kill(side);
        world.start_side(side, &plan.join(","));
        wait(Duration::from_secs(6));
        Vec::new()
    })
}

/// The commit is in the log, but the disk said that it is not; and then the agent is killed before it writes
/// anything else.
fn fsync_and_kill(name: &str) -> Row {
    let folder = folder();
    let library = failing_sync(folder.path());
    let (server, agent) = (folder.path().join("server"), folder.path().join("agent"));
    let mut world = World::start_in(folder, server, vec![agent], Vec::new());
    let hosts = world.addresses();
    let (mut sent, mut refused) = (Vec::new(), 0);
    // One op at a time: whatever else is written to the log would cover what is there.
    for nth in 1..=SYNCS {
        world.kill(AGENT);
        let preload = ("LD_PRELOAD".to_owned(), library.display().to_string());
        world.hosts[0].environment = vec![preload, ("FAILING_SYNC".to_owned(), nth.to_string())];
        world.start_side(AGENT, "");
        for number in 0..OPS_EACH {
            let proc = world.proc(&format!("caller-{nth}"));
            let one = history::send(&world.any, &proc, &hosts, &format!("{nth}.{number}"), "");
            wait_until(PATIENCE * 2, "it has an outcome", || one.has_ended(&world.any));
            let is_refused = one.code(&world.any) == Some(REFUSED);
            sent.push(one);
            if is_refused {
                // An outcome that says that nothing was done must stay true.
                refused += 1;
                break;
            }
        }
    }
    world.kill(AGENT);
    world.hosts[0].environment.clear();
    world.start_side(AGENT, "");
    world.wait_until_connected();
    let last = world.proc("last");
    sent.push(history::send(&world.any, &last, &hosts, "last", ""));
    let trouble = match refused {
        0 => vec!["no op was refused, so nothing was seen".to_owned()],
        _ => Vec::new(),
    };
    let verdict = world.judge(&sent);
    Row::played(name, SYNCS, verdict, trouble)
}

/// The head of the file is gone: its program says so, ends and leaves it as it is. When the file is put
/// right, all goes on.
fn torn(name: &str, side: Side) -> Row {
    play(name, World::start(), |world| {
        world.end(side);
        let file = match side {
            Side::Server(_) => world.servers[0].data.join("server.db"),
            Side::Agent(index) => world.hosts[index].data.join("agent.db"),
        };
        let sound = fs::read(&file).expect("it is there");
        let mut torn = sound.clone();
        torn[..32].fill(0);
        fs::write(&file, &torn).expect("our own folder");
        world.start_side(side, "");
        let mut trouble = Vec::new();
        if !world.wait_until_ended(side) {
            trouble.push("it works on a file that is no database".to_owned());
        }
        let said = world.said(side);
        if !said.contains("file is not a database") || !said.contains(&file.display().to_string()) {
            trouble.push(format!("it does not say why it ended: {}", world.said(side)));
        }
        if fs::read(&file).is_ok_and(|now| now != torn) {
            trouble.push("it has changed the file".to_owned());
        }
        world.kill(side);
        fs::write(&file, &sound).expect("our own folder");
        world.start_side(side, "");
        trouble
    })
}

fn lossy(name: &str, time: Duration) -> Row {
    play(name, World::start(), |world| {
        world.servers[0].proxy.set(Way::Lossy);
        wait(time);
        world.servers[0].proxy.set(Way::Open);
        match world.servers[0].proxy.lost() {
            0 => vec!["nothing was lost on the way".to_owned()],
            _ => Vec::new(),
        }
    })
}

/// The op takes longer than it takes to notice, and less than the partition.
fn partition(name: &str, time: Duration) -> Row {
    play(name, World::start(), |world| {
        let proc = world.proc("long").policy("auto_type", 2).policy("op_timeout", 60);
        let proc = proc.starts("echo begun >> begun; sleep 2; echo ended >> ended");
        let task = proc.submit(Op::Start);
        world.others += 1;
        wait_until(PATIENCE, "the op has begun", || proc.read("begun") == "begun\n");
        world.servers[0].proxy.set(Way::Stalled);
        wait(time);
        world.servers[0].proxy.set(Way::Cut);
        wait(Duration::from_millis(100));
        world.servers[0].proxy.set(Way::Open);
        let outcome = task.outcome();
        match (outcome.code, proc.read("begun").as_str(), proc.read("ended").as_str()) {
            (0, "begun\n", "ended\n") => Vec::new(),
            other => vec![format!("{other:?}: {}", outcome.message)],
        }
    })
}

fn stopped(name: &str, time: Duration) -> Row {
    play(name, World::start(), |world| {
        kill(world.pid(SERVER), Signal::STOP);
        wait(time);
        kill(world.pid(SERVER), Signal::CONT);
        Vec::new()
    })
}

/// The wall clock was set while the server was down; the monotonic clocks are right.
fn clock(name: &str, side: Side, off: i64) -> Row {
    let folder = folder();
    let clock = WallClock::new(folder.path(), "clock");
    let (server, agent) = (folder.path().join("server"), folder.path().join("agent"));
    let mut world = World::start_in(folder, server, vec![agent], Vec::new());
    world.op_timeout = LONG_OP_TIMEOUT;
    let mut row = play(name, world, |world| {
        world.kill(side);
        clock.set(off);
        match side {
            Side::Server(_) => {
                world.servers[0].environment = clock.environment();
                world.clock_jumped = true;
            }
            Side::Agent(index) => world.hosts[index].environment = clock.environment(),
        }
        world.start_side(side, "");
        wait(Duration::from_secs(2));
        match world.is_running(side) {
            true => Vec::new(),
            false => vec![format!("it did not come back: {}", world.said(side))],
        }
    });
    row.must_not_end_with(TIMEOUT);
    row
}

/// The server's wall clock is set again and again while ops are running: no op ends because of it, and no op
/// waits longer.
fn server_clock_is_set(name: &str) -> Row {
    let folder = folder();
    let clock = WallClock::new(folder.path(), "clock");
    let server = folder.path().join("server");
    let agents = ["here", "away"].map(|name| folder.path().join(name)).to_vec();
    let mut world = World::start_in(folder, server, agents, clock.environment());
    world.clock_jumped = true;
    world.op_timeout = LONG_OP_TIMEOUT;
    let away = Side::Agent(1);
    world.kill(away);
    let workload = world.workload_on(&world.addresses()[..1]);
    workload.wait_for(BEFORE);
    let (mut trouble, mut stamps) = (Vec::new(), Vec::new());
    for (number, off) in [HOUR, 0, -HOUR, 0].into_iter().enumerate() {
        let long = world.proc(&format!("long-{number}")).policy("auto_type", 2);
        let begun = format!("begun-{number}");
        let long = long.starts(&format!("echo begun >> {begun}; sleep 1"));
        let task = long.submit(Op::Start);
        stamps.extend(task.id.split(':').nth(1).map(str::to_owned));
        let absent = world.proc("absent").on_host(&world.hosts[1].ip).policy("auto_type", 2).starts("true");
        let (waiting, sent_at) = (absent.submit(Op::Start), Instant::now());
        world.others += 2;
        wait_until(PATIENCE, "the op has begun", || long.read(&begun) == "begun\n");
        clock.set(off);
        let outcome = task.outcome();
        if outcome.code != 0 {
            trouble.push(format!("set to {off} s: {} {}", outcome.code, outcome.message));
        }
        // A host that is away may come back for 5 s, and not for an hour.
        let outcome = waiting.outcome();
        if outcome.code != NO_AGENT || sent_at.elapsed() > ABSENCE {
            trouble.push(format!(
                "set to {off} s: {} {} after {:?}",
                outcome.code,
                outcome.message,
                sent_at.elapsed()
            ));
        }
    }
    // Each was made by the clock as it was set before.
    if !(stamps[2] < stamps[1] && stamps[0] < stamps[1] && stamps[3] < stamps[0]) {
        trouble.push(format!("its clock has not moved: {stamps:?}"));
    }
    workload.wait_for(AFTER);
    let sent = workload.end();
    world.start_side(away, "");
    world.wait_until_connected();
    let verdict = world.judge(&sent);
    let mut row = Row::played(name, 4, verdict, trouble);
    row.must_not_end_with(TIMEOUT);
    row
}

/// An agent's wall clock is set again and again: hosted processes stay as they are, cycles keep their pace,
/// and crontab rules follow the wall clock.
fn agent_clock_is_set(name: &str) -> Row {
    let folder = folder();
    let clock = WallClock::new(folder.path(), "clock");
    let (server, agent) = (folder.path().join("server"), folder.path().join("agent"));
    let world = World::start_in(folder, server, vec![agent], Vec::new());
    play(name, world, |world| {
        // It is preloaded into the next life.
        world.kill(AGENT);
        world.hosts[0].environment = clock.environment();
        world.start_side(AGENT, "");
        world.wait_until_connected();
        let own = |name: &str| world.own_proc(name);
        let hosted = own("hosted").starts(&programs::foreground());
        let note = "echo run >> runs";
        let cycle = own("cycle").policy("auto_type", 0).policy("cycle_time", 1).starts(note);
        let rule = own("rule").policy("auto_type", 0).policy("crontab_rule", "* * * * * *").starts(note);
        let pid = hosted.start();
        cycle.op(Op::Host).assert_success();
        rule.op(Op::Host).assert_success();
        let (mut trouble, mut times, began) = (Vec::new(), Vec::new(), Instant::now());
        for off in [HOUR, 0, -HOUR, 0] {
            let before = [cycle.runs(), rule.runs()];
            clock.set(off);
            times.extend(hosted.op(Op::Query).instance()["report_time"].as_i64());
            let goes_on = || cycle.runs() >= before[0] + 2 && rule.runs() >= before[1] + 2;
            // A rule is looked at again once a minute at the latest, and each second of this one is a run.
            if ask_again(LOOK, RULE_PATIENCE, || goes_on().then_some(())).is_none() {
                trouble.push(format!(
                    "set to {off} s: from {before:?} to {} and {} runs",
                    cycle.runs(),
                    rule.runs()
                ));
            }
        }
        if times.len() != 4 || times[0] - times[1] < HOUR / 2 || times[1] - times[2] < HOUR / 2 {
            trouble.push(format!("its clock has not moved: {times:?}"));
        }
        // Never early, however the clock was set; a run at its beginning.
        let most = usize::try_from(began.elapsed().as_secs()).unwrap_or_default() + 3;
        if cycle.runs() > most || rule.runs() > most {
            trouble.push(format!("{} and {} runs in {most} s", cycle.runs(), rule.runs()));
        }
        for proc in [&cycle, &rule] {
            proc.op(Op::Stop);
        }
        if hosted.runs() != 1 || !hosted.pids().contains(&pid) {
            trouble.push(format!("{pid} became {:?} in {} runs", hosted.pids(), hosted.runs()));
        }
        let events = world.client.data("/api/v1/events?limit=1000");
        let odd = |event: &&Value| {
            let is_of = |proc: &&Proc| event["name"] == proc.name.as_str();
            let kind = event["kind"].as_str().unwrap_or_default();
            [&hosted, &cycle, &rule].iter().any(is_of) && !["started", "run_missed"].contains(&kind)
        };
        let events = events["events"].as_array().expect("a list");
        trouble.extend(events.iter().filter(odd).map(|event| format!("told of: {event}")));
        hosted.op(Op::Kill).assert_success();
        world.others += 11;
        trouble
    })
}
