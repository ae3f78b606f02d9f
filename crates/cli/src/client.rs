//! The HTTP client: one request, one answer, readable errors. It knows the envelope and the login, but not
//! the requests of the verbs.

use crate::error::Error;
use crate::login::ClientLogin;
use crate::output::plain;
use crate::tls::TlsConnector;
use crate::tunnel::{HostResolver, LookupError, TunnelConnector, TunnelError};
use procfleet_core::code::Code;
use procfleet_http_client::Timeouts;
use procfleet_proto::http::native::{PageEnvelope, REFUSAL_HEADER};
use procfleet_proto::tunnel::ProxyUrl;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt;
use std::io::ErrorKind;
use std::time::Duration;
use ureq::http::{HeaderValue, Response};
use ureq::unversioned::transport::{Connector, TcpConnector};
use ureq::{Agent, Body, Timeout};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const OVERALL_TIMEOUT: Duration = Duration::from_secs(60);
/// A task on 100,000 hosts is about 40 MB; the limit only protects the memory of the client.
const MAX_ANSWER: u64 = 512 * 1024 * 1024;

#[derive(Clone)]
pub(crate) struct Client {
    agent: Agent,
    url: String,
    authorization: HeaderValue,
    credentials: String,
    proxy: Option<ProxyUrl>,
}

/// The `data` of one reply, unchanged, so that `--json` prints fields that this client does not know.
#[derive(Debug)]
pub(crate) struct ReplyData {
    pub(crate) data: Value,
    /// The cursor of the next page, where the data is a page and not the last one.
    pub(crate) next: Option<String>,
    /// The number of rows of all pages.
    pub(crate) total: Option<u64>,
    url: String,
}

impl fmt::Debug for Client {
    /// Without the header that holds the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(login: ClientLogin) -> Result<Client, Error> {
        let timeouts = Timeouts { connect: Some(CONNECT_TIMEOUT), overall: OVERALL_TIMEOUT };
        let config = procfleet_http_client::config(timeouts);
        let (tcp, resolver) = (().chain(TcpConnector::default()), HostResolver::new(login.proxy.as_ref()));
        // Only an https url needs the certificates of this system.
        let tls = login.url.starts_with("https://").then(|| TlsConnector::new(&login.trust)).transpose()?;
        let tunnel = login.proxy.clone().map(TunnelConnector);
        let agent = match (tunnel, tls) {
            (None, None) => Agent::with_parts(config, tcp, resolver),
            (None, Some(tls)) => Agent::with_parts(config, tcp.chain(tls), resolver),
            (Some(tunnel), None) => Agent::with_parts(config, tcp.chain(tunnel), resolver),
            (Some(tunnel), Some(tls)) => Agent::with_parts(config, tcp.chain(tunnel).chain(tls), resolver),
        };
        let words = serde_json::json!({
            "bk_app_code": login.app_code,
            "bk_app_secret": login.app_secret.reveal(),
            "bk_username": login.username,
        });
        let mut authorization =
            HeaderValue::from_str(&in_ascii(&words.to_string())).expect("printable ASCII is a header value");
        authorization.set_sensitive(true);
        Ok(Client {
            agent,
            url: login.url,
            authorization,
            credentials: login.credentials,
            proxy: login.proxy,
        })
    }

    pub(crate) fn get(&self, path: &str, query: &[(&str, String)]) -> Result<ReplyData, Error> {
        let request = self
            .agent
            .get(format!("{}{path}", self.url))
            .query_pairs(query.iter().map(|(name, value)| (*name, value.as_str())))
            .header("X-Bkapi-Authorization", self.authorization.clone());
        let answer = request.call().and_then(read);
        self.judge(answer, |url, why| Error::Interrupted { url, why })
    }

    pub(crate) fn post(&self, path: &str, body: &impl serde::Serialize) -> Result<ReplyData, Error> {
        self.post_once(path, body, None)
    }

    /// With an idempotency key of the caller: a repeated call does not create a second task.
    pub(crate) fn post_once(
        &self,
        path: &str,
        body: &impl serde::Serialize,
        key: Option<&str>,
    ) -> Result<ReplyData, Error> {
        let mut request = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("X-Bkapi-Authorization", self.authorization.clone());
        if let Some(key) = key {
            let value = HeaderValue::from_bytes(key.as_bytes())
                .map_err(|_| Error::Usage("--idempotency-key: must be text of one line".to_owned()))?;
            request = request.header("Idempotency-Key", value);
        }
        let answer = request.send_json(body).and_then(read);
        self.judge(answer, |url, why| Error::OutcomeUnknown { url, why })
    }

    fn judge(
        &self,
        answer: Result<Answer, ureq::Error>,
        after_sending: impl FnOnce(String, String) -> Error,
    ) -> Result<ReplyData, Error> {
        let url = self.url.clone();
        let Answer { status, logged_in, body } =
            answer.map_err(|fault| match (phase_of(&fault), &self.proxy) {
                // The only connection is the one to the proxy.
                (Phase::Connecting(why), Some(proxy)) | (Phase::Tunnelling(why), Some(proxy)) => {
                    Error::Proxy { url: url.clone(), proxy: proxy.to_string(), why }
                }
                (Phase::Connecting(why) | Phase::Tunnelling(why) | Phase::Securing(why), _) => {
                    Error::Unreachable { url: url.clone(), why }
                }
                (Phase::Answering(why), _) => after_sending(url.clone(), why),
            })?;
        let envelope: PageEnvelope<Value> = serde_json::from_slice(&body)
            .map_err(|fault| Error::UnexpectedAnswer { url: url.clone(), status, why: fault.to_string() })?;
        let (message, code) = (plain(&envelope.message), envelope.code);
        if envelope.result {
            let why = "a success without data".to_owned();
            let data =
                envelope.data.ok_or_else(|| Error::UnexpectedAnswer { url: url.clone(), status, why })?;
            return Ok(ReplyData { data, next: envelope.next, total: envelope.total, url });
        }
        let login = [Code::AppDenied, Code::UserDenied].map(Code::external);
        Err(if !logged_in && login.contains(&code) {
            Error::Denied { message, code, credentials: self.credentials.clone() }
        } else {
            Error::Refused { message, code }
        })
    }
}

impl ReplyData {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Error> {
        T::deserialize(&self.data).map_err(|fault| Error::UnexpectedAnswer {
            url: self.url.clone(),
            status: 200,
            why: fault.to_string(),
        })
    }
}

/// One segment of a path, percent-encoded.
pub(crate) fn path_segment(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// The JSON in ASCII, as a header requires: names need not be ASCII.
fn in_ascii(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if (' '..='~').contains(&c) {
            text.push(c);
        } else {
            text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

/// The server's answer, before its envelope is parsed.
struct Answer {
    status: u16,
    /// The server says that it accepted the login. A refusal is then not about the login.
    logged_in: bool,
    body: Vec<u8>,
}

fn read(mut response: Response<Body>) -> Result<Answer, ureq::Error> {
    let status = response.status().as_u16();
    let logged_in = response.headers().contains_key(REFUSAL_HEADER);
    let body = response.body_mut().with_config().limit(MAX_ANSWER).read_to_vec()?;
    Ok(Answer { status, logged_in, body })
}

/// How far a request had come when it failed. It decides whether repeating it is harmless.
enum Phase {
    Connecting(String),
    /// Through the proxy.
    Tunnelling(String),
    /// The TLS handshake.
    Securing(String),
    Answering(String),
}

fn phase_of(fault: &ureq::Error) -> Phase {
    use ureq::Error as Fault;
    match fault {
        // The handshake comes before anything is sent.
        Fault::Io(io) if io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            Phase::Securing(tls_words(&io.to_string()))
        }
        Fault::Io(io) => match io.kind() {
            ErrorKind::ConnectionRefused => Phase::Connecting("connection refused".to_owned()),
            ErrorKind::HostUnreachable => Phase::Connecting("no route to this host".to_owned()),
            ErrorKind::NetworkUnreachable => Phase::Connecting("its network is unreachable".to_owned()),
            // Other socket errors may occur after sending, so the request may have been carried out.
            _ => Phase::Answering(lower(&io.to_string())),
        },
        Fault::Other(other) if other.is::<TunnelError>() => Phase::Tunnelling(other.to_string()),
        Fault::Other(other) if other.is::<LookupError>() => Phase::Connecting(lower(&other.to_string())),
        Fault::HostNotFound => Phase::Connecting("no such host".to_owned()),
        Fault::Timeout(Timeout::Connect | Timeout::Resolve) => {
            Phase::Connecting(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))
        }
        Fault::Timeout(_) => Phase::Answering(format!("no answer within {} s", OVERALL_TIMEOUT.as_secs())),
        Fault::Tls(_) | Fault::Rustls(_) => Phase::Securing(lower(&fault.to_string())),
        Fault::ConnectionFailed | Fault::BadUri(_) | Fault::Http(_) => {
            Phase::Connecting(lower(&fault.to_string()))
        }
        // `ureq::Error` is non-exhaustive; no other variant is known to occur before sending.
        _ => Phase::Answering(lower(&fault.to_string())),
    }
}

fn tls_words(fault: &str) -> String {
    format!("TLS failed: {}; see --ca", lower(fault))
}

/// Lowercases the first letter of a library's message.
fn lower(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_segment_is_percent_encoded() {
        assert_eq!(path_segment("GSETASK:20261115000000:7"), "GSETASK%3A20261115000000%3A7");
        assert_eq!(path_segment("../x?y#z é"), "..%2Fx%3Fy%23z%20%C3%A9");
    }

    #[test]
    fn names_of_any_script_fit_into_the_header() {
        let json = serde_json::json!({"bk_username": "运维\u{7f}\u{1f680}\n"}).to_string();
        let header = in_ascii(&json);
        assert!(HeaderValue::from_str(&header).is_ok(), "{header}");
        let back: Value = serde_json::from_str(&header).expect("still JSON");
        assert_eq!(back, serde_json::from_str::<Value>(&json).expect("JSON"));
    }
}
