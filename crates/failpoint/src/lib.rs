//! Failpoints: named points at which a test can kill, pause or fail the program, one for each step of an op
//! between "request read" and "acknowledged".
//!
//! Without the feature `armed`, which only the chaos test enables, [`hit`] and [`fails`] do nothing. With it,
//! the program gets a plan at its start, such as `server.task_committed=kill@3`.

#[cfg(feature = "armed")]
mod armed;

#[cfg(feature = "armed")]
pub use armed::{BadPlan, FailPlan, follow};

/// A failpoint. Server first, then agent, each in the order in which an op passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// A request was parsed, and nothing of it is stored.
    ServerRequestRead,
    /// The task of a request is about to be written.
    ServerTaskUnwritten,
    /// The task is durable. Neither the dispatcher nor the caller knows it yet.
    ServerTaskCommitted,
    /// The dispatcher has read the ops of a task.
    ServerDispatcherRead,
    /// An op was written to its agent's socket.
    ServerOpSent,
    /// A report was read from an agent's socket.
    ServerReportReceived,
    /// Outcomes are about to be written.
    ServerReportUnwritten,
    /// Outcomes are durable and not acknowledged.
    ServerReportCommitted,
    /// An acknowledgement was written to its agent's socket.
    ServerAckSent,
    /// An op was read from the server's socket.
    AgentOpReceived,
    /// An op is about to be written to the journal.
    AgentOpUnwritten,
    /// An op is in the journal. Its actor does not have it yet.
    AgentOpJournalled,
    /// The beginning of an op is about to be written.
    AgentBegunUnwritten,
    /// The beginning of an op is written. Nothing was done yet.
    AgentBegunWritten,
    /// The command of an op was started.
    AgentProcessSpawned,
    /// The outcome is about to be written to the journal.
    AgentOutcomeUnwritten,
    /// The outcome is in the journal and not reported.
    AgentOutcomeWritten,
    /// A report was written to the server's socket.
    AgentReportSent,
    /// An acknowledgement was read from the server's socket.
    AgentAckReceived,
    /// The journal has the server's acknowledgement of an outcome.
    AgentAckWritten,
    /// The server's store is about to commit; it can fail as a disk would.
    ServerCommit,
    /// The agent's journal is about to commit; it can fail as a disk would.
    AgentCommit,
    /// The worker that deletes old tasks begins a round.
    ServerRetention,
    /// The worker that delivers events begins a round.
    ServerWebhooks,
    /// The worker that retires CAs begins a round.
    ServerSuccession,
    /// The worker that writes the audit of refused calls begins a round.
    ServerRefusals,
}

impl Point {
    /// The steps of an op.
    pub const STEPS: [Point; 20] = [
        Point::ServerRequestRead,
        Point::ServerTaskUnwritten,
        Point::ServerTaskCommitted,
        Point::ServerDispatcherRead,
        Point::ServerOpSent,
        Point::ServerReportReceived,
        Point::ServerReportUnwritten,
        Point::ServerReportCommitted,
        Point::ServerAckSent,
        Point::AgentOpReceived,
        Point::AgentOpUnwritten,
        Point::AgentOpJournalled,
        Point::AgentBegunUnwritten,
        Point::AgentBegunWritten,
        Point::AgentProcessSpawned,
        Point::AgentOutcomeUnwritten,
        Point::AgentOutcomeWritten,
        Point::AgentReportSent,
        Point::AgentAckReceived,
        Point::AgentAckWritten,
    ];
    /// The points at which a disk can fail.
    pub const DISKS: [Point; 2] = [Point::ServerCommit, Point::AgentCommit];
    /// The background workers of the server. Each passes its point at the server's start.
    pub const WORKERS: [Point; 4] =
        [Point::ServerRetention, Point::ServerWebhooks, Point::ServerSuccession, Point::ServerRefusals];

    pub fn name(self) -> &'static str {
        match self {
            Point::ServerRequestRead => "server.request_read",
            Point::ServerTaskUnwritten => "server.task_unwritten",
            Point::ServerTaskCommitted => "server.task_committed",
            Point::ServerDispatcherRead => "server.dispatcher_read",
            Point::ServerOpSent => "server.op_sent",
            Point::ServerReportReceived => "server.report_received",
            Point::ServerReportUnwritten => "server.report_unwritten",
            Point::ServerReportCommitted => "server.report_committed",
            Point::ServerAckSent => "server.ack_sent",
            Point::AgentOpReceived => "agent.op_received",
            Point::AgentOpUnwritten => "agent.op_unwritten",
            Point::AgentOpJournalled => "agent.op_journalled",
            Point::AgentBegunUnwritten => "agent.begun_unwritten",
            Point::AgentBegunWritten => "agent.begun_written",
            Point::AgentProcessSpawned => "agent.process_spawned",
            Point::AgentOutcomeUnwritten => "agent.outcome_unwritten",
            Point::AgentOutcomeWritten => "agent.outcome_written",
            Point::AgentReportSent => "agent.report_sent",
            Point::AgentAckReceived => "agent.ack_received",
            Point::AgentAckWritten => "agent.ack_written",
            Point::ServerCommit => "server.commit",
            Point::AgentCommit => "agent.commit",
            Point::ServerRetention => "server.retention",
            Point::ServerWebhooks => "server.webhooks",
            Point::ServerSuccession => "server.succession",
            Point::ServerRefusals => "server.refusals",
        }
    }
}

/// Passes a point. A plan may kill or pause the program here.
#[cfg(feature = "armed")]
pub fn hit(point: Point) {
    armed::pass(point);
}

#[cfg(not(feature = "armed"))]
#[inline]
pub fn hit(_point: Point) {}

/// Passes a point. Returns whether a plan wants the operation to fail.
#[cfg(feature = "armed")]
pub fn fails(point: Point) -> bool {
    armed::pass(point)
}

#[cfg(not(feature = "armed"))]
#[inline]
pub fn fails(_point: Point) -> bool {
    false
}
