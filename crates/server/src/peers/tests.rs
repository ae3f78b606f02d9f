//! Questions to a server that a test plays.

use super::*;
use crate::pki::CaStart;
use futures_util::{SinkExt, StreamExt};
use procfleet_proto::link::{LogRead, MAX_FRAME};
use procfleet_proto::peer::{NotHere, PeerAlive, PeerBusy, PeerRefused, decode_question};
use procfleet_store::LivingServer;
use procfleet_store::clock::BootNumber;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::Message;

/// A server that gives these answers, one to each question, on however many connections.
#[derive(Debug)]
pub(crate) struct PlayedServer {
    pub(crate) url: String,
    /// The questions that arrived, and how long the asking server waits.
    pub(crate) questions: Arc<Mutex<Vec<(peer_question::Body, Duration)>>>,
    connections: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

#[derive(Clone, Debug)]
pub(crate) enum Played {
    Answer(peer_answer::Body),
    Bytes(Vec<u8>),
    Text,
    Nothing,
    /// Answers, and closes the connection.
    AnswerAndLeave(peer_answer::Body),
}

impl PlayedServer {
    pub(crate) async fn start(ca: &Arc<Ca>, run: ServerId, answers: Vec<Played>) -> PlayedServer {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("https://{}", listener.local_addr().expect("bound"));
        let acceptor =
            TlsAcceptor::from(ca.sign_run(run, clock()).expect("signed").server_tls().expect("TLS"));
        let (questions, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let answers = Arc::new(Mutex::new(answers.into_iter()));
        let mut serving = JoinSet::new();
        let (seen, count) = (questions.clone(), connections.clone());
        serving.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answers, seen, count) =
                    (acceptor.clone(), answers.clone(), seen.clone(), count.clone());
                open.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else { return };
                    count.fetch_add(1, Ordering::SeqCst);
                    while let Some(Ok(Message::Binary(bytes))) = socket.next().await {
                        seen.lock().expect("no panic").push(decode_question(&bytes).expect("a question"));
                        let answer = answers.lock().expect("no panic").next().expect("an answer");
                        let message = match answer.clone() {
                            Played::Answer(body) | Played::AnswerAndLeave(body) => {
                                Message::Binary(body.into_bytes().into())
                            }
                            Played::Bytes(bytes) => Message::Binary(bytes.into()),
                            Played::Text => Message::Text("hello".into()),
                            Played::Nothing => std::future::pending().await,
                        };
                        let _ = socket.send(message).await;
                        if matches!(answer, Played::AnswerAndLeave(_)) {
                            return;
                        }
                    }
                });
            }
        });
        PlayedServer { url, questions, connections, _serving: serving }
    }
}

pub(crate) fn clock() -> Clock {
    Clock::start(BootNumber(1))
}

pub(crate) fn ca() -> (Arc<Ca>, TempDir) {
    let folder = tempfile::tempdir().expect("a temp dir");
    let life = Duration::from_secs(60);
    let ca = Ca::open(folder.path(), life, CaStart::AfterHosts(0), None).expect("a CA");
    (Arc::new(ca), folder)
}

/// The handle of the server `run`, which sees these servers as alive.
pub(crate) fn peers_of(ca: &Arc<Ca>, run: i64, alive: &[(i64, &str)]) -> Peers {
    peers_within(PATIENCE, ca, run, alive)
}

fn peers_within(limit: Duration, ca: &Arc<Ca>, run: i64, alive: &[(i64, &str)]) -> Peers {
    let living = |url: &str| LivingServer { url: url.to_owned(), agents: 0, drains: false };
    let alive = alive.iter().map(|(server, url)| (ServerId(*server), living(url))).collect();
    let view = MembershipView { run: ServerId(run), alive, ..MembershipView::default() };
    let limits = TimeLimits { connect: limit, alive: limit };
    Peers::within(limits, watch::channel(view).1, ca.clone(), clock())
}

const PATIENCE: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_millis(20);

fn log() -> peer_answer::Body {
    peer_answer::Body::LogRead(LogRead { bytes: b"line\n".to_vec(), ..LogRead::default() })
}

fn question() -> AskAgent {
    AskAgent { agent: "a1".to_owned(), epoch: 7, question: None }
}

#[tokio::test]
async fn a_connection_is_used_again_and_replaced_when_it_was_closed_meanwhile() {
    let (ca, _folder) = ca();
    let answers = [
        Played::Answer(log()),
        Played::Answer(peer_answer::Body::NotHere(NotHere {})),
        Played::AnswerAndLeave(log()),
        Played::Answer(log()),
    ];
    let played = PlayedServer::start(&ca, ServerId(2), answers.into()).await;
    let peers = peers_of(&ca, 1, &[(1, "https://127.0.0.1:1"), (2, &played.url)]);
    for (expected, connections) in
        [(log(), 1), (peer_answer::Body::NotHere(NotHere {}), 1), (log(), 1), (log(), 2)]
    {
        let (answer, peer) = peers.ask(ServerId(2), question(), PATIENCE).await.expect("an answer");
        assert_eq!((answer, peer.server), (expected, ServerId(2)));
        assert_eq!(played.connections.load(Ordering::SeqCst), connections);
    }
    let questions = played.questions.lock().expect("no panic").clone();
    for (asked, within) in questions {
        assert_eq!(asked, peer_question::Body::AskAgent(question()));
        assert!(within <= PATIENCE, "what is left of the time is passed on: {within:?}");
    }
}

#[tokio::test]
async fn a_server_that_gives_no_usable_answer_is_named_with_the_reason() {
    let (ca, _folder) = ca();
    for (answer, reason) in [
        (Played::Bytes(b"\xff\xff\xff".to_vec()), "sent an answer that this server does not understand"),
        (Played::Bytes(Vec::new()), "sent an answer that this server does not understand"),
        // Field 15 of a newer version.
        (Played::Bytes(vec![0x7a, 1, 1]), "a message of a kind that this version does not know"),
        (Played::Bytes(vec![0; MAX_FRAME + 1]), "above the size limit"),
        (Played::Text, "a text message; this protocol is binary"),
        (Played::Nothing, "did not answer in time"),
        (
            Played::Answer(peer_answer::Body::Busy(PeerBusy {})),
            "answers as many questions of other servers as it can",
        ),
        (
            Played::Answer(peer_answer::Body::Refused(PeerRefused { reason: "no such day".to_owned() })),
            "refused the question: no such day",
        ),
    ] {
        let played = PlayedServer::start(&ca, ServerId(2), vec![answer.clone()]).await;
        let peers = peers_of(&ca, 1, &[(2, &played.url)]);
        let fault =
            peers.ask(ServerId(2), question(), Duration::from_millis(20)).await.expect_err("no answer");
        let text = fault.with_causes();
        let name = format!("server 2 at {}", played.url.trim_start_matches("https://"));
        assert!(text.contains(&name) && text.contains(reason), "{answer:?}: {text}");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_named_with_the_reason() {
    let (ca, _folder) = ca();
    let other = PlayedServer::start(&ca, ServerId(3), vec![Played::Answer(log())]).await;
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let urls = [format!("https://{free}"), format!("https://{}", silent.local_addr().expect("bound"))];
    let known = [(2, other.url.as_str()), (3, ""), (4, &urls[0]), (5, &urls[1])];
    for (server, reason) in [
        (2, "one side does not take the other for a server of its fleet"),
        (3, "start it with --advertise https://HOST:PORT"),
        (4, "Connection refused"),
        (5, "did not let this server connect within 20ms"),
        (6, "is not alive"),
    ] {
        let peers = peers_within(if server == 5 { SOON } else { PATIENCE }, &ca, 1, &known);
        let fault = peers.ask(ServerId(server), question(), PATIENCE).await.expect_err("no answer");
        let text = fault.with_causes();
        assert!(text.contains(&format!("server {server} ")) && text.contains(reason), "{text}");
    }
    assert!(
        other.questions.lock().expect("no panic").is_empty(),
        "a server behind a wrong address gets no question"
    );
}

#[tokio::test]
async fn one_server_that_holds_is_enough() {
    let (ca, _folder) = ca();
    let alive = |may_act| Played::Answer(peer_answer::Body::Alive(PeerAlive { may_act }));
    for (answers, holder) in [
        (vec![alive(false), alive(true)], Some(3)),
        (vec![alive(false), alive(false)], None),
        (vec![Played::Bytes(b"\xff".to_vec()), alive(true)], Some(3)),
        (vec![Played::Answer(log()), Played::Nothing], None),
    ] {
        let mut played = Vec::new();
        for (answer, run) in answers.iter().zip([2, 3]) {
            // Another run than the one that was last seen: the server has started again meanwhile.
            played.push(PlayedServer::start(&ca, ServerId(run + 10), vec![answer.clone()]).await);
        }
        let known = [(1, "https://127.0.0.1:1"), (2, &played[0].url), (3, &played[1].url), (4, "")];
        let limit = if holder.is_some() { PATIENCE } else { SOON };
        let found =
            peers_within(limit, &ca, 1, &known).peer_that_reaches_database().await.map(|peer| peer.server.0);
        assert_eq!(found, holder, "{answers:?}");
    }
}

#[tokio::test]
async fn a_certificate_is_made_again_for_another_run_and_after_a_change_of_the_ca() {
    let (ca, _folder) = ca();
    let (view, seen) = watch::channel(MembershipView { run: ServerId(1), ..MembershipView::default() });
    let peers = Peers::new(seen, ca.clone(), clock());
    let first = peers.server_tls().expect("TLS");
    assert!(Arc::ptr_eq(&first, &peers.server_tls().expect("TLS")), "it is kept");
    view.send_modify(|view| view.run = ServerId(2));
    let second = peers.server_tls().expect("TLS");
    assert!(!Arc::ptr_eq(&first, &second));
    let prepared = ca.prepare_successor().expect("no error").expect("a successor");
    ca.adopt(prepared).expect("adopted");
    assert!(!Arc::ptr_eq(&second, &peers.server_tls().expect("TLS")));
}
