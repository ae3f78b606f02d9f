//! The answers of a BlueKing login service to the validation of a `bk_token`.
//!
//! There are several generations of it in the field: `{"result": true, "code": 0, "data": {"bk_username":
//! "admin"}}`, the same with `bk_error_code`, with `username`, or with a text for a code, and the oldest,
//! `{"ret": 0, "data": {"username": "admin"}}`.

use serde_json::Value;

const LONGEST_NAME: usize = 64;

/// The user of the token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenVerdict {
    User(String),
    /// The token is unknown or has expired.
    NotLoggedIn,
}

/// `None`: this is not an answer of a login service.
pub fn verdict(body: &[u8]) -> Option<TokenVerdict> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    if !successful(&answer)? {
        return Some(TokenVerdict::NotLoggedIn);
    }
    let data = answer.get("data")?;
    let name = ["bk_username", "username"].into_iter().find_map(|field| data.get(field)?.as_str())?;
    let usable = !name.trim().is_empty()
        && name.chars().count() <= LONGEST_NAME
        && !name.chars().any(char::is_control);
    usable.then(|| TokenVerdict::User(name.to_owned()))
}

/// Every sign of success or failure that is there must be one of success.
fn successful(answer: &Value) -> Option<bool> {
    let result = answer.get("result").map(|result| result.as_bool());
    let codes = ["ret", "code", "bk_error_code"].into_iter().filter_map(|field| answer.get(field));
    let signs: Vec<Option<bool>> = result.into_iter().chain(codes.map(is_zero)).collect();
    match signs.is_empty() {
        true => None,
        false => signs.into_iter().try_fold(true, |all, sign| Some(all && sign?)),
    }
}

/// `0`, and `"0"` and `"00"`, which the first generation writes.
fn is_zero(code: &Value) -> Option<bool> {
    match code {
        Value::Number(number) => Some(number.as_i64() == Some(0)),
        Value::String(digits) => Some(!digits.is_empty() && digits.bytes().all(|digit| digit == b'0')),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_generation_is_understood() {
        let user = |name: &str| Some(TokenVerdict::User(name.to_owned()));
        let no = Some(TokenVerdict::NotLoggedIn);
        for (body, expected) in [
            (r#"{"result": true, "code": 0, "data": {"bk_username": "admin"}}"#, user("admin")),
            (r#"{"result": true, "code": "00", "data": {"username": "admin"}}"#, user("admin")),
            (r#"{"ret": 0, "msg": "", "data": {"username": "ann"}}"#, user("ann")),
            (r#"{"result": true, "bk_error_code": 0, "data": {"bk_username": "ann"}}"#, user("ann")),
            (r#"{"code": 0, "data": {"bk_username": "ann"}}"#, user("ann")),
            (r#"{"result": false, "code": 1302100, "message": "not logged in", "data": {}}"#, no.clone()),
            (r#"{"result": false, "data": {"bk_username": "admin"}}"#, no.clone()),
            (r#"{"result": true, "code": 1, "data": {"bk_username": "admin"}}"#, no.clone()),
            (r#"{"ret": 1, "data": null}"#, no),
            (r#"{"result": true, "code": 0, "data": {}}"#, None),
            (r#"{"result": true, "code": 0, "data": {"bk_username": " "}}"#, None),
            (r#"{"result": true, "code": 0, "data": {"bk_username": "a\nb"}}"#, None),
            (r#"{"result": "yes", "code": 0, "data": {"bk_username": "admin"}}"#, None),
            (r#"{"data": {"bk_username": "admin"}}"#, None),
            ("<html>log in, please</html>", None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(verdict(body.as_bytes()), expected, "{body}");
        }
    }
}
