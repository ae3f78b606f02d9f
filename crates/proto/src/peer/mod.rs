//! The messages between the servers of one store: one WebSocket binary frame each, prost-encoded.
//!
//! A server asks another one about an agent that is connected there, or whether it still reaches the
//! database. Each question has one answer, and a connection carries one question at a time. A question runs,
//! stores and repeats nothing. Times are durations: the clocks of two servers are never compared.
//!
//! A receiver that does not know a kind of question answers [`Refused`](peer_answer::Body::Refused), so
//! servers of adjacent versions run side by side.

mod convert;

pub use convert::{decode_answer, decode_question};

use crate::link::{LogRead, ReadLog, ReadSpec, SpecRead};

/// The path on the server's link port.
pub const PEER_PATH: &str = "/peer/v1";
/// The name of every server for other servers. A client asks for it in its TLS hello (SNI), and so gets the
/// certificate of the server's run instead of the one for agents.
pub const PEER_NAME: &str = "procfleet-peer";

/// From the server that asks.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PeerQuestion {
    /// How long the asking server waits for the answer.
    #[prost(uint64, tag = "1")]
    pub within_ms: u64,
    #[prost(oneof = "peer_question::Body", tags = "2, 3")]
    pub body: Option<peer_question::Body>,
}

pub mod peer_question {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        #[prost(message, tag = "2")]
        AskAgent(super::AskAgent),
        #[prost(message, tag = "3")]
        AskAlive(super::AskAlive),
    }
}

/// A question to an agent, which the receiver passes on. The asking server has checked the caller's rights;
/// the OS accounts that remain to be checked on the host are in the question, and must be stated.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AskAgent {
    #[prost(string, tag = "1")]
    pub agent: String,
    /// The session that the asking server has found in the store.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(oneof = "ask_agent::Question", tags = "3, 4")]
    pub question: Option<ask_agent::Question>,
}

pub mod ask_agent {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Question {
        #[prost(message, tag = "3")]
        ReadLog(super::ReadLog),
        #[prost(message, tag = "4")]
        ReadSpec(super::ReadSpec),
    }
}

/// Asks whether the receiver reaches the database.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct AskAlive {}

/// From the server that was asked.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PeerAnswer {
    #[prost(oneof = "peer_answer::Body", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub body: Option<peer_answer::Body>,
}

pub mod peer_answer {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub enum Body {
        #[prost(message, tag = "1")]
        LogRead(super::LogRead),
        #[prost(message, tag = "2")]
        SpecRead(super::SpecRead),
        #[prost(message, tag = "3")]
        NotHere(super::NotHere),
        #[prost(message, tag = "4")]
        Busy(super::PeerBusy),
        #[prost(message, tag = "5")]
        Unanswered(super::AgentUnanswered),
        #[prost(message, tag = "6")]
        Alive(super::PeerAlive),
        #[prost(message, tag = "7")]
        Refused(super::PeerRefused),
    }
}

/// The agent has no such session here, or the session has just ended.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct NotHere {}

/// The server answers as many questions of other servers as it can. Nothing was asked.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PeerBusy {}

/// The agent is connected, and there is no answer.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct AgentUnanswered {
    #[prost(enumeration = "WhyUnanswered", tag = "1")]
    pub why: i32,
}

/// Why an agent that is connected gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum WhyUnanswered {
    /// A reason that the reader's version does not know.
    Other = 0,
    /// The agent's version does not know the question.
    TooOld = 1,
    /// The agent's version does not record which OS account wrote a log.
    Unchecked = 2,
    /// The agent did not answer in time.
    Silent = 3,
}

/// The answer to [`AskAlive`].
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct PeerAlive {
    /// Whether the database has confirmed a beat of the answering server within the last seconds.
    #[prost(bool, tag = "1")]
    pub may_act: bool,
}

/// The question is not answered. The reason is for the caller and the log.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PeerRefused {
    #[prost(string, tag = "1")]
    pub reason: String,
}
