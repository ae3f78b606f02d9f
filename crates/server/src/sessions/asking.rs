//! Questions to agents, wherever they are connected.
//!
//! A server that has its store to itself asks its own sessions. With other servers, the row of the agent's
//! last session names the server that holds it: this one, or another one, which is asked over the network. A
//! session may have moved since the row was read; the server that was asked then says so at once, and the row
//! is read again, once.

use super::questions::{AgentAnswer, AgentQuestion, Questions, Unanswered};
use crate::agent_limits;
use crate::peers::{PeerFault, Peers};
use procfleet_core::id::{AgentId, Epoch};
use procfleet_proto::link::{LogRead, ReadLog, ReadSpec, SpecRead};
use procfleet_proto::peer::{AskAgent, WhyUnanswered, ask_agent, peer_answer};
use procfleet_store::{ServerId, SessionRecord, Store, StoreError};
use std::time::Duration;
use tokio::time::Instant;

/// How often an agent is looked for.
const TRIES: usize = 2;
/// A session is in the store shortly before it takes questions: wait this long before the second attempt.
const OPENING: Duration = Duration::from_millis(300);

/// The handle that use cases have.
#[derive(Clone, Debug)]
pub struct AgentQuestions {
    here: Questions,
    store: Store,
    /// `None`: there are no other servers.
    peers: Option<Peers>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the agent has not answered")]
    Agent(Unanswered),
    #[error("the server that the agent is connected to has not answered")]
    Peer(#[from] PeerFault),
}

impl From<Unanswered> for AskError {
    fn from(unanswered: Unanswered) -> AskError {
        AskError::Agent(unanswered)
    }
}

impl AgentQuestions {
    pub fn new(here: Questions, store: Store, peers: Option<Peers>) -> AgentQuestions {
        AgentQuestions { here, store, peers }
    }

    /// The answer may have fewer bytes than the question asks for.
    pub async fn read_log(&self, agent: &AgentId, question: ReadLog) -> Result<LogRead, AskError> {
        match self.ask(agent, AgentQuestion::Log(question)).await? {
            AgentAnswer::Log(answer) => Ok(answer),
            AgentAnswer::Spec(_) => Err(Unanswered::Silent.into()),
        }
    }

    pub async fn read_spec(&self, agent: &AgentId, question: ReadSpec) -> Result<SpecRead, AskError> {
        match self.ask(agent, AgentQuestion::Spec(question)).await? {
            AgentAnswer::Spec(answer) => Ok(answer),
            AgentAnswer::Log(_) => Err(Unanswered::Silent.into()),
        }
    }

    async fn ask(&self, agent: &AgentId, question: AgentQuestion) -> Result<AgentAnswer, AskError> {
        let within = question.time_limit();
        let Some(peers) = &self.peers else {
            return Ok(self.here.ask(agent, Epoch(0), question, within).await?);
        };
        let deadline = Instant::now() + within;
        let mut asked: Option<(ServerId, Epoch)> = None;
        for _ in 0..TRIES {
            let session = self.session_of(agent).await?.ok_or(Unanswered::Away)?;
            let held = (session.holder, session.epoch);
            if asked == Some(held) {
                tokio::time::sleep(OPENING).await;
            }
            asked = Some(held);
            let within = deadline.saturating_duration_since(Instant::now());
            let answer = match session.holder == peers.run() {
                true => self
                    .here
                    .ask(agent, session.epoch, question.clone(), within)
                    .await
                    .map_err(AskError::from),
                false => ask_peer(peers, agent, &session, question.clone(), within).await,
            };
            match answer {
                Err(AskError::Agent(Unanswered::Away)) => {}
                answer => return answer,
            }
        }
        Err(Unanswered::Away.into())
    }

    /// The session of an agent that is connected to a living server.
    async fn session_of(&self, agent: &AgentId) -> Result<Option<SessionRecord>, StoreError> {
        let mut sessions = self.store.sessions_of(vec![agent.clone()]).await?;
        Ok(sessions.remove(agent).filter(|session| session.connected))
    }
}

/// Answers of other servers have the same limits as answers of agents.
async fn ask_peer(
    peers: &Peers,
    agent: &AgentId,
    session: &SessionRecord,
    question: AgentQuestion,
    within: Duration,
) -> Result<AgentAnswer, AskError> {
    let most = match &question {
        AgentQuestion::Log(question) => usize::try_from(question.most).unwrap_or(usize::MAX),
        AgentQuestion::Spec(_) => 0,
    };
    let asks_log = matches!(question, AgentQuestion::Log(_));
    let question = match question {
        AgentQuestion::Log(question) => ask_agent::Question::ReadLog(question),
        AgentQuestion::Spec(question) => ask_agent::Question::ReadSpec(question),
    };
    let ask = AskAgent { agent: agent.to_string(), epoch: session.epoch.0, question: Some(question) };
    let (answer, peer) = peers.ask(session.holder, ask, within).await?;
    match answer {
        peer_answer::Body::LogRead(mut answer) if asks_log => {
            agent_limits::check_log(&mut answer, most)
                .map_err(|excess| PeerFault::Garbled(peer, Box::new(excess)))?;
            Ok(AgentAnswer::Log(answer))
        }
        peer_answer::Body::SpecRead(mut answer) if !asks_log => {
            agent_limits::bound_spec_answer(&mut answer);
            Ok(AgentAnswer::Spec(answer))
        }
        peer_answer::Body::NotHere(_) => Err(Unanswered::Away.into()),
        peer_answer::Body::Unanswered(unanswered) => match unanswered.why() {
            WhyUnanswered::TooOld => Err(Unanswered::TooOld.into()),
            WhyUnanswered::Unchecked => Err(Unanswered::Unchecked.into()),
            // A newer server has more reasons; none of them is an answer.
            WhyUnanswered::Silent | WhyUnanswered::Other => Err(Unanswered::Silent.into()),
        },
        peer_answer::Body::LogRead(_)
        | peer_answer::Body::SpecRead(_)
        | peer_answer::Body::Alive(_)
        | peer_answer::Body::Busy(_)
        | peer_answer::Body::Refused(_) => Err(PeerFault::Garbled(peer, Box::new(WrongAnswer)).into()),
    }
}

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer to another question")]
struct WrongAnswer;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::tests::{Played, PlayedServer, ca, peers_of};
    use crate::session_channel::SessionSender;
    use crate::sessions::questions::QuestionCapabilities;
    use procfleet_core::grants::GrantScope;
    use procfleet_core::id::{BusinessId, CloudId};
    use procfleet_proto::link::server_message::Body;
    use procfleet_proto::peer::{AgentUnanswered, NotHere, PeerAlive, peer_question};
    use procfleet_store::{CertificateRecord, JoiningAgent, NewToken, Replaces, TokenUse};
    use tempfile::TempDir;

    const SECRET: [u8; 32] = [7; 32];

    /// A store in which this agent is connected, with the epoch 1 and to the server 0.
    async fn store() -> (Store, AgentId, TempDir) {
        let folder = tempfile::tempdir().expect("a temp folder");
        let store = Store::open(&folder.path().join("server.db")).await.expect("a new store");
        let agent: AgentId = "a1".parse().expect("an agent id");
        let token = NewToken {
            id: "t".to_owned(),
            secret_hash: SECRET,
            cloud: CloudId(0),
            business: BusinessId::DEFAULT,
            created_at: 0,
            expires_at: 1_000,
            uses: 1,
            replaces: Replaces::LostAgents,
            audit: None,
            ca: None,
        };
        store.create_token(token).await.expect("a token");
        let joining = JoiningAgent {
            agent: agent.clone(),
            ip: [10, 0, 0, 1].into(),
            certificate: CertificateRecord { sha256: [9; 32], ca: None, issued_at: None, expires_at: None },
            version: "0.1.0".to_owned(),
            from: [10, 0, 0, 1].into(),
        };
        let shown = TokenUse { id: "t".to_owned(), secret_hash: SECRET };
        store.join(shown, joining, 500).await.expect("no error").expect("joined");
        let epoch = store.agent_connected(&agent, "0.1.0", "{}", 600, Epoch(0)).await.expect("connected");
        assert_eq!(epoch, Epoch(1));
        (store, agent, folder)
    }

    fn question() -> ReadLog {
        ReadLog { most: 5, accounts: Some((&GrantScope::All).into()), ..ReadLog::default() }
    }

    fn log(bytes: &[u8]) -> LogRead {
        LogRead { bytes: bytes.to_vec(), ..LogRead::default() }
    }

    /// What the caller gets, and the epochs that the other server was asked for.
    async fn ask(answers: &[peer_answer::Body]) -> (Result<LogRead, AskError>, Vec<u64>) {
        let ((ca, _ca_folder), (store, agent, _folder)) = (ca(), store().await);
        let answers = answers.iter().cloned().map(Played::Answer).collect();
        let played = PlayedServer::start(&ca, ServerId(0), answers).await;
        let peers = peers_of(&ca, 1, &[(0, &played.url)]);
        let questions = AgentQuestions::new(Questions::default(), store, Some(peers));
        let answer = questions.read_log(&agent, question()).await;
        let asked = played.questions.lock().expect("no panic").clone();
        let epochs = asked.into_iter().map(|(question, _)| match question {
            peer_question::Body::AskAgent(ask) => ask.epoch,
            peer_question::Body::AskAlive(_) => panic!("not asked here"),
        });
        (answer, epochs.collect())
    }

    #[tokio::test]
    async fn the_answer_of_the_server_that_holds_the_agent_is_the_agents() {
        let (answer, asked) = ask(&[peer_answer::Body::LogRead(log(b"line\n"))]).await;
        assert_eq!((answer.expect("an answer"), asked), (log(b"line\n"), vec![1]));
        let refused = LogRead { code: 837, message: "not yours".to_owned(), ..LogRead::default() };
        let (answer, _) = ask(&[peer_answer::Body::LogRead(refused.clone())]).await;
        assert_eq!(answer.expect("an answer"), refused, "the agent's own refusal");
        for (why, expected) in [
            (1, Unanswered::TooOld),
            (2, Unanswered::Unchecked),
            (3, Unanswered::Silent),
            (99, Unanswered::Silent),
        ] {
            let (answer, asked) = ask(&[peer_answer::Body::Unanswered(AgentUnanswered { why })]).await;
            assert!(matches!(answer, Err(AskError::Agent(found)) if found == expected), "{why}: {answer:?}");
            assert_eq!(asked, [1]);
        }
    }

    #[tokio::test]
    async fn an_agent_that_has_moved_is_looked_for_once_more() {
        let not_here = || peer_answer::Body::NotHere(NotHere {});
        let (answer, asked) = ask(&[not_here(), peer_answer::Body::LogRead(log(b"line\n"))]).await;
        assert_eq!((answer.expect("an answer"), asked), (log(b"line\n"), vec![1, 1]));
        let (answer, asked) = ask(&[not_here(), not_here()]).await;
        assert!(matches!(answer, Err(AskError::Agent(Unanswered::Away))), "{answer:?}");
        assert_eq!(asked, [1, 1]);
    }

    #[tokio::test]
    async fn an_answer_beyond_the_limits_or_to_another_question_is_the_servers_fault() {
        for (answer, reason) in [
            (peer_answer::Body::LogRead(log(b"more\nthan\n")), "more of a log than was asked for"),
            (
                peer_answer::Body::LogRead(LogRead { begin: u64::MAX, ..LogRead::default() }),
                "an offset in a log",
            ),
            (peer_answer::Body::SpecRead(SpecRead::default()), "the answer to another question"),
            (peer_answer::Body::Alive(PeerAlive { may_act: true }), "the answer to another question"),
        ] {
            let (found, _) = ask(std::slice::from_ref(&answer)).await;
            let Err(AskError::Peer(fault)) = found else { panic!("{answer:?}: {found:?}") };
            let text = fault.with_causes();
            assert!(text.contains("server 0 at 127.0.0.1") && text.contains(reason), "{text}");
        }
    }

    #[tokio::test]
    async fn an_agent_that_is_connected_here_is_asked_directly() {
        let ((ca, _ca_folder), (store, agent, _folder)) = (ca(), store().await);
        let here = Questions::default();
        let (outbox, mut asked, _cut) = SessionSender::for_session();
        let capabilities = QuestionCapabilities { logs: true, specs: true, accounts: true };
        here.connected(&agent, Epoch(1), &outbox, capabilities);
        // Server 0 is this one; nobody listens at its address.
        let peers = peers_of(&ca, 0, &[(0, "https://127.0.0.1:1")]);
        let questions = AgentQuestions::new(here.clone(), store, Some(peers));
        let asking = tokio::spawn({
            let agent = agent.clone();
            async move { questions.read_log(&agent, question()).await }
        });
        let Some(Body::ReadLog(seen)) = asked.recv().await else { panic!("a question") };
        let answer = LogRead { id: seen.id, ..log(b"line\n") };
        here.answered(&agent, Epoch(1), AgentAnswer::Log(answer.clone())).expect("within the limits");
        assert_eq!(asking.await.expect("no panic").expect("an answer"), answer);
    }
}
