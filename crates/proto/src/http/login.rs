//! Who is calling: the app's code and secret, and the user it names, from the header or the body.

use serde_json::Value;
use std::fmt;

/// The header that BlueKing's gateway clients send: a JSON text.
pub const HEADER: &str = "x-bkapi-authorization";

/// They may stand beside the fields of any request.
pub const FIELDS: [&str; 4] = ["bk_app_code", "bk_app_secret", "bk_username", "bk_token"];

#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub app_code: String,
    pub app_secret: String,
    pub username: String,
    pub token: String,
}

/// The header is there and is not a JSON object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the X-Bkapi-Authorization header is not a JSON object")]
pub struct BadHeader;

impl Login {
    /// The header wins where it is present; otherwise the fields stand beside the request's own.
    pub fn read(header: Option<&[u8]>, body: &Value) -> Result<Login, BadHeader> {
        let Some(header) = header else { return Ok(Login::from_fields(body)) };
        match serde_json::from_slice(header) {
            Ok(fields @ Value::Object(_)) => Ok(Login::from_fields(&fields)),
            Ok(_) | Err(_) => Err(BadHeader),
        }
    }

    fn from_fields(fields: &Value) -> Login {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Login {
            app_code: text("bk_app_code"),
            app_secret: text("bk_app_secret"),
            username: text("bk_username"),
            token: text("bk_token"),
        }
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
