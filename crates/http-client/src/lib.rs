//! The one constructor of outgoing HTTP clients.
//!
//! Requests carry secrets: the login of an app, a user's token, the keys in a webhook's url. So a client uses
//! no proxy, whatever the environment says, and follows no redirect: both would hand the secret to a party
//! that the user did not name. A proxy that the user names (`--proxy` of the client verbs) is a connector in
//! `cli/tunnel.rs`, around this configuration. Every request has a time limit, and a status is an answer and
//! not an error.

use std::time::Duration;
use ureq::Agent;
use ureq::config::Config;

/// Time limits of one request.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the connection alone. `None`: only `overall` counts.
    pub connect: Option<Duration>,
    pub overall: Duration,
}

/// The settings, for a client with its own TLS.
#[expect(clippy::disallowed_methods, reason = "this is the one constructor")]
pub fn config(timeouts: Timeouts) -> Config {
    Agent::config_builder()
        .http_status_as_error(false)
        .timeout_connect(timeouts.connect)
        .timeout_global(Some(timeouts.overall))
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(concat!("procfleet/", env!("CARGO_PKG_VERSION")))
        .build()
}

pub fn client(timeouts: Timeouts) -> Agent {
    config(timeouts).new_agent()
}
