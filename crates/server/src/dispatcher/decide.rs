//! Carries out the decisions of [`dispatch`] about ops that are due: send, wait, or end.

use super::table::SharedRequest;
use super::{RETRY, Work};
use crate::session_channel::{CutReason, Undelivered};
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::{
    self, CANCEL_GRACE, CancelStep, Cancelling, Decision, OpProgress, Presence, WINDOW,
};
use procfleet_core::id::{AgentId, OpId};
use procfleet_core::op::Outcome;
use procfleet_proto::link::{Cancel, MAX_FRAME, Op, server_message::Body};
use procfleet_store::{EndedBy, Finished};

/// A larger order does not fit a frame. The agent would close the connection at each attempt, so the op ends
/// instead. The API bounds the spec and the names, but an administrator may grant an app many OS accounts.
const LARGEST_ORDER: usize = MAX_FRAME - 64;

impl Work {
    pub(super) fn decide_due(&mut self) {
        let now = self.clock.now();
        while let Some((moment, op)) = self.timers.first().copied().filter(|(moment, _)| *moment <= now) {
            self.timers.remove(&(moment, op));
            if self.ops.get(&op).is_some_and(|entry| entry.wake == Some(moment)) {
                self.dirty.insert(op);
            }
        }
        // Task numbers give the order of acceptance. Stamps do not: the clocks of two servers may differ.
        let mut due: Vec<OpId> = std::mem::take(&mut self.dirty).into_iter().collect();
        due.sort_unstable_by_key(|op| (op.task.number, op.index));
        for op in due {
            self.decide(now, op);
        }
    }

    fn decide(&mut self, now: BootTime, op: OpId) {
        let Some(entry) = self.ops.get(&op) else { return };
        if let Some(reason) = entry.agent.as_ref().and_then(|agent| self.dismissed.get(agent)) {
            let outcome = dispatch::dismissed(&entry.open, &entry.target, reason);
            self.end(op, outcome);
            return self.wake(op, now + RETRY);
        }
        let presence = match &entry.agent {
            None => Presence::Unknown,
            Some(agent) => match self.sessions.get(agent) {
                Some(session) => Presence::Connected(session.epoch),
                None => Presence::Away { back_by: self.back_by(agent) },
            },
        };
        if let Some(cancelling) = entry.cancelling {
            return self.cancel(now, op, presence, cancelling);
        }
        match dispatch::decide(now, &entry.open, presence, &entry.target) {
            Decision::Send => self.send(now, op),
            Decision::Wait { until } => self.wake(op, until),
            Decision::End(outcome) => {
                self.end(op, outcome);
                // Do not decide again before the outcome is written.
                self.wake(op, now + RETRY);
            }
        }
    }

    /// Until when an agent that is away may come back.
    fn back_by(&self, agent: &AgentId) -> BootTime {
        match self.back_by.get(agent) {
            None => self.verdicts_from,
            // The agent may have been at another server since, which has just died.
            Some(back_by) if self.cluster.is_shared() => (*back_by).max(self.verdicts_from),
            Some(back_by) => *back_by,
        }
    }

    fn cancel(&mut self, now: BootTime, op: OpId, presence: Presence, cancelling: Cancelling) {
        let Some(entry) = self.ops.get_mut(&op) else { return };
        let session = entry.agent.as_ref().and_then(|agent| self.sessions.get(agent));
        let cancelling = match session {
            Some(session) if !session.capabilities.cancels => Cancelling::Unsupported,
            _ => cancelling,
        };
        let wake = match dispatch::cancel(now, &entry.open, presence, cancelling, &entry.target) {
            CancelStep::Wait { until } => until,
            CancelStep::Ask => {
                if let Some(session) = session {
                    // If the message is lost, the op ends after the grace, as if the agent had not answered.
                    let _ = session.sender.try_send(Body::Cancel(Cancel { ops: vec![op.to_string()] }));
                    let until = now + CANCEL_GRACE;
                    entry.cancelling = Some(Cancelling::Asked { epoch: session.epoch, until });
                }
                now + CANCEL_GRACE
            }
            CancelStep::End(outcome) => {
                self.end(op, outcome);
                now + RETRY
            }
        };
        self.wake(op, wake);
    }

    fn send(&mut self, now: BootTime, op: OpId) {
        let Some(entry) = self.ops.get_mut(&op) else { return };
        let Some(session) = entry.agent.as_ref().and_then(|agent| self.sessions.get_mut(agent)) else {
            return;
        };
        let until = match entry.open.progress {
            OpProgress::Waiting => entry.open.start_by,
            OpProgress::Sent(_) | OpProgress::Taken(_) => entry.open.deadline,
        };
        if !entry.request.accounts.is_all() && !session.capabilities.limits_accounts {
            let ended = dispatch::accounts_unsupported(&entry.open, &entry.target);
            let wake = if ended.is_some() { now + RETRY } else { until };
            ended.into_iter().for_each(|outcome| self.end(op, outcome));
            return self.wake(op, wake);
        }
        if session.unconfirmed >= WINDOW {
            session.backlog.push_back(op);
            return self.wake(op, until);
        }
        if entry.request.changes && !session.capabilities.changes {
            let outcome = dispatch::cannot_change(&entry.open, &entry.target);
            self.end(op, outcome);
            return self.wake(op, now + RETRY);
        }
        let within = entry.open.start_by.since(now);
        let (kind, SharedRequest { proc, spec, accounts, .. }) = (entry.open.kind, &*entry.request);
        let order = Op::new(op, session.epoch, proc, kind, within, spec.as_deref(), accounts);
        if order.size() > LARGEST_ORDER {
            let outcome = dispatch::too_large(&entry.open, &entry.target, order.size(), LARGEST_ORDER);
            self.end(op, outcome);
            return self.wake(op, now + RETRY);
        }
        match session.sender.try_send(Body::Op(order)) {
            Ok(()) => {}
            // `Gone` follows.
            Err(Undelivered::Ended) => return self.wake(op, until),
            Err(Undelivered::Full) => {
                let agent = entry.agent.clone();
                self.wake(op, until);
                return agent.iter().for_each(|agent| self.cut(agent, CutReason::Slow));
            }
        }
        session.unconfirmed += 1;
        entry.open.progress = OpProgress::Sent(session.epoch);
        self.metrics.sent.inc();
        let deadline = entry.open.deadline;
        self.wake(op, deadline);
    }

    /// Queues an outcome of the server's own for the next commit.
    fn end(&mut self, op: OpId, outcome: Outcome) {
        let agent = self.ops.get(&op).and_then(|entry| entry.agent.as_ref());
        let session = |agent: &AgentId| self.sessions.get(agent).map(|session| session.epoch);
        let by = EndedBy::Server(agent.and_then(|agent| self.cluster.fence(agent, session(agent))));
        self.finished.push(Finished { op, by, outcome, at: self.clock.wall() });
    }
}
