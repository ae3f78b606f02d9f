//! A request's body: JSON whatever the Content-Type says, within bounds.

use super::error::CallError;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// A call for 100,000 agents by id has about 7 MB.
const LARGEST: usize = 32 * 1024 * 1024;
/// So much of a body that is too large is still read and thrown away, so that its sender gets to read the answer.
const DRAINED: usize = 256 * 1024 * 1024;
/// A body of which nothing has come for so long is given up.
const STALLED: Duration = Duration::from_secs(30);
/// And so is one that is not complete after so long: what trickles in must not keep room from others.
const WHOLE: Duration = Duration::from_secs(120);
/// Larger bodies are parsed aside, so that they do not hold up other calls, and share the room that there is for them.
const SMALL: usize = 64 * 1024;
/// So many bytes of large bodies are held at once. Until its login is read, anybody may have sent one.
const ROOM: usize = 3 * LARGEST;
const KIB: usize = 1024;

/// The room that large bodies share.
#[derive(Clone, Debug)]
pub(super) struct Room(Arc<Semaphore>);

/// A body's part of the room, held until its call is answered.
pub(super) type Share = Option<OwnedSemaphorePermit>;

impl Room {
    pub(super) fn new() -> Room {
        Room(Arc::new(Semaphore::new(ROOM / KIB)))
    }

    /// Waits for room; meanwhile the sender waits too, for nobody reads what it sends.
    async fn take(&self, bytes: usize) -> Result<Share, CallError> {
        let kib = u32::try_from(bytes.div_ceil(KIB)).map_err(|_| CallError::Internal)?;
        match timeout(STALLED, self.0.clone().acquire_many_owned(kib)).await {
            Ok(Ok(share)) => Ok(Some(share)),
            Ok(Err(_)) => Err(CallError::Internal),
            Err(_) => Err(CallError::Crowded),
        }
    }
}

/// The request as one JSON object: its body, or its query where there is no body.
pub(super) async fn read(room: &Room, parts: &Parts, body: Body) -> Result<(Value, Share), CallError> {
    let collected = timeout(WHOLE, collect(room, &parts.headers, body)).await;
    let (bytes, share) = collected.map_err(|_| broken())??;
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok((from_query(parts.uri.query().unwrap_or_default()), share));
    }
    let small = bytes.len() <= SMALL;
    let parse = move || serde_json::from_slice(&bytes).map_err(|error| CallError::Json(error.to_string()));
    let value = match small {
        true => parse(),
        false => tokio::task::spawn_blocking(parse).await.map_err(|_| CallError::Internal)?,
    };
    Ok((value?, share))
}

async fn collect(room: &Room, headers: &HeaderMap, body: Body) -> Result<(Vec<u8>, Share), CallError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
    let mut stream = body.into_data_stream();
    let mut bytes = Vec::with_capacity(announced.unwrap_or_default().min(SMALL));
    let mut share = None;
    let mut size = 0usize;
    let mut too_large = announced.is_some_and(|n| n > LARGEST);
    while let Some(part) = timeout(STALLED, stream.next()).await.map_err(|_| broken())? {
        let part = part.map_err(|_| broken())?;
        size += part.len();
        if size > LARGEST && !too_large {
            too_large = true;
            (bytes, share) = (Vec::new(), None);
        }
        if size > SMALL && !too_large && share.is_none() {
            // One that does not say how long it is may become as large as any.
            share = room.take(announced.unwrap_or(LARGEST)).await?;
            bytes.reserve_exact(announced.unwrap_or_default().saturating_sub(bytes.len()));
        }
        if size > DRAINED {
            break;
        }
        if !too_large {
            bytes.extend_from_slice(&part);
        }
    }
    if too_large { Err(CallError::TooLarge { limit: LARGEST }) } else { Ok((bytes, share)) }
}

fn broken() -> CallError {
    CallError::Json("the body broke off".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzzed_queries_are_objects_of_texts_and_json() {
        let good = [
            "limit=10&namespace=gse",
            "hosts=[{\"ip\":\"10.0.0.1\",\"bk_cloud_id\":0}]",
            "task_id=GSETASK%3A20190813145456%3A8&bk_app_code=a+b",
            "agent_id_list=%5B%22a%22%5D&select=10.0.0.0/24,role=web*",
        ];
        procfleet_testkit::fuzz::Fuzz::cases(20_000).text(&good, |query| {
            let Value::Object(fields) = from_query(query) else { panic!("{query:?}") };
            for value in fields.values() {
                assert!(matches!(value, Value::String(_) | Value::Array(_) | Value::Object(_)), "{value}");
            }
        });
    }
}
