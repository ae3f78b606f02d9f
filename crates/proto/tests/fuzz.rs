//! Whatever comes over a wire is read or refused, and never more than that: good messages and bodies, changed
//! at random.
//!
//! It runs for a bounded number of cases with the other tests, and for as long as anybody likes by
//! `scripts/fuzz`.

use procfleet_core::change::{FIELDS, UnknownFields};
use procfleet_core::host_policy::Allow;
use procfleet_core::id::{AgentId, BusinessId, Host, OpId, TaskId};
use procfleet_core::op::Outcome;
use procfleet_core::select::Term;
use procfleet_core::spec::Spec;
use procfleet_proto::cron::CronRule;
use procfleet_proto::http::document::apis::{self, APIS, ApiEntry};
use procfleet_proto::http::document::{example_request, fields_of};
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::operate::unread_fields;
use procfleet_proto::http::typos::Unread;
use procfleet_proto::link::token::JoinToken;
use procfleet_proto::link::{
    BadMessage, GroupsMessage, OmittedAccounts, OpOrder, ProcStateMessage, Report, agent_message,
    decode_agent, decode_server, server_message,
};
use procfleet_proto::peer::{decode_answer, decode_question, peer_question};
use procfleet_proto::proxy_header::{BadProxyHeader, FIXED, FixedPart, ProxiedPeer};
use procfleet_proto::state::ProcReport;
use procfleet_proto::tunnel::{LONGEST_REPLY, ProxyUrl};
use procfleet_testkit::fuzz::{Fuzz, reversed};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::{Debug, Display};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// An answer quotes only a part of the request: at most fifty faults, each with a path and a reason of at
/// most 600 characters.
const LONGEST_ANSWER: usize = 51 * 2 * 601 * 4;

fn golden(ending: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries =
        std::fs::read_dir(folder).expect("the golden files").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == ending)).collect();
    // The order of a folder is anybody's guess, and the cases must always be the same.
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).expect("a text"))).collect()
}

fn frames() -> Vec<Vec<u8>> {
    let unhex = |text: &str| {
        let pairs = text.trim().as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("hex");
        pairs.map(byte).collect()
    };
    golden("hex").iter().map(|(_, text)| unhex(text)).collect()
}

/// The text names the fault and does not repeat the message.
fn check_refusal(refusal: &BadMessage) {
    let text = refusal.to_string();
    assert!(!text.is_empty() && text.len() < 200, "{text}");
}

#[test]
fn frames_of_agents() {
    Fuzz::cases(40_000).bytes(&frames(), |bytes| match decode_agent(bytes) {
        Err(refusal) => check_refusal(&refusal),
        Ok(body) => {
            let again = body.clone().into_bytes();
            assert!(again.len() <= bytes.len(), "it has grown from {} to {}", bytes.len(), again.len());
            assert_eq!(decode_agent(&again).expect("our own message"), body);
            understand(body);
        }
    });
}

#[test]
fn questions_and_answers_of_servers() {
    Fuzz::cases(40_000).bytes(&frames(), |bytes| {
        match decode_question(bytes) {
            Err(refusal) => check_refusal(&refusal),
            Ok((body, within)) => {
                let again = body.clone().into_bytes(within);
                assert!(again.len() <= bytes.len(), "it has grown from {} to {}", bytes.len(), again.len());
                assert_eq!(decode_question(&again).expect("our own message"), (body.clone(), within));
                if let peer_question::Body::AskAgent(ask) = body
                    && let Err(refusal) = ask.limited_question()
                {
                    check_refusal(&refusal);
                }
            }
        }
        match decode_answer(bytes) {
            Err(refusal) => check_refusal(&refusal),
            Ok(body) => {
                let again = body.clone().into_bytes();
                assert!(again.len() <= bytes.len(), "it has grown from {} to {}", bytes.len(), again.len());
                assert_eq!(decode_answer(&again).expect("our own message"), body);
            }
        }
    });
}

/// The checks of the server before it uses a message.
fn understand(body: agent_message::Body) {
    match body {
        agent_message::Body::Reports(reports) => {
            for report in reports.reports {
                match <(OpId, Option<Outcome>)>::try_from(report) {
                    Ok((op, Some(outcome))) => {
                        let again = <(OpId, Option<Outcome>)>::try_from(Report::done(op, &outcome));
                        assert_eq!(again.expect("our own report"), (op, Some(outcome)));
                    }
                    Ok((op, None)) => {
                        let again = <(OpId, Option<Outcome>)>::try_from(Report::taken(op));
                        assert_eq!(again.expect("our own report"), (op, None));
                    }
                    Err(refusal) => check_refusal(&refusal),
                }
            }
        }
        agent_message::Body::States(states) => {
            for state in &states.procs {
                match state.report() {
                    Ok(report) => {
                        let proc = procfleet_core::id::ProcKey {
                            namespace: state.namespace.clone(),
                            name: state.name.clone(),
                        };
                        let again = ProcStateMessage::new(&proc, state.revision, report.as_ref());
                        let again = again.report().expect("our own state");
                        assert_eq!(format!("{again:?}"), format!("{report:?}"));
                    }
                    Err(refusal) => check_refusal(&refusal),
                }
            }
            for message in &states.groups {
                match message.groups() {
                    Ok(groups) => {
                        let again = GroupsMessage::new(&message.namespace, message.revision, &groups);
                        assert_eq!(again.groups().expect("our own groups"), groups);
                    }
                    Err(refusal) => check_refusal(&refusal),
                }
            }
        }
        agent_message::Body::Hello(hello) => {
            let _known: Vec<OpId> = hello.taken.iter().filter_map(|op| op.parse().ok()).collect();
        }
        agent_message::Body::Enroll(enroll) => {
            let _ = enroll.token.parse::<JoinToken>();
        }
        agent_message::Body::Events(_)
        | agent_message::Body::LogRead(_)
        | agent_message::Body::SpecRead(_)
        | agent_message::Body::Renew(_) => {}
    }
}

#[test]
fn frames_of_servers() {
    Fuzz::cases(40_000).bytes(&frames(), |bytes| match decode_server(bytes) {
        Err(refusal) => check_refusal(&refusal),
        Ok(body) => {
            let again = body.clone().into_bytes();
            assert!(again.len() <= bytes.len(), "it has grown from {} to {}", bytes.len(), again.len());
            assert_eq!(decode_server(&again).expect("our own message"), body);
            if let server_message::Body::Op(op) = body {
                match OpOrder::read(op, OmittedAccounts::MeanEverybody) {
                    Ok(order) => {
                        let spec = order.spec.as_ref().map(|spec| serde_json::to_vec(spec).expect("JSON"));
                        let again = procfleet_proto::link::Op::new(
                            order.op,
                            order.epoch,
                            &order.proc,
                            order.kind,
                            order.start_within,
                            spec.as_deref(),
                            &order.accounts,
                        );
                        assert_eq!(
                            OpOrder::read(again, OmittedAccounts::AreRefused).expect("our own op"),
                            order
                        );
                    }
                    Err(refusal) => check_refusal(&refusal),
                }
            }
        }
    });
}

/// A valid request of each API that reads one. APIs without an example have query parameters, whose values
/// are texts.
fn requests() -> Vec<(&'static ApiEntry, Value)> {
    let reading = APIS.iter().filter(|api| api.read.is_some());
    let request = |api: &'static ApiEntry| {
        let fields = || fields_of(api).into_iter().filter(|field| !field.contains(['.', '[']));
        let query = || Value::Object(fields().map(|field| (field, json!("1"))).collect());
        (api, example_request(api.name).unwrap_or_else(query))
    };
    reading.map(request).collect()
}

fn check_faults(faults: &Faults) {
    assert!(!faults.is_empty(), "a refusal without a fault");
    for fault in faults.list() {
        assert!(!format!("{:?}", fault.reason).is_empty(), "{fault:?}");
    }
    let text = faults.to_string();
    assert!(!text.is_empty() && text.len() <= LONGEST_ANSWER, "an answer of {} bytes", text.len());
}

/// The reading code of every API. The result does not depend on the order of fields.
#[test]
fn bodies_of_every_api() {
    let (apis, good): (Vec<&ApiEntry>, Vec<Value>) = requests().into_iter().unzip();
    assert!(apis.len() > 40, "{} APIs read something", apis.len());
    Fuzz::cases(5_000).json(&good, |place, body| {
        let read = apis[place].read.expect("it reads");
        let other_way_round = reversed(body);
        match (read(body.into()), read((&other_way_round).into())) {
            (Ok(one), Ok(other)) => {
                assert_eq!(format!("{one:?}"), format!("{other:?}"), "{}", apis[place].name);
            }
            (Err(one), Err(other)) => {
                check_faults(&one);
                check_faults(&other);
            }
            (one, other) => panic!("{}: {one:?} and {other:?}", apis[place].name),
        }
    });
}

/// Each field that is named as unknown is in the request, and each suggestion is a name that the reader
/// knows.
#[test]
fn unknown_fields_of_requests() {
    let request = example_request("operate_proc_v2").expect("it has an example");
    let known: Vec<String> = fields_of(apis::find("operate_proc_v2").expect("it is documented"));
    let is_known = |meant: &str| {
        known.iter().any(|path| path == meant || path.rsplit('.').next().is_some_and(|name| name == meant))
    };
    Fuzz::cases(5_000).json(&[request], |_, body| {
        let Some(fields) = body.as_object() else { return };
        for Unread { path, meant } in unread_fields(fields) {
            let first = path.split(['.', '[']).next().unwrap_or_default();
            let is_sent = fields.keys().any(|name| *name == path || name == first);
            assert!(is_sent || fields.keys().any(|name| path.starts_with(name)), "{path:?} was not sent");
            assert!(meant.as_deref().is_none_or(is_known), "{meant:?} instead of {path:?}");
        }
    });
}

/// Whatever an order names as changed, the other fields stay as they are stored.
#[test]
fn changes_of_stored_specs() {
    let mut stored = Spec::default();
    stored.identity.user = "www".to_owned();
    stored.control.start_cmd = "./start".to_owned();
    stored.labels.insert("team".to_owned(), "shop".to_owned());
    let mut sent = Spec::default();
    sent.identity.user = "root".to_owned();
    sent.control.stop_cmd = "./stop".to_owned();
    sent.change = ["user", "stop_cmd", "labels", "instance_num"].map(str::to_owned).to_vec();
    let good = [serde_json::to_vec(&sent).expect("JSON"), serde_json::to_vec(&stored).expect("JSON")];
    Fuzz::cases(15_000).bytes(&good, |bytes| {
        let Ok(sent) = serde_json::from_slice::<Spec>(bytes) else { return };
        let named = sent.change.clone();
        let unknown = named.iter().any(|name| !FIELDS.contains(&name.as_str()));
        match sent.clone().changing(Some(&stored)) {
            Err(UnknownFields { names }) => {
                assert!(unknown && names.iter().all(|name| named.contains(name)), "{names:?}");
            }
            Ok(spec) if named.is_empty() => assert_eq!(spec, sent),
            Ok(spec) => {
                assert!(!unknown && spec.change.is_empty(), "{named:?}");
                let is_named = |name: &str| named.iter().any(|named| named == name);
                let source = |name: &str| if is_named(name) { &sent } else { &stored };
                assert_eq!(spec.identity.user, source("user").identity.user);
                assert_eq!(spec.control.start_cmd, source("start_cmd").control.start_cmd);
                assert_eq!(spec.control.stop_cmd, source("stop_cmd").control.stop_cmd);
                let again = Spec { change: named.clone(), ..sent.clone() }.changing(Some(&spec));
                assert_eq!(again, Ok(spec), "a change that is made twice is made once");
            }
        }
    });
}

fn check_round_trip<T: Serialize + DeserializeOwned + Debug>(bytes: &[u8]) {
    let Ok(read) = serde_json::from_slice::<T>(bytes) else { return };
    let text = serde_json::to_vec(&read).expect("it was JSON");
    let again: T = serde_json::from_slice(&text).expect("what we write, we read");
    assert_eq!(format!("{again:?}"), format!("{read:?}"));
}

/// The stored formats of journals and stores.
#[test]
fn stored_specs_and_states() {
    let mut good: Vec<Vec<u8>> = golden("json").into_iter().map(|(_, text)| text.into_bytes()).collect();
    good.push(serde_json::to_vec(&Spec::default()).expect("JSON"));
    Fuzz::cases(15_000).bytes(&good, |bytes| {
        check_round_trip::<Spec>(bytes);
        check_round_trip::<Outcome>(bytes);
        check_round_trip::<ProcReport>(bytes);
        let _ = serde_json::from_slice::<Allow>(bytes);
    });
}

#[test]
fn a_hosts_policy() {
    let good = [br#"{"users":["www","root"],"paths":["/srv","/opt/x"],"ops":["start","stop"]}"#.to_vec()];
    let spec = Spec::default();
    Fuzz::cases(8_000).bytes(&good, |bytes| {
        let Ok(allow) = serde_json::from_slice::<Allow>(bytes) else { return };
        for kind in procfleet_core::op::OpKind::ALL {
            let _ = allow.refusal(kind, Some(&spec));
            let _ = allow.refusal(kind, None);
        }
    });
}

fn check_text<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Debug,
{
    if let Ok(read) = text.parse::<T>() {
        let again = read.to_string().parse::<T>().expect("what we write, we read");
        assert_eq!(again, read, "{text:?}");
    }
}

#[test]
fn names_and_tokens() {
    let token = JoinToken { id: [1; 6], secret: [0xab; 20], ca_pin: [3; 32] }.to_string();
    let good = [
        token.as_str(),
        "GSETASK:20190813145456:8",
        "20190813145456-8-0",
        "0200000007525400f355781710390005465c",
        "0:10.0.0.1",
        "0:fe80::1",
        "7",
    ];
    Fuzz::cases(20_000).text(&good, |text| {
        check_text::<JoinToken>(text);
        check_text::<TaskId>(text);
        check_text::<OpId>(text);
        check_text::<AgentId>(text);
        check_text::<Host>(text);
        check_text::<BusinessId>(text);
    });
}

#[test]
fn selections() {
    let good = [
        "10.0.0.1",
        "10.0.0.1-10.0.0.50",
        "10.0.0.0/24",
        "fe80::/10",
        "10.0.*",
        "0:10.0.0.1",
        "role=web*",
        "a?c",
    ];
    Fuzz::cases(20_000).text(&good, |text| match text.parse::<Term>() {
        Ok(term) => {
            let labels = std::collections::BTreeMap::from([("role".to_owned(), "web".to_owned())]);
            let agent: AgentId = "0200000007525400f355781710390005465c".parse().expect("an id");
            let host: Host = "0:10.0.0.1".parse().expect("a host");
            let candidate = procfleet_core::select::Candidate { agent: &agent, host, labels: &labels };
            let _ = term.matches(&candidate);
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    });
}

#[test]
fn crontab_rules() {
    let good = [
        "*/5 * * * *",
        "0 0 29 2 *",
        "30 2 * * 1-5",
        "15 10 4,8 */3 7",
        "@daily",
        "0 */2 * * * *",
        "0 0 L * *",
        "0 0 * * 5#2",
    ];
    let time =
        jiff::civil::date(2026, 3, 29).at(1, 59, 59, 0).to_zoned(jiff::tz::TimeZone::UTC).expect("a time");
    Fuzz::cases(600).text(&good, |text| match CronRule::parse(text) {
        Ok(rule) => {
            let next = rule.next_after(&time);
            assert!(next.is_none_or(|next| next > time), "{text:?}");
        }
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    });
}

/// Our reader and the crate `proxy-header` find the same peer and the same end of every header that both
/// accept. Ours refuses more: other families than TCP over IP, and long headers. The crate refuses a LOCAL
/// header with addresses that are too short; the protocol says that they have no meaning.
#[test]
fn proxy_headers_beside_a_reference() {
    let header = |command: u8, family: u8, rest: &[u8]| {
        let length = u16::try_from(rest.len()).expect("a length").to_be_bytes();
        [b"\r\n\r\n\0\r\nQUIT\n".as_slice(), &[command, family], &length, rest].concat()
    };
    let good = [
        header(0x21, 0x11, &[7; 12]),
        header(0x21, 0x11, &[&[7; 12][..], &[0x04, 0, 2, 0, 0]].concat()),
        header(0x21, 0x21, &[8; 36]),
        header(0x21, 0x12, &[7; 12]),
        header(0x21, 0x31, &[7; 216]),
        header(0x21, 0x00, &[]),
        header(0x20, 0x00, &[]),
        header(0x20, 0x11, &[7; 300]),
        [header(0x21, 0x11, &[7; 12]), header(0x21, 0x21, &[8; 36])].concat(),
    ];
    let config = proxy_header::ParseConfig { allow_v1: false, ..Default::default() };
    Fuzz::cases(60_000).bytes(&good, |bytes| {
        let reference = proxy_header::ProxyHeader::parse(bytes, config);
        let Some((fixed, after)) = bytes.split_first_chunk::<FIXED>() else {
            return assert!(reference.is_err(), "{reference:?}");
        };
        let ours = FixedPart::read(fixed).map(|fixed| (fixed, after.get(..fixed.rest())));
        match (ours, reference) {
            (Ok((_, None)), reference) => assert!(reference.is_err(), "it is not whole: {reference:?}"),
            (Ok((fixed, Some(rest))), reference) => {
                match (fixed.peer(rest).expect("a whole header"), reference) {
                    (ProxiedPeer::Address(peer), Ok((header, end))) => {
                        let source = header.proxied_address().expect("an address").source;
                        assert_eq!(
                            (peer.ip(), peer.port(), FIXED + rest.len()),
                            (source.ip().to_canonical(), source.port(), end)
                        );
                    }
                    (ProxiedPeer::Unknown | ProxiedPeer::Proxy, Ok((header, end))) => {
                        assert_eq!((header.proxied_address(), FIXED + rest.len()), (None, end));
                    }
                    (ProxiedPeer::Proxy, Err(_)) => assert_ne!(bytes[13], 0x00, "it has a family"),
                    (peer, Err(refusal)) => panic!("{peer:?}, but {refusal:?}"),
                }
            }
            (Err(BadProxyHeader::Family(_) | BadProxyHeader::TooLong(_)), _) => {}
            (Err(refusal), reference) => {
                assert!(reference.is_err(), "{refusal}, but {reference:?}");
                assert!(refusal.to_string().len() < 200 && !refusal.reason().is_empty());
            }
        }
    });
}

#[test]
fn urls_and_replies_of_proxies() {
    let good = ["http://proxy.example:3128", "http://ann:h%40sh@10.0.0.1:80/", "http://[::1]:3128"];
    Fuzz::cases(20_000).text(&good, |text| match text.parse::<ProxyUrl>() {
        Ok(url) => {
            let request = url.request("fleet:1");
            assert_eq!(
                request.windows(2).filter(|two| two == b"\r\n").count(),
                3 + usize::from(text.contains('@'))
            );
            assert_eq!(
                url.to_string().parse::<ProxyUrl>().expect("our own text").to_string(),
                url.to_string()
            );
            assert!(url.to_string().bytes().all(|byte| byte.is_ascii_graphic() && byte != b'@'));
        }
        Err(refusal) => assert!(refusal.to_string().len() < 200),
    });
    let url: ProxyUrl = good[0].parse().expect("a url");
    let replies = ["HTTP/1.1 200 OK\r\n\r\nmore", "HTTP/1.0 407 Who\r\nA: b\r\n\r\n"]
        .map(|text| text.as_bytes().to_vec());
    Fuzz::cases(20_000).bytes(&replies, |bytes| {
        // However the reply arrives in pieces, it means the same, and no byte of TLS is taken for the
        // proxy's.
        let mut pieces = (0..=bytes.len()).map(|length| (length, url.read_reply(&bytes[..length])));
        let decided = pieces.find(|(_, reply)| *reply != Ok(None));
        match decided {
            None => assert!(bytes.len() < LONGEST_REPLY),
            Some((arrived, Ok(end))) => {
                assert!(end == Some(arrived) && arrived <= LONGEST_REPLY && bytes[..arrived].ends_with(b"\n"))
            }
            Some((_, Err(refusal))) => assert!(refusal.to_string().len() < 200),
        }
        assert!(pieces.all(|(_, later)| decided.is_some_and(|(_, reply)| reply == later)));
    });
}
