//! The frame around every call: request id, body, login, envelope, metrics.

use super::body::{self, Room, Share};
use super::error::CallError;
use super::login;
use crate::app::{App, AppError, Caller, access};
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use procfleet_proto::http::native::Envelope;
use procfleet_proto::link::token::hex;
use serde::Serialize;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use tracing::debug;

/// What a use case is given.
pub(super) struct Call {
    pub(super) app: App,
    pub(super) caller: Caller,
    /// The request's JSON object.
    pub(super) body: Value,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    /// Let go of when the call is answered.
    #[expect(dead_code, reason = "it is held, not read")]
    share: Share,
}

/// Reads, checks, hands over to `act`, and answers.
pub(super) async fn serve<T, F>(
    app: App,
    api: &'static str,
    request: Request,
    act: impl FnOnce(Call) -> F,
) -> Response
where
    T: Serialize + Send + 'static,
    F: Future<Output = Result<T, CallError>>,
{
    let (parts, body) = request.into_parts();
    let request_id = match parts.headers.get("x-bkapi-request-id").and_then(|id| id.to_str().ok()) {
        Some(id) if !id.is_empty() && id.len() <= 64 => id.to_owned(),
        _ => hex(&crate::secret::random::<16>()),
    };
    let from = parts
        .extensions
        .get::<ConnectInfo<SocketAddr>>()
        .map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(address)| address.ip());
    let metrics = app.metrics.clone();
    let answer = async {
        let room = parts.extensions.get::<Room>().cloned().unwrap_or_else(Room::new);
        let (body, share) = body::read(&room, &parts, body).await?;
        let caller = login::check(&app, api, &parts.headers, &body, from).await?;
        let path = parts.uri.path().to_owned();
        let (asked, asking) = (app.clone(), caller.clone());
        let answer = act(Call { app, caller, body, path, headers: parts.headers, share }).await;
        if let Err(CallError::App(AppError::Denied(reason))) = &answer {
            access::record_denied(&asked, &asking, api, reason).await;
        }
        answer
    };
    let answer = answer.await;
    let code = answer.as_ref().map_or_else(|error| error.answer().1, |_| 0);
    metrics.call(api, code);
    match answer {
        Ok(data) => {
            let envelope = Envelope {
                result: true,
                code: 0,
                message: "success".to_owned(),
                data: Some(data),
                request_id,
            };
            write_aside(envelope).await
        }
        Err(error) => {
            debug!(api, %from, ?error, "a call was refused");
            refused(&error, request_id)
        }
    }
}

pub(super) async fn no_such_api(State(app): State<App>, request: Request) -> Response {
    app.metrics.call("unknown", procfleet_core::code::Code::NoSuchApi.external());
    refused(&CallError::NoSuchApi(request.uri().path().to_owned()), String::new())
}

fn refused(error: &CallError, request_id: String) -> Response {
    let (status, code, message) = error.answer();
    let envelope: Envelope<Value> = Envelope { result: false, code, message, data: None, request_id };
    json(status, serde_json::to_vec(&envelope).unwrap_or_default())
}

/// A large answer takes a while to write as text, so it is written beside the calls that others wait for.
async fn write_aside<T: Serialize + Send + 'static>(envelope: Envelope<T>) -> Response {
    let text = tokio::task::spawn_blocking(move || serde_json::to_vec(&envelope)).await;
    match text {
        Ok(Ok(text)) => json(StatusCode::OK, text),
        Ok(Err(_)) | Err(_) => refused(&CallError::Internal, String::new()),
    }
}

fn json(status: StatusCode, text: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], Body::from(text)).into_response()
}
