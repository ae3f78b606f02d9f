//! The tasks that were sent, and the checks of their whole history.
//!
//! Each op runs a command that appends the task's own word and the agent's name to one log. Each task has a
//! key for each of its hosts, and one for an unknown host.

use crate::any_server::AnyServer;
use crate::database::SharedDatabase;
use crate::short_lived;
use procfleet_testkit::{Answer, Op, Proc, ask_again, broken_invariants};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

const OPERATE: &str = "/api/c/compapi/v2/gse/operate_proc_v2/";
const RESULT: &str = "/api/c/compapi/v2/gse/get_proc_operate_result_v2/";
/// An address that no host has.
pub(crate) const NOWHERE: &str = "10.255.255.9";
/// Pause before a failed call is sent again, and between two questions for an outcome.
const AGAIN: Duration = Duration::from_millis(40);
/// How long a server may be away.
const AWAY: Duration = Duration::from_secs(180);
/// No op of the workload has a deadline that is later than this after it was accepted; and the promise gives
/// it 5 s more.
pub(crate) const LAST_OUTCOME: Duration = Duration::from_secs(150);
const LATE_MILLIS: i64 = 5_000;
/// More of a kind is not shown.
const NOTES: usize = 5;

const SUCCESS: u64 = 0;
/// The agent cannot write it down, and does not begin.
pub(crate) const REFUSED: u64 = 101;
const RUNNING: u64 = 115;
const NO_AGENT: u64 = 117;
const INTERRUPTED: u64 = 805;
const NOT_RUNNING: u64 = 829;

/// One task that was accepted.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// The word that its command leaves behind, which is the caller's key too.
    pub(crate) word: String,
    body: Value,
    task: String,
    /// The address of each key; the unknown host is the last op.
    keys: BTreeMap<String, String>,
    /// The addresses in the order of the ops.
    hosts: Vec<String>,
    pub(crate) op: Op,
    /// The processes of the proc that ran when a stop or kill had said that there are none.
    pub(crate) left: Vec<u32>,
}

/// Whether the outcome of a stop or kill says that nothing runs.
pub(crate) fn says_gone(code: u64) -> bool {
    matches!(code, SUCCESS | NOT_RUNNING)
}

/// How often the command of a task was run on a host: by the task's word and the host's address.
pub(crate) type Runs = BTreeMap<(String, String), usize>;

/// The result of a whole history. All counts but `tasks` and `ops` are broken promises.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    tasks: usize,
    /// Ops on known hosts.
    pub(crate) ops: usize,
    /// Tasks that are no longer known, or not with all their keys; successes without a run.
    pub(crate) lost: usize,
    pub(crate) twice: usize,
    /// Ops without an outcome, or with one that came more than 5 s after the deadline.
    pub(crate) without: usize,
    /// Outcomes that deny something that was done or runs, starts that succeeded without a process, and tasks
    /// that no caller sent.
    pub(crate) untrue: usize,
    pub(crate) codes: BTreeMap<u64, usize>,
    /// The message of one failed outcome for each code.
    pub(crate) examples: BTreeMap<u64, String>,
    /// Descriptions of the faults.
    pub(crate) notes: Vec<String>,
}

impl Verdict {
    pub(crate) fn is_well(&self) -> bool {
        self.ops > 0 && self.lost + self.twice + self.without + self.untrue == 0
    }

    pub(crate) fn untrue(&mut self, note: String) {
        self.untrue += 1;
        self.note(note);
    }

    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES {
            self.notes.push(note);
        }
    }
}

/// Sends a task until it is accepted: again and again under the same key, whatever happens to the server
/// meanwhile.
pub(crate) fn send(any: &AnyServer, proc: &Proc, hosts: &[String], word: &str, takes: &str) -> Sent {
    // One write appends the line, so that two shells at once write two lines.
    let command = format!("echo '{word}' $PROCFLEET_PROC >> log{takes}");
    send_op(any, &proc.clone().policy("auto_type", 2).starts(&command), hosts, Op::Start, word)
}

/// As [`send`], for any op.
pub(crate) fn send_op(any: &AnyServer, proc: &Proc, hosts: &[String], op: Op, word: &str) -> Sent {
    let mut body = proc.body(op);
    let hosts: Vec<String> = hosts.iter().cloned().chain([NOWHERE.to_owned()]).collect();
    body["hosts"] = hosts.iter().map(|ip| json!({"ip": ip, "bk_cloud_id": 0})).collect();
    let task = submit_until_accepted(any, &body, word);
    let key = |ip: &String| (format!("0:{ip}:{}:{}", proc.namespace, proc.name), ip.clone());
    let keys = hosts.iter().map(key).collect();
    Sent { word: word.to_owned(), body, task, keys, hosts, op, left: Vec::new() }
}

fn submit_until_accepted(any: &AnyServer, body: &Value, key: &str) -> String {
    submit(any, body, key).unwrap_or_else(|| panic!("{key} was not accepted in {AWAY:?}"))
}

fn submit(any: &AnyServer, body: &Value, key: &str) -> Option<String> {
    ask_again(AGAIN, AWAY, || {
        let answer = any.try_submit(OPERATE, key, body).ok()?;
        answer.body["data"]["task_id"].as_str().filter(|_| answer.body["code"] == 0).map(str::to_owned)
    })
}

impl Sent {
    /// The address of the host of each op, by the name that agents know it by.
    pub(crate) fn ops(&self) -> impl Iterator<Item = (String, &String)> {
        let task = self.task.trim_start_matches("GSETASK:").replace(':', "-");
        self.hosts.iter().enumerate().map(move |(index, ip)| (format!("{task}-{index}"), ip))
    }

    /// The name of its proc.
    pub(crate) fn name(&self) -> String {
        self.body["meta"]["name"].as_str().unwrap_or_default().to_owned()
    }

    /// Sends this request again as a task of its own.
    pub(crate) fn send_again(&self, any: &AnyServer, word: &str) -> Sent {
        let task = submit_until_accepted(any, &self.body, word);
        Sent { word: word.to_owned(), task, left: Vec::new(), ..self.clone() }
    }

    /// Whether it has an outcome by now; false, too, if the server cannot say.
    pub(crate) fn has_ended(&self, any: &AnyServer) -> bool {
        self.results(any).is_some_and(|answer| all_ended(&answer))
    }

    /// As [`Sent::has_ended`], without the host that nobody knows.
    pub(crate) fn has_ended_on_hosts(&self, any: &AnyServer) -> bool {
        let has_ended =
            |(key, result): (&String, &Value)| !self.knows(key) || result["error_code"] != RUNNING;
        self.results(any).is_some_and(|answer| {
            answer.body["data"].as_object().is_some_and(|results| results.iter().all(has_ended))
        })
    }

    /// How it ended on the first host that is known, as far as the server can say.
    pub(crate) fn code(&self, any: &AnyServer) -> Option<u64> {
        self.result(any)?["error_code"].as_u64()
    }

    /// Whether the agent of the first host that is known refused it, because it cannot write its journal.
    pub(crate) fn was_refused(&self, any: &AnyServer) -> bool {
        self.result(any).is_some_and(|result| {
            let message = result["error_msg"].as_str().unwrap_or_default();
            result["error_code"] == REFUSED && message.contains("nothing was done")
        })
    }

    fn result(&self, any: &AnyServer) -> Option<Value> {
        let answer = self.results(any)?;
        let results = answer.body["data"].as_object()?;
        results.iter().find(|(key, _)| self.knows(key)).map(|(_, result)| result.clone())
    }

    /// Whether this is the key of a known host.
    fn knows(&self, key: &str) -> bool {
        self.keys.get(key).is_some_and(|ip| ip != NOWHERE)
    }

    fn results(&self, any: &AnyServer) -> Option<Answer> {
        any.try_post(RESULT, &[], &json!({"task_id": self.task})).ok()
    }
}

fn all_ended(answer: &Answer) -> bool {
    let results = answer.body["data"].as_object();
    results.is_some_and(|results| results.values().all(|result| result["error_code"] != RUNNING))
}

/// Waits until every op has an outcome, or should have had one, and then looks at everything. `runs` is asked
/// when they have. The server is running.
pub(crate) fn judge(any: &AnyServer, sent: &[Sent], runs: impl FnOnce() -> Runs) -> Verdict {
    let ops = sent.iter().map(|one| one.hosts.len() - 1).sum();
    let mut verdict = Verdict { tasks: sent.len(), ops, ..Verdict::default() };
    let mut outcomes = BTreeMap::new();
    for one in sent {
        let answer = ask_again(AGAIN, LAST_OUTCOME, || one.results(any).filter(all_ended));
        let Some(answer) = answer else {
            match one.results(any) {
                Some(now) if now.body["code"] == 0 => verdict.without += 1,
                Some(_) | None => verdict.lost += 1,
            }
            verdict.note(format!("{} ({}): no outcome: {:?}", one.word, one.task, one.results(any)));
            continue;
        };
        let results = answer.body["data"].as_object().cloned().unwrap_or_default();
        if sorted(results.keys()) != sorted(one.keys.keys()) {
            verdict.lost += 1;
            verdict.note(format!("{} ({}): keys {:?}", one.word, one.task, answer.body));
            continue;
        }
        for (key, result) in results {
            let code = result["error_code"].as_u64().unwrap_or(u64::MAX);
            let message = result["error_msg"].as_str().unwrap_or_default().to_owned();
            let ip = &one.keys[&key];
            match ip == NOWHERE {
                true if code == NO_AGENT => {}
                true => {
                    verdict.untrue(format!("{}: {code} {message} for a host that nobody knows", one.word));
                }
                false => {
                    *verdict.codes.entry(code).or_default() += 1;
                    outcomes.insert((one.word.clone(), ip.clone()), (one.op, code, message));
                }
            }
        }
        if !one.left.is_empty() {
            verdict.untrue(format!("{} ({}): {:?} ran after its outcome", one.word, one.task, one.left));
        }
        // A repeated request with the same key always gets the same task.
        let again = submit(any, &one.body, &one.word);
        if again.as_ref() != Some(&one.task) {
            verdict.lost += 1;
            verdict.note(format!("{}: {} became {again:?}", one.word, one.task));
        }
    }
    check_runs(&mut verdict, &outcomes, runs());
    verdict
}

fn sorted<'a>(keys: impl Iterator<Item = &'a String>) -> BTreeSet<&'a String> {
    keys.collect()
}

/// The runs that commands have appended to the log. `hosts`: the address of each agent, by the name that it
/// gives itself.
pub(crate) fn runs_in(log: &Path, hosts: &BTreeMap<String, String>) -> Runs {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let mut runs = Runs::new();
    for (word, proc) in text.lines().filter_map(|line| line.split_once(' ')) {
        let agent = proc.split('/').next().unwrap_or_default();
        let ip = hosts.get(agent).cloned().unwrap_or_else(|| format!("nobody's: {agent}"));
        *runs.entry((word.to_owned(), ip)).or_default() += 1;
    }
    runs
}

fn check_runs(
    verdict: &mut Verdict,
    outcomes: &BTreeMap<(String, String), (Op, u64, String)>,
    mut runs: Runs,
) {
    for (key, (op, code, message)) in outcomes {
        let times = runs.remove(key).unwrap_or(0);
        let word = format!("{} on {}", key.0, key.1);
        match (*code, times) {
            (_, 2..) => {
                verdict.twice += 1;
                verdict.note(format!("{word}: run {times} times; {code} {message}"));
            }
            (SUCCESS, _) if short_lived::must_fail(&key.0) => {
                verdict.untrue(format!("{word}: success, and its process died within the check"));
            }
            (SUCCESS, 0) if *op == Op::Start => {
                verdict.lost += 1;
                verdict.note(format!("{word}: success without a run"));
            }
            // It may have come to its command, or not.
            (INTERRUPTED, _) => _ = verdict.examples.entry(*code).or_insert_with(|| message.clone()),
            (SUCCESS, _) => {}
            (_, 1) if denies(message) => {
                verdict.untrue(format!("{word}: was run, and its outcome is {code} {message}"));
            }
            (_, _) if message.is_empty() => {
                verdict.untrue(format!("{word}: {code} says nothing"));
            }
            (_, _) => _ = verdict.examples.entry(*code).or_insert_with(|| message.clone()),
        }
    }
    for (word, ip) in runs.keys() {
        verdict.untrue(format!("{word} on {ip}: was run, and its outcome is not known"));
    }
}

/// Whether the message of an outcome says that the command did not run.
fn denies(message: &str) -> bool {
    ["nothing was done", "not begun", "never given the operation", "its agent is not connected"]
        .iter()
        .any(|words| message.contains(words))
}

/// As [`check_store`], for servers that share a database.
pub(crate) fn check_database(verdict: &mut Verdict, database: &SharedDatabase, others: usize) {
    let count = |sql: &str| database.count(sql);
    let (tasks, sent) = (count("SELECT count(*) FROM tasks"), verdict.tasks + others);
    if tasks != sent {
        verdict.untrue += tasks.abs_diff(sent);
        verdict.note(format!("{sent} tasks were sent, and {tasks} are stored"));
    }
    let open = count("SELECT count(*) FROM ops LEFT JOIN outcomes USING (task, idx) WHERE code IS NULL");
    let late = count(&format!(
        "SELECT count(*) FROM ops JOIN outcomes USING (task, idx) WHERE ended_at > deadline + {LATE_MILLIS}"
    ));
    verdict.without = verdict.without.max(open) + late;
    if open + late > 0 {
        verdict.note(format!("in the store {open} ops are open, and {late} ended late"));
    }
}

/// Checks what must hold in every store, while the servers still run: their ends would close the transactions
/// that they have left open.
pub(crate) fn check_invariants(verdict: &mut Verdict, database: &SharedDatabase) {
    for (found, what) in broken_invariants(|sql| database.number(sql)) {
        verdict.untrue += usize::try_from(found.abs()).unwrap_or(usize::MAX);
        verdict.note(format!("{found} {what}"));
    }
}

/// Checks the store after its server has ended: each task that was sent is there once, and each op ended in
/// time. `others`: tasks that are not of this history. A server whose clock has jumped cannot tell which op
/// was late.
pub(crate) fn check_store(verdict: &mut Verdict, store: &Path, others: usize, clock_jumped: bool) {
    let opened = rusqlite::Connection::open_with_flags(store, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE);
    let connection = opened.expect("the server's store");
    let count = |query: &str| connection.query_row(query, [], |row| row.get::<_, i64>(0)).expect("a count");
    let number = |count: i64| usize::try_from(count).unwrap_or_default();
    let tasks = number(count("SELECT count(*) FROM tasks"));
    let sent = verdict.tasks + others;
    if tasks != sent {
        verdict.untrue += tasks.abs_diff(sent);
        verdict.note(format!("{sent} tasks were sent, and {tasks} are stored"));
    }
    let open = number(count("SELECT count(*) FROM ops WHERE code IS NULL OR ended_at IS NULL"));
    let late = match clock_jumped {
        true => 0,
        false => {
            number(count(&format!("SELECT count(*) FROM ops WHERE ended_at > deadline + {LATE_MILLIS}")))
        }
    };
    verdict.without = verdict.without.max(open) + late;
    if open + late > 0 {
        verdict.note(format!("in the store {open} ops are open, and {late} ended late"));
    }
}
