//! Writing outcomes in batches and acknowledging them after the commit.

use super::{RETRY, Work};
use crate::session_channel::{CutReason, Undelivered};
use procfleet_core::code::Code;
use procfleet_core::dispatch::OpProgress;
use procfleet_core::id::{AgentId, Epoch, OpId, TaskId};
use procfleet_core::op::{Content, OpKind, Outcome};
use procfleet_failpoint::{Point, hit};
use procfleet_proto::link::{Ack, server_message::Body};
use procfleet_store::{Applied, EndedBy, Finished, StoreError, Wake};
use std::collections::{BTreeSet, HashMap};
use tracing::{debug, error, info, warn};

/// How many outcomes are written in one transaction.
pub(super) const BATCH: usize = 2_000;
/// If more ops than this end together, they share one line of the log.
const LINES: usize = 32;

impl Work {
    /// An agent has the op, or reports its outcome.
    pub(super) fn reported(&mut self, agent: &AgentId, epoch: Epoch, op: OpId, outcome: Option<Outcome>) {
        if let Some(entry) = self.ops.get_mut(&op).filter(|entry| entry.agent.as_ref() == Some(agent)) {
            let unconfirmed = entry.open.progress == OpProgress::Sent(epoch);
            entry.open.progress = OpProgress::Taken(epoch);
            if unconfirmed {
                self.confirmed(agent, epoch);
            }
        }
        if let Some(outcome) = outcome {
            let by = EndedBy::Agent(agent.clone());
            self.finished.push(Finished { op, by, outcome, at: self.clock.wall() });
        }
    }

    /// Writes the outcomes and acknowledges them. A batch with an outcome that the database does not accept
    /// is divided until this outcome is alone, so that it does not hold back the others.
    pub(super) async fn commit(&mut self) {
        let mut most = BATCH;
        while self.retry_at.is_none() && !self.finished.is_empty() {
            let size = self.finished.len().min(most);
            let mut batch: Vec<Finished> = self.finished.drain(..size).collect();
            hit(Point::ServerReportUnwritten);
            let applied = match self.store.finish_ops(batch.clone()).await {
                Ok(applied) => applied,
                Err(error) if error.is_of_values() && size > 1 => {
                    self.finished.splice(..0, batch);
                    most = size / 2;
                    continue;
                }
                Err(error) if error.is_of_values() && replace_texts(&mut batch, &error) => {
                    self.finished.splice(..0, batch);
                    continue;
                }
                Err(error) => {
                    error!(
                        error = &error as &dyn std::error::Error,
                        "writing outcomes failed; they are kept in memory and tried again every second, and agents repeat what is not acknowledged. If this goes on, check the disk of the data folder, or with --store the database"
                    );
                    self.finished.splice(..0, batch);
                    self.retry_at = Some(self.clock.now() + RETRY);
                    return;
                }
            };
            most = BATCH.min(most * 2);
            hit(Point::ServerReportCommitted);
            self.acknowledge(batch, applied);
            self.changes.send_modify(|generation| *generation += 1);
            self.cluster.announce(Wake::Outcomes);
        }
        if self.finished.is_empty() {
            self.report_permits.clear();
        }
    }

    pub(super) fn acknowledge(&mut self, batch: Vec<Finished>, applied: Vec<Applied>) {
        let mut acks: HashMap<AgentId, Vec<String>> = HashMap::new();
        let one_by_one = batch.len() <= LINES;
        let (mut ended, mut liars) = (0, BTreeSet::new());
        let mut ended_of: HashMap<TaskId, usize> = HashMap::new();
        for (finished, applied) in batch.into_iter().zip(applied) {
            let op = finished.op;
            match applied {
                Applied::Now => {
                    self.metrics.outcome(finished.outcome.code);
                    ended += 1;
                    match one_by_one {
                        true => info!(%op, code = finished.outcome.code.number(), "op ended"),
                        false => debug!(%op, code = finished.outcome.code.number(), "op ended"),
                    }
                }
                Applied::Already => {}
                Applied::Late => {
                    self.metrics.late_reports.inc();
                    let code = finished.outcome.code.number();
                    info!(%op, code, "a late report was kept; the op keeps the outcome that it had");
                }
                // Acknowledged all the same: a repetition would not help.
                Applied::Unknown => warn!(%op, "report for an unknown op; it is acknowledged and dropped"),
                Applied::NotYours => {
                    let agent = finished.by.agent();
                    warn!(%op, ?agent, "a report for another agent's op was refused");
                    liars.extend(agent.cloned());
                    continue;
                }
                // Another server decides about it now.
                Applied::Superseded => {
                    debug!(%op, "the agent has moved to another server, which decides about the op");
                    self.forget(op);
                    continue;
                }
            }
            if self.forget(op) {
                *ended_of.entry(op.task).or_default() += 1;
            }
            if let EndedBy::Agent(agent) = finished.by {
                acks.entry(agent).or_default().push(op.to_string());
            }
        }
        for (task, ops) in ended_of {
            self.backlog.ended(task, ops);
        }
        if ended > 0 && !one_by_one {
            info!(ops = ended, "ops ended");
        }
        for agent in liars {
            self.cut(&agent, CutReason::NotItsOwn);
        }
        for (agent, ops) in acks {
            // After a lost acknowledgement the agent repeats its report.
            let Some(session) = self.sessions.get(&agent) else { continue };
            let full = ops.chunks(500).any(|ops| {
                session.sender.try_send(Body::Ack(Ack { ops: ops.to_vec() })) == Err(Undelivered::Full)
            });
            if full {
                self.cut(&agent, CutReason::Slow);
            }
        }
    }
}

/// Replaces outcomes that the database does not accept. Returns whether there was something to replace.
fn replace_texts(batch: &mut [Finished], error: &StoreError) -> bool {
    let mut has_changed = false;
    for Finished { op, by, outcome, .. } in batch {
        let kind = match outcome.content {
            Content::Status(_) => OpKind::Query,
            Content::Control { .. } => OpKind::Start,
        };
        let message = "the outcome cannot be stored; the log of the server has the reason";
        let storable = Outcome::without_status(Code::SystemError, message, kind);
        if *outcome != storable {
            error!(
                %op, agent = ?by.agent(), code = outcome.code.number(),
                error = error as &dyn std::error::Error,
                "the database does not accept an outcome; the op ends with 101 instead. Check the texts that the host reports"
            );
            *outcome = storable;
            has_changed = true;
        }
    }
    has_changed
}
