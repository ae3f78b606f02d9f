//! The rules that keep several servers from contradicting each other. Each can be switched off.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// A server's decision locks the session that it is about, from the check to the commit.
    RowLock,
    /// A server's decision counts only if the agent's last session is the one that it was made about.
    Epoch,
    /// Every change checks that the run of its server was not declared dead.
    Term,
    /// Agents of a dead server get a minute to come back.
    Grace,
    /// An agent's journal recognises an op that it has received before.
    Dedupe,
    /// An op that another server may have sent does not count as never sent.
    SentBefore,
    /// The first outcome of an op stays.
    FirstWins,
    /// A report is acknowledged after its commit.
    AckAfterCommit,
    /// A server without a confirmed beat neither sends nor decides.
    Trust,
    // The search found that the dispatcher lacked the following ones.
    /// Each read corrects what the table has about the ops that were read, and drops decisions about them
    /// that are not written yet.
    Reread,
    /// The reader of an op learns from the store that the server of its agent has just died.
    GraceFromStore,
    /// A server without a confirmed beat does not read ops, because it would not see those of dead servers.
    ReadInTrust,
    /// The ops of an agent are read after its connect, even if its session has ended by then.
    ReadAfterGone,
    /// A session that was stored by an earlier run of the server is not admitted.
    RunOfSession,
    /// The server with the lease `unheld` notices every death, also of servers that it has never seen alive.
    EveryDeath,
}

/// Which protections are on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Protections {
    off: u32,
}

impl Protections {
    pub(crate) const ALL: Protections = Protections { off: 0 };

    pub(crate) fn without(self, protection: Protection) -> Protections {
        Protections { off: self.off | 1 << protection as u32 }
    }

    pub(crate) fn has(self, protection: Protection) -> bool {
        self.off & 1 << protection as u32 == 0
    }
}

impl fmt::Debug for Protections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protections without {:#b}", self.off)
    }
}
