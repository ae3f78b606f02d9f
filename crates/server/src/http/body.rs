//! A request's body: JSON whatever the Content-Type says, within bounds.

use super::error::CallError;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::timeout;

/// A call for 100,000 agents by id has about 7 MB.
const LARGEST: usize = 32 * 1024 * 1024;
/// So much of a body that is too large is still read and thrown away, so that its sender gets to read the answer.
const DRAINED: usize = 256 * 1024 * 1024;
/// A body of which nothing has come for so long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// Larger bodies are parsed aside, so that they do not hold up other calls.
const PARSED_HERE: usize = 64 * 1024;

/// The request as one JSON object: its body, or its query where there is no body.
pub(super) async fn read(parts: &Parts, body: Body) -> Result<Value, CallError> {
    let bytes = collect(&parts.headers, body).await?;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(from_query(parts.uri.query().unwrap_or_default()));
    }
    let small = bytes.len() <= PARSED_HERE;
    let parse = move || serde_json::from_slice(&bytes).map_err(|error| CallError::Json(error.to_string()));
    match small {
        true => parse(),
        false => tokio::task::spawn_blocking(parse).await.map_err(|_| CallError::Internal)?,
    }
}

async fn collect(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, CallError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(announced.unwrap_or_default().min(PARSED_HERE));
    let mut size = 0usize;
    let mut too_large = announced.is_some_and(|n| n > LARGEST);
    let broken = || CallError::Json("the body broke off".to_owned());
    while let Some(part) = timeout(STALLED, stream.next()).await.map_err(|_| broken())? {
        let part = part.map_err(|_| broken())?;
        size += part.len();
        if size > LARGEST && !too_large {
            too_large = true;
            bytes = Vec::new();
        }
        if size > DRAINED {
            break;
        }
        if !too_large {
            bytes.extend_from_slice(&part);
        }
    }
    if too_large { Err(CallError::TooLarge { limit: LARGEST }) } else { Ok(bytes) }
}

/// Query parameters as texts, or as JSON where they look like it: some clients send lists that way.
fn from_query(query: &str) -> Value {
    let pairs: Vec<(String, String)> =
        axum::extract::Query::try_from_uri(&format!("/?{query}").parse().unwrap_or_default())
            .map(|axum::extract::Query(pairs)| pairs)
            .unwrap_or_default();
    let fields = pairs.into_iter().map(|(name, text)| {
        let value = match text.as_bytes().first() {
            Some(b'[' | b'{') => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            _ => Value::String(text),
        };
        (name, value)
    });
    Value::Object(fields.collect::<Map<_, _>>())
}
