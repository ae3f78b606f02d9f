//! Orders of apps that are limited to OS accounts.
//!
//! Such an order is refused (837) if another account is involved: that of the stored spec, of the spec of the
//! job under way, of the sent spec, or of the running process. Only the agent knows the account of a process,
//! so an order that is about to begin stays in the queue until [`Effect::Vet`] is answered by
//! [`Machine::vetted`]. The answer is valid for that step only: an order that has to wait again is vetted
//! again.

use super::{Machine, State};
use crate::boot_time::BootTime;
use crate::code::Code;
use crate::grants;
use crate::id::OpId;
use crate::op::{OpKind, Order, Outcome};
use crate::process::Process;
use crate::spec::Spec;
use crate::supervise::{Effect, LookScope, OtherAccount, Step, Write, messages};
use std::sync::Arc;

/// The decision about one order of the queue.
pub(super) enum Vet {
    Passed,
    /// The order was refused and removed from the queue.
    Refused,
    /// The order waits for [`Machine::vetted`].
    Asked,
}

impl Machine {
    /// The answer to [`Effect::Vet`]. `None`: no process of another account is involved.
    pub fn vetted(&mut self, now: BootTime, op: OpId, other: Option<OtherAccount>) -> Step {
        let mut out = Step::default();
        if let Some(index) = self.rare.queries.iter().position(|order| order.op == op) {
            let order = self.rare.queries.remove(index);
            match other {
                None => {
                    let state = self.take();
                    self.inspect(&state, &order, &mut out);
                    self.state = state;
                }
                Some(other) => refuse(&order, messages::process_of_another(&other), &mut out),
            }
            self.rare.tidy();
            return out;
        }
        let Some(index) = self.queue.iter().position(|order| order.op == op) else { return out };
        self.recall();
        match other {
            None => self.rare.vetted = Some(op),
            Some(other) => {
                let order = self.queue.remove(index).expect("the index is in the queue");
                refuse(&order, messages::process_of_another(&other), &mut out);
            }
        }
        self.proceed(now, &mut out);
        self.rare.vetted = None;
        self.write_begun(&mut out);
        self.save(&mut out);
        out
    }

    /// Whether the order with this index in the queue may begin now. `state` has been taken out of the
    /// machine.
    pub(super) fn vet(&mut self, index: usize, state: &State, out: &mut Step) -> Vet {
        let order = &self.queue[index];
        if order.accounts.is_all() {
            return Vet::Passed;
        }
        if let Some(reason) = self.spec_of_another(state, order) {
            let order = self.queue.remove(index).expect("the index is in the queue");
            refuse(&order, reason, out);
            return Vet::Refused;
        }
        if self.rare.vetted == Some(order.op) {
            return Vet::Passed;
        }
        match self.question(state, order) {
            Some(question) => {
                out.effects.push(question);
                Vet::Asked
            }
            None => Vet::Passed,
        }
    }

    /// Refuses an order that the specs forbid without queueing it.
    pub(super) fn refuses_at_once(&self, state: &State, order: &Order, out: &mut Step) -> bool {
        let reason = self.spec_of_another(state, order);
        let refused = reason.is_some();
        reason.into_iter().for_each(|reason| refuse(order, reason, out));
        refused
    }

    /// A query does not wait in the queue. True: it is refused, or will be answered after it was vetted.
    pub(super) fn vet_query(&mut self, state: &State, order: &Order, out: &mut Step) -> bool {
        if order.accounts.is_all() {
            return false;
        }
        if let Some(reason) = self.spec_of_another(state, order) {
            refuse(order, reason, out);
            return true;
        }
        let Some(question) = self.question(state, order) else { return false };
        out.effects.push(question);
        self.rare.queries.push(order.clone());
        true
    }

    /// Why the order is refused, as far as the specs tell.
    fn spec_of_another(&self, state: &State, order: &Order) -> Option<String> {
        let under_way = match state {
            State::Busy(job) => Some(&*job.spec),
            State::Down(_) | State::Up(_) => None,
        };
        let stored = self.spec.as_deref();
        let denied = |spec: &&Spec| !order.accounts.allows(&spec.identity.user);
        // The server has checked the sent spec, too.
        let of_host = stored.into_iter().chain(under_way).find(denied);
        of_host.map(|spec| messages::spec_of_another(&spec.identity.user)).or_else(|| {
            order.spec.as_ref().filter(denied).map(|spec| messages::sent_for_another(&spec.identity.user))
        })
    }

    /// `None`: there is no spec, so no process can be found.
    fn question(&self, state: &State, order: &Order) -> Option<Effect> {
        let grants::GrantScope::Only(accounts) = &order.accounts else { return None };
        let spec = order.spec.clone().map(Arc::new).or_else(|| self.spec.clone())?;
        let process: Option<Process> = match state {
            State::Down(_) => None,
            State::Up(process) => Some(*process),
            State::Busy(job) => job.stage.process(),
        };
        let scope = match self.spec {
            // For a periodic proc only the current run counts, which is known.
            _ if spec.policy.kind.schedule().is_some() => LookScope::ScheduledRun { last: None, since: None },
            Some(_) => self.settled(),
            // No stored spec: the process of an unregistered proc may still run.
            None => LookScope::Recovery { last: None },
        };
        Some(Effect::Vet { op: order.op, process, scope, spec, accounts: accounts.clone() })
    }
}

/// Without the stored spec, which belongs to another account.
fn refuse(order: &Order, reason: String, out: &mut Step) {
    let message = format!("{} was refused: {reason}; nothing was done", order.kind.verb());
    out.writes.push(Write::Done(order.op, Outcome::without_status(Code::NotAllowed, message, order.kind)));
}

/// Why an order about a namespace is refused to an app that is limited to accounts.
pub fn group_refusal(order: &Order) -> Option<Outcome> {
    (order.kind == OpKind::Group && !order.accounts.is_all()).then(|| {
        let message = "group was refused: the limits of a process group end processes of every account in the namespace, and the \
                       app is limited to some accounts; nothing was done";
        Outcome::without_status(Code::NotAllowed, message, order.kind)
    })
}
