//! The duplicate test: the agent is killed at random moments while procs crash, start, stop and restart
//! around it. After each round every hosted proc runs exactly once, no unhosted proc was started, no stranger
//! was signalled and no op was run twice.
//!
//! Every process of the workload takes a lock that it holds until it dies and writes a line into its proc's
//! log, so that a second copy is seen however short it lives. A round does one thing to each proc, so it can
//! start each once at most.
//!
//! `scripts/test` plays a few rounds. For a long run, and to play the same again:
//!
//! ```text
//! DUPLICATE_ROUNDS=1000 DUPLICATE_SEED=7 cargo test -p procfleet --test e2e duplicates -- --nocapture
//! ```

use crate::up;
use procfleet_testkit::{
    Joined, Op, PATIENCE, Proc, Signal, Stranger, Task, Up, ask_again, kill, pids_marked, programs,
    wait_until,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const IP: &str = "127.0.0.2";
/// The number of rounds that `scripts/test` has time for.
const ROUNDS: u64 = 25;
/// Latest time of a kill after a round's first op, in milliseconds.
const LATEST_KILL_MILLIS: u64 = 500;
/// How long a proc may take to be as it should be: restarts that follow each other quickly are spread.
const SETTLING: Duration = Duration::from_secs(120);

/// Takes the lock of its proc, which dies with it, and tells that it was started.
const BODY: &str = "exec 9>>lock
flock -n 9 || echo \"double $$ $1\" >> log
echo \"start $$ $1\" >> log
";

#[test]
fn killing_the_agent_at_random_times_neither_repeats_nor_loses_an_op() {
    let (rounds, seed) = (number("DUPLICATE_ROUNDS").unwrap_or(ROUNDS), number("DUPLICATE_SEED"));
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("{rounds} rounds with DUPLICATE_SEED={seed}");
    let up = up();
    let mut fleet = Fleet::start(&up, Dice(fastrand::Rng::with_seed(seed)));
    for round in 0..rounds {
        fleet.play(round);
        if round % 50 == 49 {
            eprintln!("after round {}: {:?}", round + 1, fleet.checked);
        }
    }
    fleet.checked.print(rounds, seed);
}

/// How the process comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flavour {
    /// Behind a pid file.
    Daemon,
    /// The command itself.
    Foreground,
    /// Below the command.
    Below,
    /// Runs to its end, and only by order.
    Once,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Nothing,
    Crash,
    Order(Op),
}

/// A proc and its state after its last round.
struct Member {
    flavour: Flavour,
    proc: Proc,
    hosted: bool,
    pid: Option<u32>,
    starts: usize,
}

struct Fleet<'a> {
    up: &'a Up,
    agent: Joined,
    data: PathBuf,
    members: Vec<Member>,
    strangers: Vec<Stranger>,
    dice: Dice,
    checked: Checked,
}

/// Counts for the table at the end.
#[derive(Debug, Default)]
struct Checked {
    kills: usize,
    terms: usize,
    crashes: usize,
    ops: BTreeMap<u64, usize>,
    running_once: usize,
    not_started: usize,
    tags: usize,
    starts: usize,
    strangers: usize,
}

impl Checked {
    fn print(&self, rounds: u64, seed: u64) {
        let ops: usize = self.ops.values().sum();
        println!("duplicate test: {rounds} rounds, seed {seed}");
        for (what, count) in [
            ("agent killed with SIGKILL", self.kills),
            ("agent ended with SIGTERM", self.terms),
            ("processes killed by the test", self.crashes),
            ("ops, each with one outcome", ops),
            ("of them interrupted (805)", self.ops.get(&805).copied().unwrap_or_default()),
            ("processes started", self.starts),
            ("checks: a hosted proc runs exactly once", self.running_once),
            ("checks: an unhosted proc was not started", self.not_started),
            ("checks: an op's command ran at most once", self.tags),
            ("checks: a stranger is unharmed", self.strangers),
            ("faults", 0),
        ] {
            println!("  {count:>8}  {what}");
        }
    }
}

impl<'a> Fleet<'a> {
    fn start(up: &'a Up, dice: Dice) -> Fleet<'a> {
        let flavours = [
            Flavour::Daemon,
            Flavour::Foreground,
            Flavour::Below,
            Flavour::Daemon,
            Flavour::Foreground,
            Flavour::Below,
            Flavour::Daemon,
            Flavour::Once,
        ];
        let members = flavours.into_iter().enumerate().map(|(number, flavour)| {
            let proc = up.proc(&format!("proc-{number}")).on_host(IP);
            Member::new(flavour, proc)
        });
        let members = members.collect();
        let strangers = (0..2).map(|_| Stranger::start(Path::new("/"))).collect();
        let data = up.folder("joined");
        let token = up.token(&[]);
        let mut agent = Joined::start(up.binary(), &up.link(), &data, IP, Some(&token));
        agent.wait_until_connected(up, IP);
        Fleet { up, agent, data, members, strangers, dice, checked: Checked::default() }
    }

    fn play(&mut self, round: u64) {
        let deeds: Vec<Deed> = self.members.iter().map(|member| self.dice.deed(member.flavour)).collect();
        let kills: Vec<(Signal, Duration)> = (0..if self.dice.one_in(5) { 2 } else { 1 })
            .map(|_| {
                let signal = if self.dice.one_in(10) { Signal::TERM } else { Signal::KILL };
                (signal, Duration::from_millis(self.dice.below(LATEST_KILL_MILLIS)))
            })
            .collect();
        for member in &self.members {
            member.forget_log();
            let down = member.pid.is_none() && member.flavour == Flavour::Daemon;
            if down && self.dice.one_in(2) {
                let stranger = self.dice.below(self.strangers.len() as u64);
                let stranger = &self.strangers[usize::try_from(stranger).expect("a small number")];
                fs::write(member.proc.folder.join(programs::PID_FILE), format!("{}\n", stranger.pid()))
                    .expect("our own folder");
            }
        }
        let tags: Vec<String> = (0..deeds.len()).map(|number| format!("{round}.{number}")).collect();
        let (agent, up, data, members) = (&mut self.agent, self.up, &self.data, &self.members);
        let tasks: Vec<Option<Task>> = std::thread::scope(|scope| {
            scope.spawn(|| {
                for (signal, after) in &kills {
                    let began = Instant::now();
                    wait_until(PATIENCE, "its moment has come", || began.elapsed() >= *after);
                    agent.end(*signal);
                    *agent = Joined::start(up.binary(), &up.link(), data, IP, None);
                }
            });
            let act = |((member, deed), tag): ((&Member, &Deed), &String)| member.act(*deed, tag);
            members.iter().zip(&deeds).zip(&tags).map(act).collect()
        });
        for (signal, _) in &kills {
            *(if *signal == Signal::KILL { &mut self.checked.kills } else { &mut self.checked.terms }) += 1;
        }
        self.checked.crashes += deeds.iter().filter(|deed| **deed == Deed::Crash).count();
        self.agent.wait_until_connected(self.up, IP);
        for (index, task) in tasks.iter().enumerate() {
            let code = task.as_ref().map(|task| task.outcome().code);
            if let Some(code) = code {
                *self.checked.ops.entry(code).or_default() += 1;
            }
            let context = format!("round {round}: {} {:?} {code:?}", tags[index], deeds[index]);
            self.check(index, deeds[index], &tags[index], code, &context);
        }
        for stranger in &mut self.strangers {
            stranger.assert_unharmed();
            self.checked.strangers += 1;
        }
    }

    /// Waits until the proc is as it should be, and finds nothing that should not have been.
    fn check(&mut self, index: usize, deed: Deed, tag: &str, code: Option<u64>, context: &str) {
        let member = &self.members[index];
        if let Deed::Order(op) = deed {
            let code = code.expect("an order is a task");
            // 117: the machine took more than 5 s to start the next agent, and the op was never sent.
            let fine = match op {
                Op::Start => &[0, 828, 805, 117][..],
                Op::Stop | Op::Kill | Op::Reload => &[0, 829, 805, 117],
                Op::Query | Op::Host | Op::Unhost | Op::Restart => &[0, 805, 117],
            };
            assert!(fine.contains(&code), "{context}: {:?}", member.proc.name);
        }
        let settled = ask_again(Duration::from_millis(20), SETTLING, || member.settled(deed, code));
        let Some((hosted, pid)) = settled else {
            panic!(
                "{context}: {} did not settle: row {:?}, processes {:?}, log {:?}",
                member.proc.name,
                member.proc.row(),
                member.running(),
                member.proc.read("log")
            );
        };
        let log = member.proc.read("log");
        assert!(!log.contains("double"), "{context}: {} ran twice at once: {log}", member.proc.name);
        let starts = log.lines().filter(|line| line.starts_with("start ")).count();
        let commands = log.lines().filter(|line| *line == format!("op {tag}")).count();
        assert!(commands <= 1, "{context}: an op was run twice: {log}");
        self.checked.tags += usize::from(deed == Deed::Order(Op::Reload) || member.flavour == Flavour::Once);
        let launches = matches!(deed, Deed::Order(Op::Start | Op::Host | Op::Restart))
            || (deed == Deed::Crash && member.hosted);
        assert!(
            starts <= usize::from(launches),
            "{context}: {} was started {starts} times: {log}",
            member.proc.name
        );
        if hosted && member.flavour != Flavour::Once {
            self.checked.running_once += 1;
        }
        if !member.hosted && !launches {
            self.checked.not_started += 1;
        }
        self.checked.starts += starts;
        let member = &mut self.members[index];
        (member.hosted, member.pid, member.starts) = (hosted, pid, member.starts + starts);
    }
}

impl Member {
    fn new(flavour: Flavour, proc: Proc) -> Member {
        fs::write(proc.folder.join("go"), format!("{BODY}exec ./web 1000\n")).expect("our own folder");
        fs::write(
            proc.folder.join("go-daemon"),
            format!("{BODY}echo $$ > web.pid.new; mv web.pid.new web.pid\nexec ./web 1000\n"),
        )
        .expect("our own folder");
        let proc = proc.policy("start_retries", 1_000).policy("start_interval", 1);
        let proc = match flavour {
            Flavour::Daemon => proc.with_pid_file(),
            Flavour::Foreground | Flavour::Below => proc,
            Flavour::Once => proc.policy("auto_type", 2),
        };
        Member { flavour, proc, hosted: false, pid: None, starts: 0 }
    }

    /// The command of an op names the op; restarts by hosting run the same command.
    fn act(&self, deed: Deed, tag: &str) -> Option<Task> {
        let start = match self.flavour {
            Flavour::Daemon => format!(
                "rm -f web.pid; (setsid sh ./go-daemon {tag} </dev/null >/dev/null 2>&1 &); \
                 until test -s web.pid; do sleep 0.01; done"
            ),
            Flavour::Foreground => format!("exec sh ./go {tag}"),
            Flavour::Below => format!("sh ./go {tag}; true"),
            Flavour::Once => format!("echo 'op {tag}' >> log; sleep 0.2"),
        };
        let proc = self.proc.clone().starts(&start).control("reload_cmd", &format!("echo 'op {tag}' >> log"));
        match deed {
            Deed::Nothing => None,
            Deed::Crash => {
                self.pid.into_iter().for_each(|pid| kill(pid, Signal::KILL));
                None
            }
            Deed::Order(op) => Some(proc.submit(op)),
        }
    }

    /// Hosting and the process, as soon as they agree with each other and with the op.
    fn settled(&self, deed: Deed, code: Option<u64>) -> Option<(bool, Option<u32>)> {
        let Some(row) = self.proc.row() else {
            // The proc was never started, and a stop of an unknown proc leaves nothing.
            return self.running().is_empty().then_some((false, None));
        };
        let hosted = row["hosted"] == true;
        let running = self.running();
        let pid = row["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        if self.flavour == Flavour::Once {
            let settled =
                ["running", "stopped", "gave_up"].contains(&row["state"].as_str().unwrap_or_default());
            return settled.then_some((hosted, None));
        }
        // An agent that came back while the shell had not yet started the program knows the shell, which
        // waits for it.
        let is_it = |program: &u32| pid == Some(*program) || (pid.is_some() && pid == parent(*program));
        let one = row["state"] == "running" && running.len() == 1 && running.iter().all(is_it);
        let none = row["state"] == "stopped" && running.is_empty() && pid.is_none();
        let as_ordered = match (deed, code) {
            (Deed::Order(Op::Start | Op::Host), Some(0)) => hosted && one,
            (Deed::Order(Op::Restart), Some(0)) | (Deed::Order(Op::Start), Some(828)) => one,
            (Deed::Order(Op::Stop | Op::Kill), Some(0 | 829)) => !hosted && none,
            (Deed::Order(Op::Unhost), Some(0)) => !hosted && (one || none),
            _ => one || (!hosted && none),
        };
        as_ordered.then(|| (hosted, running.first().copied()))
    }

    /// The processes of this proc that have become its program.
    fn running(&self) -> Vec<u32> {
        let is_program = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim() == programs::NAME
        };
        let marked = pids_marked(&format!("{}:{}", self.proc.namespace, self.proc.name));
        marked.into_iter().filter(is_program).collect()
    }

    fn forget_log(&self) {
        fs::write(self.proc.folder.join("log"), "").expect("our own folder");
    }
}

fn parent(pid: u32) -> Option<u32> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    line.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// The same seed plays the same game.
struct Dice(fastrand::Rng);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.u64(..limit)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn deed(&mut self, flavour: Flavour) -> Deed {
        if flavour == Flavour::Once {
            return if self.one_in(2) { Deed::Order(Op::Start) } else { Deed::Nothing };
        }
        match self.below(16) {
            0..=2 => Deed::Crash,
            3..=5 => Deed::Order(Op::Start),
            6..=8 => Deed::Order(Op::Restart),
            9 | 10 => Deed::Order(Op::Stop),
            11 => Deed::Order(Op::Kill),
            12 => Deed::Order(Op::Reload),
            13 => Deed::Order(Op::Host),
            14 => Deed::Order(Op::Unhost),
            _ => Deed::Nothing,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how long the test plays is said where it is run")]
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
