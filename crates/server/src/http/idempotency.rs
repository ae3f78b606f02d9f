//! Reads the key with which a caller may repeat a request: `Idempotency-Key`, or else `X-Bkapi-Request-Id`.
//! `usecase/operate.rs` gives it its meaning.

use axum::http::{HeaderMap, HeaderValue};
use procfleet_proto::http::fault::Faults;
use procfleet_store::{KeyKind, SubmissionKey};

pub(super) const KEY: &str = "Idempotency-Key";
const REQUEST_ID: &str = "X-Bkapi-Request-Id";
const LONGEST: usize = 255;

/// The caller's own key takes precedence: a gateway in between may give each attempt another request id.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<SubmissionKey>, Faults> {
    let (header, kind, value) = match (headers.get(KEY), headers.get(REQUEST_ID)) {
        (Some(value), _) => (KEY, KeyKind::Idempotency, value),
        (None, Some(value)) if !value.is_empty() => (REQUEST_ID, KeyKind::RequestId, value),
        (None, Some(_) | None) => return Ok(None),
    };
    let read = match headers.get_all(header).iter().count() {
        1 => text(value),
        times => Err(format!("is sent {times} times, once is allowed")),
    };
    read.map(|text| Some(SubmissionKey { kind, text })).map_err(|reason| Faults::one(header, reason))
}

fn text(value: &HeaderValue) -> Result<String, String> {
    let text = str::from_utf8(value.as_bytes()).map_err(|_| "is not UTF-8 text".to_owned())?;
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    let length = text.chars().count();
    if length > LONGEST {
        return Err(format!("has {length} characters, at most {LONGEST} are allowed"));
    }
    match text.chars().find(|c| c.is_control()) {
        Some(odd) => Err(format!("contains {odd:?}; control characters are not allowed")),
        None => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&'static str, &[u8])], expected: Result<Option<(KeyKind, &str)>, &str>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_bytes(value).expect("a header value"));
        }
        let found = key(&map).map_err(|faults| faults.to_string());
        let expected = expected
            .map(|key| key.map(|(kind, text)| SubmissionKey { kind, text: text.to_owned() }))
            .map_err(str::to_owned);
        assert_eq!(found, expected, "{headers:?}");
    }

    #[test]
    fn a_key_is_text_within_bounds() {
        let longest = "x".repeat(255);
        let too_long = "x".repeat(256);
        check(&[], Ok(None));
        check(&[("idempotency-key", b"a b")], Ok(Some((KeyKind::Idempotency, "a b"))));
        check(&[("idempotency-key", "钥匙".as_bytes())], Ok(Some((KeyKind::Idempotency, "钥匙"))));
        check(&[("idempotency-key", longest.as_bytes())], Ok(Some((KeyKind::Idempotency, &longest))));
        check(
            &[("idempotency-key", too_long.as_bytes())],
            Err("Idempotency-Key: has 256 characters, at most 255 are allowed"),
        );
        check(&[("idempotency-key", b"")], Err("Idempotency-Key: is empty"));
        check(
            &[("idempotency-key", b"a\tb")],
            Err("Idempotency-Key: contains '\\t'; control characters are not allowed"),
        );
        check(
            &[("idempotency-key", "a\u{85}".as_bytes())],
            Err("Idempotency-Key: contains '\\u{85}'; control characters are not allowed"),
        );
        check(&[("idempotency-key", b"\xff")], Err("Idempotency-Key: is not UTF-8 text"));
        check(
            &[("idempotency-key", b"a"), ("idempotency-key", b"b")],
            Err("Idempotency-Key: is sent 2 times, once is allowed"),
        );
    }

    #[test]
    fn the_callers_own_key_wins_over_the_request_id() {
        let own: (&str, &[u8]) = ("idempotency-key", b"own");
        check(&[("x-bkapi-request-id", b"id")], Ok(Some((KeyKind::RequestId, "id"))));
        check(&[("x-bkapi-request-id", b"id"), own], Ok(Some((KeyKind::Idempotency, "own"))));
        check(&[("x-bkapi-request-id", b"")], Ok(None));
        check(&[("x-bkapi-request-id", b"\xff")], Err("X-Bkapi-Request-Id: is not UTF-8 text"));
    }
}
