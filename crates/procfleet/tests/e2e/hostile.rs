//! Peers that mean no good, or do not know what they do.

use crate::up;
use procfleet_testkit::{Op, programs};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Connections that ask for nothing are let go after a while, and until then they do not take the agent's place.
#[test]
fn idle_connections_are_closed_and_harm_nobody() {
    let up = up();
    let address = up.client.url.strip_prefix("http://").expect("an http url").to_owned();
    let connect = || {
        let stream = TcpStream::connect(&address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("our own socket");
        stream
    };
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    let mut half = connect();
    half.write_all(b"POST /api/v2/proc/operate_proc_v2 HTTP/1.1\r\nHost: x\r\nContent-Le").expect("it reads");
    let mut stalled = connect();
    stalled
        .write_all(b"POST /api/v2/proc/operate_proc_v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        .expect("it reads");
    up.proc("meanwhile").starts(&programs::foreground()).op(Op::Start).assert_success();

    let mut answer = String::new();
    stalled.read_to_string(&mut answer).expect("it is answered and closed");
    assert!(answer.contains("the body broke off"), "{answer}");
    let mut rest = Vec::new();
    half.read_to_end(&mut rest).expect("it is closed");
    assert!(silent.iter_mut().all(|stream| matches!(stream.read(&mut [0; 64]), Ok(0))), "all are closed");
}
