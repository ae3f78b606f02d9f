//! `--proxy`: what goes wrong with a proxy is said as such, and nothing of its login is printed.

use crate::server::{Server, ok};
use crate::{Ran, run_with_input};
use procfleet_cli::VerbExit;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

const LOGIN: &str = "zoe:hush%40home";

/// A proxy that gives this answer to its first connection, and returns the request.
fn proxy(answer: String) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a whole request");
            request.push(byte[0]);
        }
        // The client may have hung up before it has read everything.
        let _ = stream.write_all(answer.as_bytes());
        String::from_utf8(request).expect("a text")
    });
    (address, thread)
}

#[track_caller]
fn check_secrets(ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        assert!(!text.contains("zoe") && !text.contains("hush"), "{text}");
    }
}

#[test]
fn errors_of_a_proxy_name_it_and_their_reason() {
    for (answer, reason) in [
        ("HTTP/1.1 407 Who?\r\n\r\n", "the proxy refuses its user or password (407)"),
        (
            "HTTP/1.1 403 Forbidden\r\n\r\n",
            "the proxy does not allow a tunnel to the server's port (403); allow CONNECT to it",
        ),
        ("HTTP/1.1 502 Bad Gateway\r\n\r\n", "the proxy cannot reach the server (502)"),
        ("HTTP/1.1 400 Bad Request\r\n\r\nzoe:hush", "the proxy refuses a tunnel (400)"),
        ("SSH-2.0-OpenSSH_9.2p1\r\n", "what listens there does not answer as an HTTP proxy"),
        ("HTTP/1.1 200 OK\r\n", "the proxy closed the connection without an answer"),
        ("", "the proxy closed the connection without an answer"),
        (
            &format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(200_000)),
            "the proxy's reply is longer than 8192 bytes",
        ),
    ] {
        for url in ["http://fleet.invalid:52030", "https://fleet.invalid:52030"] {
            let (address, thread) = proxy(answer.to_owned());
            let ran = run_with_input(
                url,
                &format!("stop web --namespace x --host 0:10.0.0.1 --proxy http://{LOGIN}@{address}"),
                "",
            );
            let request = thread.join().expect("no panic");
            assert_eq!(
                request,
                "CONNECT fleet.invalid:52030 HTTP/1.1\r\nHost: fleet.invalid:52030\r\n\
                 Proxy-Authorization: Basic em9lOmh1c2hAaG9tZQ==\r\n\r\n"
            );
            let expected =
                format!("error: cannot reach {url} through the proxy http://{address}: {reason}\n");
            assert_eq!((ran.exit, ran.err.as_str()), (VerbExit::Unreachable, expected.as_str()));
            check_secrets(&ran);
        }
    }
}

#[test]
fn a_proxy_that_wants_a_login_is_reported() {
    let (address, thread) = proxy("HTTP/1.1 407 Who?\r\n\r\n".to_owned());
    let ran = run_with_input("http://fleet.invalid", &format!("ps --proxy http://{address}"), "");
    let request = thread.join().expect("no panic");
    assert!(!request.contains("Authorization"), "{request}");
    assert!(
        ran.err
            .ends_with("the proxy wants a user and a password (407); give http://USER:PASSWORD@HOST:PORT\n"),
        "{}",
        ran.err
    );
}

#[test]
fn an_unreachable_or_unknown_proxy_is_reported_as_such() {
    // No name server is asked about a label of more than 63 letters.
    let unknown = format!("{}:3128", "x".repeat(64));
    for (proxy, reason) in
        [("127.0.0.1:1", "connection refused"), (&unknown, "failed to lookup address information: ")]
    {
        let ran = run_with_input("http://127.0.0.1:2", &format!("ps --proxy http://{LOGIN}@{proxy}"), "");
        let expected =
            format!("error: cannot reach http://127.0.0.1:2 through the proxy http://{proxy}: {reason}");
        assert!(ran.exit == VerbExit::Unreachable && ran.err.starts_with(&expected), "{}", ran.err);
        check_secrets(&ran);
    }
}

#[test]
fn a_proxy_url_that_cannot_be_used_is_a_usage_error_without_its_value() {
    for bad in [
        "https://zoe:hush@proxy:3128",
        "socks5://zoe:hush@proxy:1080",
        "zoe:hush@proxy:3128",
        "http://zoe:hush@",
    ] {
        let ran = run_with_input("http://127.0.0.1:2", &format!("ps --proxy {bad}"), "");
        assert_eq!(ran.exit, VerbExit::Usage);
        assert!(ran.err.starts_with("error: --proxy: expected http://HOST:PORT"), "{}", ran.err);
        check_secrets(&ran);
    }
}

/// The request goes to the proxy alone, even if the url's host could be reached.
#[test]
fn a_given_proxy_is_not_bypassed() {
    let server = Server::start([("GET /api/v1/procs", vec![ok(serde_json::json!([]))])]);
    let ran = run_with_input(&server.url(), "ps --proxy http://127.0.0.1:1", "");
    assert_eq!((ran.exit, server.lines().len()), (VerbExit::Unreachable, 0), "{}", ran.err);
}
