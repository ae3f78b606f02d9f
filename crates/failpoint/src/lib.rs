//! Named points at which a test can end, stop or fail the program: one for every step of an op between
//! "request read" and "acknowledged".
//!
//! Without the feature `armed`, which only the chaos test asks for, [`hit`] and [`fails`] are empty and a
//! plan can neither be made nor followed. With it, the program is told a plan at its start, such as
//! `server.task_committed=kill@3`.

#[cfg(feature = "armed")]
mod armed;

#[cfg(feature = "armed")]
pub use armed::{BadPlan, FailPlan, follow};

/// Where a test can step in. Those of the server come first, each room in the order in which an op passes
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Point {
    /// A request was understood, and nothing of it is stored.
    ServerRequestRead,
    /// Its task is about to be written.
    ServerTaskUnwritten,
    /// Its task is durable; neither the dispatcher nor the caller knows.
    ServerTaskCommitted,
    /// The dispatcher has read the ops of a task.
    ServerKeeperRead,
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
    /// An op is in the journal; nobody acts on it yet.
    AgentOpJournalled,
    /// It is about to be written that an op has begun.
    AgentBegunUnwritten,
    /// It is written that an op has begun; nothing was done.
    AgentBegunWritten,
    /// Its command was started.
    AgentProcessSpawned,
    /// The outcome is about to be written to the journal.
    AgentOutcomeUnwritten,
    /// The outcome is in the journal and not reported.
    AgentOutcomeWritten,
    /// A report was written to the server's socket.
    AgentReportSent,
    /// An acknowledgement was read from the server's socket.
    AgentAckReceived,
    /// It is in the journal that the server has the outcome.
    AgentAckWritten,
    /// The server's store is about to commit; it can fail as a disk would.
    ServerCommit,
    /// The agent's journal is about to commit; it can fail as a disk would.
    AgentCommit,
}

impl Point {
    /// The steps of an op.
    pub const STEPS: [Point; 20] = [
        Point::ServerRequestRead,
        Point::ServerTaskUnwritten,
        Point::ServerTaskCommitted,
        Point::ServerKeeperRead,
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
    /// The places where a disk can fail.
    pub const DISKS: [Point; 2] = [Point::ServerCommit, Point::AgentCommit];

    pub fn name(self) -> &'static str {
        match self {
            Point::ServerRequestRead => "server.request_read",
            Point::ServerTaskUnwritten => "server.task_unwritten",
            Point::ServerTaskCommitted => "server.task_committed",
            Point::ServerKeeperRead => "server.keeper_read",
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
        }
    }
}

/// Passes a point. A plan may end or stop the program here.
#[cfg(feature = "armed")]
pub fn hit(point: Point) {
    armed::pass(point);
}

#[cfg(not(feature = "armed"))]
#[inline]
pub fn hit(_point: Point) {}

/// Passes a point at which something can fail; whether a plan wants it to.
#[cfg(feature = "armed")]
pub fn fails(point: Point) -> bool {
    armed::pass(point)
}

#[cfg(not(feature = "armed"))]
#[inline]
pub fn fails(_point: Point) -> bool {
    false
}
