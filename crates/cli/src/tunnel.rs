//! `--proxy`: the way to the server through an HTTP proxy, for http and https URLs.
//!
//! Each connection is a tunnel (CONNECT), so the proxy sees an https call only as encrypted bytes. With a
//! proxy, the resolver returns the proxy's address whatever the URL says, and the connector asks the proxy
//! for a tunnel to the URL's host. ureq's own proxies are not used: their errors do not show what failed, nor
//! that nothing was sent to the server yet.

use procfleet_proto::tunnel::{ProxyUrl, TunnelRefusal};
use std::io::{self, Write};
use std::time::Instant;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::time::Duration;
use ureq::unversioned::transport::{ConnectionDetails, Connector, NextTimeout, Transport, TransportAdapter};

/// Resolves the host of the URL, or that of the proxy instead.
#[derive(Debug)]
pub(crate) struct HostResolver(Option<Uri>);

/// The lookup of a name failed. ureq does not distinguish this from a connection that broke.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct LookupError(io::Error);

impl HostResolver {
    pub(crate) fn new(proxy: Option<&ProxyUrl>) -> HostResolver {
        HostResolver(proxy.map(|proxy| proxy.to_string().parse().expect("a checked url")))
    }
}

impl Resolver for HostResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let resolved = DefaultResolver::default().resolve(self.0.as_ref().unwrap_or(uri), config, timeout);
        resolved.map_err(|error| match error {
            ureq::Error::Io(error) => ureq::Error::Other(Box::new(LookupError(error))),
            other => other,
        })
    }
}

/// Makes a tunnel to the URL's host out of a connection to the proxy.
#[derive(Debug)]
pub(crate) struct TunnelConnector(pub(crate) ProxyUrl);

/// Why there is no tunnel. Nothing was sent to the server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TunnelError {
    #[error(transparent)]
    Refused(#[from] TunnelRefusal),
    #[error("the proxy closed the connection without an answer")]
    Ended,
    #[error("the connection to the proxy failed: {0}")]
    Connection(ureq::Error),
    #[error("the proxy did not answer in time")]
    Timeout,
}

impl From<TunnelError> for ureq::Error {
    fn from(error: TunnelError) -> Self {
        ureq::Error::Other(Box::new(error))
    }
}

impl<In: Transport> Connector<In> for TunnelConnector {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        let Some(transport) = chained else { return Ok(None) };
        Ok(Some(self.open(details, transport.boxed())?))
    }
}

impl TunnelConnector {
    fn open(
        &self,
        details: &ConnectionDetails<'_>,
        transport: Box<dyn Transport>,
    ) -> Result<Box<dyn Transport>, TunnelError> {
        let began = Instant::now();
        let mut adapter = TransportAdapter::new(transport, details.current_time.clone());
        adapter.set_timeout(details.timeout);
        adapter.write_all(&self.0.request(&target(details.uri))).map_err(|error| failed(error.into()))?;
        let mut transport = adapter.into_inner();
        loop {
            if !transport.maybe_await_input(rest_of(details.timeout, began)?).map_err(failed)? {
                return Err(TunnelError::Ended);
            }
            let buffers = transport.buffers();
            match self.0.read_reply(buffers.input())? {
                Some(length) => {
                    // The rest is the server's.
                    buffers.input_consume(length);
                    return Ok(transport);
                }
                None => buffers.input_consume(0),
            }
        }
    }
}

/// The time left for the whole reply: each wait takes a timeout of its own.
fn rest_of(timeout: NextTimeout, began: Instant) -> Result<NextTimeout, TunnelError> {
    let after = match timeout.after {
        Duration::Exact(whole) => {
            let rest = whole.checked_sub(began.elapsed()).filter(|rest| !rest.is_zero());
            Duration::Exact(rest.ok_or(TunnelError::Timeout)?)
        }
        Duration::NotHappening => Duration::NotHappening,
    };
    Ok(NextTimeout { after, ..timeout })
}

fn failed(error: ureq::Error) -> TunnelError {
    match error {
        ureq::Error::Timeout(_) => TunnelError::Timeout,
        other => TunnelError::Connection(other),
    }
}

/// `HOST:PORT`
fn target(uri: &Uri) -> String {
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    format!("{}:{}", uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_is_the_urls_host_and_port() {
        for (url, expected) in [
            ("http://fleet.example:52030/api", "fleet.example:52030"),
            ("https://fleet.example/gate", "fleet.example:443"),
            ("http://10.0.0.1/", "10.0.0.1:80"),
            ("https://[2001:db8::1]:52030", "[2001:db8::1]:52030"),
        ] {
            assert_eq!(target(&url.parse().expect("a url")), expected);
        }
    }

    #[test]
    fn all_waits_for_the_reply_share_one_deadline() {
        let began = Instant::now();
        let whole = std::time::Duration::from_secs(3_600);
        let timeout = |after| NextTimeout { after, ..NextTimeout::default() };
        let rest = rest_of(timeout(Duration::Exact(whole)), began).expect("there is time left");
        assert!(matches!(rest.after, Duration::Exact(rest) if rest <= whole), "{rest:?}");
        let over = rest_of(timeout(Duration::Exact(std::time::Duration::ZERO)), began);
        assert!(matches!(over, Err(TunnelError::Timeout)), "{over:?}");
        let none = rest_of(timeout(Duration::NotHappening), began).expect("no deadline");
        assert!(none.after.is_not_happening());
    }
}
