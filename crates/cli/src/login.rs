//! The login of a client: the server, and the app that speaks to it.

use crate::tls::Trust;
use std::fmt;

/// A text that must not be seen in logs and error messages.
#[derive(Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Everything a client needs to know, checked.
pub(crate) struct ClientLogin {
    /// `http://HOST:PORT`, without a slash at its end.
    pub(crate) url: String,
    pub(crate) app_code: String,
    pub(crate) app_secret: Secret,
    /// Empty: the app acts as itself.
    pub(crate) username: String,
    /// Whose certificate is believed, where the url is https.
    pub(crate) trust: Trust,
    /// Where code and secret come from, for the message when the server does not take them.
    pub(crate) credentials: String,
}
