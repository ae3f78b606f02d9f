//! The login of a call: the app's code and secret, and the user that it names, from the header, the body or
//! the query.
//!
//! The sender is unknown until the login is checked, so only the login fields are stored. All other values
//! are skipped: parsed, `[[[[` would take 150 times the memory of its text.

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// The header that BlueKing's gateway clients send: a JSON text.
pub const HEADER: &str = "x-bkapi-authorization";

/// The login fields, which may be among the fields of any request.
pub const FIELDS: [&str; 4] = ["bk_app_code", "bk_app_secret", "bk_username", "bk_token"];

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub app_code: String,
    pub app_secret: String,
    pub username: String,
    pub token: String,
}

/// Why the caller cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLogin {
    #[error("the X-Bkapi-Authorization header is not a JSON object")]
    Header,
    /// The body is not JSON; the text says where.
    #[error("{0}")]
    Json(String),
    /// Ignoring the field would turn a user's call into one of the app itself.
    #[error("{0} must be a string")]
    NoText(&'static str),
}

impl Login {
    /// The content of the `X-Bkapi-Authorization` header.
    pub fn from_header(header: &[u8]) -> Result<Login, BadLogin> {
        match LoginFields::read(header) {
            Ok(Some(fields)) => fields.login(),
            Ok(None) | Err(_) => Err(BadLogin::Header),
        }
    }

    /// The fields beside a request's own. A body that is no object has none.
    pub fn from_body(json: &[u8]) -> Result<Login, BadLogin> {
        let fields = LoginFields::read(json).map_err(|error| BadLogin::Json(error.to_string()))?;
        fields.unwrap_or_default().login()
    }

    /// The login among the decoded parameters of a query. As for every other parameter, a list or an object
    /// is read as JSON.
    pub fn from_query(parameters: impl IntoIterator<Item = (String, String)>) -> Result<Login, BadLogin> {
        let mut fields = LoginFields::default();
        for (name, text) in parameters {
            let Some(field) = fields.find(&name) else { continue };
            let is_json = text.starts_with(['[', '{']) && serde_json::from_str::<IgnoredAny>(&text).is_ok();
            *field = if is_json { LoginField::Other } else { LoginField::Text(text) };
        }
        fields.login()
    }
}

/// One of the login fields, as it was sent.
#[derive(Default)]
enum LoginField {
    /// Not sent, or `null`.
    #[default]
    Absent,
    Text(String),
    Other,
}

/// In the order of [`FIELDS`]. Of a field that was sent twice, the last one counts.
#[derive(Default)]
struct LoginFields([LoginField; FIELDS.len()]);

impl LoginFields {
    /// `None`: the JSON is no object.
    fn read(json: &[u8]) -> serde_json::Result<Option<LoginFields>> {
        match json.trim_ascii_start().first() {
            Some(b'{') => serde_json::from_slice(json).map(Some),
            Some(_) | None => serde_json::from_slice::<IgnoredAny>(json).map(|_| None),
        }
    }

    fn find(&mut self, name: &str) -> Option<&mut LoginField> {
        FIELDS.iter().position(|field| *field == name).map(|index| &mut self.0[index])
    }

    fn login(self) -> Result<Login, BadLogin> {
        let mut texts = <[String; FIELDS.len()]>::default();
        for ((text, field), name) in texts.iter_mut().zip(self.0).zip(FIELDS) {
            match field {
                LoginField::Absent => {}
                LoginField::Text(sent) => *text = sent,
                LoginField::Other => return Err(BadLogin::NoText(name)),
            }
        }
        let [app_code, app_secret, username, token] = texts;
        Ok(Login { app_code, app_secret, username, token })
    }
}

impl<'de> Deserialize<'de> for LoginFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LoginFields, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = LoginFields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LoginFields, A::Error> {
                let mut fields = LoginFields::default();
                while let Some(name) = map.next_key::<String>()? {
                    match fields.find(&name) {
                        Some(field) => *field = map.next_value()?,
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(fields)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for LoginField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LoginField, D::Error> {
        struct Field;

        impl<'de> Visitor<'de> for Field {
            type Value = LoginField;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }

            fn visit_unit<E>(self) -> Result<LoginField, E> {
                Ok(LoginField::Absent)
            }

            fn visit_str<E>(self, text: &str) -> Result<LoginField, E> {
                Ok(LoginField::Text(text.to_owned()))
            }

            fn visit_bool<E>(self, _: bool) -> Result<LoginField, E> {
                Ok(LoginField::Other)
            }

            fn visit_i64<E>(self, _: i64) -> Result<LoginField, E> {
                Ok(LoginField::Other)
            }

            fn visit_u64<E>(self, _: u64) -> Result<LoginField, E> {
                Ok(LoginField::Other)
            }

            fn visit_f64<E>(self, _: f64) -> Result<LoginField, E> {
                Ok(LoginField::Other)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<LoginField, A::Error> {
                IgnoredAny.visit_seq(list).map(|_| LoginField::Other)
            }

            fn visit_map<A: MapAccess<'de>>(self, object: A) -> Result<LoginField, A::Error> {
                IgnoredAny.visit_map(object).map(|_| LoginField::Other)
            }
        }

        deserializer.deserialize_any(Field)
    }
}

/// Secrets stay out of logs.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("app_code", &self.app_code)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn login(texts: [&str; 4]) -> Login {
        let [app_code, app_secret, username, token] = texts.map(str::to_owned);
        Login { app_code, app_secret, username, token }
    }

    #[track_caller]
    fn check_body(body: &str, expected: Result<[&str; 4], BadLogin>) {
        assert_eq!(Login::from_body(body.as_bytes()), expected.map(login), "{body}");
    }

    #[test]
    fn the_login_of_a_body_is_read_without_its_other_fields() {
        let no_text = |name| Err(BadLogin::NoText(name));
        check_body(
            r#" {"bk_app_code":"a","hosts":[{"bk_app_code":"no"},[1]],"bk_app_secret":"s","bk_username":"u","bk_token":"t"}"#,
            Ok(["a", "s", "u", "t"]),
        );
        check_body(r#"{"bk_app_code":"a","x":{"bk_app_secret":"inner"}}"#, Ok(["a", "", "", ""]));
        check_body(r#"{"bk_app_code":"\u0061\n","bk_token":null}"#, Ok(["a\n", "", "", ""]));
        check_body(r#"{"bk_app\u005fcode":"escaped"}"#, Ok(["escaped", "", "", ""]));
        check_body(r#"{"bk_app_code":1,"bk_app_code":"last"}"#, Ok(["last", "", "", ""]));
        check_body(r#"{"bk_app_code":"first","bk_app_code":null}"#, Ok([""; 4]));
        for other in ["1", "-1", "1.5", "true", "[\"a\"]", "{\"a\":[]}"] {
            check_body(&format!(r#"{{"bk_token":0,"bk_username":{other}}}"#), no_text("bk_username"));
        }
        for no_object in ["[1]", "\"bk_app_code\"", "null", " 7 "] {
            check_body(no_object, Ok([""; 4]));
        }
    }

    /// The error is the one that the parser of the whole body reports.
    #[test]
    fn a_body_that_is_not_json_has_no_login() {
        for body in [
            "",
            "{",
            "{\"a\" 1}",
            "{\"a\":1,}",
            "{} x",
            "[1 2]",
            "{\"bk_app_code\":}",
            "{\"a\":nul}",
            "\u{feff}{}",
        ] {
            let reason = serde_json::from_str::<Value>(body).expect_err("not JSON").to_string();
            check_body(body, Err(BadLogin::Json(reason)));
        }
    }

    #[test]
    fn the_login_of_a_query_is_among_its_parameters() {
        let read = |parameters: &[(&str, &str)]| {
            Login::from_query(parameters.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())))
        };
        let found = read(&[("bk_app_code", "a"), ("x", "[["), ("bk_app_secret", "{s"), ("bk_app_code", "b")]);
        assert_eq!(found, Ok(login(["b", "{s", "", ""])));
        assert_eq!(read(&[("bk_username", "[1]")]), Err(BadLogin::NoText("bk_username")));
        assert_eq!(read(&[]), Ok(Login::default()));
    }

    #[test]
    fn the_header_is_an_object() {
        assert_eq!(Login::from_header(br#"{"bk_app_code":"a","y":[1]}"#), Ok(login(["a", "", "", ""])));
        for header in ["", "[]", "null", "{", "a"] {
            assert_eq!(Login::from_header(header.as_bytes()), Err(BadLogin::Header), "{header}");
        }
    }
}
