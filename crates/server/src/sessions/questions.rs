//! Questions to the agents that are connected here that are not ops: logs and specs. They are not stored; the
//! caller waits for a bounded time. `asking` also reaches agents that are connected to other servers.
//!
//! An agent gets few questions at once, and none that its version does not know. An answer is matched by the
//! id of its question, and is accepted only from the agent that was asked.

use crate::agent_limits::{self, OversizedMessage};
use crate::session_channel::SessionSender;
use procfleet_core::batch_size::BatchSize;
use procfleet_core::id::{AgentId, Epoch};
use procfleet_proto::link::{LOG_BYTES, LogRead, ReadLog, ReadSpec, SpecRead, server_message::Body};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::Instant;

/// Maximum number of questions to one agent at once. Further ones wait.
const AT_ONCE: usize = 8;
/// Time limit of an answer, beyond the time that the question lets the agent wait.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A question, in the form in which the agent gets it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AgentQuestion {
    Log(ReadLog),
    Spec(ReadSpec),
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The agent is not connected, or its connection broke.
    Away,
    /// The version of the agent does not know the question.
    TooOld,
    /// The reader is limited to some OS accounts, and the version of the agent does not record which account
    /// wrote a log.
    Unchecked,
    /// The agent did not answer in time.
    Silent,
}

/// All open questions.
#[derive(Clone, Debug, Default)]
pub struct Questions {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    number: AtomicU64,
    sessions: Mutex<HashMap<AgentId, AskedSession>>,
    open: Mutex<HashMap<u64, PendingQuestion>>,
}

#[derive(Clone, Debug)]
struct AskedSession {
    epoch: Epoch,
    capabilities: QuestionCapabilities,
    /// A weak reference: only the dispatcher's sender keeps the session open.
    outbox: mpsc::WeakSender<Box<Body>>,
    permits: Arc<Semaphore>,
    /// How many bytes of logs may be on their way to the server.
    page: Arc<Mutex<BatchSize>>,
}

#[derive(Debug)]
struct PendingQuestion {
    agent: AgentId,
    epoch: Epoch,
    /// Maximum number of log bytes in the answer.
    most: usize,
    answer: oneshot::Sender<AgentAnswer>,
}

/// Which questions an agent's version knows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QuestionCapabilities {
    pub(super) logs: bool,
    pub(super) specs: bool,
    /// The agent records which OS account wrote a log.
    pub(super) accounts: bool,
}

/// The answer of an agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AgentAnswer {
    Log(LogRead),
    Spec(SpecRead),
}

impl AgentAnswer {
    fn id(&self) -> u64 {
        match self {
            AgentAnswer::Log(answer) => answer.id,
            AgentAnswer::Spec(answer) => answer.id,
        }
    }
}

/// Removes a question when its caller stops waiting.
struct RemoveOnDrop<'a>(&'a Inner, u64);

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.open).remove(&self.1);
    }
}

impl Questions {
    pub(super) fn connected(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        sender: &SessionSender,
        capabilities: QuestionCapabilities,
    ) {
        let (outbox, permits) = (sender.downgrade(), Arc::new(Semaphore::new(AT_ONCE)));
        let page = Arc::new(Mutex::new(BatchSize::up_to(LOG_BYTES)));
        let session = AskedSession { epoch, capabilities, outbox, permits, page };
        lock(&self.inner.sessions).insert(agent.clone(), session);
    }

    /// The session has ended: its open questions fail at once.
    pub(super) fn gone(&self, agent: &AgentId, epoch: Epoch) {
        let mut sessions = lock(&self.inner.sessions);
        if sessions.get(agent).is_some_and(|session| session.epoch == epoch) {
            sessions.remove(agent);
        }
        lock(&self.inner.open).retain(|_, asked| asked.agent != *agent || asked.epoch != epoch);
    }

    /// Ignores an answer to a question that is not open. Refuses an answer that is larger than the question
    /// allows.
    pub(super) fn answered(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        mut answer: AgentAnswer,
    ) -> Result<(), OversizedMessage> {
        let mut open = lock(&self.inner.open);
        let id = answer.id();
        let is_asked = open.get(&id).is_some_and(|asked| asked.agent == *agent && asked.epoch == epoch);
        if is_asked && let Some(asked) = open.remove(&id) {
            match &mut answer {
                AgentAnswer::Log(answer) => agent_limits::check_log(answer, asked.most)?,
                AgentAnswer::Spec(answer) => agent_limits::bound_spec_answer(answer),
            }
            // Fails only when the caller has stopped waiting.
            let _ = asked.answer.send(answer);
        }
        Ok(())
    }

    /// Asks the agent's session of this epoch, or a later one. The answer may have fewer bytes of a log than
    /// the question asks for: on a slow link it would not arrive in time otherwise. After an answer that was
    /// late, the next ones are shorter.
    pub(super) async fn ask(
        &self,
        agent: &AgentId,
        epoch: Epoch,
        question: AgentQuestion,
        within: Duration,
    ) -> Result<AgentAnswer, Unanswered> {
        let session = lock(&self.inner.sessions).get(agent).cloned();
        let session = session.filter(|session| session.epoch >= epoch).ok_or(Unanswered::Away)?;
        question.check(session.capabilities)?;
        let is_log = matches!(question, AgentQuestion::Log(_));
        let answer = tokio::time::timeout(within, self.answer_to(agent, &session, question)).await;
        let answer = answer.unwrap_or_else(|_| {
            lock(&session.page).answered_after(within);
            Err(Unanswered::Silent)
        })?;
        match is_log == matches!(answer, AgentAnswer::Log(_)) {
            true => Ok(answer),
            // An answer of the wrong kind.
            false => Err(Unanswered::Silent),
        }
    }

    async fn answer_to(
        &self,
        agent: &AgentId,
        session: &AskedSession,
        question: AgentQuestion,
    ) -> Result<AgentAnswer, Unanswered> {
        let _permit = session.permits.acquire().await.map_err(|_| Unanswered::Away)?;
        let id = self.inner.number.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let page = lock(&session.page).share(AT_ONCE.saturating_sub(session.permits.available_permits()));
        let (question, most, waits) = match question {
            AgentQuestion::Log(question) => {
                let most = question.most.min(u32::try_from(page).unwrap_or(u32::MAX));
                let question = ReadLog { id, most, ..question };
                let waits = question.wait_ms > 0;
                (Body::ReadLog(question), usize::try_from(most).unwrap_or(usize::MAX), waits)
            }
            AgentQuestion::Spec(question) => (Body::ReadSpec(ReadSpec { id, ..question }), 0, true),
        };
        let asked_at = Instant::now();
        let asked = PendingQuestion { agent: agent.clone(), epoch: session.epoch, most, answer };
        lock(&self.inner.open).insert(id, asked);
        let _remove_on_drop = RemoveOnDrop(&self.inner, id);
        let outbox = session.outbox.upgrade().ok_or(Unanswered::Away)?;
        outbox.send(Box::new(question)).await.map_err(|_| Unanswered::Away)?;
        drop(outbox);
        let answer = answered.await.map_err(|_| Unanswered::Away)?;
        // A short answer, or one that waited for a new line, does not measure the link.
        if let AgentAnswer::Log(log) = &answer
            && !waits
            && log.bytes.len() >= most / 2
        {
            lock(&session.page).answered_after(asked_at.elapsed());
        }
        Ok(answer)
    }
}

impl AgentQuestion {
    /// How long the answer may take.
    pub(super) fn time_limit(&self) -> Duration {
        match self {
            AgentQuestion::Log(question) => TIMEOUT + Duration::from_millis(question.wait_ms),
            AgentQuestion::Spec(_) => TIMEOUT,
        }
    }

    /// Whether the agent's version knows the question and can check the accounts that it is limited to.
    fn check(&self, capabilities: QuestionCapabilities) -> Result<(), Unanswered> {
        match self {
            AgentQuestion::Log(question) => {
                let accounts = question.accounts.as_ref();
                let is_limited = accounts.is_none_or(|accounts| !accounts.scope().is_all());
                match capabilities {
                    QuestionCapabilities { logs: false, .. } => Err(Unanswered::TooOld),
                    QuestionCapabilities { accounts: false, .. } if is_limited => Err(Unanswered::Unchecked),
                    QuestionCapabilities { .. } => Ok(()),
                }
            }
            AgentQuestion::Spec(question) => {
                let accounts = question.accounts.as_ref();
                let is_limited = accounts.is_none_or(|accounts| !accounts.scope().is_all());
                match capabilities {
                    QuestionCapabilities { specs: true, accounts, .. } if accounts || !is_limited => Ok(()),
                    QuestionCapabilities { .. } => Err(Unanswered::TooOld),
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::grants::GrantScope;

    fn log_of_all_accounts() -> AgentQuestion {
        log(10)
    }

    fn log(most: u32) -> AgentQuestion {
        AgentQuestion::Log(ReadLog { most, accounts: Some((&GrantScope::All).into()), ..ReadLog::default() })
    }

    fn spec_of_all_accounts() -> AgentQuestion {
        AgentQuestion::Spec(ReadSpec { accounts: Some((&GrantScope::All).into()), ..ReadSpec::default() })
    }

    async fn ask(
        questions: &Questions,
        agent: &AgentId,
        question: AgentQuestion,
    ) -> Result<AgentAnswer, Unanswered> {
        let within = question.time_limit();
        questions.ask(agent, Epoch(0), question, within).await
    }

    fn agent(id: &str) -> AgentId {
        id.parse().expect("an agent id")
    }

    #[tokio::test]
    async fn an_answer_is_accepted_only_from_the_agent_that_was_asked() {
        let questions = Questions::default();
        let (one, other) = (agent("a1"), agent("a2"));
        assert_eq!(ask(&questions, &one, log_of_all_accounts()).await, Err(Unanswered::Away));
        let (outbox, mut asked, _cut) = SessionSender::for_session();
        questions.connected(&other, Epoch(1), &outbox, QuestionCapabilities::default());
        assert_eq!(ask(&questions, &other, log_of_all_accounts()).await, Err(Unanswered::TooOld));
        assert_eq!(ask(&questions, &other, spec_of_all_accounts()).await, Err(Unanswered::TooOld));

        let all = QuestionCapabilities { logs: true, specs: true, accounts: false };
        questions.connected(&one, Epoch(2), &outbox, all);
        let limited = ReadLog { accounts: Some((&GrantScope::default()).into()), ..ReadLog::default() };
        assert_eq!(ask(&questions, &one, AgentQuestion::Log(limited)).await, Err(Unanswered::Unchecked));
        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { ask(&questions, &one, log_of_all_accounts()).await }
        });
        let Some(Body::ReadLog(question)) = asked.recv().await else { panic!("a question") };
        let answer = |end| LogRead { id: question.id, end, ..LogRead::default() };
        for (agent, epoch, end) in [(&other, 1, 1), (&one, 1, 2), (&one, 2, 3), (&one, 2, 4)] {
            assert_eq!(questions.answered(agent, Epoch(epoch), AgentAnswer::Log(answer(end))), Ok(()));
        }
        assert_eq!(asking.await.expect("no panic"), Ok(AgentAnswer::Log(answer(3))));

        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { ask(&questions, &one, log_of_all_accounts()).await }
        });
        asked.recv().await.expect("a question");
        questions.gone(&one, Epoch(1));
        questions.gone(&one, Epoch(2));
        assert_eq!(asking.await.expect("no panic"), Err(Unanswered::Away));
        assert!(lock(&questions.inner.open).is_empty() && lock(&questions.inner.sessions).len() == 1);

        questions.connected(&one, Epoch(3), &outbox, all);
        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { ask(&questions, &one, spec_of_all_accounts()).await }
        });
        let Some(Body::ReadSpec(question)) = asked.recv().await else { panic!("a question") };
        let answer = SpecRead { id: question.id, spec: b"{}".to_vec(), ..SpecRead::default() };
        assert_eq!(questions.answered(&one, Epoch(3), AgentAnswer::Spec(answer.clone())), Ok(()));
        assert_eq!(asking.await.expect("no panic"), Ok(AgentAnswer::Spec(answer)));

        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { ask(&questions, &one, log(10)).await }
        });
        let Some(Body::ReadLog(question)) = asked.recv().await else { panic!("a question") };
        let answer = LogRead { id: question.id, bytes: vec![0; 11], ..LogRead::default() };
        assert!(
            questions.answered(&one, Epoch(3), AgentAnswer::Log(answer)).is_err(),
            "more than was asked for"
        );
        assert_eq!(asking.await.expect("no panic"), Err(Unanswered::Away));
    }

    #[tokio::test]
    async fn a_question_without_an_answer_times_out() {
        let questions = Questions::default();
        let (outbox, _asked, _cut) = SessionSender::for_session();
        let capabilities = QuestionCapabilities { logs: true, specs: true, accounts: false };
        questions.connected(&agent("a1"), Epoch(2), &outbox, capabilities);
        let (agent, soon) = (agent("a1"), Duration::from_millis(10));
        let answer = questions.ask(&agent, Epoch(2), log_of_all_accounts(), soon).await;
        assert_eq!(answer, Err(Unanswered::Silent));
        assert!(lock(&questions.inner.open).is_empty(), "the question was removed");
    }

    #[tokio::test]
    async fn a_session_from_before_the_one_that_was_meant_is_not_asked() {
        let questions = Questions::default();
        let (outbox, mut asked, _cut) = SessionSender::for_session();
        let capabilities = QuestionCapabilities { logs: true, specs: true, accounts: true };
        let agent = agent("a1");
        questions.connected(&agent, Epoch(5), &outbox, capabilities);
        let soon = Duration::from_millis(10);
        for (epoch, expected) in [(6, Unanswered::Away), (5, Unanswered::Silent), (4, Unanswered::Silent)] {
            let answer = questions.ask(&agent, Epoch(epoch), log_of_all_accounts(), soon).await;
            assert_eq!(answer, Err(expected), "{epoch}");
        }
        assert!(asked.try_recv().is_some() && asked.try_recv().is_some() && asked.try_recv().is_none());
    }
}
