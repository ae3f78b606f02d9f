//! The login of a client: the server, and the app that speaks to it.

use crate::tls::Trust;
use procfleet_proto::tunnel::ProxyUrl;
use std::fmt;

/// A text that is hidden in logs and error messages.
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

/// The validated settings of a client.
pub(crate) struct ClientLogin {
    /// `http://HOST:PORT`, without a slash at its end.
    pub(crate) url: String,
    pub(crate) app_code: String,
    pub(crate) app_secret: Secret,
    /// Empty: the app acts as itself.
    pub(crate) username: String,
    /// The trusted certificates for an https url.
    pub(crate) trust: Trust,
    /// The proxy on the way to the server.
    pub(crate) proxy: Option<ProxyUrl>,
    /// The source of code and secret, for the message if the server refuses them.
    pub(crate) credentials: String,
}
