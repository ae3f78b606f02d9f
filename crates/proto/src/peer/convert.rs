//! Reading and writing the messages.

use super::{
    AgentUnanswered, AskAgent, PeerAnswer, PeerQuestion, WhyUnanswered, ask_agent, peer_answer, peer_question,
};
use crate::link::{BadMessage, OmittedAccounts};
use procfleet_core::grants::GrantScope;
use prost::Message;
use std::time::Duration;

/// The question, and how long the asking server waits.
pub fn decode_question(bytes: &[u8]) -> Result<(peer_question::Body, Duration), BadMessage> {
    let question = PeerQuestion::decode(bytes)?;
    let body = question.body.ok_or(without_body(bytes))?;
    Ok((body, Duration::from_millis(question.within_ms)))
}

pub fn decode_answer(bytes: &[u8]) -> Result<peer_answer::Body, BadMessage> {
    PeerAnswer::decode(bytes)?.body.ok_or(without_body(bytes))
}

/// As on the link: a newer kind of message has bytes and no body.
fn without_body(bytes: &[u8]) -> BadMessage {
    if bytes.is_empty() { BadMessage::Empty } else { BadMessage::Unknown }
}

impl peer_question::Body {
    pub fn into_bytes(self, within: Duration) -> Vec<u8> {
        let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
        PeerQuestion { within_ms, body: Some(self) }.encode_to_vec()
    }
}

impl peer_answer::Body {
    pub fn into_bytes(self) -> Vec<u8> {
        PeerAnswer { body: Some(self) }.encode_to_vec()
    }
}

impl AskAgent {
    /// The question, if its kind is known and it states the OS accounts that it is limited to. A question
    /// that forgets them must not be taken for one of everybody.
    pub fn limited_question(self) -> Result<ask_agent::Question, BadMessage> {
        let question = self.question.ok_or(BadMessage::Unknown)?;
        question.accounts()?;
        Ok(question)
    }
}

impl ask_agent::Question {
    fn accounts(&self) -> Result<GrantScope<String>, BadMessage> {
        match self {
            ask_agent::Question::ReadLog(question) => question.readable_accounts(OmittedAccounts::AreRefused),
            ask_agent::Question::ReadSpec(question) => {
                question.readable_accounts(OmittedAccounts::AreRefused)
            }
        }
    }
}

impl From<WhyUnanswered> for peer_answer::Body {
    fn from(why: WhyUnanswered) -> Self {
        peer_answer::Body::Unanswered(AgentUnanswered { why: why.into() })
    }
}
