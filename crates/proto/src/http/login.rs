//! The login of a call: the app's code and secret, and the user that it names, from the header or the body.

use serde_json::Value;
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadLogin {
    #[error("the X-Bkapi-Authorization header is not a JSON object")]
    Header,
    /// Ignoring the field would turn a user's call into one of the app itself.
    #[error("{0} must be a string")]
    NoText(&'static str),
}

impl Login {
    /// The content of the `X-Bkapi-Authorization` header.
    pub fn from_header(header: &[u8]) -> Result<Login, BadLogin> {
        match serde_json::from_slice(header) {
            Ok(fields @ Value::Object(_)) => Login::from_fields(&fields),
            Ok(_) | Err(_) => Err(BadLogin::Header),
        }
    }

    /// The fields beside a request's own.
    pub fn from_fields(fields: &Value) -> Result<Login, BadLogin> {
        let text = |name: &'static str| match fields.get(name) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(BadLogin::NoText(name)),
        };
        Ok(Login {
            app_code: text("bk_app_code")?,
            app_secret: text("bk_app_secret")?,
            username: text("bk_username")?,
            token: text("bk_token")?,
        })
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
