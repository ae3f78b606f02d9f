//! The processes of one simulated host: the effect of an op on them, and the states that are sent to the
//! server.

use crate::script::ScriptedEnd;
use procfleet_core::code::Code;
use procfleet_core::id::ProcKey;
use procfleet_core::op::{Content, Instance, OpKind, Outcome, ProcStatus};
use procfleet_proto::http::native::ProcState;
use procfleet_proto::link::ProcStateMessage;
use procfleet_proto::state::ProcReport;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Procs {
    known: BTreeMap<ProcKey, SimProc>,
    revision: u64,
    pids: u32,
}

#[derive(Clone, Debug, Default)]
struct SimProc {
    hosted: bool,
    /// `None`: it does not run.
    pid: Option<u32>,
    registered_at: i64,
    started_at: i64,
}

impl Procs {
    /// Ends an op as the script says, and changes the proc accordingly. Also returns the new state for the
    /// server, if it has changed.
    pub(crate) fn carry_out(
        &mut self,
        kind: OpKind,
        key: &ProcKey,
        ending: &ScriptedEnd,
        now: i64,
    ) -> (Outcome, Option<ProcStateMessage>) {
        let code = Code::from_number(ending.code).expect("a checked script has codes that there are");
        let (code, changed) = match code {
            Code::Success => self.act(kind, key, now),
            _ => (code, false),
        };
        let message = match ending.message.as_str() {
            "" if code == Code::Success => "success".to_owned(),
            "" => format!("{} of a simulated process", kind.verb()),
            message => message.to_owned(),
        };
        let outcome = Outcome::new(code, message, self.content(kind, key, now));
        (outcome, changed.then(|| self.report(key, now)))
    }

    /// Also whether it has changed anything.
    fn act(&mut self, kind: OpKind, key: &ProcKey, now: i64) -> (Code, bool) {
        let running = self.known.get(key).is_some_and(|proc| proc.pid.is_some());
        match kind {
            OpKind::Start if running => return (Code::AlreadyRunning, false),
            OpKind::Stop | OpKind::Kill | OpKind::Reload if !running => return (Code::NotRunning, false),
            OpKind::Query | OpKind::Reload | OpKind::Group => return (Code::Success, false),
            OpKind::Unregister => return (Code::Success, self.known.remove(key).is_some()),
            _ => {}
        }
        self.pids += 1;
        let pid = 1_000 + self.pids % 1_000_000;
        let proc = self
            .known
            .entry(key.clone())
            .or_insert_with(|| SimProc { registered_at: now, ..SimProc::default() });
        match kind {
            OpKind::Start | OpKind::Restart => {
                (proc.pid, proc.started_at) = (Some(pid), now);
                proc.hosted |= kind == OpKind::Start;
            }
            OpKind::Host => {
                proc.hosted = true;
                if proc.pid.is_none() {
                    (proc.pid, proc.started_at) = (Some(pid), now);
                }
            }
            OpKind::Unhost => proc.hosted = false,
            OpKind::Stop | OpKind::Kill => (proc.pid, proc.hosted) = (None, false),
            // These ops only store the spec.
            OpKind::Register
            | OpKind::Update
            | OpKind::Query
            | OpKind::Reload
            | OpKind::Unregister
            | OpKind::Group => {}
        }
        (Code::Success, true)
    }

    fn content(&self, kind: OpKind, key: &ProcKey, now: i64) -> Content {
        let proc = self.known.get(key).cloned().unwrap_or_default();
        if !kind.is_query() {
            return Content::Control {
                hosted: proc.hosted,
                proc_name: key.name.clone(),
                setup_path: String::new(),
            };
        }
        let instance = proc.pid.map(|pid| Instance {
            pid,
            command_line: key.name.clone(),
            state: "S".to_owned(),
            began_at: proc.started_at,
            elapsed_secs: u64::try_from(now - proc.started_at).unwrap_or(0),
            threads: 1,
            ..Instance::default()
        });
        Content::Status(Box::new(ProcStatus {
            hosted: proc.hosted,
            instance,
            registered_at: proc.registered_at,
            started_at: proc.started_at,
            reported_at: now,
            ..ProcStatus::default()
        }))
    }

    fn report(&mut self, key: &ProcKey, now: i64) -> ProcStateMessage {
        self.revision += 1;
        state(key, self.known.get(key), self.revision, now)
    }

    /// All procs, for a new session.
    pub(crate) fn all(&self, now: i64) -> Vec<ProcStateMessage> {
        self.known.iter().map(|(key, proc)| state(key, Some(proc), self.revision, now)).collect()
    }
}

fn state(key: &ProcKey, proc: Option<&SimProc>, revision: u64, now: i64) -> ProcStateMessage {
    let report = proc.map(|proc| ProcReport {
        doing: None,
        state: if proc.pid.is_some() { ProcState::Running } else { ProcState::Stopped },
        hosted: proc.hosted,
        pid: proc.pid,
        note: String::new(),
        labels: BTreeMap::new(),
        registered_at: proc.registered_at,
        started_at: proc.started_at,
        reported_at: now,
        cpu_usage: 0.0,
        mem_usage: 0.0,
        fd: 0,
        version: String::new(),
        health: Default::default(),
        user: String::new(),
    });
    ProcStateMessage::new(key, revision, report.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The effect of an op depends on the state before, as on a real host.
    #[test]
    fn ops_change_their_own_procs() {
        let mut procs = Procs::default();
        let key = ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() };
        let well = ScriptedEnd { code: 0, weight: 1, message: String::new() };
        let badly = ScriptedEnd { code: 836, weight: 1, message: "it died".to_owned() };
        for (kind, ending, code, expected) in [
            (OpKind::Stop, &well, Code::NotRunning, None),
            (OpKind::Start, &badly, Code::PostCheck, None),
            (OpKind::Start, &well, Code::Success, Some(ProcState::Running)),
            (OpKind::Start, &well, Code::AlreadyRunning, None),
            (OpKind::Restart, &well, Code::Success, Some(ProcState::Running)),
            (OpKind::Query, &well, Code::Success, None),
            (OpKind::Kill, &well, Code::Success, Some(ProcState::Stopped)),
            (OpKind::Reload, &well, Code::NotRunning, None),
            (OpKind::Host, &well, Code::Success, Some(ProcState::Running)),
        ] {
            let (outcome, report) = procs.carry_out(kind, &key, ending, 1_700_000_000);
            assert_eq!(outcome.code, code, "{kind:?}");
            let report = report.map(|state| state.report().expect("readable").expect("known").state);
            assert_eq!(report, expected, "{kind:?}");
        }
        let (_, report) = procs.carry_out(OpKind::Unregister, &key, &well, 1_700_000_000);
        assert!(report.is_some_and(|state| state.forgotten) && procs.all(0).is_empty());
    }
}
