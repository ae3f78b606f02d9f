//! What an exploration has come across. A model in which nothing of interest can happen would hold, too.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Situation {
    /// A report was stored by one server, and the other one had sent the op.
    AnsweredByTheOther,
    /// A server that was declared dead tried to store an outcome, and was refused.
    FencedWrite,
    /// A server's decision was dropped, because the agent had moved.
    SupersededVerdict,
    /// An agent got an op that it had carried out already, and did not do it again.
    Deduplicated,
    /// An outcome came after another one, and the op kept the first.
    LateOutcome,
    /// An op arrived after its server had ended the session, or had ended itself.
    LateFrame,
    /// A report was stored and its acknowledgement was lost.
    LostAcknowledgement,
    /// An op was sent by the server that took over from the one that had sent it first.
    SentAfterTakeover,
    /// An op ended because its agent did not come back from a dead server within the minute.
    NotBackInTime,
    /// A server that was declared dead went on as a new one.
    BegunAnew,
    /// What was decided or reported in one run of a server was written in the next.
    WriteByNewRun,
}

impl Situation {
    pub(crate) const ALL: [Situation; 11] = [
        Situation::AnsweredByTheOther,
        Situation::FencedWrite,
        Situation::SupersededVerdict,
        Situation::Deduplicated,
        Situation::LateOutcome,
        Situation::LateFrame,
        Situation::LostAcknowledgement,
        Situation::SentAfterTakeover,
        Situation::NotBackInTime,
        Situation::BegunAnew,
        Situation::WriteByNewRun,
    ];
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Situations {
    seen: Cell<u32>,
}

impl Situations {
    pub(crate) fn note(&self, situation: Situation) {
        self.seen.set(self.seen.get() | 1 << situation as u32);
    }

    pub(crate) fn missing(&self) -> Vec<Situation> {
        let all = Situation::ALL.into_iter();
        all.filter(|situation| self.seen.get() & 1 << *situation as u32 == 0).collect()
    }
}
