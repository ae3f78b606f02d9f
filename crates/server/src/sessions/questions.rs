//! Questions to agents that are not ops: logs and specs. They are not stored; the caller waits for a bounded
//! time.
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

    /// The answer may have fewer bytes than the question asks for: on a slow link it would not arrive in time
    /// otherwise. After an answer that was late, the next ones are shorter.
    pub async fn ask(&self, agent: &AgentId, question: ReadLog) -> Result<LogRead, Unanswered> {
        let timeout = TIMEOUT + Duration::from_millis(question.wait_ms);
        self.ask_within(timeout, agent, question).await
    }

    async fn ask_within(
        &self,
        timeout: Duration,
        agent: &AgentId,
        question: ReadLog,
    ) -> Result<LogRead, Unanswered> {
        let is_limited = question.accounts.as_ref().is_none_or(|accounts| !accounts.scope().is_all());
        let check = move |capabilities: QuestionCapabilities| match capabilities {
            QuestionCapabilities { logs: false, .. } => Err(Unanswered::TooOld),
            QuestionCapabilities { accounts: false, .. } if is_limited => Err(Unanswered::Unchecked),
            QuestionCapabilities { .. } => Ok(()),
        };
        let body = |id, page| {
            let most = question.most.min(u32::try_from(page).unwrap_or(u32::MAX));
            Body::ReadLog(ReadLog { id, most, ..question })
        };
        match self.answer_within(timeout, agent, check, body).await? {
            AgentAnswer::Log(answer) => Ok(answer),
            AgentAnswer::Spec(_) => Err(Unanswered::Silent),
        }
    }

    pub async fn ask_spec(&self, agent: &AgentId, question: ReadSpec) -> Result<SpecRead, Unanswered> {
        let is_limited = question.accounts.as_ref().is_none_or(|accounts| !accounts.scope().is_all());
        let body = |id, _page| Body::ReadSpec(ReadSpec { id, ..question });
        let check = move |capabilities: QuestionCapabilities| match capabilities {
            QuestionCapabilities { specs: true, accounts, .. } if accounts || !is_limited => Ok(()),
            QuestionCapabilities { .. } => Err(Unanswered::TooOld),
        };
        match self.answer_within(TIMEOUT, agent, check, body).await? {
            AgentAnswer::Spec(answer) => Ok(answer),
            AgentAnswer::Log(_) => Err(Unanswered::Silent),
        }
    }

    async fn answer_within(
        &self,
        timeout: Duration,
        agent: &AgentId,
        check: impl FnOnce(QuestionCapabilities) -> Result<(), Unanswered>,
        body: impl FnOnce(u64, usize) -> Body,
    ) -> Result<AgentAnswer, Unanswered> {
        let session = lock(&self.inner.sessions).get(agent).cloned().ok_or(Unanswered::Away)?;
        let answer = tokio::time::timeout(timeout, self.answer_to(agent, &session, check, body)).await;
        answer.unwrap_or_else(|_| {
            lock(&session.page).answered_after(timeout);
            Err(Unanswered::Silent)
        })
    }

    async fn answer_to(
        &self,
        agent: &AgentId,
        session: &AskedSession,
        check: impl FnOnce(QuestionCapabilities) -> Result<(), Unanswered>,
        body: impl FnOnce(u64, usize) -> Body,
    ) -> Result<AgentAnswer, Unanswered> {
        check(session.capabilities)?;
        let _permit = session.permits.acquire().await.map_err(|_| Unanswered::Away)?;
        let id = self.inner.number.fetch_add(1, Ordering::Relaxed);
        let (answer, answered) = oneshot::channel();
        let page = lock(&session.page).share(AT_ONCE.saturating_sub(session.permits.available_permits()));
        let question = body(id, page);
        let (most, waits) = match &question {
            Body::ReadLog(question) => {
                (usize::try_from(question.most).unwrap_or(usize::MAX), question.wait_ms > 0)
            }
            _ => (0, true),
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfleet_core::grants::GrantScope;

    fn log_of_all_accounts() -> ReadLog {
        ReadLog { accounts: Some((&GrantScope::All).into()), ..ReadLog::default() }
    }

    fn spec_of_all_accounts() -> ReadSpec {
        ReadSpec { accounts: Some((&GrantScope::All).into()), ..ReadSpec::default() }
    }

    fn agent(id: &str) -> AgentId {
        id.parse().expect("an agent id")
    }

    #[tokio::test]
    async fn an_answer_is_accepted_only_from_the_agent_that_was_asked() {
        let questions = Questions::default();
        let (one, other) = (agent("a1"), agent("a2"));
        assert_eq!(questions.ask(&one, log_of_all_accounts()).await, Err(Unanswered::Away));
        let (outbox, mut asked, _cut) = SessionSender::for_session();
        questions.connected(&other, Epoch(1), &outbox, QuestionCapabilities::default());
        assert_eq!(questions.ask(&other, log_of_all_accounts()).await, Err(Unanswered::TooOld));
        assert_eq!(questions.ask_spec(&other, spec_of_all_accounts()).await, Err(Unanswered::TooOld));

        let all = QuestionCapabilities { logs: true, specs: true, accounts: false };
        questions.connected(&one, Epoch(2), &outbox, all);
        let limited = ReadLog { accounts: Some((&GrantScope::default()).into()), ..ReadLog::default() };
        assert_eq!(questions.ask(&one, limited).await, Err(Unanswered::Unchecked));
        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { questions.ask(&one, log_of_all_accounts()).await }
        });
        let Some(Body::ReadLog(question)) = asked.recv().await else { panic!("a question") };
        let answer = |end| LogRead { id: question.id, end, ..LogRead::default() };
        for (agent, epoch, end) in [(&other, 1, 1), (&one, 1, 2), (&one, 2, 3), (&one, 2, 4)] {
            assert_eq!(questions.answered(agent, Epoch(epoch), AgentAnswer::Log(answer(end))), Ok(()));
        }
        assert_eq!(asking.await.expect("no panic"), Ok(answer(3)));

        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { questions.ask(&one, log_of_all_accounts()).await }
        });
        asked.recv().await.expect("a question");
        questions.gone(&one, Epoch(1));
        questions.gone(&one, Epoch(2));
        assert_eq!(asking.await.expect("no panic"), Err(Unanswered::Away));
        assert!(lock(&questions.inner.open).is_empty() && lock(&questions.inner.sessions).len() == 1);

        questions.connected(&one, Epoch(3), &outbox, all);
        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { questions.ask_spec(&one, spec_of_all_accounts()).await }
        });
        let Some(Body::ReadSpec(question)) = asked.recv().await else { panic!("a question") };
        let answer = SpecRead { id: question.id, spec: b"{}".to_vec(), ..SpecRead::default() };
        assert_eq!(questions.answered(&one, Epoch(3), AgentAnswer::Spec(answer.clone())), Ok(()));
        assert_eq!(asking.await.expect("no panic"), Ok(answer));

        let asking = tokio::spawn({
            let (questions, one) = (questions.clone(), one.clone());
            async move { questions.ask(&one, ReadLog { most: 10, ..log_of_all_accounts() }).await }
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
        assert_eq!(questions.ask_within(soon, &agent, log_of_all_accounts()).await, Err(Unanswered::Silent));
        assert!(lock(&questions.inner.open).is_empty(), "the question was removed");
    }
}
