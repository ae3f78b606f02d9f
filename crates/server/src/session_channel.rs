//! The queue from the dispatcher to one session: its sender, its receiver and the signal that closes it.
//!
//! The dispatcher holds the sender, the session the other two. Dropping the sender ends the session after the
//! queued messages are written; [`SessionSender::cut`] ends it at once.

use procfleet_proto::link::server_message::Body;
use tokio::sync::{mpsc, oneshot};

/// Capacity of the queue. The dispatcher sends at most 64 ops ahead, so a full queue means that the agent
/// does not read.
const OUTBOX: usize = 256;

/// The dispatcher's end. Dropping it ends the connection after the queued messages are written;
/// [`SessionSender::cut`] ends it at once.
#[derive(Debug)]
pub struct SessionSender {
    // Boxed: the channel allocates blocks of 32 messages, for each of ten thousand agents.
    queue: mpsc::Sender<Box<Body>>,
    cut: oneshot::Sender<CutReason>,
}

/// The session's end of the queue.
#[derive(Debug)]
pub struct SessionReceiver(mpsc::Receiver<Box<Body>>);

/// Tells the session that the dispatcher ends it at once.
#[derive(Debug)]
pub struct CloseSignal(oneshot::Receiver<CutReason>);

/// Why the dispatcher ends a session at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutReason {
    #[error("the agent does not read its messages")]
    Slow,
    #[error("the agent reported an operation of another agent")]
    NotItsOwn,
    #[error("a newer connection of this agent has taken its place")]
    Replaced,
    #[error("other servers have declared this one dead, and decide about its agents")]
    Fenced,
    #[error("this server does not reach the database, and others do: connect to one of them")]
    CutOff,
}

impl CutReason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            CutReason::Slow => "slow",
            CutReason::NotItsOwn => "not_its_own",
            CutReason::Replaced => "replaced",
            CutReason::Fenced => "fenced",
            CutReason::CutOff => "cut_off",
        }
    }
}

/// Why a message cannot be queued: the agent does not read, or the session is ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    Full,
    Ended,
}

impl SessionSender {
    pub fn for_session() -> (SessionSender, SessionReceiver, CloseSignal) {
        let ((queue, receiver), (cut, signal)) = (mpsc::channel(OUTBOX), oneshot::channel());
        (SessionSender { queue, cut }, SessionReceiver(receiver), CloseSignal(signal))
    }

    /// Never waits: one slow agent must not delay the others.
    pub fn try_send(&self, body: Body) -> Result<(), Undelivered> {
        self.queue.try_send(Box::new(body)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Undelivered::Full,
            mpsc::error::TrySendError::Closed(_) => Undelivered::Ended,
        })
    }

    /// A weak reference, for senders that must not keep the session alive.
    pub(crate) fn downgrade(&self) -> mpsc::WeakSender<Box<Body>> {
        self.queue.downgrade()
    }

    /// Ends the connection at once, without the messages that are still queued.
    pub fn cut(self, reason: CutReason) {
        // Fails only if the session has ended already.
        let _ = self.cut.send(reason);
    }
}

impl SessionReceiver {
    /// `None`: the queue is empty and closed.
    pub async fn recv(&mut self) -> Option<Body> {
        self.0.recv().await.map(|body| *body)
    }

    pub(crate) fn try_recv(&mut self) -> Option<Body> {
        self.0.try_recv().ok().map(|body| *body)
    }
}

impl CloseSignal {
    /// Runs a session until it ends by itself or is cut. The reason of a cut takes precedence.
    ///
    /// [`SessionSender::cut`] sends the reason and then closes the queue. A session on another thread may see
    /// the closed queue after it was polled for the reason, so the reason is checked again at the end.
    pub async fn during<T>(mut self, session: impl Future<Output = T>) -> Result<T, CutReason> {
        let ended = tokio::select! {
            // The cut first: it must not wait for anything that the session waits for.
            biased;
            Ok(reason) = &mut self.0 => return Err(reason),
            ended = session => ended,
        };
        self.0.try_recv().map_or(Ok(ended), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_proto::link::Drain;

    /// The cut happens after the session was polled for it, and before the session reads its queue.
    #[tokio::test]
    async fn a_session_that_sees_its_queue_closed_first_still_ends_with_the_reason_of_the_cut() {
        let (sender, mut receiver, cut) = SessionSender::for_session();
        let session = async {
            sender.cut(CutReason::NotItsOwn);
            receiver.recv().await
        };
        assert_eq!(cut.during(session).await, Err(CutReason::NotItsOwn));
    }

    #[tokio::test]
    async fn a_session_whose_sender_is_dropped_still_writes_the_queued_messages() {
        let (sender, mut receiver, cut) = SessionSender::for_session();
        let waiting = Body::Drain(Drain { after_ms: 1, spread_ms: 2, elsewhere: false });
        sender.try_send(waiting.clone()).expect("the queue has capacity");
        drop(sender);
        let session = async { (receiver.recv().await, receiver.recv().await) };
        assert_eq!(cut.during(session).await, Ok((Some(waiting), None)));
    }
}
