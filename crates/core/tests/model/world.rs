//! One state of the fleet: the rows of the store, the memory of the servers, the agents' journals.

use procfleet_core::dispatch::OpProgress;

pub(crate) const SERVERS: usize = 2;
/// The most that a configuration has.
pub(crate) const AGENTS: usize = 2;
pub(crate) const OPS: usize = 2;

/// Number of an agent's session. 0 is none.
pub(crate) type Session = u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: StoreRows,
    pub(crate) servers: [ServerState; SERVERS],
    pub(crate) agents: [AgentState; AGENTS],
    pub(crate) journal: [Journalled; OPS],
    pub(crate) phase: Phase,
    pub(crate) left: Faults,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StoreRows {
    /// Whether the last run of each server is up. Earlier runs are dead.
    pub(crate) is_up: [bool; SERVERS],
    /// Who has the lease `unheld`.
    pub(crate) unheld: Run,
    pub(crate) sessions: [SessionRow; AGENTS],
    pub(crate) ops: [OpRow; OPS],
}

/// A run of a server, as the store names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Run {
    /// A run that was followed by another one of the same server, or none.
    Earlier,
    Last(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SessionRow {
    pub(crate) epoch: Session,
    pub(crate) holder: Run,
    pub(crate) connected: bool,
    /// Its server died less than a minute ago, while it was connected.
    pub(crate) is_orphaned: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OpRow {
    /// The agent's session when the op was accepted, and whether it was connected then.
    pub(crate) accepted: Option<(Session, bool)>,
    pub(crate) outcome: Option<Ending>,
    /// It got a second outcome.
    pub(crate) is_contradicted: bool,
    /// It ended as undeliverable while its agent was on the way from a dead server.
    pub(crate) is_hasty: bool,
}

/// How late it is for all ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    MayBegin,
    TooLateToBegin,
    Overdue,
}

/// What an outcome says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ending {
    /// The agent's own report.
    Reported,
    NothingWasDone,
    NotKnown,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerState {
    pub(crate) is_running: bool,
    pub(crate) beat: Beat,
    /// Its beats have begun a new run, and its dispatcher does not know yet.
    pub(crate) is_behind: bool,
    /// The other server at the last look.
    pub(crate) peer: Option<Peer>,
    /// A server has died since the last look.
    pub(crate) missed_death: bool,
    /// At the last look, it had the lease `unheld`.
    pub(crate) has_unheld: bool,
    /// The table lacks ops of agents that this server decides about.
    pub(crate) reload: bool,
    /// `verdicts_from` lies ahead: agents may still come back from a dead server.
    pub(crate) waits: bool,
    pub(crate) agents: [HeldAgent; AGENTS],
    pub(crate) ops: [TableEntry; OPS],
}

/// How long ago a server's last beat was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Beat {
    Fresh,
    /// Long enough for the server not to trust itself, and too short for others: it has just entered anew.
    Unconfirmed,
    /// Long enough for others to declare it dead.
    Old,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Peer {
    LastRun,
    EarlierRun,
}

/// An agent in a server's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HeldAgent {
    pub(crate) session: Session,
    /// A session whose ops are to be read.
    pub(crate) connecting: Session,
    /// A session has ended before its ops were read.
    pub(crate) to_read: bool,
    /// The session that decisions are made about.
    pub(crate) epoch: Session,
    pub(crate) back_by: Option<BackBy>,
}

/// Until when an agent may come back. `RECONNECT_GRACE` counts as passed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BackBy {
    Ahead,
    Passed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct TableEntry {
    /// `None`: the op is not in the table.
    pub(crate) progress: Option<OpProgress>,
    /// Its task was read.
    pub(crate) is_known: bool,
    pub(crate) verdict: Option<Verdict>,
    /// The agent's report waits for the next commit.
    pub(crate) has_report: bool,
}

/// A server's own outcome that waits for the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Verdict {
    pub(crate) says: Ending,
    /// Because the agent is not connected.
    pub(crate) is_no_agent: bool,
    pub(crate) epoch: Session,
    /// Without the row lock: the session was compared, and the write follows.
    pub(crate) is_checked: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AgentState {
    pub(crate) link: Link,
    /// Ops on their way to the agent in this session.
    pub(crate) frames: [bool; OPS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Link {
    Away,
    /// The store has the session; neither the agent nor the dispatcher knows. `is_stale`: its server was
    /// declared dead and has begun anew meanwhile.
    Stored {
        server: u8,
        epoch: Session,
        is_stale: bool,
    },
    Open {
        server: u8,
        epoch: Session,
    },
}

/// An op in its agent's journal. It is carried out when it arrives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Journalled {
    /// At most 2.
    pub(crate) runs: u8,
    pub(crate) is_acknowledged: bool,
}

/// How often faults may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    /// A server ends, with or without a farewell. It may start again.
    pub(crate) ends: u8,
    /// The beats of a server do not get through for a while.
    pub(crate) pauses: u8,
    /// A connection breaks, at either end or while the agent is greeted.
    pub(crate) breaks: u8,
    /// Of all kinds together.
    pub(crate) all: u8,
}

impl World {
    pub(crate) fn open_ops(&self) -> impl Iterator<Item = usize> + '_ {
        (0..OPS).filter(|op| {
            let row = &self.store.ops[*op];
            row.accepted.is_some() && row.outcome.is_none()
        })
    }

    /// Whether the agent's end of a session is one that its server knows.
    pub(crate) fn is_served(&self, agent: usize) -> bool {
        match self.agents[agent].link {
            Link::Open { server, epoch } => {
                let server = &self.servers[usize::from(server)];
                let held = &server.agents[agent];
                server.is_running && (held.session == epoch || held.connecting == epoch)
            }
            Link::Away | Link::Stored { .. } => false,
        }
    }
}

impl AgentState {
    pub(crate) fn leave(&mut self) {
        self.link = Link::Away;
        self.frames = Default::default();
    }
}
