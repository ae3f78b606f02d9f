//! The frame around every call: request id, body, login, envelope, metrics.

use super::body::{self, BodyBudgets, BodyShares, ParsedBody};
use super::body_budget::BodyHolder;
use super::connections::ConnectionInfo;
use super::error::CallError;
use super::family::CallFamily;
use super::login;
use super::throttle::LoginThrottle;
use crate::usecase::support::access;
use crate::usecase::{AppError, Caller, Page, Services};
use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequestParts, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use procfleet_core::code::Code;
use procfleet_program::panics;
use procfleet_proto::http::fault::Warnings;
use procfleet_proto::http::job::{self, Permission};
use procfleet_proto::http::native::{Envelope, PageEnvelope, REFUSAL_GRANT, REFUSAL_HEADER};
use procfleet_proto::link::token::hex;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tokio::time::Instant;
use tracing::debug;

/// Up to this size an answer is serialized where the call is served.
const SMALL_ANSWER: usize = 16 << 10;

/// The input of a use case.
pub(super) struct Call {
    pub(super) api: &'static str,
    pub(super) services: Services,
    pub(super) caller: Caller,
    /// The request's JSON object.
    pub(super) body: Value,
    /// The path's parameter, percent-decoded; empty where the route has none.
    pub(super) named: String,
    pub(super) headers: HeaderMap,
    /// Released when the call is answered.
    #[expect(dead_code, reason = "it is held, not read")]
    shares: BodyShares,
}

/// Limits that keep callers from using more than their share.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    budgets: BodyBudgets,
    throttle: LoginThrottle,
}

impl Limits {
    pub(super) fn new() -> Limits {
        Limits { budgets: BodyBudgets::new(), throttle: LoginThrottle::default() }
    }
}

/// The answer to an accepted call, and warnings for its caller.
pub(super) struct Reply<T> {
    pub(super) data: T,
    pub(super) warnings: Warnings,
    /// `Some`: the data is one page of a list.
    pub(super) page: Option<PageEnd>,
}

/// The cursor and the total of a page.
pub(super) struct PageEnd {
    next: Option<String>,
    total: Option<u64>,
}

impl<T> From<T> for Reply<T> {
    fn from(data: T) -> Self {
        Reply { data, warnings: Warnings::default(), page: None }
    }
}

impl<T> Reply<T> {
    pub(super) fn of_page(page: Page<T>) -> Reply<T> {
        let Page { data, next, total } = page;
        Reply { data, warnings: Warnings::default(), page: Some(PageEnd { next, total }) }
    }
}

/// No route has more than one parameter. A parameter that is not UTF-8 counts as empty.
async fn path_parameter(parts: &mut Parts) -> String {
    let parameters = RawPathParams::from_request_parts(parts, &()).await.ok();
    parameters.and_then(|all| all.iter().next().map(|(_, value)| value.to_owned())).unwrap_or_default()
}

/// Reads and checks a call, passes it to `act`, and answers.
pub(super) async fn serve<T, F>(
    services: Services,
    family: CallFamily,
    api: &'static str,
    request: Request,
    act: impl FnOnce(Call) -> F,
) -> Response
where
    T: Serialize + Send + 'static,
    F: Future<Output = Result<Reply<T>, CallError>>,
{
    let (mut parts, body) = request.into_parts();
    let named = path_parameter(&mut parts).await;
    let request_id = request_id(&parts.headers);
    let from = parts
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(address)| address.ip().to_canonical());
    let limits = parts.extensions.get::<Limits>().cloned().unwrap_or_else(Limits::new);
    let connection = parts.extensions.get::<ConnectionInfo>().cloned();
    let metrics = services.metrics.clone();
    let answer = async {
        let (caller, ParsedBody { value: body, shares }) =
            log_in(&services, api, &limits.budgets, &parts, body, from, connection.as_ref()).await?;
        let (asked, asking) = (services.clone(), caller.clone());
        let answer = act(Call { api, services, caller, body, named, headers: parts.headers, shares }).await;
        if let Err(CallError::App(AppError::Denied { reason, .. })) = &answer {
            access::record_denied(&asked, &asking, api, reason).await;
        }
        answer
    };
    // After a panic the caller still gets an answer, and its connection continues.
    let answer = panics::catch(answer).await.unwrap_or(Err(CallError::Internal));
    if let Err(CallError::AppDenied(_) | CallError::UserDenied(_)) = &answer {
        if let Some(connection) = &connection {
            connection.login_refused();
        }
        tokio::time::sleep(limits.throttle.refused(from.into(), Instant::now())).await;
    }
    match answer {
        Ok(Reply { data, warnings, page }) => {
            metrics.call(api, Code::Success.external());
            let success = Success { family, data, warnings, page, request_id: request_id.clone() };
            match success.text().await {
                Some(text) => json(StatusCode::OK, text),
                None => refused(family, &CallError::Internal, request_id),
            }
        }
        Err(error) => {
            debug!(api, %from, ?error, "a call was refused");
            // Called once, because it also writes the log line of some errors.
            let answer = error.answer(family);
            metrics.call(api, answer.1);
            refusal(family, &error, answer, request_id)
        }
    }
}

/// An answer that is not serialized yet.
struct Success<T> {
    family: CallFamily,
    data: T,
    warnings: Warnings,
    page: Option<PageEnd>,
    request_id: String,
}

impl<T: Serialize + Send + 'static> Success<T> {
    /// `None`: serializing failed or panicked.
    async fn text(self) -> Option<Vec<u8>> {
        // Serializing a large answer takes time, so it runs on a blocking thread and does not delay other
        // calls. A small one takes less time than the change of threads.
        let small = panics::catch_in(|| {
            let mut text = AtMost(Vec::new());
            self.write(&mut text).ok().map(|()| text.0)
        });
        match small {
            Ok(Some(text)) => Some(text),
            Ok(None) => panics::block_for_request(move || {
                let mut text = Vec::new();
                self.write(&mut text).ok().map(|()| text)
            })
            .await
            .unwrap_or_default(),
            Err(panics::Caught) => None,
        }
    }

    fn write(&self, into: impl Write) -> serde_json::Result<()> {
        let Success { family, data, warnings, page, request_id } = self;
        let message = match family {
            CallFamily::Gse => format!("success{warnings}"),
            CallFamily::Job => warnings.to_string().trim_start_matches("; ").to_owned(),
        };
        let (code, data, request_id) = (Code::Success.external(), Some(data), request_id.clone());
        match page {
            None => envelope(into, *family, code, message, data, None, request_id),
            Some(PageEnd { next, total }) => {
                let (next, total) = (next.clone(), *total);
                let page = PageEnvelope { result: true, code, message, data, next, total, request_id };
                serde_json::to_writer(into, &page)
            }
        }
    }
}

/// Refuses what would make the text longer than [`SMALL_ANSWER`].
struct AtMost(Vec<u8>);

impl Write for AtMost {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > SMALL_ANSWER {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Authenticates the caller and reads the request. A login in the header, or in the query of a GET, is
/// checked before the body is read; a login in the body, before the body is parsed.
async fn log_in(
    services: &Services,
    api: &'static str,
    budgets: &BodyBudgets,
    parts: &Parts,
    body: Body,
    from: IpAddr,
    connection: Option<&ConnectionInfo>,
) -> Result<(Caller, ParsedBody), CallError> {
    // Before a large body is read: while it arrives, its connection must not be evicted for unauthenticated
    // peers.
    let logged_in = || connection.iter().for_each(|connection| connection.logged_in());
    let early = match (login::in_header(&parts.headers), parts.method == Method::GET) {
        (Ok(None), true) => login::in_query(parts.uri.query().unwrap_or_default()),
        (found, _) => found,
    };
    let checked = match early {
        Ok(None) => {
            let mut unparsed = body::read(budgets, BodyHolder::Peer(from.into()), parts, body).await?;
            let caller = login::check(services, api, unparsed.login().await?, from).await?;
            logged_in();
            unparsed.move_to(budgets, &caller.app).await?;
            let parsed = unparsed.parse(budgets, &caller.app).await?;
            return Ok((caller, parsed));
        }
        Ok(Some(login)) => login::check(services, api, login, from).await,
        Err(unreadable) => Err(unreadable),
    };
    match checked {
        Ok(caller) => {
            logged_in();
            let unparsed = body::read(budgets, BodyHolder::App(caller.app.clone()), parts, body).await?;
            let parsed = unparsed.parse(budgets, &caller.app).await?;
            Ok((caller, parsed))
        }
        Err(refused) => {
            body::discard(body).await;
            Err(refused)
        }
    }
}

/// The caller's request id, or a new one: people look for it in the logs of both sides.
fn request_id(headers: &HeaderMap) -> String {
    match headers.get("x-bkapi-request-id").and_then(|id| id.to_str().ok()) {
        Some(id) if !id.is_empty() && id.len() <= 64 => id.to_owned(),
        _ => hex(&crate::secret::random::<16>()),
    }
}

pub(super) async fn no_such_api(State(services): State<Services>, request: Request) -> Response {
    services.metrics.call("unknown", Code::NoSuchApi.external());
    let error = CallError::NoSuchApi(request.uri().path().to_owned());
    refused(CallFamily::Gse, &error, request_id(request.headers()))
}

pub(super) async fn wrong_native_method(State(services): State<Services>, request: Request) -> Response {
    wrong_method(services, CallFamily::Gse, "unknown", request).await
}

/// The path exists, but not with this method. The request is not read.
pub(super) async fn wrong_method(
    services: Services,
    family: CallFamily,
    api: &'static str,
    request: Request,
) -> Response {
    services.metrics.call(api, Code::NoSuchApi.external());
    let error = CallError::WrongMethod {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
    };
    refused(family, &error, request_id(request.headers()))
}

fn refused(family: CallFamily, error: &CallError, request_id: String) -> Response {
    refusal(family, error, error.answer(family), request_id)
}

fn refusal(
    family: CallFamily,
    error: &CallError,
    (status, code, message): (StatusCode, u32, String),
    request_id: String,
) -> Response {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = envelope::<Value>(&mut text, family, code, message, None, error.permission(), request_id);
    let mut response = json(status, text);
    if error.lacks_grant() {
        response.headers_mut().insert(REFUSAL_HEADER, HeaderValue::from_static(REFUSAL_GRANT));
    }
    if let Some(after) = error.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, after.as_secs().into());
    }
    response
}

/// Writes the JSON text of a reply; the code says whether the call succeeded.
fn envelope<T: Serialize>(
    into: impl Write,
    family: CallFamily,
    code: u32,
    message: String,
    data: Option<T>,
    permission: Option<Permission>,
    request_id: String,
) -> serde_json::Result<()> {
    let result = code == Code::Success.external();
    match family {
        CallFamily::Gse => serde_json::to_writer(into, &Envelope { result, code, message, data, request_id }),
        CallFamily::Job => {
            let reply = job::JobEnvelope { result, code, message, data, permission, request_id };
            serde_json::to_writer(into, &reply)
        }
    }
}

fn json(status: StatusCode, text: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], Body::from(text)).into_response()
}
