//! Probes of a proc: its version (`version_cmd`), its health (`health_cmd`), and its files (`configmap`).
//!
//! Each proc with probes has one task. The actor sends it the spec and the proc's readiness through one
//! watch, and gets results through another; neither waits for the other. While an op or a restart is under
//! way no probe runs, and a running one is cancelled: a process that is being stopped is not unhealthy.

use super::drift::{self, Effort, Extent, Files};
use crate::exec::{ExecContext, Probed, Prober};
use procfleet_core::health::HealthReport;
use procfleet_core::id::ProcKey;
use procfleet_core::process::{Exit, Process};
use procfleet_core::spec::{ConfigFile, Kind, Spec};
use procfleet_core::supervise::Health;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::info;

/// Consecutive failures of `health_cmd` that make an event, and may lead to a restart.
const FAILURES: u32 = 3;
/// Characters of the version that are kept.
const LONGEST_VERSION: usize = 256;
/// Characters of an answer about health that are kept.
const LONGEST_ANSWER: usize = 256;

/// Intervals and timeouts of probes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProbePace {
    pub(super) every: Duration,
    pub(super) limit: Duration,
}

impl Default for ProbePace {
    fn default() -> ProbePace {
        ProbePace { every: Duration::from_secs(30), limit: Duration::from_secs(10) }
    }
}

/// The last results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LastAnswer {
    pub(super) version: String,
    pub(super) health: HealthReport,
    /// The verdict of all results. `None`: not known yet.
    pub(super) verdict: Option<Health>,
    /// The process that the verdict is about.
    pub(super) process: Option<Process>,
    /// Problems of its files; else empty.
    pub(super) note: String,
}

impl LastAnswer {
    /// A change of a process's health: healthy, or unhealthy. Another reason for the same state is not a
    /// change.
    pub(super) fn health_change_since(&self, before: &LastAnswer) -> Option<(Process, Health)> {
        let process = self.process?;
        let known = before.process.filter(|known| known.is(&process)).and(before.verdict.as_ref());
        match (known, self.verdict.as_ref()?) {
            (Some(Health::Healthy), Health::Healthy)
            | (Some(Health::Unhealthy { .. }), Health::Unhealthy { .. }) => None,
            (_, health) => Some((process, health.clone())),
        }
    }
}

/// Whether a proc can be probed now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ProbeReadiness {
    Running(Process),
    Down,
    /// Something is under way.
    #[default]
    Changing,
}

/// The subject of the probes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Subject {
    spec: Arc<Spec>,
    readiness: ProbeReadiness,
    /// Incremented whenever the version may have changed.
    round: u64,
    /// Incremented with every start of the process. Configuration files are compared with those of the start.
    starts: u64,
}

/// The actor's end of the probes.
pub(super) struct Probes {
    context: Arc<ExecContext>,
    key: Arc<ProcKey>,
    pace: ProbePace,
    /// The version of a proc that was resumed from the journal is unknown, even if it does not run.
    taken_up: bool,
    /// `None`: there are no probes, as with most procs.
    active: Option<Box<ActiveProbes>>,
}

/// State of a proc with probes.
struct ActiveProbes {
    subject: watch::Sender<Subject>,
    seen: watch::Receiver<LastAnswer>,
    results: watch::Sender<LastAnswer>,
    files: Arc<Mutex<Files>>,
    /// Dropping it ends the task, and the probe that is running.
    _task: JoinSet<()>,
}

impl ActiveProbes {
    fn begin(context: &Arc<ExecContext>, key: &ProcKey, pace: ProbePace) -> ActiveProbes {
        let (subject, subject_changes) = watch::channel(Subject::default());
        let (results, seen) = watch::channel(LastAnswer::default());
        let files = Arc::<Mutex<Files>>::default();
        let probe_task = ProbeTask {
            prober: Prober::new(context.clone(), key.clone()),
            key: key.clone(),
            pace,
            subject: subject_changes,
            results: results.clone(),
            asked_round: 0,
            probed: None,
            next_check: Instant::now(),
            files: files.clone(),
            expected: Vec::new(),
            next_look: Instant::now(),
        };
        let mut task = JoinSet::new();
        task.spawn(probe_task.run());
        ActiveProbes { subject, seen, results, files, _task: task }
    }
}

impl Probes {
    /// `taken_up`: the proc was resumed from the journal.
    pub(super) fn new(
        context: Arc<ExecContext>,
        key: impl Into<Arc<ProcKey>>,
        pace: ProbePace,
        taken_up: bool,
    ) -> Probes {
        let key = key.into();
        Probes { context, key, pace, taken_up, active: None }
    }

    /// Updates the readiness. Cheap if it has not changed.
    pub(super) fn update(&mut self, spec: &Arc<Spec>, readiness: ProbeReadiness) {
        let control = &spec.control;
        let asks =
            !(control.version_cmd.is_empty() && control.health_cmd.is_empty() && spec.configmap.is_empty());
        if asks && self.active.is_none() {
            self.active = Some(Box::new(ActiveProbes::begin(&self.context, &self.key, self.pace)));
        }
        let Some(active) = &self.active else { return };
        if self.context.allow().spec_refusal(spec).is_some() {
            // The host's policy forbids the spec: none of its commands is run, and none of its files is read.
            return self.forget();
        }
        let taken_up = &mut self.taken_up;
        active.subject.send_if_modified(|subject| {
            let settled =
                subject.readiness == ProbeReadiness::Changing && readiness != ProbeReadiness::Changing;
            let others = subject.spec != *spec;
            if settled && (matches!(readiness, ProbeReadiness::Running(_)) || *taken_up) {
                *taken_up = false;
                // A periodic process would be asked for its version with every run.
                let known = subject.round > 0 && matches!(spec.policy.kind, Kind::Periodic(_)) && !others;
                subject.round += u64::from(!known);
                subject.starts += 1;
            }
            let changed = others || subject.readiness != readiness;
            if others {
                subject.spec = spec.clone();
            }
            subject.readiness = readiness;
            changed
        });
    }

    /// The proc was unregistered: stops probes and drops results.
    pub(super) fn forget(&mut self) {
        let Some(active) = &self.active else { return };
        active.subject.send_if_modified(|subject| {
            let before = std::mem::take(subject);
            (subject.round, subject.starts) = (before.round, before.starts);
            *subject != before
        });
    }

    pub(super) fn seen(&self) -> LastAnswer {
        self.active.as_ref().map(|active| active.seen.borrow().clone()).unwrap_or_default()
    }

    /// Checks the files now for a status query. If a check is running, or the files are large, the last
    /// result is used.
    pub(super) fn look_at_files(&self) {
        let Some(active) = &self.active else { return };
        let subject = active.subject.borrow();
        if let (false, Ok(mut files)) = (subject.spec.configmap.is_empty(), active.files.try_lock())
            && let Ok(note) = files.check(&self.key, &subject.spec, subject.starts, Effort::Small)
        {
            update_results(&active.results, |seen| seen.note = note);
        }
    }

    /// Returns when a result has changed. Cancel safe. `None`: there are no probes.
    pub(super) fn changed(&mut self) -> Option<Pin<Box<impl Future<Output = ()>>>> {
        let active = self.active.as_mut()?;
        Some(Box::pin(async {
            if active.seen.changed().await.is_err() {
                std::future::pending().await
            }
        }))
    }
}

/// The task that runs the probes of one proc.
struct ProbeTask {
    key: ProcKey,
    prober: Prober,
    pace: ProbePace,
    subject: watch::Receiver<Subject>,
    results: watch::Sender<LastAnswer>,
    /// The last round whose version is known.
    asked_round: u64,
    /// The process whose health is checked.
    probed: Option<ProbedProc>,
    next_check: Instant,
    files: Arc<Mutex<Files>>,
    /// The expected files.
    expected: Vec<ConfigFile>,
    next_look: Instant,
}

#[derive(Debug)]
struct ProbedProc {
    process: Process,
    health: HealthTally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeQuestion {
    Version,
    Health,
    Files,
}

impl ProbeTask {
    async fn run(mut self) {
        loop {
            let subject = self.subject.borrow_and_update().clone();
            self.drop_outdated_results(&subject);
            let due = self.next(&subject);
            tokio::select! {
                // The subject may have changed.
                biased;
                changed = self.subject.changed() => if changed.is_err() { return },
                question = wait_for(due) => self.ask(&subject, question).await,
            }
        }
    }

    /// Drops results about another process, or of probes that the spec no longer has.
    fn drop_outdated_results(&mut self, subject: &Subject) {
        let control = &subject.spec.control;
        let running = match subject.readiness {
            ProbeReadiness::Running(process) => Some(process),
            ProbeReadiness::Down => None,
            ProbeReadiness::Changing => self.probed.as_ref().map(|probed| probed.process),
        };
        let running = running.filter(|_| !control.health_cmd.is_empty());
        if running != self.probed.as_ref().map(|probed| probed.process) {
            self.probed = running.map(|process| ProbedProc { process, health: HealthTally::default() });
            self.next_check = Instant::now();
            update_results(&self.results, |seen| {
                (seen.health, seen.verdict, seen.process) = (HealthReport::Unknown, None, None);
            });
        }
        if control.version_cmd.is_empty() {
            update_results(&self.results, |seen| seen.version.clear());
        }
        if subject.spec.configmap != self.expected {
            self.expected.clone_from(&subject.spec.configmap);
            self.next_look = Instant::now();
        }
        if self.expected.is_empty() {
            update_results(&self.results, |seen| seen.note.clear());
        }
    }

    /// The next probe and its time. Health first: after the start check a caller waits for it. Files are
    /// checked in every state of the process.
    fn next(&self, subject: &Subject) -> Option<(Instant, ProbeQuestion)> {
        let settled = subject.readiness != ProbeReadiness::Changing;
        let version =
            settled && self.asked_round != subject.round && !subject.spec.control.version_cmd.is_empty();
        let version = version.then(|| (Instant::now(), ProbeQuestion::Version));
        let health =
            self.probed.as_ref().filter(|_| settled).map(|_| (self.next_check, ProbeQuestion::Health));
        let files = (!self.expected.is_empty()).then_some((self.next_look, ProbeQuestion::Files));
        health.into_iter().chain(version).chain(files).min_by_key(|(at, _)| *at)
    }

    async fn ask(&mut self, subject: &Subject, question: ProbeQuestion) {
        let control = &subject.spec.control;
        let (what, command) = match question {
            ProbeQuestion::Version => ("version", &control.version_cmd),
            ProbeQuestion::Health => ("health", &control.health_cmd),
            ProbeQuestion::Files => return self.look_at_files(subject).await,
        };
        let began = Instant::now();
        let probed_result = tokio::select! {
            // A result about an earlier subject would be wrong.
            biased;
            _ = self.subject.changed() => {
                // The loop has to see the change too.
                self.subject.mark_changed();
                return;
            }
            probed_result = self.prober.run(what, command, &subject.spec, self.pace.limit) => probed_result,
        };
        match question {
            ProbeQuestion::Version => {
                self.asked_round = subject.round;
                let version = version(&probed_result);
                if version.is_empty() {
                    info!(proc = %self.key, ?probed_result, "version_cmd printed no version");
                }
                update_results(&self.results, |seen| seen.version = version);
            }
            ProbeQuestion::Health => {
                self.next_check = began + self.pace.every;
                let Some(probed) = &mut self.probed else { return };
                match probed.health.add_result(&probed_result, self.pace.limit) {
                    HealthChange::None => {}
                    HealthChange::Healthy => info!(proc = %self.key, "process is healthy"),
                    // The state machine reports it as an event.
                    HealthChange::Unhealthy => {}
                }
                let HealthTally { last, verdict, .. } = probed.health.clone();
                let process = probed.process;
                update_results(&self.results, |seen| {
                    (seen.health, seen.verdict, seen.process) = (last, verdict, Some(process));
                });
            }
            ProbeQuestion::Files => {}
        }
    }

    /// Runs concurrently, and is cancelled when the subject changes.
    async fn look_at_files(&mut self, subject: &Subject) {
        self.next_look = Instant::now() + self.pace.every;
        let extent = if subject.readiness == ProbeReadiness::Down { Extent::Small } else { Extent::Any };
        let (files, key, spec) = (self.files.clone(), self.key.clone(), subject.spec.clone());
        let look = drift::look_at(files, key, spec, subject.starts, extent);
        tokio::select! {
            biased;
            _ = self.subject.changed() => {
                self.subject.mark_changed();
                self.next_look = Instant::now();
            }
            note = look => if let Ok(note) = note { update_results(&self.results, |seen| seen.note = note) },
        }
    }
}

fn update_results(results: &watch::Sender<LastAnswer>, change: impl FnOnce(&mut LastAnswer)) {
    results.send_if_modified(|seen| {
        let before = seen.clone();
        change(seen);
        *seen != before
    });
}

async fn wait_for(due: Option<(Instant, ProbeQuestion)>) -> ProbeQuestion {
    match due {
        Some((at, question)) => {
            tokio::time::sleep_until(at).await;
            question
        }
        None => std::future::pending().await,
    }
}

/// Accumulated health results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct HealthTally {
    failures: u32,
    /// As the status shows it.
    last: HealthReport,
    /// `None`: not known yet.
    verdict: Option<Health>,
}

/// How an answer changed the verdict about the process's health.
#[derive(Debug, PartialEq, Eq)]
enum HealthChange {
    None,
    Healthy,
    Unhealthy,
}

impl HealthTally {
    fn add_result(&mut self, probed_result: &Probed, limit: Duration) -> HealthChange {
        let was_unhealthy = matches!(self.verdict, Some(Health::Unhealthy { .. }));
        let reason = match probed_result {
            Probed::Exited { exit: Exit::Code(0), last, .. } => {
                self.failures = 0;
                self.last = HealthReport::Healthy { output: shortened(last) };
                self.verdict = Some(Health::Healthy);
                return if was_unhealthy { HealthChange::Healthy } else { HealthChange::None };
            }
            Probed::Exited { exit, last, .. } if last.is_empty() => format!("health_cmd {exit}"),
            Probed::Exited { last, .. } => shortened(last),
            Probed::TimedOut => format!("health_cmd did not end within {} s", limit.as_secs()),
            Probed::NotStarted { reason } => format!("health_cmd could not be run: {reason}"),
        };
        self.last = HealthReport::Unhealthy { reason: reason.clone() };
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES {
            return HealthChange::None;
        }
        self.verdict = Some(Health::Unhealthy { reason });
        if was_unhealthy { HealthChange::None } else { HealthChange::Unhealthy }
    }
}

fn shortened(answer: &str) -> String {
    answer.chars().take(LONGEST_ANSWER).collect()
}

/// The whole first line of output.
fn version(probed_result: &Probed) -> String {
    match probed_result {
        Probed::Exited { exit: Exit::Code(0), first, .. } => {
            first.trim().chars().filter(|c| !c.is_control()).take(LONGEST_VERSION).collect()
        }
        Probed::Exited { .. } | Probed::TimedOut | Probed::NotStarted { .. } => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Containment;
    use procfleet_core::process::{Evidence, Found};
    use procfleet_core::spec::Schedule;
    use std::fs;
    use std::path::PathBuf;

    fn exited(code: i32, first: &str, last: &str) -> Probed {
        Probed::Exited { exit: Exit::Code(code), first: first.to_owned(), last: last.to_owned() }
    }

    #[test]
    fn a_version_is_the_whole_first_line() {
        for (line, expected) in [
            ("1.2.19", "1.2.19"),
            ("  nginx version: nginx/1.18.0 (Ubuntu) ", "nginx version: nginx/1.18.0 (Ubuntu)"),
            ("\u{1b}[1m1.2\u{1b}[0m", "[1m1.2[0m"),
            ("\u{957f}", "\u{957f}"),
            ("", ""),
        ] {
            assert_eq!(version(&exited(0, line, "")), expected, "{line:?}");
        }
        assert_eq!(version(&exited(0, &"1".repeat(1_000), "")).len(), LONGEST_VERSION);
        for nothing in [exited(127, "sh: not found", ""), Probed::TimedOut] {
            assert_eq!(version(&nothing), "", "{nothing:?}");
        }
    }

    #[test]
    fn every_result_is_shown_and_three_failures_in_a_row_make_it_unhealthy() {
        let mut health = HealthTally::default();
        let limit = Duration::from_secs(10);
        let no = || exited(1, "", "no answer");
        let unstarted = Probed::NotStarted { reason: "no folder".to_owned() };
        let (healthy, unhealthy) = (Some(true), Some(false));
        let rows: Vec<(Probed, HealthChange, Option<bool>, &str)> = vec![
            (no(), HealthChange::None, None, "unhealthy: no answer"),
            (no(), HealthChange::None, None, "unhealthy: no answer"),
            (exited(0, "", ""), HealthChange::None, healthy, "healthy"),
            (no(), HealthChange::None, healthy, "unhealthy: no answer"),
            (no(), HealthChange::None, healthy, "unhealthy: no answer"),
            (no(), HealthChange::Unhealthy, unhealthy, "unhealthy: no answer"),
            (exited(7, "", ""), HealthChange::None, unhealthy, "unhealthy: health_cmd exited with status 7"),
            (
                Probed::TimedOut,
                HealthChange::None,
                unhealthy,
                "unhealthy: health_cmd did not end within 10 s",
            ),
            (unstarted, HealthChange::None, unhealthy, "unhealthy: health_cmd could not be run: no folder"),
            (exited(0, "x", "7 clients"), HealthChange::Healthy, healthy, "healthy: 7 clients"),
            (no(), HealthChange::None, healthy, "unhealthy: no answer"),
        ];
        for (probed_result, turn, verdict, text) in rows {
            assert_eq!(
                (health.add_result(&probed_result, limit), health.last.to_string().as_str()),
                (turn, text),
                "{probed_result:?}"
            );
            let is_well = health.verdict.as_ref().map(|verdict| *verdict == Health::Healthy);
            assert_eq!(is_well, verdict, "{probed_result:?}");
        }
    }

    #[test]
    fn a_health_change_is_reported_once_for_each_process() {
        let process =
            |pid| Process { pid, start_ticks: 1, found: Found::PidFile, evidence: Evidence::default() };
        let unhealthy = |reason: &str| Some(Health::Unhealthy { reason: reason.to_owned() });
        let seen = |pid: u32, health: &str| LastAnswer {
            verdict: match health.strip_prefix("unhealthy: ") {
                Some(reason) => unhealthy(reason),
                None => (!health.is_empty()).then_some(Health::Healthy),
            },
            health: health.to_owned().into(),
            process: Some(process(pid)),
            ..LastAnswer::default()
        };
        for (before, now, expected) in [
            (LastAnswer::default(), LastAnswer::default(), None),
            (LastAnswer::default(), seen(1, ""), None),
            (LastAnswer::default(), seen(1, "healthy"), Some(Health::Healthy)),
            (seen(1, "healthy"), seen(1, "healthy"), None),
            (seen(1, "healthy"), seen(1, "unhealthy: no answer"), unhealthy("no answer")),
            (seen(1, "unhealthy: no answer"), seen(1, "unhealthy: too slow"), None),
            (seen(1, "unhealthy: no answer"), seen(1, "healthy"), Some(Health::Healthy)),
            (seen(1, "unhealthy: no answer"), seen(2, "unhealthy: no answer"), unhealthy("no answer")),
            (seen(1, "unhealthy: no answer"), LastAnswer::default(), None),
        ] {
            let change = now.health_change_since(&before).map(|(_, health)| health);
            assert_eq!(change, expected, "{before:?} then {now:?}");
        }
    }

    struct Fixture {
        folder: tempfile::TempDir,
        spec: Spec,
        probes: Probes,
    }

    const QUICK: ProbePace = ProbePace { every: Duration::from_millis(20), limit: Duration::from_secs(20) };

    fn fixture(pace: ProbePace, taken_up: bool) -> Fixture {
        let folder = tempfile::tempdir().expect("a temp dir");
        let context =
            Arc::new(ExecContext::open(folder.path().join("output"), Containment::Auto).expect("a context"));
        let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("passwd").expect("an account");
        let mut spec = Spec::default();
        spec.identity.setup_path = folder.path().to_str().expect("a plain path").to_owned();
        spec.identity.user = me.name;
        let key = ProcKey { namespace: "probes-test".to_owned(), name: "web".to_owned() };
        let probes = Probes::new(context, key, pace, taken_up);
        Fixture { folder, spec, probes }
    }

    impl Fixture {
        fn path(&self, file: &str) -> PathBuf {
            self.folder.path().join(file)
        }

        fn lines(&self, file: &str) -> usize {
            fs::read_to_string(self.path(file)).unwrap_or_default().lines().count()
        }

        fn update(&mut self, readiness: ProbeReadiness) {
            self.probes.update(&Arc::new(self.spec.clone()), readiness);
        }

        async fn until(&mut self, wanted: impl Fn(&LastAnswer) -> bool) {
            let seen = async {
                while !wanted(&self.probes.seen()) {
                    self.probes.changed().expect("something is asked").await;
                }
            };
            tokio::time::timeout(Duration::from_secs(120), seen).await.expect("it is seen in time");
        }
    }

    async fn until(ask: impl Fn() -> bool) {
        let asked = async {
            while !ask() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), asked).await.expect("it comes in time");
    }

    fn process(pid: u32) -> ProbeReadiness {
        ProbeReadiness::Running(Process {
            pid,
            start_ticks: 1,
            found: Found::PidFile,
            evidence: Evidence::default(),
        })
    }

    #[tokio::test]
    async fn the_version_is_asked_whenever_the_process_may_be_another() {
        let mut f = fixture(ProbePace::default(), false);
        f.spec.control.version_cmd = "echo run >> asked; cat version".to_owned();
        fs::write(f.path("version"), "1.0\n").expect("our folder");
        f.update(ProbeReadiness::Down);
        f.update(ProbeReadiness::Changing);
        f.update(process(7));
        f.until(|seen| seen.version == "1.0").await;
        f.update(process(7));
        // A reload leaves the process as it is, and may have replaced its program.
        fs::write(f.path("version"), "2.0\n").expect("our folder");
        f.update(ProbeReadiness::Changing);
        f.update(process(7));
        f.until(|seen| seen.version == "2.0").await;
        assert_eq!(f.lines("asked"), 2);
        f.update(ProbeReadiness::Changing);
        f.update(ProbeReadiness::Down);
        f.spec.control.version_cmd.clear();
        f.update(ProbeReadiness::Down);
        f.until(|seen| seen.version.is_empty()).await;
        assert_eq!(f.lines("asked"), 2, "a stopped process is not asked");
    }

    #[tokio::test]
    async fn a_proc_of_the_last_life_is_asked_for_its_version_running_or_not() {
        let mut f = fixture(ProbePace::default(), true);
        f.spec.control.version_cmd = "echo 3.1".to_owned();
        f.update(ProbeReadiness::Changing);
        f.update(ProbeReadiness::Down);
        f.until(|seen| seen.version == "3.1").await;
    }

    #[tokio::test]
    async fn files_are_checked_regularly_and_for_a_status_query() {
        let mut f = fixture(QUICK, false);
        let path = f.path("web.conf").to_str().expect("a plain path").to_owned();
        let md5 = "b1946ac92492d2347c6235b4d2611184".to_owned();
        f.spec.configmap = vec![ConfigFile { path: path.clone(), md5 }];
        f.update(ProbeReadiness::Down);
        f.until(|seen| seen.note.contains("web.conf does not exist")).await;
        fs::write(&path, "hello\n").expect("our folder");
        f.until(|seen| seen.note.is_empty()).await;
        f.update(ProbeReadiness::Changing);
        fs::write(&path, "other\n").expect("our folder");
        f.until(|seen| seen.note.contains("web.conf has md5 ")).await;
        f.probes.forget();
        f.until(|seen| seen.note.is_empty()).await;

        let mut f = fixture(ProbePace::default(), false);
        let path = f.path("web.conf").to_str().expect("a plain path").to_owned();
        f.spec.configmap = vec![ConfigFile { path: path.clone(), md5: "0".repeat(32) }];
        f.update(ProbeReadiness::Down);
        f.until(|seen| seen.note.contains("does not exist")).await;
        let probed_result = f.probes.seen().note;
        fs::write(&path, "hello\n").expect("our folder");
        f.probes.look_at_files();
        assert_ne!(f.probes.seen().note, probed_result, "without waiting for the next time");
    }

    #[tokio::test]
    async fn files_are_compared_with_those_of_the_last_start_of_a_periodic_process() {
        let mut f = fixture(QUICK, false);
        f.spec.policy.kind = Kind::Periodic(Schedule::Every(Duration::from_secs(60)));
        let path = f.path("web.conf").to_str().expect("a plain path").to_owned();
        f.spec.configmap = vec![ConfigFile { path: path.clone(), md5: String::new() }];
        fs::write(&path, "first\n").expect("our folder");
        f.update(ProbeReadiness::Changing);
        f.update(process(7));
        f.probes.look_at_files();
        fs::write(&path, "second, before the next run\n").expect("our folder");
        f.until(|seen| seen.note.contains("since the process was started")).await;
        f.update(ProbeReadiness::Changing);
        f.update(process(8));
        f.until(|seen| seen.note.is_empty()).await;
    }

    #[tokio::test]
    async fn health_comes_and_goes_with_the_process() {
        let mut f = fixture(QUICK, false);
        f.spec.control.health_cmd = "test -e well || { echo run >> ill; echo not well; exit 1; }".to_owned();
        f.update(ProbeReadiness::Down);
        fs::write(f.path("well"), "").expect("our folder");
        f.update(ProbeReadiness::Changing);
        f.update(process(7));
        f.until(|seen| seen.health.to_string() == "healthy").await;
        fs::remove_file(f.path("well")).expect("it is there");
        f.until(|seen| seen.health.to_string() == "unhealthy: not well").await;
        f.until(|seen| matches!(seen.verdict, Some(Health::Unhealthy { .. }))).await;
        assert!(f.lines("ill") >= 3, "not unhealthy before the third failure");
        // While an op is under way the result stays, and no probe runs.
        f.update(ProbeReadiness::Changing);
        assert_eq!(f.probes.seen().health.to_string(), "unhealthy: not well");
        f.update(process(8));
        f.until(|seen| seen.verdict.is_none()).await;
        fs::write(f.path("well"), "").expect("our folder");
        f.until(|seen| seen.health.to_string() == "healthy").await;
        f.update(ProbeReadiness::Changing);
        f.update(ProbeReadiness::Down);
        f.until(|seen| seen.health.is_unknown()).await;
    }

    #[tokio::test]
    async fn a_running_probe_is_cancelled_with_the_process_and_with_the_agent() {
        let mut f = fixture(QUICK, false);
        f.spec.control.health_cmd = "echo $$ >> shells; exec sleep 1000".to_owned();
        // Zombies do not count.
        let is_running = |pid: &str| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        let shell = |f: &Fixture, index: usize| {
            let text = fs::read_to_string(f.path("shells")).unwrap_or_default();
            text.lines().nth(index).map(str::to_owned)
        };
        f.update(ProbeReadiness::Changing);
        f.update(process(7));
        until(|| shell(&f, 0).is_some()).await;
        let first = shell(&f, 0).expect("it runs");
        assert!(is_running(&first));
        f.update(ProbeReadiness::Changing);
        until(|| !is_running(&first)).await;
        f.update(process(7));
        until(|| shell(&f, 1).is_some()).await;
        let second = shell(&f, 1).expect("it runs");
        let Fixture { probes, folder, .. } = f;
        drop(probes);
        until(|| !is_running(&second)).await;
        drop(folder);
    }
}
