//! Agents that know several servers: which one they join, leave and return to.

use crate::up;
use procfleet_proto::link::{Drain, Hello, Refused, Welcome, agent_message, server_message::Body};
use procfleet_sim::{ManualServer, ManualSession};
use procfleet_testkit::{Joined, PATIENCE, Program, Signal, wait_until};
use std::net::TcpListener;
use std::path::Path;

const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");
const IP: &str = "127.0.0.2";
/// A heartbeat of which no test waits for the end, in milliseconds.
const LONG: u64 = 60_000;
/// Nothing listens there.
const DEAD: &str = "https://127.0.0.1:1,https://127.0.0.1:2,https://127.0.0.1:3";

fn url(server: &ManualServer) -> String {
    format!("https://{}", server.address().expect("an address"))
}

/// Two servers of one fleet.
fn two() -> (ManualServer, ManualServer) {
    let first = ManualServer::open().expect("a server");
    let second = first.sibling().expect("a server");
    (first, second)
}

fn join(fleet: &ManualServer, servers: &str, data: &Path) -> Joined {
    let token = fleet.token().to_string();
    Joined::start(Path::new(BINARY), servers, data, "127.0.0.1", Some(&token))
}

/// The next session of the agent, and its hello.
#[track_caller]
fn greeted(server: &ManualServer) -> (ManualSession<'_>, Hello) {
    let mut session = server.accept().expect("a session");
    match session.receive() {
        Some(agent_message::Body::Hello(hello)) => (session, hello),
        said => panic!("{said:?}"),
    }
}

/// Welcomes the agent, and waits until it has gone on with the session: it has stored the list by then.
#[track_caller]
fn welcome(session: &mut ManualSession<'_>, epoch: u64, heartbeat_ms: u64, servers: &[String]) {
    let servers = servers.to_vec();
    let welcome = Welcome { epoch, heartbeat_ms, limits_accounts: true, servers, ..Welcome::default() };
    session.send(Body::Welcome(welcome).into_bytes());
    let said = session.receive();
    assert!(matches!(said, Some(agent_message::Body::States(_))), "{said:?}");
}

#[test]
fn an_agent_with_a_dead_address_joins_and_connects() {
    let up = up();
    let data = up.folder("second");
    let servers = format!("{DEAD},{}", up.link());
    let mut agent = Joined::start(up.binary(), &servers, &data, IP, Some(&up.token(&["--uses", "1"])));
    agent.wait_until_connected(&up, IP);
    agent.end(Signal::TERM);
    // Also when it has joined before, and from the environment.
    let mut agent = Program::new(up.binary())
        .args(["agent", "--ip", IP, "--data"])
        .args([&data])
        .env("PROCFLEET_SERVER", &servers);
    agent.start();
    wait_until(PATIENCE, "it is connected", || agent.stderr().contains("connected epoch="));
    assert!(agent.stderr().contains(&format!("server={}", up.link())), "{}", agent.stderr());
}

/// A server that accepts connections and says nothing, as one that is stopped.
#[test]
fn an_agent_joins_another_server_than_the_one_that_hangs() {
    let up = up();
    let hanging = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let hanging = (hanging.local_addr().expect("a bound socket"), hanging);
    let servers = format!("https://{},{}", hanging.0, up.link());
    let data = up.folder("second");
    let mut agent = Joined::start(up.binary(), &servers, &data, IP, Some(&up.token(&["--uses", "1"])));
    agent.wait_until_connected(&up, IP);
}

#[test]
fn a_refusal_of_one_server_is_final_for_joining() {
    let up = up();
    let token = up.token(&["--uses", "1"]);
    let forged = format!("pf1-{}-{}", "0".repeat(12), token.splitn(3, '-').nth(2).expect("a secret"));
    let servers = format!("{DEAD},{}", up.link());
    let ended = Joined::start(up.binary(), &servers, &up.folder("second"), IP, Some(&forged)).finish();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the token is not known here"), "{ended:?}");
}

#[test]
fn all_faults_of_the_addresses_are_named_at_once() {
    let data = tempfile::tempdir().expect("a folder");
    let ended = Program::new(BINARY)
        .args(["agent", "--server", "http://x,https://good", "--server", "a:b", "--data"])
        .args([data.path()])
        .env("PROCFLEET_PROXY", "ftp://me:secret@h:1")
        .run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    for fault in ["--server: \"http://x\" is not", "\"a:b\" is not", "only http proxies are supported"] {
        assert!(ended.stderr.contains(fault), "{fault}: {ended:?}");
    }
    assert!(!ended.stderr.contains("secret") && !ended.stderr.contains("good"), "{ended:?}");
}

#[test]
fn the_systemd_unit_names_all_servers_and_no_password() {
    let unit = |proxy: &str| {
        let unit = Program::new(BINARY)
            .args(["agent", "--server", "https://s1,s2:7", "--server", "https://[::1]", "--proxy", proxy])
            .args(["--data", "/var/lib/procfleet", "--print-systemd-unit"])
            .run();
        assert_eq!(unit.code, Some(0), "{unit:?}");
        assert!(!unit.stdout.contains("secret") && !unit.stderr.contains("secret"), "{unit:?}");
        unit.stdout
    };
    let command =
        format!("\nExecStart={BINARY} agent --server \"https://s1:48668,https://s2:7,https://[::1]:48668\"");
    let plain = unit("http://10.0.0.9:3128");
    let proxy = " --proxy http://10.0.0.9:3128 --data /var/lib/procfleet\n";
    assert!(plain.contains(&format!("{command}{proxy}")), "{plain}");
    assert!(!plain.contains("EnvironmentFile"), "{plain}");
    let with_login = unit("http://me:secret@10.0.0.9:3128");
    assert!(with_login.contains(&format!("{command} --data /var/lib/procfleet\n")), "{with_login}");
    assert!(with_login.contains("\nEnvironmentFile=/etc/procfleet/agent.env\n"), "{with_login}");
}

/// The agent begins with one address. The list that it is told is used after a restart, and never replaced by
/// one that is of no use.
#[test]
fn the_list_of_a_welcome_is_used_after_a_restart() {
    let (first, second) = two();
    let data = tempfile::tempdir().expect("a folder");
    let (data, configured) = (data.path(), url(&first));
    let mut agent = join(&first, &configured, data);
    let (mut session, hello) = greeted(&first);
    assert_eq!(hello.highest_epoch, 0);
    welcome(&mut session, 300, LONG, &["http://not-a-link".to_owned(), url(&second)]);
    agent.wait_until_log_says("ignored an address in the server's list of servers");
    agent.end(Signal::TERM);

    // An empty list, and one without a good address.
    let bad = vec![String::new(), "ftp://x".to_owned()];
    for (epoch, highest, list) in [(301, 300, Vec::new()), (7, 301, bad), (302, 301, Vec::new())] {
        let mut agent = join(&first, &configured, data);
        let (mut session, hello) = greeted(&second);
        assert_eq!(hello.highest_epoch, highest, "the highest that it ever accepted");
        welcome(&mut session, epoch, LONG, &list);
        agent.end(Signal::KILL);
    }

    // The only server of the list is gone: the command line is the last resort.
    drop(second);
    let mut agent = join(&first, &configured, data);
    let (_session, hello) = greeted(&first);
    assert_eq!(hello.highest_epoch, 302);
    agent.end(Signal::TERM);
}

/// An operator who names other servers means these.
#[test]
fn a_changed_command_line_overrides_the_stored_list() {
    let (first, second) = two();
    let third = first.sibling().expect("a server");
    let data = tempfile::tempdir().expect("a folder");
    let mut agent = join(&first, &url(&first), data.path());
    let (mut session, _) = greeted(&first);
    welcome(&mut session, 1, LONG, &[url(&second)]);
    agent.end(Signal::TERM);
    let _agent = join(&first, &url(&third), data.path());
    greeted(&third);
}

/// Ends a session with the first of two servers in this way. The next one is with the second.
#[track_caller]
fn check_leaves<'a>(
    (first, second): &'a (ManualServer, ManualServer),
    heartbeat_ms: u64,
    end: impl FnOnce(&mut ManualSession<'a>),
) {
    let data = tempfile::tempdir().expect("a folder");
    let _agent = join(first, &url(first), data.path());
    let (mut session, _) = greeted(first);
    welcome(&mut session, 1, heartbeat_ms, &[url(first), url(second)]);
    end(&mut session);
    let (mut next, hello) = greeted(second);
    assert_eq!(hello.highest_epoch, 1);
    welcome(&mut next, 2, LONG, &[]);
}

#[test]
fn an_agent_leaves_a_silent_server_for_another_one() {
    check_leaves(&two(), 1_000, |_| {});
}

#[test]
fn an_agent_whose_session_was_closed_goes_to_another_server() {
    check_leaves(&two(), LONG, ManualSession::close);
}

#[test]
fn a_drained_agent_goes_to_another_server_if_told_so() {
    check_leaves(&two(), LONG, |session| {
        session.send(Body::Drain(Drain { after_ms: 10, spread_ms: 10, elsewhere: true }).into_bytes());
    });
}

#[test]
fn an_agent_that_one_server_cannot_serve_goes_to_another_one() {
    check_leaves(&two(), LONG, |session| {
        let reason = "the server cannot store states now".to_owned();
        session.send(Body::Refused(Refused { reason }).into_bytes());
    });
}
