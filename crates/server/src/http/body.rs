//! A request's body: bounded, and parsed as JSON whatever the Content-Type says.
//!
//! ```text
//! read (share of the bytes) -> login, if it is in the body -> parse (share of the values)
//! ```
//!
//! Values take much more memory than their text, so they are parsed after the login only, and have a limit
//! and a budget of their own.

use super::body_budget::{BodyBudget, BodyHolder, BodyShare};
use super::error::CallError;
use super::parsed_size::{parsed_size, size_of_texts};
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::StreamExt;
use procfleet_program::panics;
use procfleet_proto::http::login::{BadLogin, Login};
use serde_json::{Map, Value};
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// A call for 100,000 agents by id has about 7 MB.
const LARGEST: usize = 32 * 1024 * 1024;
/// Up to this much of a body that is too large is still read and discarded, so that its sender reads the
/// answer.
const DRAINED: usize = 256 * 1024 * 1024;
/// Limits of bytes and time for a body whose sender was refused by its header.
const DRAINED_UNREAD: usize = 1024 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// A body is given up after this time without data.
const STALLED: Duration = Duration::from_secs(30);
/// Time limit of a whole body, so that a slow sender does not hold its share for long (slow-loris).
const WHOLE: Duration = Duration::from_secs(120);
/// Minimum pace of a body before its login, in bytes per second, after a grace period.
const UNAUTHENTICATED_PACE: f64 = 4.0 * 1024.0;
const UNAUTHENTICATED_GRACE: Duration = Duration::from_secs(10);
/// Larger bodies are parsed on another thread, so that they do not delay other calls, and take a share of the
/// budget.
const SMALL: usize = 64 * 1024;
/// Bodies before their login take a share of the budget from this size on: anybody can send many of them and
/// leave them unfinished.
const UNAUTHENTICATED_SMALL: usize = 8 * 1024;
/// Budget for large bodies, in bytes: one for callers that have logged in, one for those whose login is in
/// the body.
const BUDGET: usize = 3 * LARGEST;

/// Estimate of the memory of one body's values. The densest legal call, 100,000 requests with small specs,
/// has about 600 MiB.
const LARGEST_PARSED: usize = 24 * LARGEST;
/// Values of more memory take a share of the budget.
const SMALL_PARSED: usize = 64 * 1024;
/// Budget for values, in bytes of memory.
const PARSED_BUDGET: usize = LARGEST_PARSED / 2 * 3;

/// The budgets for large bodies. Callers that have logged in do not share theirs with those that have not.
#[derive(Clone, Debug)]
pub(super) struct BodyBudgets {
    callers: BodyBudget,
    unauthenticated: BodyBudget,
    parsed: BodyBudget,
}

/// A body that was read and not parsed, and its share of the budget, if it is large.
#[derive(Debug)]
pub(super) struct UnparsedBody {
    text: BodyText,
    share: Option<BodyShare>,
}

#[derive(Debug)]
enum BodyText {
    Json(Bytes),
    /// There is no body; the query is the request.
    Query(String),
}

/// A request's JSON and its shares of the budgets, if it is large.
#[derive(Debug)]
pub(super) struct ParsedBody {
    pub(super) value: Value,
    pub(super) shares: BodyShares,
}

/// Released on drop.
#[derive(Debug)]
pub(super) struct BodyShares {
    #[expect(dead_code, reason = "it is held, not read")]
    bytes: Option<BodyShare>,
    #[cfg_attr(not(test), expect(dead_code, reason = "it is held, not read"))]
    values: Option<BodyShare>,
}

impl BodyBudgets {
    pub(super) fn new() -> BodyBudgets {
        BodyBudgets {
            callers: BodyBudget::new(BUDGET),
            unauthenticated: BodyBudget::new(BUDGET),
            parsed: BodyBudget::new(PARSED_BUDGET),
        }
    }

    fn of(&self, holder: &BodyHolder) -> &BodyBudget {
        match holder {
            BodyHolder::App(_) => &self.callers,
            BodyHolder::Peer(_) => &self.unauthenticated,
        }
    }
}

impl UnparsedBody {
    /// The login among the fields of the body.
    pub(super) async fn login(&self) -> Result<Login, CallError> {
        let login = match &self.text {
            BodyText::Query(query) => Login::from_query(query_parameters(query)),
            BodyText::Json(json) => work_on(json, Login::from_body).await?,
        };
        login.map_err(|bad| match bad {
            BadLogin::Json(reason) => CallError::Json(reason),
            BadLogin::Header | BadLogin::NoText(_) => CallError::NoLogin(bad.to_string()),
        })
    }

    /// The login was correct: moves the share to the budget of logged-in callers.
    pub(super) async fn move_to(&mut self, budgets: &BodyBudgets, app: &str) -> Result<(), CallError> {
        let BodyText::Json(json) = &self.text else { return Ok(()) };
        if json.len() <= SMALL {
            self.share = None;
        } else if self.share.is_some() {
            let share = budgets.callers.take(BodyHolder::App(app.to_owned()), json.len()).await?;
            share.complete();
            self.share = Some(share);
        }
        Ok(())
    }

    /// For an app that has logged in.
    pub(super) async fn parse(self, budgets: &BodyBudgets, app: &str) -> Result<ParsedBody, CallError> {
        let size = match &self.text {
            BodyText::Json(json) => work_on(json, parsed_size).await?,
            BodyText::Query(query) => parsed_size_of_query(query),
        };
        if size > LARGEST_PARSED {
            return Err(CallError::TooManyValues { size, limit: LARGEST_PARSED });
        }
        let mut values = None;
        if size > SMALL_PARSED {
            let share = budgets.parsed.take(BodyHolder::App(app.to_owned()), size).await?;
            share.complete();
            values = Some(share);
        }
        let value = match &self.text {
            BodyText::Query(query) => from_query(query),
            BodyText::Json(json) => {
                let parsed = work_on(json, |json| serde_json::from_slice(json)).await?;
                parsed.map_err(|error| CallError::Json(error.to_string()))?
            }
        };
        Ok(ParsedBody { value, shares: BodyShares { bytes: self.share, values } })
    }
}

/// A large body takes time, so it is worked on by another thread.
async fn work_on<T: Send + 'static>(json: &Bytes, work: fn(&[u8]) -> T) -> Result<T, CallError> {
    if json.len() <= SMALL {
        return Ok(work(json));
    }
    let json = json.clone();
    panics::block_for_request(move || work(&json)).await.map_err(|_| CallError::Internal)
}

/// Reads the body, or the query if there is no body.
pub(super) async fn read(
    budgets: &BodyBudgets,
    holder: BodyHolder,
    parts: &Parts,
    body: Body,
) -> Result<UnparsedBody, CallError> {
    let collected = timeout(WHOLE, collect(budgets, &holder, &parts.headers, body)).await;
    let (bytes, share) = collected.map_err(|_| broken())??;
    if let Some(share) = &share {
        share.complete();
    }
    if bytes.iter().all(u8::is_ascii_whitespace) {
        let query = parts.uri.query().unwrap_or_default().to_owned();
        return Ok(UnparsedBody { text: BodyText::Query(query), share: None });
    }
    Ok(UnparsedBody { text: BodyText::Json(bytes.into()), share })
}

/// Reads a bounded part of a body that is not needed, so that its sender reads the answer.
pub(super) async fn discard(body: Body) {
    let mut stream = body.into_data_stream();
    let mut size = 0;
    let drain = async {
        while let Some(Ok(part)) = stream.next().await {
            size += part.len();
            if size > DRAINED_UNREAD {
                break;
            }
        }
    };
    let _ = timeout(DRAIN_TIME, drain).await;
}

async fn collect(
    budgets: &BodyBudgets,
    holder: &BodyHolder,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Vec<u8>, Option<BodyShare>), CallError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<usize>().ok());
    let mut stream = body.into_data_stream();
    let small = match holder {
        BodyHolder::App(_) => SMALL,
        BodyHolder::Peer(_) => UNAUTHENTICATED_SMALL,
    };
    let mut bytes = Vec::with_capacity(announced.unwrap_or_default().min(small));
    let mut share: Option<BodyShare> = None;
    // How large the body may become before it needs a larger share.
    let mut allowed = small;
    let mut size = 0usize;
    let mut too_large = announced.is_some_and(|n| n > LARGEST);
    // Excludes the time in which nothing was read.
    let mut began = Instant::now();
    loop {
        let late = deadline(holder, began, size);
        let part = match &share {
            None => timeout_at(late, stream.next()).await,
            Some(share) => tokio::select! {
                biased;
                () = share.cut() => return Err(CallError::TooSlow),
                part = timeout_at(late, stream.next()) => part,
            },
        };
        let Some(part) = part.map_err(|_| broken())? else { break };
        let part = part.map_err(|_| broken())?;
        size += part.len();
        if size > LARGEST && !too_large {
            too_large = true;
            (bytes, share) = (Vec::new(), None);
        }
        if size > allowed && !too_large {
            let waiting = Instant::now();
            // A body without a Content-Length may become as large as any.
            allowed = announced.unwrap_or(if size <= SMALL { SMALL } else { LARGEST }).max(size);
            // Dropped first: a body that waits for a share must not hold one (deadlock).
            drop(share.take());
            share = Some(budgets.of(holder).take(holder.clone(), allowed).await?);
            bytes.reserve_exact(announced.unwrap_or_default().saturating_sub(bytes.len()));
            began += waiting.elapsed();
        }
        if size > DRAINED {
            break;
        }
        if let Some(share) = &share {
            share.received(part.len());
        }
        if !too_large {
            bytes.extend_from_slice(&part);
        }
    }
    if too_large { Err(CallError::TooLarge { limit: LARGEST }) } else { Ok((bytes, share)) }
}

/// Deadline of the next part.
fn deadline(holder: &BodyHolder, began: Instant, size: usize) -> Instant {
    let stalled = Instant::now() + STALLED;
    match holder {
        BodyHolder::App(_) => stalled,
        BodyHolder::Peer(_) => {
            let pace = Duration::from_secs_f64(size as f64 / UNAUTHENTICATED_PACE);
            stalled.min(began + pace.max(UNAUTHENTICATED_GRACE))
        }
    }
}

fn broken() -> CallError {
    CallError::Json("the body broke off".to_owned())
}

/// Query parameters as strings, or as JSON if they look like it: some clients send lists that way.
fn from_query(query: &str) -> Value {
    let fields = query_parameters(query).into_iter().map(|(name, text)| {
        let value = match looks_like_json(&text) {
            true => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            false => Value::String(text),
        };
        (name, value)
    });
    Value::Object(fields.collect::<Map<_, _>>())
}

/// The bytes of a query are bounded, but its values may take far more memory.
fn parsed_size_of_query(query: &str) -> usize {
    let parameters = query_parameters(query);
    let json = parameters.iter().filter(|(_, text)| looks_like_json(text));
    let values: usize = json.map(|(_, text)| parsed_size(text.as_bytes())).sum();
    query.len() + size_of_texts(parameters.len()) + values
}

fn looks_like_json(text: &str) -> bool {
    text.starts_with(['[', '{'])
}

/// Decoded, in the order of the query.
pub(super) fn query_parameters(query: &str) -> Vec<(String, String)> {
    axum::extract::Query::try_from_uri(&format!("/?{query}").parse().unwrap_or_default())
        .map(|axum::extract::Query(pairs)| pairs)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trickle(part: usize, every: Duration) -> Body {
        let parts = futures_util::stream::unfold((), move |()| async move {
            tokio::time::sleep(every).await;
            Some((Ok::<_, std::convert::Infallible>(vec![b' '; part]), ()))
        });
        Body::from_stream(parts.take(10_000))
    }

    /// How long an endless body of such parts is read.
    async fn read_for(holder: BodyHolder, part: usize, every: Duration) -> Duration {
        let began = Instant::now();
        let parts = axum::http::Request::new(()).into_parts().0;
        let read = read(&BodyBudgets::new(), holder, &parts, trickle(part, every)).await;
        assert!(matches!(read, Err(CallError::Json(_))), "{read:?}");
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_cut_and_sooner_before_a_login() {
        let net = std::net::IpAddr::from([10, 0, 0, 1]).into();
        let second = Duration::from_secs(1);
        assert_eq!(read_for(BodyHolder::Peer(net), 1, second).await, UNAUTHENTICATED_GRACE);
        assert_eq!(read_for(BodyHolder::App("a".to_owned()), 1, second).await, WHOLE);
        assert_eq!(read_for(BodyHolder::App("a".to_owned()), 1, 60 * second).await, STALLED);
        assert_eq!(read_for(BodyHolder::Peer(net), 5 * 1024, second).await, WHOLE, "it keeps its pace");
    }

    /// One host each, with the required fields and short texts.
    #[test]
    fn the_largest_legal_call_is_within_the_limit() {
        let request = |number: u32| {
            format!(
                r#"{{"meta":{{"namespace":"n","name":"{number}","labels":{{"a":"b"}}}},"op_type":0,"hosts":[{{"ip":"10.0.0.1",
                "bk_cloud_id":0}}],"spec":{{"identity":{{"proc_name":"a","setup_path":"/","pid_path":"/a","user":"u"}},
                "control":{{"start_cmd":"a"}},"resource":{{}},"alive_monitor_policy":{{"auto_type":1}}}}}}"#
            )
        };
        let requests: Vec<String> = (0..100_000).map(request).collect();
        let body = format!(r#"{{"proc_operate_req":[{}]}}"#, requests.join(","));
        assert!(body.len() <= LARGEST, "{}", body.len());
        assert!(parsed_size(body.as_bytes()) <= LARGEST_PARSED, "{}", parsed_size(body.as_bytes()));
    }

    #[tokio::test]
    async fn values_of_a_caller_take_a_share_and_have_a_limit() {
        let budgets = BodyBudgets::new();
        let parse = async |json: String| {
            let unparsed = UnparsedBody { text: BodyText::Json(json.into()), share: None };
            unparsed.parse(&budgets, "app").await
        };
        let small = parse("{\"a\":[1]}".to_owned()).await.expect("it is small");
        assert!(small.shares.values.is_none());
        let large = parse(format!("[{}0]", "[[1]],".repeat(1_000))).await.expect("it fits");
        assert!(large.shares.values.is_some());
        let refused = parse(format!("[{}0]", "[[1]],".repeat(LARGEST / 8))).await;
        assert!(matches!(refused, Err(CallError::TooManyValues { .. })), "{refused:?}");

        let query = format!("a={}", "[".repeat(60_000));
        let unparsed = UnparsedBody { text: BodyText::Query(query), share: None };
        assert_eq!(unparsed.login().await.expect("it has none"), Login::default());
        let parsed = unparsed.parse(&budgets, "app").await.expect("it is a text");
        assert!(parsed.shares.values.is_some());
    }

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
