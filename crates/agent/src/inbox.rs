//! A bounded queue of inputs for one actor. Uses less memory per queue than tokio's mpsc.
//!
//! tokio's channel allocates blocks of 32 messages and pads to cache lines. A proc gets an input once in
//! months.

use procfleet_core::supervise::Input;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use tokio::sync::Notify;

/// A queue for at most `capacity` inputs.
pub fn inbox(capacity: usize) -> (Inputs, Inbox) {
    let queue = Queue { waiting: VecDeque::new(), capacity, reader: None, state: InboxState::Open };
    let shared = Arc::new(InboxShared { queue: Mutex::new(queue), left: Notify::new() });
    (Inputs(shared.clone()), Inbox(shared))
}

/// The sending end.
#[derive(Clone, Debug)]
pub struct Inputs(Arc<InboxShared>);

/// The receiving end.
#[derive(Debug)]
pub struct Inbox(Arc<InboxShared>);

/// Why an input was not taken, and the input.
#[derive(Debug)]
pub enum InboxRefusal {
    Full(Box<Input>),
    /// The actor has ended.
    Closed(Box<Input>),
}

#[derive(Debug)]
struct InboxShared {
    queue: Mutex<Queue>,
    /// Notified when an input was taken, and when the queue is closed.
    left: Notify,
}

#[derive(Debug)]
struct Queue {
    waiting: VecDeque<Box<Input>>,
    capacity: usize,
    reader: Option<Waker>,
    state: InboxState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InboxState {
    Open,
    /// The reader must stop.
    Stopped,
    Closed,
}

impl InboxShared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn take(&mut self, left: &Notify) -> Option<Box<Input>> {
        let was_full = self.waiting.len() >= self.capacity;
        let input = self.waiting.pop_front();
        if self.waiting.is_empty() {
            // Frees the memory of a burst.
            self.waiting.shrink_to(0);
        }
        if was_full {
            left.notify_waiters();
        }
        input
    }
}

impl Inputs {
    /// Waits until there is space. Returns the input if the queue is closed.
    pub async fn send(&self, mut input: Box<Input>) -> Result<(), Box<Input>> {
        loop {
            // Created before the check, so that no notification is missed.
            let left = self.0.left.notified();
            match self.try_send(input) {
                Ok(()) => return Ok(()),
                Err(InboxRefusal::Closed(back)) => return Err(back),
                Err(InboxRefusal::Full(back)) => input = back,
            }
            left.await;
        }
    }

    /// Makes the reader stop, even if inputs wait.
    pub fn stop(&self) {
        let reader = {
            let mut queue = self.0.lock();
            if queue.state == InboxState::Open {
                queue.state = InboxState::Stopped;
            }
            queue.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    pub fn try_send(&self, input: Box<Input>) -> Result<(), InboxRefusal> {
        let reader = {
            let mut queue = self.0.lock();
            match queue.state {
                InboxState::Closed => return Err(InboxRefusal::Closed(input)),
                InboxState::Open | InboxState::Stopped if queue.waiting.len() >= queue.capacity => {
                    return Err(InboxRefusal::Full(input));
                }
                InboxState::Open | InboxState::Stopped => queue.waiting.push_back(input),
            }
            queue.reader.take()
        };
        if let Some(reader) = reader {
            reader.wake();
        }
        Ok(())
    }
}

impl Inbox {
    /// The next input, or `None` when the reader must stop. Cancel safe.
    pub async fn recv(&mut self) -> Option<Box<Input>> {
        std::future::poll_fn(|context| {
            let mut queue = self.0.lock();
            if queue.state == InboxState::Stopped {
                return Poll::Ready(None);
            }
            match queue.take(&self.0.left) {
                Some(input) => Poll::Ready(Some(input)),
                None => {
                    queue.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    pub fn try_recv(&mut self) -> Option<Box<Input>> {
        self.0.lock().take(&self.0.left)
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().waiting.is_empty()
    }

    /// Refuses further inputs. Inputs in the queue can still be read.
    pub fn close(&mut self) {
        self.0.lock().state = InboxState::Closed;
        self.0.left.notify_waiters();
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.close();
        let unread = std::mem::take(&mut self.0.lock().waiting);
        drop(unread);
    }
}

impl fmt::Display for InboxRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InboxRefusal::Full(_) => "its queue is full",
            InboxRefusal::Closed(_) => "it has ended",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::supervise::{EffectAnswer, RunId};

    fn input(number: u64) -> Box<Input> {
        let end = procfleet_core::supervise::CommandEnd::Exited {
            exit: procfleet_core::Exit::Code(0),
            output: String::new(),
        };
        Box::new(Input::Answer(EffectAnswer::CommandEnded { run: RunId(number), end }))
    }

    fn number(input: &Input) -> u64 {
        match input {
            Input::Answer(EffectAnswer::CommandEnded { run, .. }) => run.0,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn inputs_keep_their_order_and_senders_wait_while_the_queue_is_full() {
        let (inputs, mut inbox) = inbox(2);
        let sender = tokio::spawn(async move {
            for one in 0..100 {
                inputs.send(input(one)).await.expect("the queue is open");
            }
        });
        for one in 0..100 {
            assert_eq!(inbox.recv().await.map(|input| number(&input)), Some(one));
        }
        sender.await.expect("it ends");
        assert!(inbox.is_empty() && inbox.try_recv().is_none());
    }

    #[tokio::test]
    async fn inputs_in_a_closed_queue_can_still_be_read() {
        let (inputs, mut inbox) = inbox(2);
        for one in 0..2 {
            inputs.try_send(input(one)).expect("space in the queue");
        }
        assert!(matches!(inputs.try_send(input(2)), Err(InboxRefusal::Full(_))));
        let late = tokio::spawn({
            let inputs = inputs.clone();
            async move { inputs.send(input(3)).await }
        });
        tokio::task::yield_now().await;
        inbox.close();
        assert_eq!(
            late.await.expect("it ends").map_err(|back| number(&back)),
            Err(3),
            "a waiting sender gets its input back"
        );
        assert!(matches!(inputs.try_send(input(4)), Err(InboxRefusal::Closed(_))));
        let rest: Vec<u64> = std::iter::from_fn(|| inbox.try_recv()).map(|input| number(&input)).collect();
        assert_eq!(rest, [0, 1]);
        drop(inbox);
        assert_eq!(inputs.send(input(5)).await.map_err(|back| number(&back)), Err(5));
    }
    #[tokio::test]
    async fn a_reader_that_must_stop_gets_no_further_input() {
        let (inputs, mut inbox) = inbox(2);
        let reader = tokio::spawn(async move { (inbox.recv().await.is_none(), inbox.try_recv().is_some()) });
        tokio::task::yield_now().await;
        inputs.stop();
        inputs.try_send(input(0)).expect("it is open");
        assert_eq!(reader.await.expect("it ends"), (true, true));
    }
}
