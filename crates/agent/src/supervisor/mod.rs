//! The supervisor: one actor for each proc, and the dispatch of orders to them.
//!
//! An order is journalled before it is carried out. A repeated order is answered from the journal. An order
//! for several instances is divided by the journal into parts, one for each instance's actor, and is answered
//! when the last part has ended (`open`). An order about a namespace is carried out here: it stores process
//! groups.

mod absent;
mod actor;
mod cancels;
mod drift;
mod full_disk;
mod held;
mod journal_writer;
mod open;
mod pools;
mod probes;
mod sampler;
mod timetable;

use crate::exec::ExecContext;
use crate::hosting_file::HostingFile;
use crate::inbox::{Inputs, inbox};
use crate::journal::{Acceptance, EventProc, Journal, JournalledOp, Past, PastProc};
use crate::outbox::Outbox;
use crate::states::StateReports;
use absent::AbsentProcs;
use actor::{Actor, ActorShared};
use cancels::Cancels;
use full_disk::FullDisk;
use held::HeldOrders;
use open::OpenOps;
use pools::LimitedPools;
use probes::ProbePace;
use procfleet_core::code::Code;
use procfleet_core::id::{BootId, OpId, ProcKey};
use procfleet_core::op::{Content, OpKind, Order, Outcome};
use procfleet_core::process::Process;
use procfleet_core::spec::Identity;
use procfleet_core::stagger::{RestartStagger, StartStagger};
use procfleet_core::supervise::{Hosting, Input, Machine, ProcNotice, Write, group_refusal};
use procfleet_failpoint::{Point, hit};
use procfleet_program::Parts;
use procfleet_proto::link::{HostFacts, OpOrder};
use procfleet_proto::state::ProcReport;
use sampler::{Round, Sampled, Sampler};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tracing::{error, info, warn};

/// Queue of orders to be journalled. The server sends at most 64 ahead.
const INTAKE: usize = 64;
/// Queue of one actor: orders and a few exits.
const INPUTS: usize = 64;
/// Time for actors to finish their steps at the end: one journal write each.
const LAST_STEPS: Duration = Duration::from_secs(1);
/// Bytes of a name that is too long that are logged.
const LOGGED_NAME: usize = 100;
/// Ops come in bursts; one is over when none has been under way for this long.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Supervisor {
    intake: mpsc::Sender<SupervisorMessage>,
    context: Arc<ExecContext>,
    open: OpenOps,
    held: HeldOrders,
    /// Seconds since 1970.
    started_at: i64,
}

enum SupervisorMessage {
    Order(Box<OpOrder>),
    Cancel(Vec<OpId>),
    Stop(oneshot::Sender<()>),
}

impl Supervisor {
    /// Takes up every proc of the past and begins to work, as one of the program's parts.
    pub(crate) fn start(
        parts: &mut Parts,
        context: Arc<ExecContext>,
        journal: Journal,
        outbox: Outbox,
        states: StateReports,
        hosting: HostingFile,
        past: Past,
    ) -> Supervisor {
        let (supervisor, task) =
            Supervisor::prepare(ProbePace::default(), context, journal, outbox, states, hosting, past);
        parts.spawn("the supervisor of procs", task.run());
        supervisor
    }

    /// Creates the supervisor and its task; `pace` sets the intervals of health checks.
    fn prepare(
        pace: ProbePace,
        context: Arc<ExecContext>,
        journal: Journal,
        outbox: Outbox,
        states: StateReports,
        hosting: HostingFile,
        past: Past,
    ) -> (Supervisor, SupervisorTask) {
        let (intake, orders) = mpsc::channel(INTAKE);
        let open = OpenOps::default();
        for (op, parts) in &past.divided {
            open.resume(*op, parts.clone());
        }
        let unreadable = past.unreadable.iter().cloned().collect();
        for (key, reason) in &past.unreadable {
            states.publish(&Arc::new(key.clone()), ProcReport::left_alone(unreadable_note(reason)));
        }
        // Before the first session asks for all states: procs that are missing in that list would be deleted
        // on the server.
        let (mut pools, sampler) = (LimitedPools::default(), Sampler::default());
        for (namespace, groups) in &past.groups {
            states.publish_groups(namespace, groups.clone());
            sampler.pool(namespace, pools.set(namespace, groups));
        }
        // Capacity 1: a busy supervisor delays the next round (back-pressure).
        let (sender, rounds) = mpsc::channel(1);
        let mut sampling = JoinSet::new();
        sampling.spawn(sampler.clone().run(context.clone(), sender));
        let (absent, (sender, appeared)) = (AbsentProcs::default(), mpsc::channel(1));
        sampling.spawn(absent.clone().run(context.clone(), sender));
        let shared = Arc::new(ActorShared {
            context: context.clone(),
            journal,
            outbox,
            states,
            hosting,
            open: open.clone(),
            cancels: Cancels::default(),
            sampler,
            absent,
            pace,
            full_disk: FullDisk::default(),
            start_stagger: Arc::new(Mutex::new(StartStagger::new(past.cause, past.procs.len()))),
            restart_stagger: Mutex::new(RestartStagger::default()),
        });
        let (actors, running, held) = (HashMap::new(), JoinSet::new(), HeldOrders::default());
        for PastProc { key, .. } in past.procs.iter().filter(|proc| !proc.key.is_reportable()) {
            let bytes = key.name.len();
            error!(
                bytes,
                begins = &key.name[..key.name.floor_char_boundary(LOGGED_NAME)],
                "name of a proc is too long for any server; the proc is supervised and not reported. Stop the agent, \
                 and delete the proc in the table procs of agent.db"
            );
        }
        for proc in &past.procs {
            // Before the first session can report accepted ops.
            proc.waiting.iter().for_each(|order| held.keep(&proc.key, order.clone()));
        }
        let work = SupervisorWork {
            shared,
            actors,
            held: held.clone(),
            unreadable,
            running,
            late: Vec::new(),
            rounds,
            appeared,
            pools,
            _sampling: sampling,
        };
        let started_at = jiff::Timestamp::now().as_second();
        (Supervisor { intake, context, open, held, started_at }, SupervisorTask { work, past, orders })
    }

    pub(crate) fn boot_id(&self) -> &BootId {
        self.context.boot_id()
    }

    pub(crate) fn context(&self) -> Arc<ExecContext> {
        self.context.clone()
    }

    pub(crate) fn facts(&self) -> HostFacts {
        self.context.facts(self.started_at)
    }

    /// Ops that the server need not send again.
    pub(crate) fn taken(&self) -> Vec<OpId> {
        self.open.all().into_iter().filter(|op| !self.held.has(*op)).collect()
    }

    /// Returns when no op is under way.
    pub(crate) async fn idle(&self) {
        self.open.none().await;
    }

    /// Returns after a burst of ops, when there was a pause.
    pub(crate) async fn burst(&self) {
        self.open.burst(QUIET).await;
    }

    pub(crate) async fn order(&self, order: OpOrder) {
        // If the supervisor has ended, the next session repeats the order.
        let _ = self.intake.send(SupervisorMessage::Order(Box::new(order))).await;
    }

    /// Cancels ops. Each is answered soon; one that has not begun does not begin.
    pub(crate) async fn cancel(&self, ops: Vec<OpId>) {
        let _ = self.intake.send(SupervisorMessage::Cancel(ops)).await;
    }

    /// Ends the actors. Their processes go on.
    pub(crate) async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.intake.send(SupervisorMessage::Stop(done)).await.is_ok() {
            let _ = ended.await;
        }
    }
}

struct SupervisorTask {
    work: SupervisorWork,
    past: Past,
    orders: mpsc::Receiver<SupervisorMessage>,
}

impl SupervisorTask {
    async fn run(self) {
        self.work.run(self.past, self.orders).await;
    }
}

struct SupervisorWork {
    shared: Arc<ActorShared>,
    actors: HashMap<Arc<ProcKey>, Inputs>,
    held: HeldOrders,
    /// Procs whose records cannot be read. Ops on them are refused.
    unreadable: HashMap<ProcKey, String>,
    /// Each actor returns its key and the orders that it did not handle.
    running: JoinSet<(Arc<ProcKey>, Vec<Order>)>,
    /// Orders for actors that have closed their inbox and were not joined yet.
    late: Vec<(ProcKey, Order)>,
    rounds: mpsc::Receiver<Round>,
    /// Candidates for processes that were started by hand.
    appeared: mpsc::Receiver<Vec<(Arc<ProcKey>, Process)>>,
    pools: LimitedPools,
    /// Dropping it ends the sampling.
    _sampling: JoinSet<()>,
}

impl SupervisorWork {
    async fn run(mut self, past: Past, mut intake: mpsc::Receiver<SupervisorMessage>) {
        if !past.procs.is_empty() {
            info!(procs = past.procs.len(), "resuming procs from the journal");
        }
        for proc in past.procs {
            self.take_up(proc).await;
        }
        let mut batch = Vec::new();
        loop {
            // Until a held order can no longer begin in time.
            let overdue = self.held.until().map(|until| until.since(self.shared.context.now()));
            tokio::select! {
                // Ended actors first, so that their orders get a new actor.
                biased;
                Some(ended) = self.running.join_next(), if !self.running.is_empty() => {
                    match ended {
                        Ok((key, orders)) => self.actor_ended(&key, orders).await,
                        Err(error) => return self.end_after(error).await,
                    }
                }
                count = intake.recv_many(&mut batch, INTAKE) => {
                    if count == 0 {
                        return;
                    }
                    let (mut orders, mut cancelled) = (Vec::new(), Vec::new());
                    for message in batch.drain(..) {
                        match message {
                            SupervisorMessage::Order(order) => orders.push(*order),
                            SupervisorMessage::Cancel(ops) => cancelled.extend(ops),
                            SupervisorMessage::Stop(done) => {
                                self.end().await;
                                let _ = done.send(());
                                return;
                            }
                        }
                    }
                    self.accept(orders).await;
                    for op in cancelled {
                        self.cancel(op).await;
                    }
                }
                Some(round) = self.rounds.recv() => self.sampled(round),
                Some(found) = self.appeared.recv() => self.forward_appeared(found),
                () = tokio::time::sleep(overdue.unwrap_or_default()), if overdue.is_some() => {
                    let overdue = self.held.overdue(self.shared.context.now());
                    self.begin(overdue).await;
                }
            }
        }
    }

    /// An actor has ended because nothing was left to supervise. If there are late orders, a new actor gets
    /// them.
    async fn actor_ended(&mut self, key: &Arc<ProcKey>, mut orders: Vec<Order>) {
        self.actors.remove(key);
        let late = self.late.extract_if(.., |(late, _)| *late == **key);
        orders.extend(late.map(|(_, order)| order));
        for order in orders {
            self.deliver(key, order).await;
        }
    }

    /// An actor has panicked. Its state is lost, and the journal is read only at a start. The supervisor
    /// forwards the panic, which ends the agent; other actors finish their steps.
    async fn end_after(&mut self, error: JoinError) {
        self.end().await;
        if let Ok(panic) = error.try_into_panic() {
            std::panic::resume_unwind(panic);
        }
    }

    /// Samples of all procs at one time. Each actor gets its own; an actor with a full inbox gets the next
    /// one.
    fn sampled(&mut self, round: Round) {
        self.look_at_disk();
        for (key, input) in self.pools.sampled(&round) {
            info!(proc = %key, "process group is over its limit; ending this proc");
            // If the inbox is full, the next samples repeat it.
            if let Some(Err(error)) = self.actors.get(&key).map(|actor| actor.try_send(Box::new(input))) {
                warn!(proc = %key, %error, "cannot queue the end of a proc whose process group is over its limit; retrying at the next sample");
            }
        }
        for Sampled { key, process, usage, is_forwarded, .. } in round {
            if let Some(actor) = self.actors.get(&key).filter(|_| is_forwarded) {
                let _ = actor.try_send(Box::new(Input::Notice(ProcNotice::Sampled { process, usage })));
            }
        }
    }

    /// A candidate that does not fit into an actor's queue is sent again after the next scan.
    fn forward_appeared(&self, found: Vec<(Arc<ProcKey>, Process)>) {
        for (key, process) in found {
            if let Some(actor) = self.actors.get(&key) {
                let _ = actor.try_send(Box::new(Input::Notice(ProcNotice::Appeared { process })));
            }
        }
    }

    /// Lets every actor finish its step: an effect whose beginning is journalled is then carried out.
    async fn end(&mut self) {
        self.actors.values().for_each(Inputs::stop);
        let last_steps = async { while self.running.join_next().await.is_some() {} };
        if tokio::time::timeout(LAST_STEPS, last_steps).await.is_err() {
            warn!(
                actors = self.running.len(),
                "the supervision of some procs did not stop within 1 s and was aborted; their processes keep running"
            );
            self.running.shutdown().await;
        }
    }

    async fn take_up(&mut self, proc: PastProc) {
        // Waiting orders are in `held`.
        let PastProc { key, record, registered_at, interrupted, unbegun, waiting: _ } = proc;
        let open = interrupted.iter().chain(&unbegun).map(|(op, _)| *op);
        // Parts were resumed with their siblings.
        open.filter(|op| op.whole().1.is_none()).for_each(|op| self.shared.open.begin(op));
        for (op, kind) in unbegun {
            let message = format!("interrupted: {} was not begun before the host was restarted", kind.verb());
            let mut outcome = Outcome::without_status(Code::Interrupted, message, kind);
            if let (Content::Control { .. }, Some(record)) = (&outcome.content, &record) {
                let Identity { proc_name, setup_path, .. } = record.spec.identity.clone();
                let hosted = record.hosting == Hosting::Hosted;
                outcome.content = Content::Control { hosted, proc_name, setup_path };
            }
            self.end_unbegun(&key, op, outcome).await;
        }
        match record {
            Some(record) => {
                let (machine, step) = Machine::recover(key.clone(), record, interrupted);
                self.spawn(machine, step, registered_at);
            }
            None => {
                for (op, kind) in interrupted {
                    self.answer_lost(&key, op, kind).await;
                }
            }
        }
    }

    /// Begins orders that were held back.
    async fn begin(&mut self, orders: Vec<(ProcKey, Order)>) {
        for (_, order) in orders.iter().filter(|(_, order)| order.op.whole().1.is_none()) {
            // Parts were resumed with their siblings.
            self.shared.open.begin(order.op);
        }
        let now = self.shared.context.now();
        for (key, order) in orders {
            if now < order.start_by {
                self.deliver(&key, order).await;
                continue;
            }
            let message = format!(
                "{} was not begun: the agent was started anew, and the server did not ask for it again before its deadline",
                order.kind.verb()
            );
            let outcome = Outcome::without_status(Code::Timeout, message, order.kind);
            self.end_unbegun(&key, order.op, outcome).await;
        }
    }

    /// Answers an op that had begun on a proc without a record.
    async fn answer_lost(&self, key: &ProcKey, op: OpId, kind: OpKind) {
        let message = format!(
            "interrupted: the agent ended while {} was under way and does not repeat it",
            kind.verb()
        );
        self.end_unbegun(key, op, Outcome::without_status(Code::Interrupted, message, kind)).await;
    }

    /// Ends an op without a proc's actor.
    async fn end_unbegun(&self, key: &ProcKey, op: OpId, outcome: Outcome) {
        self.shared.journal.write(key, &[Write::Done(op, outcome.clone())], &EventProc::default()).await;
        self.shared.done(op, outcome);
    }

    async fn accept(&mut self, orders: Vec<OpOrder>) {
        let now = self.shared.context.now();
        let orders: Vec<(ProcKey, Order)> = orders
            .into_iter()
            // An outcome that is not acknowledged is sent again; it may be missing in the journal.
            .filter(|order| !self.shared.outbox.repeat(order.op))
            .map(|o| {
                let OpOrder { op, epoch: _, proc, kind, start_within, spec, accounts } = o;
                (proc, Order { op, kind, spec, start_by: now + start_within, accounts })
            })
            .collect();
        let orders = match self.look_at_disk() {
            true => self.accept_on_full_disk(orders).await,
            false => orders,
        };
        hit(Point::AgentOpUnwritten);
        let accepted = match self.shared.journal.accept(orders.clone()).await {
            Ok(accepted) => accepted,
            Err(failure) => {
                error!(
                    error = &failure as &dyn std::error::Error,
                    "cannot journal ops; new ones are refused. Check the disk of the data folder"
                );
                for (key, order) in orders {
                    self.accept_without_journal(&key, order).await;
                }
                return;
            }
        };
        hit(Point::AgentOpJournalled);
        for ((key, order), acceptance) in orders.into_iter().zip(accepted) {
            match acceptance {
                Acceptance::New(parts) => {
                    // All parts are registered before the first one can end.
                    parts.iter().for_each(|(_, part)| self.shared.open.begin(part.op));
                    // From the journal: for an order that changes fields it has the merged spec.
                    let spec = parts.first().and_then(|(_, part)| part.spec.as_ref());
                    let refusal = self.shared.context.allow().refusal(order.kind, spec);
                    if let Some(reason) = refusal {
                        warn!(op = %order.op, proc = %key, kind = order.kind.verb(), %reason, "op refused");
                        for (key, part) in parts {
                            let reason = reason.clone();
                            let outcome = Outcome::without_status(Code::NotAllowed, reason, part.kind);
                            self.end_unbegun(&key, part.op, outcome).await;
                        }
                        continue;
                    }
                    let instances = parts.len();
                    info!(op = %order.op, proc = %key, kind = order.kind.verb(), instances, "op accepted");
                    self.shared.outbox.taken(order.op);
                    for (key, part) in parts {
                        self.deliver(&key, part).await;
                    }
                }
                Acceptance::Known => self.accept_again(order.op).await,
                Acceptance::Done(outcome) => self.shared.outbox.done(order.op, outcome),
            }
        }
    }

    /// The server has sent an op again that is in the journal.
    async fn accept_again(&mut self, op: OpId) {
        self.shared.outbox.taken(op);
        self.begin(self.held.release(op)).await;
    }

    /// Answers a query, and refuses any other op that cannot be journalled. A repeated op may have begun, so
    /// it is not refused.
    async fn accept_without_journal(&mut self, key: &ProcKey, order: Order) {
        match (self.shared.journal.op_state(order.op).await, order.kind) {
            (Ok(JournalledOp::Open(_)), _) => self.accept_again(order.op).await,
            (Ok(JournalledOp::Done(outcome)), _) => self.shared.outbox.done(order.op, outcome),
            _ if self.shared.open.has(order.op) => self.accept_again(order.op).await,
            (Ok(JournalledOp::Unknown) | Err(_), OpKind::Query) => {
                self.shared.full_disk.answer_without_journal(order.op);
                self.shared.open.begin(order.op);
                self.deliver(key, order).await;
            }
            (Ok(JournalledOp::Unknown) | Err(_), kind) => self.refuse(order.op, kind),
        }
    }

    /// Cancels the op at its actors. An op that has ended keeps its outcome; an unknown one is never begun.
    async fn cancel(&mut self, op: OpId) {
        if self.shared.outbox.repeat(op) {
            return;
        }
        let parts = match self.shared.journal.op_state(op).await {
            Ok(JournalledOp::Open(parts)) => parts,
            Ok(JournalledOp::Done(outcome)) => return self.shared.outbox.done(op, outcome),
            Ok(JournalledOp::Unknown) => {
                let message = "cancelled: it never came to this host, and nothing was done";
                let outcome = Outcome::without_status(Code::Cancelled, message, OpKind::Stop);
                return self.shared.outbox.done(op, outcome);
            }
            Err(failure) => {
                return error!(
                    error = &failure as &dyn std::error::Error,
                    "cannot read a cancelled op from the journal; it is not cancelled. Cancel it again"
                );
            }
        };
        info!(%op, "op cancelled");
        let held = self.held.release(op);
        for (key, part) in parts {
            if held.iter().any(|(_, order)| order.op == part) {
                continue;
            }
            self.shared.cancels.add(&key, part);
            if let Some(actor) = self.actors.get(&key) {
                // Only a wake-up; the actor reads the cancelled ops itself.
                let _ = actor.send(Box::new(Input::Tick)).await;
            }
        }
        for (key, order) in held {
            let message = format!("cancelled: {} had not begun, and nothing was done", order.kind.verb());
            let outcome = Outcome::without_status(Code::Cancelled, message, order.kind);
            self.end_unbegun(&key, order.op, outcome).await;
        }
    }

    /// Checks whether the disk is full. A change is shown in the status of every proc.
    fn look_at_disk(&self) -> bool {
        let is_full = self.shared.journal.is_disk_full();
        if self.shared.full_disk.set(is_full) {
            match is_full {
                true => error!(
                    "disk of the data folder is full; starts are refused until there is space, stop and kill work. Free disk space"
                ),
                false => info!("disk of the data folder has space again"),
            }
            for actor in self.actors.values() {
                // Only a wake-up: the actor then publishes its state. An actor with a full inbox publishes
                // soon anyway.
                let _ = actor.try_send(Box::new(Input::Tick));
            }
        }
        is_full
    }

    /// Returns the orders that are journalled on a full disk. Queries are answered without the journal, whose
    /// space is for orders that end processes, and new orders of other kinds are refused.
    async fn accept_on_full_disk(&mut self, orders: Vec<(ProcKey, Order)>) -> Vec<(ProcKey, Order)> {
        self.shared.journal.free_space().await;
        let mut journalled = Vec::new();
        for (key, order) in orders {
            match order.kind.is_taken_on_a_full_disk() && order.kind != OpKind::Query {
                true => journalled.push((key, order)),
                false => self.accept_without_journal(&key, order).await,
            }
        }
        journalled
    }

    /// Refuses an op that was not journalled and not begun, so that its caller need not wait for the
    /// deadline.
    fn refuse(&self, op: OpId, kind: OpKind) {
        let message = format!(
            "{} was not begun: the agent cannot write to its data folder (is the disk full?); nothing was done",
            kind.verb()
        );
        self.shared.outbox.done(op, Outcome::without_status(Code::SystemError, message, kind));
    }

    async fn deliver(&mut self, key: &ProcKey, order: Order) {
        if order.kind == OpKind::Group {
            return self.set_groups(key, order).await;
        }
        if let Some(reason) = self.unreadable.get(key) {
            let message = format!("{} was not begun: {}", order.kind.verb(), unreadable_note(reason));
            let outcome = Outcome::without_status(Code::SystemError, message, order.kind);
            return self.end_unbegun(key, order.op, outcome).await;
        }
        if !self.actors.contains_key(key) {
            self.spawn(Machine::new(key.clone()), Default::default(), 0);
        }
        let sent = self.actors[key].send(Box::new(Input::Order(Box::new(order)))).await;
        // The actor is ending. Whether it gets a successor is known only after its task is joined.
        if let Err(back) = sent
            && let Input::Order(order) = *back
        {
            self.late.push((key.clone(), *order));
        }
    }

    /// Stores the process groups of a namespace. It is quick, so it expires only after a long absence.
    async fn set_groups(&mut self, key: &ProcKey, order: Order) {
        if let Some(outcome) = group_refusal(&order) {
            return self.end_unbegun(key, order.op, outcome).await;
        }
        let Order { op, kind, spec, start_by, accounts: _ } = order;
        let groups = match spec {
            _ if self.shared.context.now() >= start_by => {
                Err((Code::Timeout, format!("{} was not begun before its deadline", kind.verb())))
            }
            None => Err((Code::NoSpec, format!("{} is not possible: no groups were sent", kind.verb()))),
            Some(spec) => Ok(spec.groups),
        };
        let outcome = match &groups {
            Ok(_) => Outcome::without_status(Code::Success, "success", kind),
            Err((code, message)) => Outcome::without_status(*code, message, kind),
        };
        match groups {
            Ok(groups) => {
                self.shared.journal.set_groups(&key.namespace, &groups, op, &outcome).await;
                info!(%op, namespace = key.namespace, groups = groups.len(), "process groups set");
                self.shared.sampler.pool(&key.namespace, self.pools.set(&key.namespace, &groups));
                // Before the outcome: a caller that has the outcome must see the groups.
                self.shared.states.publish_groups(&key.namespace, groups);
            }
            Err(_) => {
                self.shared
                    .journal
                    .write(key, &[Write::Done(op, outcome.clone())], &EventProc::default())
                    .await;
            }
        }
        self.shared.done(op, outcome);
    }

    fn spawn(&mut self, machine: Machine, first: procfleet_core::supervise::Step, registered_at: i64) {
        let (inputs, inbox) = inbox(INPUTS);
        let key = machine.key().clone();
        let actor = Actor::new(machine, self.shared.clone(), (inputs.clone(), inbox), registered_at);
        self.running.spawn(Box::new(actor).run(Box::new(first)));
        self.actors.insert(key, inputs);
    }
}

fn unreadable_note(reason: &str) -> String {
    format!(
        "its record in the agent's journal cannot be read ({reason}), so it is left alone; `procfleet agent repair` on its host \
         takes it out of the journal"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Containment;
    use procfleet_core::grants::GrantScope;
    use procfleet_core::id::Epoch;
    use procfleet_core::spec::OnUnhealthy;
    use procfleet_core::spec::Spec;
    use procfleet_core::supervise::{Hosting, Record, Rest};
    use procfleet_proto::http::native::ProcState;
    use procfleet_proto::state::ProcReport;
    use std::path::Path;
    use std::time::Instant;

    /// A supervisor without a server.
    struct Alone {
        folder: tempfile::TempDir,
        journal: Journal,
        outbox: Outbox,
        states: StateReports,
        supervisor: Supervisor,
    }

    impl Alone {
        async fn new() -> Alone {
            Alone::in_folder(tempfile::tempdir().expect("a temp dir")).await
        }

        async fn in_folder(folder: tempfile::TempDir) -> Alone {
            let context = Arc::new(
                ExecContext::open(folder.path().join("output"), Containment::Auto).expect("a context"),
            );
            let path = folder.path().join("agent.db");
            let (journal, past) = Journal::open(&path, context.boot_id()).await.expect("a journal");
            let (outbox, states) = (Outbox::new(Vec::new()), StateReports::default());
            let hosting = HostingFile::open(folder.path());
            let pace = ProbePace { every: Duration::from_millis(20), ..ProbePace::default() };
            let (journal_copy, outbox_copy, states_copy) = (journal.clone(), outbox.clone(), states.clone());
            let (supervisor, task) =
                Supervisor::prepare(pace, context, journal_copy, outbox_copy, states_copy, hosting, past);
            tokio::spawn(task.run());
            Alone { folder, journal, outbox, states, supervisor }
        }

        async fn kinds(&self) -> Vec<String> {
            let events = self.journal.oldest_events(10_000).await.expect("a journal");
            events.into_iter().map(|event| event.kind).collect()
        }

        fn reports(&self) -> Vec<ProcReport> {
            let (_, changed) = self.states.all();
            changed.procs.iter().filter_map(|proc| proc.report().ok().flatten()).collect()
        }

        /// Waits until the reports of all procs satisfy the condition.
        async fn until(&self, wanted: impl Fn(&[ProcReport]) -> bool) {
            let so = async {
                while !wanted(&self.reports()) {
                    self.states.changed().await;
                }
            };
            let so = tokio::time::timeout(Duration::from_secs(120), so).await;
            assert!(so.is_ok(), "{:?}", self.reports());
        }

        /// Ends the processes of the tests.
        async fn end(&self) {
            self.supervisor.stop().await;
            for pid in self.reports().into_iter().filter_map(|report| report.pid) {
                let process = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
                let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
            }
        }

        /// The code of the next outcome.
        async fn answer(&self) -> u32 {
            loop {
                let reports = self.outbox.next_batch(Instant::now());
                match reports.into_iter().find_map(|report| report.done) {
                    Some(done) => return done.code,
                    None => self.outbox.changed().await,
                }
            }
        }

        /// Waits until its proc runs under another pid than this, and returns the pid.
        async fn running(&self, other_than: Option<u32>) -> u32 {
            let running = async {
                loop {
                    let (_, changed) = self.states.all();
                    let report = changed.procs.first().and_then(|proc| proc.report().ok().flatten());
                    let report = report.filter(|report| report.state == ProcState::Running);
                    match report.and_then(|report| report.pid).filter(|pid| Some(*pid) != other_than) {
                        Some(pid) => return pid,
                        None => self.states.changed().await,
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(120), running).await.expect("it runs")
        }
    }

    fn order(number: u32, kind: OpKind) -> OpOrder {
        OpOrder {
            op: format!("20190813145456-8-{number}").parse().expect("an op id"),
            epoch: Epoch(1),
            proc: ProcKey { namespace: "web".to_owned(), name: "nginx".to_owned() },
            kind,
            start_within: Duration::from_secs(60),
            spec: None,
            accounts: GrantScope::All,
        }
    }

    /// A process that records each of its starts.
    fn spec(folder: &Path) -> Spec {
        let me = nix::unistd::User::from_uid(nix::unistd::geteuid()).expect("passwd").expect("an account");
        let mut spec = Spec::default();
        spec.identity.setup_path = folder.to_str().expect("a plain path").to_owned();
        (spec.identity.user, spec.identity.proc_name) = (me.name, "sleep".to_owned());
        spec.control.start_cmd = "echo once more >>starts; exec sleep 1000".to_owned();
        (spec.policy.start_check, spec.policy.start_interval) = (Duration::from_secs(1), Duration::ZERO);
        spec
    }

    #[tokio::test]
    async fn a_hosted_process_is_restarted_although_the_journal_cannot_be_written() {
        let alone = Alone::new().await;
        let starting = OpOrder { spec: Some(spec(alone.folder.path())), ..order(0, OpKind::Start) };
        alone.supervisor.order(starting).await;
        assert_eq!(alone.answer().await, Code::Success.number());
        let pid = alone.running(None).await;
        let kinds = async || alone.kinds().await;
        assert_eq!(kinds().await, ["started"]);

        alone.journal.refuse_writes().await;
        let process = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a pid");
        rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it runs");
        let next = alone.running(Some(pid)).await;
        let starts = std::fs::read_to_string(alone.folder.path().join("starts")).expect("two lines");
        assert_eq!(starts.lines().count(), 2, "{pid} and {next}, and no third one");

        alone.journal.accept_writes().await;
        let reported = async {
            while kinds().await != ["started", "exited", "restart_succeeded"] {
                alone.journal.events_changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), reported)
            .await
            .expect("they are reported when there is space");
        alone.outbox.confirmed(&[order(0, OpKind::Start).op]);
        alone.supervisor.order(order(1, OpKind::Kill)).await;
        assert_eq!(alone.answer().await, Code::Success.number(), "what must be durable came after it");
        alone.supervisor.stop().await;
    }

    #[tokio::test]
    async fn a_repeated_op_is_not_refused_when_the_journal_cannot_be_written() {
        let alone = Alone::new().await;
        let mut slow = spec(alone.folder.path());
        slow.control.start_cmd = "until test -e gate; do sleep 0.02; done; exec sleep 1000".to_owned();
        let starting = OpOrder { spec: Some(slow), ..order(0, OpKind::Start) };
        alone.supervisor.order(starting.clone()).await;
        let taken = async {
            while alone.outbox.next_batch(Instant::now()).is_empty() {
                alone.outbox.changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), taken).await.expect("the start is taken");

        alone.journal.refuse_writes().await;
        alone.supervisor.order(starting).await;
        alone.supervisor.order(order(1, OpKind::Reload)).await;
        assert_eq!(alone.answer().await, Code::SystemError.number(), "the new op is refused");
        alone.outbox.confirmed(&[order(1, OpKind::Reload).op]);
        alone.journal.accept_writes().await;
        std::fs::write(alone.folder.path().join("gate"), "").expect("our own folder");
        assert_eq!(alone.answer().await, Code::Success.number(), "the start that was under way");
        alone.end().await;
    }

    #[tokio::test]
    async fn an_actor_that_panics_ends_the_supervisor_and_has_no_blank_successor() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let context =
            Arc::new(ExecContext::open(folder.path().join("output"), Containment::Auto).expect("a context"));
        let path = folder.path().join("agent.db");
        let (journal, past) = Journal::open(&path, context.boot_id()).await.expect("a journal");
        let (outbox, states) = (Outbox::new(Vec::new()), StateReports::default());
        let hosting = HostingFile::open(folder.path());
        let (supervisor, mut task) = Supervisor::prepare(
            ProbePace::default(),
            context,
            journal.clone(),
            outbox.clone(),
            states,
            hosting,
            past,
        );
        let starting = OpOrder { spec: Some(spec(folder.path())), ..order(0, OpKind::Start) };
        // An actor whose inbox is gone, as it is while its task unwinds.
        let (inputs, inbox) = inbox(INPUTS);
        drop(inbox);
        task.work.actors.insert(Arc::new(starting.proc.clone()), inputs);
        let (unwound, unwinding) = oneshot::channel::<()>();
        task.work.running.spawn(async move {
            let _ = unwinding.await;
            panic!("on purpose")
        });
        let running = tokio::spawn(task.run());
        let op = starting.op;
        supervisor.order(starting).await;
        let taken = async {
            while outbox.next_batch(Instant::now()).is_empty() {
                outbox.changed().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(120), taken).await.expect("the order is taken");
        unwound.send(()).expect("the actor waits");
        assert!(running.await.is_err_and(|error| error.is_panic()), "the panic is passed on");
        assert!(matches!(journal.op_state(op).await, Ok(JournalledOp::Open(_))), "the next life has the op");
        assert!(!folder.path().join("starts").exists(), "nothing was started");
    }

    #[tokio::test]
    async fn after_a_boot_many_procs_are_started_one_after_the_other() {
        const PROCS: usize = 60;
        let folder = tempfile::tempdir().expect("a temp dir");
        let path = folder.path().join("agent.db");
        let before = BootId("another boot".to_owned());
        let (journal, _) = Journal::open(&path, &before).await.expect("a journal");
        for number in 0..PROCS {
            let home = folder.path().join(number.to_string());
            std::fs::create_dir(&home).expect("our own folder");
            let mut spec = spec(&home);
            spec.control.start_cmd = "echo $$ >>../starts; exec sleep 1000".to_owned();
            let record = Record {
                spec: Arc::new(spec),
                hosting: Hosting::Hosted,
                process: None,
                streak: Default::default(),
                older: Vec::new(),
                dead: None,
                rest: Rest::Idle,
                fault: None,
                run: None,
            };
            let key = ProcKey { namespace: "web".to_owned(), name: format!("worker{number}") };
            journal.write(&key, &[Write::Record(Box::new(record))], &EventProc::default()).await;
        }
        journal.close().await;
        let alone = Alone::in_folder(folder).await;
        let is_shown = |report: &ProcReport| {
            report.note.starts_with("starts in 1 s: the host has just booted") && report.pid.is_none()
        };
        alone.until(|reports| reports.iter().any(is_shown)).await;
        alone
            .until(|reports| {
                let running =
                    |report: &&ProcReport| report.state == ProcState::Running && report.note.is_empty();
                reports.iter().filter(running).count() == PROCS
            })
            .await;
        let starts = std::fs::read_to_string(alone.folder.path().join("starts")).expect("a line each");
        assert_eq!(starts.lines().count(), PROCS, "each once");
        alone.end().await;
    }

    #[tokio::test]
    async fn an_unhealthy_process_is_started_again_where_its_spec_says_so() {
        let alone = Alone::new().await;
        let mut spec = spec(alone.folder.path());
        spec.control.start_cmd = "rm -f ill; exec sleep 1000".to_owned();
        spec.control.health_cmd = "test ! -e ill || { echo no answer; exit 1; }".to_owned();
        spec.policy.on_unhealthy = OnUnhealthy::Restart;
        alone.supervisor.order(OpOrder { spec: Some(spec), ..order(0, OpKind::Start) }).await;
        assert_eq!(alone.answer().await, Code::Success.number());
        let pid = alone.running(None).await;
        alone.until(|reports| reports[0].health.to_string() == "healthy").await;
        std::fs::write(alone.folder.path().join("ill"), "").expect("our own folder");
        let next = alone.running(Some(pid)).await;
        assert_eq!(alone.reports()[0].note, "it was ended: it was unhealthy: no answer", "{pid} and {next}");
        alone.until(|reports| reports[0].health.to_string() == "healthy").await;
        assert_eq!(alone.kinds().await, ["started", "unhealthy", "restart_succeeded"]);
        let events = alone.journal.oldest_events(10_000).await.expect("a journal");
        assert_eq!(events[1].message, "it is unhealthy, and is ended and started again: no answer");
        alone.end().await;
    }

    /// The op may have been cancelled meanwhile, so the agent waits: the server sends open ops again.
    #[tokio::test]
    async fn an_op_that_had_not_begun_begins_when_the_server_sends_it_again() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let boot = ExecContext::open(folder.path().join("output"), Containment::Auto)
            .expect("a context")
            .boot_id()
            .clone();
        let (journal, _) = Journal::open(&folder.path().join("agent.db"), &boot).await.expect("a journal");
        let now =
            ExecContext::open(folder.path().join("output"), Containment::Auto).expect("a context").now();
        let [wanted, cancelled, overdue] = [(0, 60), (1, 60), (2, 1)].map(|(number, secs)| {
            let order = order(number, OpKind::Unhost);
            let start_by = now + Duration::from_secs(secs);
            (
                order.proc.clone(),
                Order { op: order.op, kind: order.kind, spec: None, start_by, accounts: GrantScope::All },
            )
        });
        let (first, second, third) = (wanted.1.op, cancelled.1.op, overdue.1.op);
        journal.accept(vec![wanted, cancelled, overdue]).await.expect("they are taken");
        journal.close().await;

        let alone = Alone::in_folder(folder).await;
        assert!(alone.supervisor.taken().is_empty(), "the server is to send again what it wants");
        let answer = async || loop {
            let reports = alone.outbox.next_batch(Instant::now());
            match reports.into_iter().find_map(|report| Some((report.op.clone(), report.done?.code))) {
                Some((op, code)) => {
                    let op: OpId = op.parse().expect("an op id");
                    alone.outbox.confirmed(&[op]);
                    return (op, code);
                }
                None => alone.outbox.changed().await,
            }
        };
        assert_eq!(answer().await, (third, Code::Timeout.number()), "nobody asked for it in time");
        alone.supervisor.order(order(0, OpKind::Unhost)).await;
        assert_eq!(answer().await, (first, Code::Success.number()));
        alone.supervisor.cancel(vec![second]).await;
        assert_eq!(answer().await, (second, Code::Cancelled.number()));
        alone.supervisor.stop().await;
    }

    #[tokio::test]
    async fn an_op_that_cannot_be_journalled_is_answered_and_never_carried_out() {
        let alone = Alone::new().await;
        let Alone { journal, supervisor, outbox, .. } = &alone;
        let answer = async || alone.answer().await;
        let order = order(0, OpKind::Unhost);
        journal.refuse_writes().await;
        supervisor.order(order.clone()).await;
        assert_eq!(answer().await, Code::SystemError.number());
        // The same op again, as after a broken connection: it has one answer.
        journal.accept_writes().await;
        supervisor.order(order.clone()).await;
        assert_eq!(answer().await, Code::SystemError.number());
        let another = OpOrder { op: "20190813145456-9-0".parse().expect("an op id"), ..order };
        outbox.confirmed(&["20190813145456-8-0".parse().expect("an op id")]);
        supervisor.order(another).await;
        assert_eq!(answer().await, Code::Success.number(), "it continues when there is space again");
        supervisor.stop().await;
    }
}
