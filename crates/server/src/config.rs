//! What a server is told at its start. Plain data, checked once.

use crate::login_service::LoginUrl;
use crate::peer::AddressBlock;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Config {
    pub data: PathBuf,
    /// The API and the console.
    pub listen: SocketAddr,
    /// The agents' link.
    pub link: SocketAddr,
    /// How long tasks with their results, and audit records, are kept.
    pub keep: Duration,
    /// How long an agent's certificate is good; it is renewed at two thirds of it.
    pub agent_certificate: Duration,
    /// Make a CA in place of one that was lost.
    pub new_ca: bool,
    /// Whom to ask about a `bk_token` that is none of ours.
    pub login_url: Option<LoginUrl>,
    /// `None`: the API is served without TLS.
    pub tls: Option<TlsSource>,
    /// Where the administrator's app may come from; empty: anywhere.
    pub admin_from: Vec<AddressBlock>,
}

/// Where the API's certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// The built-in CA makes one for these names, beside the port's own address and loopback.
    BuiltIn {
        names: Vec<String>,
    },
}
