//! Agents behind an HTTP proxy.

use crate::up;
use procfleet_testkit::{ConnectProxy, Joined, PATIENCE, Program, ProxyManner, Signal, Up, wait_until};
use std::fs;
use std::path::Path;

const IP: &str = "127.0.0.2";
/// A name that only the proxy can resolve.
const SERVER: &str = "https://s1.fleet.invalid:48668";
/// `me:pa@ss` for `Proxy-Authorization`.
const LOGIN: &str = "Basic bWU6cGFAc3M=";

/// The proxy's list of names.
fn names(up: &Up) -> Vec<(String, String)> {
    let server = up.link().trim_start_matches("https://").to_owned();
    vec![("s1.fleet.invalid:48668".to_owned(), server)]
}

fn start(up: &Up, servers: &str, proxy: &str, token: Option<&str>) -> Joined {
    let environment = [("PROCFLEET_PROXY", Path::new(proxy))];
    Joined::start_with(up.binary(), servers, &up.folder("second"), IP, token, &environment)
}

#[test]
fn an_agent_joins_and_works_through_a_proxy_that_resolves_the_name() {
    let up = up();
    let proxy = ConnectProxy::open(ProxyManner::Forwards(names(&up)));
    let servers = format!("https://dead.fleet.invalid:1,{SERVER}");
    let proxy_url = format!("http://{}", proxy.address());
    let mut agent = start(&up, &servers, &proxy_url, Some(&up.token(&["--uses", "1"])));
    agent.wait_until_connected(&up, IP);
    let request = "CONNECT s1.fleet.invalid:48668 HTTP/1.1\r\nHost: s1.fleet.invalid:48668\r\n\r\n";
    let requests = proxy.requests();
    let good = requests.iter().filter(|seen| *seen == request).count();
    assert!(good >= 2, "to join, and to connect: {requests:?}");
    assert!(requests.iter().all(|seen| seen == request || seen.starts_with("CONNECT dead.")), "{requests:?}");
    let log = agent.stderr();
    assert!(
        !log.contains("CONNECT")
            || log
                .contains(&format!("asking the proxy {proxy_url}: the proxy cannot reach the server (502)")),
        "{log}"
    );
}

#[test]
fn the_password_of_a_proxy_does_not_stay_in_the_command_line_or_the_log() {
    let up = up();
    let proxy = ConnectProxy::open(ProxyManner::AsksForLogin(LOGIN.to_owned(), names(&up)));
    let url = format!("http://me:pa%40ss@{}", proxy.address());
    let mut agent = Program::new(up.binary())
        .args(["agent", "--server", SERVER, "--proxy", &url, "--ip", IP, "--log-level", "trace", "--data"])
        .args([up.folder("second")])
        .env("PROCFLEET_TOKEN", up.token(&["--uses", "1"]));
    agent.start();
    wait_until(PATIENCE, "it is connected", || agent.stderr().contains("connected epoch="));
    let line = fs::read(format!("/proc/{}/cmdline", agent.pid())).expect("it runs");
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    assert!(
        line.contains("agent --server") && !line.contains("--proxy") && !line.contains("pa%40ss"),
        "{line}"
    );
    let log = agent.stderr();
    assert!(!log.contains("pa%40ss") && !log.contains("pa@ss") && !log.contains("bWU6"), "{log}");
}

#[test]
fn a_proxy_that_asks_for_a_password_ends_the_joining() {
    let up = up();
    let proxy = ConnectProxy::open(ProxyManner::AsksForLogin(LOGIN.to_owned(), names(&up)));
    for (login, wants) in [
        ("", "wants a user and a password (407)"),
        ("me:wrong-secret@", "refuses its user or password (407)"),
    ] {
        let url = format!("http://{login}{}", proxy.address());
        let ended = start(&up, SERVER, &url, Some(&up.token(&[]))).finish();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let reason = format!("asking the proxy http://{}: the proxy {wants}", proxy.address());
        assert!(ended.stderr.contains(&reason) && !ended.stderr.contains("secret"), "{ended:?}");
    }
}

/// An agent that has joined goes on trying, with the reason in its log.
#[test]
fn proxies_that_do_not_forward_are_named_in_the_log() {
    let up = up();
    let mut agent =
        Joined::start(up.binary(), &up.link(), &up.folder("second"), IP, Some(&up.token(&["--uses", "1"])));
    agent.wait_until_connected(&up, IP);
    agent.end(Signal::TERM);
    let login = ProxyManner::AsksForLogin(LOGIN.to_owned(), names(&up));
    for (manner, reason) in [
        (login, ": the proxy refuses its user or password (407)"),
        (ProxyManner::Forwards(Vec::new()), ": the proxy cannot reach the server (502)"),
        (ProxyManner::Says("HTTP/1.1 403 Forbidden\r\n\r\n"), ": the proxy does not allow a tunnel"),
        (
            ProxyManner::Says("220 mail.example ESMTP\r\n"),
            ": what listens there does not answer as an HTTP proxy",
        ),
        (ProxyManner::Hangs, " did not answer within 10s"),
    ] {
        let proxy = ConnectProxy::open(manner);
        let url = format!("http://me:secret@{}", proxy.address());
        let mut agent = start(&up, SERVER, &url, None);
        agent.wait_until_log_says(&format!("the proxy http://{}{reason}", proxy.address()));
        assert!(!agent.stderr().contains("secret"), "{}", agent.stderr());
        assert!(agent.is_running(), "its processes are still looked after");
        agent.end(Signal::TERM);
    }
}

/// The variables of other programs are not the agent's.
#[test]
fn proxy_variables_of_the_environment_have_no_effect() {
    let up = up();
    let proxy = ConnectProxy::open(ProxyManner::Hangs);
    let url = format!("http://{}", proxy.address());
    let variables = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let environment: Vec<(&str, &Path)> = variables.iter().map(|name| (*name, Path::new(&url))).collect();
    let token = up.token(&["--uses", "1"]);
    let mut agent =
        Joined::start_with(up.binary(), &up.link(), &up.folder("second"), IP, Some(&token), &environment);
    agent.wait_until_connected(&up, IP);
    assert_eq!(proxy.requests(), Vec::<String>::new());
}
