//! Proxies on the way: haproxy in front of both ports, with the configuration of docs/operator/network.md,
//! and HTTP proxies of clients.

use crate::access::OTHER;
use crate::questions::{agent_at, question};
use crate::several_servers::{OtherServer, first, first_with, row};
use procfleet_testkit::{
    Client, ConnectProxy, Finished, Haproxy, Joined, Op, PATIENCE, Program, ProxyManner, Raw, Signal, Up,
    connect_from, programs, wait_for, wait_until,
};
use serde_json::{Value, json};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;

const PROGRAM: &str = env!("CARGO_BIN_EXE_procfleet");
/// Callers behind the proxy.
const CALLER: &str = "127.0.0.77";
const OTHER_CALLER: &str = "127.0.0.78";
/// The host of the agent behind the proxy.
const AGENT: &str = "127.0.0.33";
const NOT_ADMIN: &str = "the administrator's app may not be used from this address";

/// The configuration of the page, with addresses of this machine.
fn configuration(up: &Up, proxy: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operator/network.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, block) = page.split_once("```haproxy\n").expect("the page has a configuration");
    let (block, _) = block.split_once("\n```").expect("the block ends");
    let link = up.link();
    let link = link.trim_start_matches("https://");
    let configuration = block
        .replace("10.0.0.5:48668", link)
        .replace("10.0.0.5:52030", up.client.address())
        .replace("10.1.0.5", proxy);
    assert!(!configuration.contains(" 10."), "all addresses of the page are replaced: {configuration}");
    format!("{configuration}\n")
}

/// An `up` behind haproxy, which has an address of its own.
struct Behind {
    up: Up,
    proxy: String,
    _haproxy: Haproxy,
}

impl Behind {
    #[track_caller]
    fn start(program: impl AsRef<Path>, flags: &[&str]) -> Behind {
        let proxy = Haproxy::own_address().to_string();
        let up = Up::start_with(program, &[&["--proxy-from", &proxy], flags].concat());
        let haproxy = Haproxy::start(&configuration(&up, &proxy));
        Behind { up, proxy, _haproxy: haproxy }
    }

    fn api(&self) -> String {
        format!("{}:52030", self.proxy)
    }

    /// A call of the administrator through the proxy.
    #[track_caller]
    fn call_from(&self, source: &str, path: &str) -> Raw {
        let login = self.up.client.authorization();
        let stream = connect_from(source, &self.api());
        self.up.client.send_by(stream, "GET", path, &[("X-Bkapi-Authorization", &login)], b"")
    }

    /// A connection to the API from the proxy's own address.
    #[track_caller]
    fn connect_as_proxy(&self) -> TcpStream {
        connect_from(&self.proxy, self.up.client.address())
    }

    #[track_caller]
    fn connect_to_link_as_proxy(&self) -> TcpStream {
        connect_from(&self.proxy, self.up.link().trim_start_matches("https://"))
    }

    fn refused_headers(&self, port: &str, reason: &str) -> u64 {
        let line = format!("procfleet_proxy_headers_refused_total{{port=\"{port}\",reason=\"{reason}\"}} ");
        let page = self.up.client.page("/metrics").text;
        let count = page.lines().find_map(|found| found.strip_prefix(&line)).map(|count| count.parse());
        count.transpose().expect("a number").unwrap_or_default()
    }

    #[track_caller]
    fn audit(&self, action: &str) -> Value {
        self.up.client.data(&format!("/api/v1/audit?limit=1000&action={action}"))[0].clone()
    }
}

/// A PROXY header (version 2) that names this address.
fn header(source: &str) -> Vec<u8> {
    let source: std::net::Ipv4Addr = source.parse().expect("an address");
    let fixed = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    [fixed.as_slice(), &source.octets(), &[127, 0, 0, 1], &[0x9c, 0x40, 0xcb, 0x3e]].concat()
}

fn get(path: &str, authorization: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Bkapi-Authorization: {authorization}\r\n\r\n")
        .into_bytes()
}

/// Everything that the server answers until it closes the connection.
#[track_caller]
fn answer_to(mut stream: TcpStream, bytes: &[u8]) -> String {
    // A server that has refused the first bytes does not read the rest.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it is closed"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// The configuration of a plain proxy on another address, which does not name its callers: as a host with the
/// address `source`, or, with `claimed`, one that haproxy takes for the caller's.
fn hop(listen: &str, to: &str, more: &str) -> String {
    format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 2m\n  timeout server 2m\n\
         listen hop\n  bind {listen}\n  server next {to} {more}\n"
    )
}

#[test]
fn agents_behind_haproxy_join_and_work_with_their_own_addresses() {
    let behind = Behind::start(PROGRAM, &[]);
    let up = &behind.up;
    // An agent cannot choose its source address; this hop is its host.
    let host = format!("{}:48668", Haproxy::own_address());
    let _hop = Haproxy::start(&hop(&host, &format!("{}:48668", behind.proxy), &format!("source {AGENT}")));
    let server = format!("https://{host}");
    let join = |name: &str, token: &str| {
        let mut agent = Joined::start(up.binary(), &server, &up.folder(name), AGENT, Some(token));
        agent.wait_until_connected(up, AGENT);
        agent
    };
    let mut agent = join("behind", &up.token(&[]));
    let from = format!("from={AGENT}");
    let is_logged =
        |words: &str| up.stderr().lines().any(|line| line.contains(words) && line.contains(&from));
    assert!(is_logged("agent connected"), "the log names the agent's address");
    assert_eq!(behind.audit("agent_join")["from"], AGENT);
    let listed = up.cli(&["agents"]);
    assert!(listed.stdout.contains(AGENT) && !listed.stdout.contains(&behind.proxy), "{listed:?}");

    let proc = up.proc("remote").on_host(AGENT).with_pid_file().starts(&programs::daemon());
    proc.start();
    proc.op(Op::Stop).assert_success();

    // Another agent takes over the host: the event and the audit trail name where it came from.
    agent.end(Signal::TERM);
    let _second = join("second", &up.token(&["--replace"]));
    let replaced = wait_for(PATIENCE, "there is an event", || {
        let events = up.client.data("/api/v1/events?kind=agent_replaced&limit=10");
        events["events"].as_array().and_then(|events| events.first().cloned())
    });
    let message = replaced["message"].as_str().unwrap_or_default();
    assert!(message.contains(&format!("from {AGENT} with token")), "{replaced}");
    assert_eq!(behind.audit("agent_replace")["from"], AGENT);
    assert!(!up.stderr().contains(&format!("from={}", behind.proxy)), "nothing came from the proxy itself");
}

/// The configuration with a `server` line for each backend of a second server, as the page says.
fn with_second_server(up: &Up, other: &OtherServer, configuration: &str) -> String {
    let (first_link, second_link) = (up.link(), row(&up.client, "two")["url"].clone());
    let second_link = second_link.as_str().expect("a text").trim_start_matches("https://");
    let mut lines = Vec::new();
    for line in configuration.lines() {
        lines.push(line.to_owned());
        if line.trim_start().starts_with("server s1 ") {
            let line = line.replace("server s1 ", "server s2 ");
            let line = line.replace(first_link.trim_start_matches("https://"), second_link);
            lines.push(line.replace(up.client.address(), other.client.address()));
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn haproxy_in_front_of_two_servers_uses_both_and_the_other_when_one_dies() {
    let proxy = Haproxy::own_address().to_string();
    let (up, url) = first_with(&["--proxy-from", &proxy]);
    let mut other = OtherServer::start_with(&up, &url, &["--proxy-from", &proxy]);
    let both = with_second_server(&up, &other, &configuration(&up, &proxy));
    assert_eq!(both.matches("send-proxy-v2").count(), 4, "{both}");
    let haproxy = Haproxy::start(&both);
    let behind = Behind { up, proxy, _haproxy: haproxy };
    let up = &behind.up;
    let answering = || {
        let rows = behind.call_from(CALLER, "/api/v1/servers").answer().data();
        let row = rows.as_array().expect("a list").iter().find(|row| row["answering"] == true).cloned();
        row.expect("the server that answers")["name"].as_str().expect("a text").to_owned()
    };
    for name in ["one", "two"] {
        wait_until(PATIENCE, "the server has answered a call", || answering() == name);
    }
    let server = format!("https://{}:48668", behind.proxy);
    let mut agent = Joined::start(up.binary(), &server, &up.folder("behind"), AGENT, Some(&up.token(&[])));
    agent.wait_until_connected(up, AGENT);
    let drain = |drain: bool| up.client.post("/api/v1/servers/drain", json!({"name": "one", "drain": drain}));
    assert_eq!(drain(true).status, 200);
    wait_until(PATIENCE, "both agents are at the second server", || row(&up.client, "two")["agents"] == 2);
    other.program.end(Signal::KILL, PATIENCE);
    assert_eq!(drain(false).status, 200);
    for _ in 0..10 {
        assert_eq!(answering(), "one", "every call is answered");
    }
    wait_until(PATIENCE, "both agents are at the first server", || row(&up.client, "one")["agents"] == 2);
    let proc = up.proc("remote").on_host(AGENT).with_pid_file().starts(&programs::daemon());
    proc.start();
    proc.op(Op::Stop).assert_success();
}

/// `--advertise` leads to a proxy: agents and other servers come with a header.
#[test]
fn servers_ask_each_other_through_haproxy() {
    let proxy = Haproxy::own_address().to_string();
    let advertised = format!("https://{proxy}:48668");
    let (up, url) = first();
    let other = OtherServer::start_with(&up, &url, &["--proxy-from", &proxy, "--advertise", &advertised]);
    assert_eq!(row(&up.client, "two")["url"], json!(advertised));
    let log = other.program.stderr();
    let link = log.split(" link=").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("its link");
    let _haproxy =
        Haproxy::start(&hop(&format!("{proxy}:48668"), link, &format!("send-proxy-v2 source {proxy}")));
    let _agent = agent_at(&up, &other.client, "two");
    let proc = up.proc("talks").on_host(OTHER).starts("echo hello; exec ./web 1000");
    proc.start();
    for client in [&up.client, &other.client] {
        assert_eq!(client.data(&question(&proc, ""))["lines"], json!(["hello"]), "{}", client.url);
    }
    let metrics = other.client.page("/metrics").text;
    assert!(!metrics.contains("procfleet_proxy_headers_refused_total{"), "{metrics}");
    let from = other.program.stderr();
    assert!(!from.contains(&format!("from={proxy}")), "the proxy's own address is in the log: {from}");
    proc.op(Op::Stop).assert_success();
}

/// A loopback address is a host's own address only if the agent calls from one, and the proxy's does not
/// count.
#[test]
fn the_address_rules_of_joining_agents_follow_the_header() {
    let proxy = Haproxy::own_address().to_string();
    let up = Up::start_with(PROGRAM, &["--proxy-from", &proxy]);
    let (listen, link) = (format!("{proxy}:48668"), up.link());
    let claims = format!("send-proxy-v2 source {proxy}\n  tcp-request connection set-src ipv4(192.0.2.7)");
    let _haproxy = Haproxy::start(&hop(&listen, link.trim_start_matches("https://"), &claims));
    let server = format!("https://{listen}");
    let mut agent = Joined::start(up.binary(), &server, &up.folder("far"), "127.0.0.2", Some(&up.token(&[])));
    let ended = agent.finish();
    let words = "127.0.0.2 is a loopback address, and the agent calls from 192.0.2.7";
    assert!(ended.code == Some(1) && ended.stderr.contains(words), "{ended:?}");
    wait_until(PATIENCE, "the server logs it", || {
        up.stderr()
            .lines()
            .any(|line| line.contains("an enrolment was refused") && line.contains("from=192.0.2.7"))
    });
}

#[test]
fn callers_behind_haproxy_count_with_their_own_addresses() {
    let behind = Behind::start(PROGRAM, &["--admin-from", &format!("{CALLER},127.0.0.1/32")]);
    let up = &behind.up;
    behind.call_from(CALLER, "/api/v1/tasks").answer().data();
    behind.call_from(OTHER_CALLER, "/api/v1/tasks").answer().assert_refused(1306403, &[NOT_ADMIN]);
    let refused = behind.audit("tasks");
    assert_eq!((&refused["from"], &refused["times"]), (&json!(OTHER_CALLER), &json!(1)), "{refused}");

    let made =
        cli_at(&up.client, &["app", "create", "plain"], &format!("http://{}", behind.api()), &[]).run();
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(behind.audit("app_create")["from"], "127.0.0.1", "the client's address, not the proxy's");
}

/// With TLS the header comes before the handshake.
#[test]
fn the_header_comes_before_tls() {
    let proxy = Haproxy::own_address().to_string();
    let up = Up::start_with(PROGRAM, &["--proxy-from", &proxy, "--tls", "--tls-name", &proxy]);
    let _haproxy = Haproxy::start(&configuration(&up, &proxy));
    let ca = up.data().join("ca.cert.der");
    let (url, more) = (format!("https://{proxy}:52030"), ["--ca", ca.to_str().expect("a text")]);
    assert_done(&cli_at(&up.client, &["ps"], &url, &more).run());
    let wrong = up.client.as_app(&up.client.app_code, "wrong");
    assert_eq!(cli_at(&wrong, &["ps"], &url, &more).run().code, Some(5));
    let refused = up.client.data("/api/v1/audit?limit=1000&action=procs")[0].clone();
    assert_eq!(refused["from"], "127.0.0.1", "{refused}");
}

/// Health checks of a proxy are neither refused sessions nor log lines.
#[test]
fn health_checks_of_haproxy_are_not_logged_as_refusals() {
    let behind = Behind::start(PROGRAM, &["--log-level", "info,procfleet_server=debug"]);
    let checked = "a proxy checked the link's port";
    wait_until(PATIENCE, "haproxy has checked the link twice", || {
        behind.up.stderr().matches(checked).count() >= 2
    });
    let log = behind.up.stderr();
    assert!(
        !log.contains("TLS handshake on the link port failed") && !log.contains("needs a PROXY header"),
        "{log}"
    );
    assert!(behind.up.client.page("/metrics").text.contains("procfleet_sessions_refused_total 0"));
}

/// Only the source address decides: bytes that look like a header are HTTP or TLS, which they are not.
#[test]
fn a_header_from_an_unlisted_address_is_never_read() {
    let behind = Behind::start(PROGRAM, &["--admin-from", &format!("{CALLER},127.0.0.1")]);
    let up = &behind.up;
    let login = up.client.authorization();
    let forged = [header(CALLER), get("/api/v1/tasks", &login)].concat();
    for source in [OTHER_CALLER, "127.0.0.1"] {
        let answer = answer_to(connect_from(source, up.client.address()), &forged);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{source}: {answer}");
        // Through the proxy, too: its own header comes first.
        let answer = answer_to(connect_from(source, &behind.api()), &forged);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{source}: {answer}");
    }
    // On the link a forged header is no TLS.
    let link = up.link();
    let answer = answer_to(connect_from(OTHER_CALLER, link.trim_start_matches("https://")), &header(CALLER));
    assert!(!answer.contains("HTTP"), "{answer:?}");
    wait_until(PATIENCE, "the log names the true address", || {
        let log = up.stderr();
        let line = log.lines().find(|line| line.contains("TLS handshake on the link port failed"));
        line.is_some_and(|line| line.contains(&format!("from={OTHER_CALLER}:")))
    });
    let metrics = up.client.page("/metrics").text;
    assert!(!metrics.contains("procfleet_proxy_headers_refused_total{"), "none was read: {metrics}");
    let audit = up.client.data("/api/v1/audit?limit=1000");
    assert!(!audit.to_string().contains(CALLER), "{audit}");
}

#[test]
fn a_listed_address_needs_one_valid_header() {
    let behind = Behind::start(PROGRAM, &["--admin-from", &format!("{CALLER},127.0.0.1")]);
    let login = behind.up.client.authorization();
    let call = get("/api/v1/tasks", &login);
    let with = |header: &[u8]| answer_to(behind.connect_as_proxy(), &[header, &call].concat());
    let admitted = with(&header(CALLER));
    assert!(admitted.starts_with("HTTP/1.1 200") && admitted.contains("\"result\":true"), "{admitted}");
    let other = with(&header(OTHER_CALLER));
    assert!(other.contains(NOT_ADMIN), "{other}");

    // LOCAL and AF_UNSPEC: the address of the proxy counts.
    for local in [b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", b"\r\n\r\n\0\r\nQUIT\n\x21\0\0\0"] {
        let answer = with(local);
        assert!(answer.contains(NOT_ADMIN), "{answer}");
    }
    assert_eq!(behind.audit("tasks")["from"], json!(behind.proxy));

    // A second header is not a second chance: the first one counts, and then HTTP must follow.
    let twice = with(&[header(OTHER_CALLER), header(CALLER)].concat());
    assert!(twice.is_empty() || twice.starts_with("HTTP/1.1 400"), "{twice}");

    let mut longest = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec();
    longest.extend(vec![0; 65_535]);
    let udp = b"\r\n\r\n\0\r\nQUIT\n\x21\x12\0\x0c\x7f\0\0\x4d\x7f\0\0\x01\x9c\x40\xcb\x3e";
    for (bytes, reason) in [
        (&b""[..], "signature"),
        (b"PROXY TCP4 127.0.0.77 127.0.0.1 1 2\r\n", "signature"),
        (&longest, "too_long"),
        (udp, "family"),
        (b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0b", "too_short"),
    ] {
        let before = behind.refused_headers("api", reason);
        assert_eq!(with(bytes), "", "{reason}");
        assert_eq!(behind.refused_headers("api", reason), before + 1, "{reason}");
        let before = behind.refused_headers("link", reason);
        assert_eq!(answer_to(behind.connect_to_link_as_proxy(), &[bytes, &call].concat()), "", "{reason}");
        assert_eq!(behind.refused_headers("link", reason), before + 1, "{reason}");
    }
    let log = behind.up.stderr();
    let lines = log.lines().filter(|line| line.contains("it needs a PROXY header"));
    assert!(lines.clone().count() == 10 && lines.clone().all(|line| line.contains(&behind.proxy)), "{log}");
    assert!(log.contains("its 65551 bytes are more than 4096"), "{log}");
}

/// Connections that never send their header, or only a part of it, take nothing from others.
#[test]
fn slow_headers_end_and_keep_nobody_out() {
    let behind = Behind::start(PROGRAM, &[]);
    let up = &behind.up;
    let slow = |connect: &dyn Fn() -> TcpStream, count: usize| -> Vec<TcpStream> {
        let begin = |number| {
            let mut stream = connect();
            if number % 2 == 0 {
                stream.write_all(&header(CALLER)[..15]).expect("it is open");
            }
            stream
        };
        (0..count).map(begin).collect()
    };
    // The link has 512 slots for handshakes.
    let api = slow(&|| behind.connect_as_proxy(), 150);
    let link = slow(&|| behind.connect_to_link_as_proxy(), 600);
    behind.call_from(CALLER, "/api/v1/agents").answer().data();
    let server = format!("https://{}:48668", behind.proxy);
    let mut agent = Joined::start(up.binary(), &server, &up.folder("behind"), AGENT, Some(&up.token(&[])));
    agent.wait_until_connected(up, AGENT);
    for stream in api.into_iter().chain(link) {
        assert_eq!(answer_to(stream, b""), "");
    }
    assert!(behind.refused_headers("api", "timeout") > 0 && behind.refused_headers("link", "timeout") > 0);
}

/// Limits by address are limits of the address behind the proxy.
#[test]
fn idle_callers_behind_haproxy_evict_only_their_own_connections() {
    let folder = tempfile::tempdir().expect("a temp dir");
    // 100 connections, of which one address gets 25 without a login.
    let behind = Behind::start(crate::with_few_files(folder.path(), 200), &[]);
    let is_open = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).expect("our own socket");
        matches!(stream.read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    };
    // The connections of the first come earlier, and are fewer. They are used now and then, because the
    // server closes idle ones after a while.
    let mut few: Vec<TcpStream> = (0..10).map(|_| connect_from(CALLER, &behind.api())).collect();
    let mut use_all = || few.iter_mut().for_each(ask_for_health);
    use_all();
    let mut many: Vec<TcpStream> = (0..60).map(|_| connect_from(OTHER_CALLER, &behind.api())).collect();
    wait_until(PATIENCE, "one address has a quarter of the slots", || {
        use_all();
        many.iter_mut().filter_map(|stream| is_open(stream).then_some(())).count() <= 25
    });
    use_all();
    behind.call_from(CALLER, "/api/v1/agents").answer().data();
}

/// A call without a login, on a connection that stays open.
fn ask_for_health(stream: &mut TcpStream) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: fleet\r\n\r\n").expect("it is open");
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).expect("an answer");
    let text = String::from_utf8_lossy(&answer[..read]);
    assert!(text.starts_with("HTTP/1.1 200"), "the address keeps its connections: {text:?}");
}

/// A client verb at this url, in an environment with proxies of other programs.
fn cli_at(client: &Client, verb: &[&str], url: &str, more: &[&str]) -> Program {
    let nowhere = "http://127.0.0.1:9";
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
        .into_iter()
        .fold(Program::new(PROGRAM), |program, name| program.env(name, nowhere))
        .args(verb)
        .args(["--url", url, "--app-code", &client.app_code, "--app-secret", &client.app_secret])
        .args(["--username", "admin"])
        .args(more)
}

#[track_caller]
fn assert_done(finished: &Finished) {
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

/// For http and https, by flag and by variable; the proxy alone resolves the server's name.
#[test]
fn client_verbs_go_through_an_http_proxy_if_they_are_told_to() {
    for (scheme, flags) in [("http", &[][..]), ("https", &["--tls", "--tls-name", "fleet.invalid"])] {
        let up = Up::start_with(PROGRAM, flags);
        let names = vec![("fleet.invalid:52030".to_owned(), up.client.address().to_owned())];
        let proxy = ConnectProxy::open(ProxyManner::Forwards(names));
        let url = format!("{scheme}://fleet.invalid:52030");
        let ca = up.data().join("ca.cert.der");
        let more = ["--ca", ca.to_str().expect("a text")];
        assert_done(&cli_at(&up.client, &["ps"], &url, &more).args(["--proxy", &proxy.url()]).run());
        assert_done(&cli_at(&up.client, &["agents"], &url, &more).env("PROCFLEET_PROXY", proxy.url()).run());
        let made =
            cli_at(&up.client, &["token", "create"], &url, &more).env("PROCFLEET_PROXY", proxy.url()).run();
        assert_done(&made);
        let asked = proxy.requests();
        assert!(
            asked.len() == 3 && asked.iter().all(|head| head.starts_with("CONNECT fleet.invalid:52030 ")),
            "{asked:?}"
        );
        // Without being told, the client uses no proxy, whatever the variables of others say.
        let direct = cli_at(&up.client, &["ps"], &up.client.url, &more);
        assert_done(&direct.env("PROCFLEET_PROXY", proxy.url()).args(["--proxy", ""]).run());
        assert_done(&cli_at(&up.client, &["ps"], &up.client.url, &more).run());
        assert_eq!(proxy.requests().len(), 3);
        // The proxy is up, and the server behind it is not.
        let gone = cli_at(&up.client, &["ps"], &format!("{scheme}://127.0.0.1:1"), &more);
        let gone = gone.args(["--proxy", &proxy.url()]).run();
        assert_eq!(gone.code, Some(5), "{gone:?}");
        assert!(gone.stderr.contains("the proxy cannot reach the server (502)"), "{gone:?}");
    }
}

#[test]
fn a_login_for_the_proxy_is_sent_and_never_shown() {
    let up = Up::start(PROGRAM);
    // zoe:p@ss:hush
    let login = "Basic em9lOnBAc3M6aHVzaA==".to_owned();
    let server = up.client.address().to_owned();
    let proxy = ConnectProxy::open(ProxyManner::AsksForLogin(login, vec![(server.clone(), server)]));
    let ps = |url: &str| {
        let ran = cli_at(&up.client, &["ps"], &up.client.url, &[]);
        let ran = ran.env("PROCFLEET_PROXY", url).run();
        for word in ["zoe", "hush", "em9l"] {
            assert!(!ran.stdout.contains(word) && !ran.stderr.contains(word), "{ran:?}");
        }
        ran
    };
    assert_done(&ps(&format!("http://zoe:p%40ss:hush@{}", proxy.address())));
    for (url, words) in [
        (proxy.url(), "the proxy wants a user and a password (407)"),
        (format!("http://zoe:wronghush@{}", proxy.address()), "the proxy refuses its user or password (407)"),
        (
            "http://zoe:hush@127.0.0.1:1".to_owned(),
            "through the proxy http://127.0.0.1:1: connection refused",
        ),
    ] {
        let ran = ps(&url);
        assert!(ran.code == Some(5) && ran.stderr.contains(words), "{words}: {ran:?}");
    }
    let ran = ps("socks5://zoe:hush@127.0.0.1:1");
    assert!(ran.code == Some(2) && ran.stderr.contains("only http proxies are supported"), "{ran:?}");
    let help =
        Program::new(PROGRAM).args(["ps", "--help"]).env("PROCFLEET_PROXY", "http://zoe:hush@x:1").run();
    assert!(!help.stdout.contains("zoe"), "{help:?}");
}
