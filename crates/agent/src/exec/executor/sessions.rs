//! Without cgroups: processes that are still in a session that a command or process of the proc has led. They
//! may have cleared their environment, and then only the session number shows whose they are.
//!
//! A session number is reused only when no process has it as pid or session. So the members are noted while
//! the leader exists: when it is signalled, at a sweep, and after its exit before it is reaped. As long as
//! one of them is in the session, the number is that of the same session, and whoever is in it belongs to the
//! proc.

use super::ProcExecutor;
use crate::exec::procfs::{Id, Stat};
use crate::exec::scan::tree::{self, Scan};
use crate::exec::watch::children::Freshness;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Members of the sessions that processes of one proc have led.
#[derive(Debug, Default)]
pub(super) struct LedSessions(Mutex<Vec<SessionMember>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionMember {
    id: Id,
    session: u32,
}

impl LedSessions {
    fn lock(&self) -> MutexGuard<'_, Vec<SessionMember>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the other members of a session, if its leader still exists, running or not reaped: its number
    /// was not reused before the scan.
    fn note(&self, leader: Id, scan: &Scan) {
        if Stat::read(leader.pid).is_none_or(|stat| stat.id != leader) {
            return;
        }
        let mut members = self.lock();
        members.retain(|member| Stat::read(member.id.pid).is_some_and(|stat| stat.id == member.id));
        for stat in scan.session_of(leader) {
            let member = SessionMember { id: stat.id, session: leader.pid };
            if stat.id != leader && !members.contains(&member) {
                members.push(member);
            }
        }
    }

    /// Notes the members of the session of a child that has exited and is not reaped. Its children have come
    /// to the agent.
    pub(super) fn note_unreaped(&self, leader: Id) {
        if let Some(scan) = Scan::near(&[], Freshness::Now) {
            self.note(leader, &scan);
        }
    }
}

impl ProcExecutor {
    /// Where the members of the sessions of this proc are noted. `None`: its processes are in cgroups.
    pub(super) fn led_sessions(&mut self) -> Option<Arc<LedSessions>> {
        (!self.groups.are_available()).then(|| self.sessions.get_or_insert_default().clone())
    }

    /// Notes the members of the session of a process.
    pub(super) fn note_session(&mut self, leader: Id, scan: &Scan) {
        if let Some(sessions) = self.led_sessions() {
            sessions.note(leader, scan);
        }
    }

    /// Members of the sessions of this proc, if nothing that the proc keeps running can need them.
    pub(super) fn left_in_sessions(&self, scan: &Scan) -> Vec<Id> {
        let Some(sessions) = &self.sessions else { return Vec::new() };
        // The agent is a subreaper, so every member is its descendant.
        let is_ours = |stat: &Stat| !scan.is_anothers(stat, &self.mark) && tree::is_below_us(stat);
        let is_there = |member: &SessionMember| {
            let stat = scan.get(member.id.pid);
            stat.is_some_and(|stat| stat.id == member.id && stat.session == member.session && is_ours(stat))
        };
        let open: HashSet<u32> =
            sessions.lock().iter().filter(|member| is_there(member)).map(|member| member.session).collect();
        if open.is_empty() || self.is_at_work() {
            return Vec::new();
        }
        let mut members = scan.all();
        members.retain(|stat| open.contains(&stat.session) && is_ours(stat));
        members.into_iter().map(|stat| stat.id).collect()
    }
}
