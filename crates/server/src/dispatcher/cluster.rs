//! The other servers of a shared store: what they have announced, what they took over, and who was declared
//! dead. A server that is alone has none of this, and pays nothing for it.

use super::sessions::{NewSession, Session, send_back};
use super::table::reason_of;
use super::{RETRY, Work};
use crate::session_channel::CutReason;
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::RESTART_GRACE;
use procfleet_core::id::{AgentId, Epoch, OpId, TaskId};
use procfleet_core::rebalance::{self, ServerShare};
use procfleet_store::{
    EndedBy, Lease, Membership, MembershipView, OpScope, OpenOpRow, ServerId, ServerLoad, ServerTerm, Store,
    StoreError, Wake, WakeMode,
};
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// How often a server looks at the open tasks, while wake-ups arrive and while they do not.
const POLL: Duration = Duration::from_secs(1);
const POLL_OFTEN: Duration = Duration::from_millis(200);
/// How often a server looks whether its agents were retired or revoked through another one, or have begun a
/// session at another one. A wake-up brings it forward.
const LOOK_FOR_DISMISSALS: Duration = Duration::from_secs(10);
/// How often a server looks whether it has too many agents.
const REBALANCE: Duration = Duration::from_secs(1);

/// The dispatcher's view of the other servers.
pub(super) struct Cluster {
    membership: Membership,
    view: watch::Receiver<MembershipView>,
    /// The run of this server that the table belongs to.
    run: ServerId,
    /// The servers that were alive at the last look, and whether this one had the lease `unheld`.
    alive: BTreeSet<ServerId>,
    had_unheld: bool,
    /// `MembershipView::ended` at the last look. With `alive.len()` added: the highest server id at that
    /// time.
    ended: i64,
    /// All open ops must be read from the store: this server decides about more agents than before (lease
    /// `unheld`), or the table was cleared.
    reload: bool,
    /// The `StoreLoss::times` up to which the table has been reloaded.
    pub(super) losses: u64,
    /// Sessions whose ops are still to be read.
    pub(super) connecting: Vec<NewSession>,
    /// Agents whose session ended before their ops were read. This server decides about these ops
    /// nevertheless, because it had the last session.
    left: BTreeSet<AgentId>,
    /// The last session of each agent that has ops in the table, which decisions about them are fenced by.
    pub(super) epochs: HashMap<AgentId, Epoch>,
    /// The open tasks whose ops were read, and whether their cancellation is known.
    known: HashMap<TaskId, bool>,
    /// When to look at the open tasks. `None`: the server is alone.
    pub(super) poll_at: Option<BootTime>,
    dismissals_at: BootTime,
    pub(super) rebalance_at: BootTime,
    /// Since when the same servers are alive.
    pub(super) alive_since: BootTime,
}

impl Cluster {
    pub(super) fn of(store: &Store) -> Cluster {
        let membership = store.membership().clone();
        let view = membership.view();
        let run = membership.run();
        let now = procfleet_store::clock::boot_now();
        Cluster {
            poll_at: membership.is_shared().then_some(now),
            membership,
            view,
            run,
            alive: BTreeSet::new(),
            had_unheld: false,
            ended: 0,
            reload: false,
            losses: 0,
            connecting: Vec::new(),
            left: BTreeSet::new(),
            epochs: HashMap::new(),
            known: HashMap::new(),
            dismissals_at: now,
            rebalance_at: now,
            alive_since: now,
        }
    }

    pub(super) fn is_shared(&self) -> bool {
        self.membership.is_shared()
    }

    /// Whether this server may send ops and decide about them now.
    pub(super) fn may_act(&self) -> bool {
        self.membership.may_act()
    }

    pub(super) fn announce(&self, wake: Wake) {
        self.membership.wake_others(wake);
    }

    pub(super) fn set_load(&self, agents: usize, open_ops: usize) {
        self.membership.set_load(ServerLoad { agents: agents as u64, open_ops: open_ops as u64 });
    }

    /// The session that a decision about an op of this agent depends on: its session at this server, or the
    /// last one that is known.
    pub(super) fn fence(&self, agent: &AgentId, session: Option<Epoch>) -> Option<(AgentId, Epoch)> {
        if !self.is_shared() {
            return None;
        }
        // An agent without a session in the store has the epoch 0.
        let last = session.or_else(|| self.epochs.get(agent).copied()).unwrap_or(Epoch(0));
        Some((agent.clone(), last))
    }

    /// A session has ended that the dispatcher does not know.
    pub(super) fn left(&mut self, agent: AgentId) {
        if self.is_shared() && self.connecting.iter().all(|session| session.agent != agent) {
            self.left.insert(agent);
        }
    }

    /// Returns whether the agent has begun a session since the last one that was known.
    pub(super) fn saw_epoch(&mut self, agent: &AgentId, epoch: Epoch) -> bool {
        let known = self.epochs.entry(agent.clone()).or_insert(Epoch(0));
        let is_newer = epoch > *known;
        *known = epoch.max(*known);
        is_newer
    }

    /// A session of this server has begun. If it follows the last one that was known, no other server can
    /// have sent anything between the two.
    fn follows(&mut self, session: &NewSession) {
        if let Some(known) = self.epochs.get_mut(&session.agent)
            && known.0 + 1 == session.epoch.0
        {
            *known = session.epoch;
        }
    }

    /// Whether `holder` has died since the last look. Its ops were given to this server, so it is dead now.
    /// At the last look it was alive, or not known yet.
    pub(super) fn has_died_since(&self, holder: ServerId) -> bool {
        let newest = self.ended + i64::try_from(self.alive.len()).unwrap_or(0);
        holder != self.run && (self.alive.contains(&holder) || holder.0 > newest)
    }

    pub(super) fn learn(&mut self, task: TaskId) {
        self.known.entry(task).or_insert(false);
    }

    /// How many other living servers would take the agents of this one.
    pub(super) fn takers(&self) -> usize {
        self.view.borrow().takers().count()
    }

    /// Returns when a server has come or gone, or a lease has moved.
    pub(super) async fn changed(&mut self) {
        if !self.is_shared() || self.view.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Work {
    pub(super) fn woken(&mut self, wake: Wake) {
        let now = self.clock.now();
        match wake {
            Wake::Task(task) if self.cluster.known.contains_key(&task) => {}
            Wake::Task(task) => self.unread.push(task),
            Wake::Cancelled => self.cluster.poll_at = Some(now),
            Wake::Dismissed => self.cluster.dismissals_at = now,
            // Wakes the callers that wait for the end of a task.
            Wake::Outcomes => self.changes.send_modify(|generation| *generation += 1),
            Wake::Everything => {
                self.cluster.poll_at = Some(now);
                self.cluster.dismissals_at = now;
                self.changes.send_modify(|generation| *generation += 1);
            }
            // Handled by `workers/wakes.rs`.
            Wake::Events | Wake::Ca => {}
        }
    }

    /// Follows the other servers: members, leases, new tasks. A read that fails is repeated.
    pub(super) async fn follow_cluster(&mut self) {
        if !self.cluster.is_shared() {
            return;
        }
        self.follow_members();
        // A server that may not decide would not see the ops of agents without a living server.
        if !self.cluster.may_act() {
            return;
        }
        self.read_connecting().await;
        if self.cluster.reload {
            match self.store.open_ops(OpScope::All).await {
                Ok(_) if !self.cluster.may_act() => {}
                Ok(rows) => {
                    self.cluster.reload = false;
                    self.add_new(rows);
                }
                Err(error) => {
                    error!(
                        error = &error as &dyn std::error::Error,
                        "reading the open ops from the store failed; retrying every second. Ops that were not read yet are not sent until then; check the database"
                    );
                    self.retry_at = Some(self.clock.now() + RETRY);
                }
            }
        }
        let now = self.clock.now();
        if self.cluster.poll_at.is_some_and(|at| now >= at) {
            self.poll().await;
        }
        if now >= self.cluster.rebalance_at && self.cluster.may_act() {
            self.cluster.rebalance_at = now + REBALANCE;
            self.rebalance(now);
        }
        if now >= self.cluster.dismissals_at {
            self.cluster.dismissals_at = now + LOOK_FOR_DISMISSALS;
            self.look_for_dismissals().await;
            self.look_for_later_sessions().await;
        }
    }

    /// Looks which servers are alive, and which leases this one has.
    fn follow_members(&mut self) {
        let view = self.cluster.view.borrow_and_update().clone();
        if view.run != self.cluster.run {
            self.begin_anew(view.run);
        }
        let losses = view.loss.times - self.cluster.losses;
        if losses > 0 {
            self.cluster.losses = view.loss.times;
            // Several losses since the last view: `safe_until` is known for the last one only, so any stored
            // change may be lost.
            self.go_back(if losses == 1 { view.loss.safe_until } else { BootTime(0) });
        }
        let alive: BTreeSet<ServerId> = view.alive.keys().copied().collect();
        let has_unheld = view.leases.contains(&Lease::Unheld);
        let somebody_died = !self.cluster.alive.is_subset(&alive) || view.ended != self.cluster.ended;
        self.cluster.ended = view.ended;
        if has_unheld && (!self.cluster.had_unheld || somebody_died) {
            self.give_grace();
            self.cluster.reload = true;
        }
        self.cluster.had_unheld = has_unheld;
        if alive != self.cluster.alive {
            self.cluster.alive_since = self.clock.now();
        }
        self.cluster.alive = alive;
    }

    /// The agents of a dead server are on their way to others, as after a restart of a server that is alone.
    pub(super) fn give_grace(&mut self) {
        self.verdicts_from = self.verdicts_from.max(self.clock.now() + RESTART_GRACE);
    }

    /// Sends agents to other servers: all of them if an operator drains this one, and the excess otherwise.
    fn rebalance(&mut self, now: BootTime) {
        let view = self.cluster.view.borrow().clone();
        let shares: Vec<ServerShare> = view
            .alive
            .values()
            .map(|server| ServerShare { agents: server.agents, drains: server.drains })
            .collect();
        let own = self.sessions.values().filter(|session| !session.sent_away).count() as u64;
        let count = match view.drains {
            true => rebalance::drained(own, &shares),
            false => rebalance::excess(own, &shares, now.since(self.cluster.alive_since)),
        };
        self.send_away(usize::try_from(count).unwrap_or(usize::MAX));
    }

    /// Other servers have declared this one dead: what it knows about ops and agents may be wrong.
    fn begin_anew(&mut self, run: ServerId) {
        warn!(
            sessions = self.sessions.len(),
            ops = self.ops.len(),
            "the sessions of this server end, and its open ops are read again, because other servers had declared it dead"
        );
        for (agent, session) in std::mem::take(&mut self.sessions) {
            self.presences.leave(&agent, self.clock.wall());
            session.sender.cut(CutReason::Fenced);
        }
        self.cluster.run = run;
        self.end_sessions_of_other_terms();
        self.forget_table();
        self.cluster.had_unheld = false;
    }

    /// The database went back in time. Sessions, states and outcomes that this server has stored after
    /// `safe_until` may be lost. Agents with such sessions and states connect again: the store then has their
    /// sessions, and they send all their states. All open ops are read again; those whose outcome is lost are
    /// sent again, and their agents answer from their journals.
    pub(super) fn go_back(&mut self, safe_until: BootTime) {
        let is_in_doubt = |(agent, session): &(&AgentId, &Session)| {
            session.began > safe_until || self.presences.has_stored_since(agent, safe_until)
        };
        let agents: Vec<AgentId> =
            self.sessions.iter().filter(is_in_doubt).map(|(agent, _)| agent.clone()).collect();
        warn!(
            agents = agents.len() + self.cluster.connecting.len(),
            ops = self.ops.len(),
            "the database failed over or was restored: open ops are read again, and agents whose last reports may be lost connect again"
        );
        self.ask_to_reconnect(agents);
        for session in self.sessions.values_mut() {
            session.unconfirmed = 0;
            session.backlog.clear();
        }
        self.forget_table();
        // Cancellations may be lost, too.
        self.cluster.known.values_mut().for_each(|cancelled| *cancelled = false);
    }

    /// Clears the table of ops, which `reload` then reads from the store again. `known` stays: the next poll
    /// releases the backlog capacity of tasks that have ended meanwhile.
    fn forget_table(&mut self) {
        self.ops.clear();
        self.by_agent.clear();
        self.back_by.clear();
        self.timers.clear();
        self.dirty.clear();
        // Outcomes that agents have reported stay valid; decisions of this server do not.
        self.finished.retain(|finished| matches!(finished.by, EndedBy::Agent(_)));
        self.cluster.epochs.clear();
        self.cluster.reload = true;
        self.verdicts_from = self.clock.now() + RESTART_GRACE;
    }

    /// A session that an earlier run has stored belongs to a dead server. One that was stored before the
    /// database went back in time may be lost.
    pub(super) fn end_sessions_of_other_terms(&mut self) {
        let term = ServerTerm { run: self.cluster.run, losses: self.cluster.losses };
        let other = self.cluster.connecting.extract_if(.., |session| session.term != term);
        let (in_doubt, fenced): (Vec<_>, Vec<_>) = other.partition(|session| session.term.run == term.run);
        for session in fenced {
            session.sender.cut(CutReason::Fenced);
        }
        send_back(in_doubt.into_iter().map(|session| session.sender).collect());
    }

    /// Sends all agents to other servers: this one does not reach the store, and others do. Its ops stay in
    /// the table. If this server comes back before another one has declared it dead, it decides about them
    /// only after its agents had time to connect elsewhere.
    pub(super) fn cut_off(&mut self) {
        error!(
            agents = self.sessions.len() + self.cluster.connecting.len(),
            "this server does not reach the database, and others do; its agents are sent to them. Check the network between this server and the database"
        );
        let back_by = self.clock.now() + RESTART_GRACE;
        // Cut, because messages to agents wait while this server may not act.
        for (agent, session) in std::mem::take(&mut self.sessions) {
            session.sender.cut(CutReason::CutOff);
            self.presences.leave(&agent, self.clock.wall());
            self.reconsider(&agent);
            self.back_by.insert(agent, back_by);
        }
        for session in std::mem::take(&mut self.cluster.connecting) {
            session.sender.cut(CutReason::CutOff);
        }
    }

    /// Reads the ops of agents that have connected. Their epochs are committed, so no server has decided
    /// about these ops in a way that this read does not see.
    async fn read_connecting(&mut self) {
        self.end_sessions_of_other_terms();
        let connecting = self.cluster.connecting.iter().map(|session| &session.agent);
        let agents: Vec<AgentId> = connecting.chain(&self.cluster.left).cloned().collect();
        if agents.is_empty() {
            return;
        }
        match self.store.open_ops(OpScope::Agents(agents.clone())).await {
            Ok(_) if !self.cluster.may_act() => {}
            Ok(rows) => {
                self.forget_ended(&agents, &rows);
                self.cluster.left.clear();
                let connecting = std::mem::take(&mut self.cluster.connecting);
                connecting.iter().for_each(|session| self.cluster.follows(session));
                self.add_new(rows);
                for session in connecting {
                    self.admit(session);
                }
            }
            Err(error) => {
                let sessions = self.cluster.connecting.len();
                error!(
                    sessions,
                    error = &error as &dyn std::error::Error,
                    "cannot read the ops of newly connected agents; they get no ops until a retry succeeds (every second). Check the database"
                );
                self.retry_at = Some(self.clock.now() + RETRY);
            }
        }
    }

    /// Forgets ops of agents whose open ops were all read, and which are not among them: they have ended
    /// elsewhere, or by a write whose answer was lost.
    fn forget_ended(&mut self, agents: &[AgentId], rows: &[OpenOpRow]) {
        let open: BTreeSet<OpId> = rows.iter().map(|row| row.op).collect();
        let known = agents.iter().filter_map(|agent| self.by_agent.get(agent)).flatten();
        let ended: Vec<OpId> = known.filter(|op| !open.contains(op)).copied().collect();
        for op in ended {
            self.forget(op);
        }
    }

    /// Adds earlier tasks that this server has not read to those that it is about to read. Another server has
    /// accepted them, and its wake-up may be late or lost. The ops of an agent are sent in the order in which
    /// their tasks were accepted, so that a stop does not arrive before the start that it is meant for.
    pub(super) async fn find_earlier(&mut self) -> Result<(), StoreError> {
        if !self.cluster.is_shared() {
            return Ok(());
        }
        let newest = self.unread.iter().map(|task| task.number).max();
        let open = self.store.open_tasks().await?.into_iter().map(|task| task.id);
        let is_unread = |task: &TaskId| !self.cluster.known.contains_key(task);
        self.unread.extend(open.filter(|task| Some(task.number) < newest && is_unread(task)));
        self.unread.sort_unstable_by_key(|task| task.number);
        self.unread.dedup();
        Ok(())
    }

    /// Looks at all open tasks: which are new, which were cancelled, and which have ended elsewhere. Never by
    /// a cursor: a task with a lower number may be committed later.
    async fn poll(&mut self) {
        let pause = match self.cluster.membership.wake_mode() {
            WakeMode::Notified => POLL,
            WakeMode::Polling => POLL_OFTEN,
        };
        self.cluster.poll_at = Some(self.clock.now() + pause);
        // The next poll reads again. Calls that need the answer now log the error.
        let Ok(open) = self.store.open_tasks().await else { return };
        let open: HashMap<TaskId, _> = open.into_iter().map(|task| (task.id, task)).collect();
        for (id, task) in &open {
            self.backlog.release_down_to(*id, usize::try_from(task.open).unwrap_or(usize::MAX));
            match self.cluster.known.get_mut(id) {
                None => self.unread.push(*id),
                Some(cancelled) if task.cancelled && !*cancelled => {
                    *cancelled = true;
                    self.cancelled(*id);
                }
                Some(_) => {}
            }
        }
        let ended: Vec<TaskId> =
            self.cluster.known.keys().filter(|id| !open.contains_key(id)).copied().collect();
        if ended.is_empty() {
            return;
        }
        for task in &ended {
            self.cluster.known.remove(task);
            self.backlog.release_down_to(*task, 0);
        }
        let ended: BTreeSet<TaskId> = ended.into_iter().collect();
        // Ops that this server still waits for, and other servers have ended.
        let moved: Vec<_> = self.ops.keys().filter(|op| ended.contains(&op.task)).copied().collect();
        if !moved.is_empty() {
            info!(ops = moved.len(), "ops have ended at other servers");
        }
        for op in moved {
            self.forget(op);
        }
        self.changes.send_modify(|generation| *generation += 1);
    }

    /// Ends the sessions and the ops of agents that were retired or revoked through another server. An agent
    /// that is away may have open ops here.
    async fn look_for_dismissals(&mut self) {
        let away = self
            .by_agent
            .keys()
            .filter(|agent| !self.sessions.contains_key(*agent) && !self.dismissed.contains_key(*agent));
        let agents: Vec<AgentId> = self.sessions.keys().chain(away).cloned().collect();
        if agents.is_empty() {
            return;
        }
        let Ok(dismissals) = self.store.dismissals(agents).await else { return };
        for (agent, dismissal) in dismissals {
            self.dismiss(agent, reason_of(&dismissal));
        }
    }

    /// Ends the sessions that are not the last ones of their agents. Such an agent has connected to another
    /// server while its connection here did not end, or a copy of its data folder has. This server may not
    /// decide about its ops, and if the later session has ended, too, no server would.
    async fn look_for_later_sessions(&mut self) {
        let sessions: Vec<(AgentId, Epoch)> =
            self.sessions.iter().map(|(agent, session)| (agent.clone(), session.epoch)).collect();
        if sessions.is_empty() {
            return;
        }
        let Ok(replaced) = self.store.later_sessions(sessions).await else { return };
        for agent in replaced {
            self.cut(&agent, CutReason::Replaced);
        }
    }
}
