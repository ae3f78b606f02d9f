//! procfleet's control plane.
//!
//! A request goes once round: `http` reads it, `usecase` writes it to the `store`, the `dispatcher` hands it
//! to a session, the agent reports, the dispatcher writes the outcome, and queries read the store.

pub mod agent_limits;
pub mod backlog;
mod ca_change;
pub mod clock;
pub mod config;
pub mod dispatcher;
mod durably;
pub mod ended_ops;
pub mod events;
pub mod files;
mod handshake;
pub mod http;
mod json_check;
pub mod login_service;
pub mod metrics;
pub mod peer;
pub mod peers;
pub mod pki;
pub mod presences;
pub mod proxies;
pub mod refusal_log;
pub mod seal;
mod secret;
pub mod session_channel;
pub mod sessions;
pub mod startup;
pub mod usecase;
pub mod workers;

use crate::backlog::Backlog;
use crate::clock::Clock;
use crate::config::{ServerSettings, StoreLocation};
use crate::dispatcher::Dispatcher;
use crate::ended_ops::EndedOpsLimiter;
use crate::events::EventNotifier;
use crate::http::TlsError;
use crate::http::tls::ApiTls;
use crate::login_service::LoginService;
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::pki::{CaStart, PkiError};
use crate::presences::Presences;
use crate::proxies::TrustedProxies;
use crate::refusal_log::RefusalLog;
use crate::sessions::{AgentQuestions, Link, Questions};
use crate::startup::ca_opening::{CaOpening, CaStartError, SealStartError};
use crate::startup::restored;
use crate::startup::setup::{self, Reached, SetupError};
use crate::usecase::{OwnServer, Services};
use crate::workers::ca_follower::CaFollower;
use crate::workers::cut_off::CutOff;
use crate::workers::refusals::Refusals;
use crate::workers::retention::Retention;
use crate::workers::succession::Succession;
use crate::workers::wakes::Wakes;
use crate::workers::webhooks::Delivery;
use procfleet_core::server_address::ServerAddress;
use procfleet_program::panics::{self, Panicked};
use procfleet_program::{PartEnded, Parts};
use procfleet_store::{ServerIntro, Store, StoreError, StoreLock};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{error, info, warn};

/// The file of the store, in the data folder.
pub const STORE: &str = "server.db";
/// Length of the accept queue, within the kernel's limit: all agents may reconnect at once.
const BACKLOG: u32 = 4_096;
/// How long calls and sessions may take to finish when the server stops. A delivery to a webhook that is
/// under way may delay the end of the process by its own time limit (5 s).
const LAST_CALLS: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("preparing the data folder {path}")]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not used as the data folder: {reason}", path.display())]
    FolderRefused { path: PathBuf, reason: procfleet_core::data_folder::FolderRefusal },
    #[error("listening on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("starting the threads of the agents' link")]
    Threads(#[source] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Seal(#[from] SealStartError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(
        "a part of the server panicked; the server ends with exit status 70, and the next start continues from the store"
    )]
    Panicked(#[from] Panicked),
    #[error(
        "a part of the server ended unexpectedly; the server ends with exit status 70, and the next start continues from the \
         store"
    )]
    Part(#[from] PartEnded),
}

/// A server that serves.
#[derive(Debug)]
pub struct Server {
    /// The URL of the API for a client on this machine.
    pub url: String,
    pub api: SocketAddr,
    pub link: SocketAddr,
    pub services: Services,
    stop: watch::Sender<bool>,
    parts: Parts,
    /// Held until the end.
    _link_threads: LinkThreads,
    _folder_lock: Option<StoreLock>,
}

impl From<CaStartError> for ServerError {
    fn from(error: CaStartError) -> Self {
        match error {
            CaStartError::Store(error) => error.into(),
            CaStartError::Pki(error) => error.into(),
            CaStartError::Seal(error) => error.into(),
        }
    }
}

impl ServerError {
    /// Whether a restart would not help and an operator has to act.
    pub fn needs_operator(&self) -> bool {
        match self {
            ServerError::Store(error) | ServerError::Setup(SetupError::Store(error)) => {
                error.needs_operator()
            }
            ServerError::Setup(SetupError::Mismatch(_))
            | ServerError::FolderRefused { .. }
            | ServerError::Seal(_)
            | ServerError::Pki(PkiError::Lost { .. } | PkiError::NotLost { .. } | PkiError::Damaged { .. }) => {
                true
            }
            ServerError::Setup(SetupError::File(_))
            | ServerError::Folder { .. }
            | ServerError::Listen { .. }
            | ServerError::Threads(_)
            | ServerError::Pki(_)
            | ServerError::Tls(_)
            | ServerError::Panicked(_)
            | ServerError::Part(_) => false,
        }
    }

    /// A defect ended the server: starting again helps.
    pub fn is_panic(&self) -> bool {
        matches!(self, ServerError::Panicked(_) | ServerError::Part(_))
    }

    /// Names the file in an error of the store: reads during the start may show that it is damaged.
    fn named(self, store: &Path) -> ServerError {
        match self {
            ServerError::Store(error) | ServerError::Setup(SetupError::Store(error)) => {
                ServerError::Store(procfleet_store::named(error, store))
            }
            other => other,
        }
    }
}

impl Server {
    pub async fn start(config: ServerSettings) -> Result<Server, ServerError> {
        let store = config.data.join(STORE);
        Server::start_on(&store, config).await.map_err(|error| error.named(&store))
    }

    async fn start_on(path: &Path, config: ServerSettings) -> Result<Server, ServerError> {
        config::make_data_folder(&config.data)?;
        let metrics = Arc::new(Metrics::new());
        let (store, folder_lock) = match &config.store {
            StoreLocation::Embedded => {
                let store = Store::open(path).await?;
                let seal_key = config.data.join(seal::SEAL_KEY);
                if seal_key.exists() {
                    warn!(
                        store = %path.display(), seal_key = %seal_key.display(),
                        "this server uses the embedded store, but the data folder has a seal key: a server with --store has used \
                         it. If the store has moved to PostgreSQL, stop this server now, and start it with --store"
                    );
                }
                (store, None)
            }
            // The embedded store has the same lock: one server uses a data folder.
            StoreLocation::Postgres(url) => {
                let lock = procfleet_store::lock(path)?;
                (Store::connect(url).await?, Some(lock))
            }
        };
        let clock = match store.membership().is_shared() {
            true => Clock::of_store(store.membership()),
            false => Clock::start(store.enter_boot(clock::boot_id()).await?),
        };
        let beginning = match config.new_ca {
            true => CaStart::NewCa,
            false => CaStart::AfterHosts(store.count_connectable_agents().await?),
        };
        let admin_file = config.data.join("admin.json");
        // Before the CA, which is published in the data folder.
        setup::check(&store, &admin_file).await?;
        let opening = CaOpening {
            folder: &config.data,
            life: config.agent_certificate,
            beginning,
            seal_keys: &config.seal_keys,
        };
        let ca = Arc::new(startup::ca::open(&store, clock, opening).await?);
        // After the CA, which must know whether the store was restored.
        restored::settle(&store, clock).await?;
        let presences = Presences::new(metrics.clone());
        let (api_listener, api) = listen(config.listen).await?;
        let (link_listener, link) = listen(config.link).await?;
        let intro = ServerIntro {
            name: config.name.to_string(),
            advertise: advertised(config.advertise, link).unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        if intro.advertise.is_empty() && store.membership().is_shared() {
            warn!(
                %link,
                "agents and other servers do not learn the address of this server, because its link listens on all addresses. Name one with --advertise https://HOST:PORT"
            );
        }
        store.introduce(intro.clone()).await?;
        let own = Arc::new(OwnServer { intro, started_at: clock.wall() });
        let tls = config.tls.map(|source| ApiTls::open(source, &ca, api.ip())).transpose()?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        if is_exposed(scheme, api) {
            warn!(
                listen = %api,
                "the API is served without TLS: secrets can be read on the way. Use --tls, or --tls-cert and --tls-key, or listen on \
                 loopback behind a proxy that has TLS"
            );
        }
        let url = format!("{scheme}://{}", reachable(api));
        let reached = Reached { url: url.clone(), pin: tls.as_ref().map(ApiTls::pin) };
        setup::administrator(&store, &admin_file, reached, clock.wall()).await?;

        let backlog = Backlog::new(config.most_open);
        let mut parts = Parts::default();
        let dispatcher = Dispatcher::start(
            &mut parts,
            store.clone(),
            clock,
            presences.clone(),
            metrics.clone(),
            backlog.clone(),
        )
        .await?;
        let refusals = Refusals::new(store.clone(), clock);
        let event_notifier = EventNotifier::new(store.membership().clone());
        let membership = store.membership().clone();
        let peers = membership.is_shared().then(|| Peers::new(membership.view(), ca.clone(), clock));
        let questions = Questions::default();
        let services = Services {
            questions: AgentQuestions::new(questions.clone(), store.clone(), peers.clone()),
            store,
            dispatcher,
            backlog,
            ended_ops: EndedOpsLimiter::default(),
            clock,
            presences,
            ca,
            metrics,
            unfinished: Default::default(),
            event_notifier,
            delivery_errors: Default::default(),
            refusals,
            login_service: config.login_url.map(LoginService::new),
            admin_from: config.admin_from.into(),
            link_port: link.port(),
            own,
        };
        let proxies = TrustedProxies::new(config.proxy_from, services.metrics.clone());
        let (stop, stopped) = watch::channel(false);
        let sessions = Link {
            proxies: proxies.clone(),
            refusal_log: RefusalLog::default(),
            refusals: services.refusals.clone(),
            store: services.store.clone(),
            dispatcher: services.dispatcher.clone(),
            ca: services.ca.clone(),
            clock,
            metrics: services.metrics.clone(),
            event_notifier: services.event_notifier.clone(),
            questions,
            peers: peers.clone(),
            clones: Default::default(),
            budgets: Default::default(),
            keep: config.keep,
            readmit_until: config.readmit.map(|long| Instant::now() + long),
            stop: stopped.clone(),
        };
        let link_threads = LinkThreads::start().map_err(ServerError::Threads)?;
        parts.spawn_on("the link's port", sessions.serve(link_listener), link_threads.handle());
        let retention = Retention {
            store: services.store.clone(),
            clock,
            metrics: services.metrics.clone(),
            keep: config.keep,
            stop: stopped.clone(),
        };
        parts.spawn("the deletion of old tasks", retention.run());
        let webhooks = Delivery {
            store: services.store.clone(),
            event_notifier: services.event_notifier.clone(),
            delivery_errors: services.delivery_errors.clone(),
            metrics: services.metrics.clone(),
            stop: stopped.clone(),
        };
        parts.spawn("the delivery of events to webhooks", webhooks.run());
        let succession = Succession {
            store: services.store.clone(),
            ca: services.ca.clone(),
            clock,
            stop: stopped.clone(),
        };
        parts.spawn("the succession of CAs", succession.run());
        if services.store.membership().is_shared() {
            let wakes = Wakes {
                membership: services.store.membership().clone(),
                dispatcher: services.dispatcher.clone(),
                event_notifier: services.event_notifier.clone(),
                ca: services.ca.clone(),
                stop: stopped.clone(),
            };
            parts.spawn("the wake-ups of other servers", wakes.run());
        }
        // Only a sealed CA can be changed by another server; key files belong to this one.
        if services.ca.sealer().is_some() {
            let (store, ca) = (services.store.clone(), services.ca.clone());
            let follower = CaFollower { store, ca, stop: stopped.clone() };
            parts.spawn("following changes of the CA", follower.run());
        }
        if let Some(peers) = peers {
            let (dispatcher, stop) = (services.dispatcher.clone(), stopped.clone());
            let cut_off = CutOff { membership, peers, dispatcher, clock, stop };
            parts.spawn("the watch over a lost database", cut_off.run());
        }
        parts.spawn("the audit of refused calls", services.refusals.clone().run(stopped.clone()));
        if let Some(tls) = tls.clone() {
            let follow = tls.follow(stopped.clone(), move |pin| {
                if let Err(error) = setup::pin(&admin_file, pin) {
                    let error = &error as &dyn std::error::Error;
                    error!(error, "the pin of the API's new certificate could not be written to admin.json; clients that use the file refuse the server. Check that the data folder can be written, and restart the server");
                }
            });
            parts.spawn("the renewal of the API's certificate", follow);
        }
        let router = http::router(services.clone());
        parts.spawn("the API's port", http::port::serve(api_listener, router, tls, proxies, stopped));
        info!(%api, %link, "server is up");
        services.store.check_in_background()?;
        Ok(Server {
            url,
            api,
            link,
            services,
            stop,
            parts,
            _link_threads: link_threads,
            _folder_lock: folder_lock,
        })
    }

    /// The URL of the API with the configured address, even if that is the unspecified address.
    pub fn shown_url(&self) -> String {
        let scheme = self.url.split(':').next().unwrap_or_default();
        format!("{scheme}://{}", self.api)
    }

    /// Returns when the server cannot go on: its store is unusable, or one of its parts has ended.
    pub async fn failed(&mut self) -> ServerError {
        tokio::select! {
            // A damaged store first: it needs an operator, and may be the reason why a part has ended.
            biased;
            error = self.services.store.failed() => error.into(),
            panicked = panics::fatal() => panicked.into(),
            ended = self.parts.ended() => ended.into(),
        }
    }

    /// Adds a task from outside that lives as long as the server.
    pub fn add_part(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        let mut stop = self.stop.subscribe();
        self.parts.spawn(name, async move {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = part => {}
            }
        });
    }

    /// Stops taking calls, tells the agents, waits a little, and closes the store.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let parts = async {
            self.services.dispatcher.stop().await;
            for failed in self.parts.join().await {
                warn!(error = %failed, "a background task of the server panicked during the shutdown");
            }
        };
        if tokio::time::timeout(LAST_CALLS, parts).await.is_err() {
            warn!("some calls or sessions did not finish in time and were cut off");
        }
        if let Err(error) = self.services.store.close().await {
            error!(
                error = &error as &dyn std::error::Error,
                "closing the store failed; committed changes are kept. If the next start reports damage, restore a backup"
            );
        }
        info!("server has ended");
    }
}

/// The sessions have a separate runtime. Ten thousand busy sessions are a long run queue, in which an API
/// call would wait at each of its steps.
#[derive(Debug)]
struct LinkThreads(Option<Runtime>);

impl LinkThreads {
    fn start() -> io::Result<LinkThreads> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.thread_name("procfleet-link").enable_all().build()?;
        Ok(LinkThreads(Some(runtime)))
    }

    fn handle(&self) -> &Handle {
        self.0.as_ref().expect("it is there until it is dropped").handle()
    }
}

impl Drop for LinkThreads {
    fn drop(&mut self) {
        // Does not block, because it may be dropped inside a task.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServerError> {
    let failed = |source| ServerError::Listen { address, source };
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(failed)?;
    // SO_REUSEADDR, as in the standard library: connections of an ended server in TIME_WAIT do not block the
    // next server.
    socket.set_reuseaddr(true).map_err(failed)?;
    socket.bind(address).map_err(failed)?;
    let listener = socket.listen(BACKLOG).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Whether the API is reachable from other hosts without TLS.
fn is_exposed(scheme: &str, api: SocketAddr) -> bool {
    scheme == "http" && !api.ip().to_canonical().is_loopback()
}

/// The URL of the link for agents and other servers. `None`: it has no address that others can use.
fn advertised(configured: Option<ServerAddress>, link: SocketAddr) -> Option<String> {
    match configured {
        Some(address) => Some(address.to_string()),
        None if link.ip().to_canonical().is_unspecified() => None,
        None => Some(format!("https://{link}")),
    }
}

/// An address that a client on this machine can use.
pub fn reachable(bound: SocketAddr) -> SocketAddr {
    let ip = match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, bound.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_advertises_what_it_was_told_or_the_address_of_its_link() {
        for (configured, link, expected) in [
            (None, "10.0.0.1:48668", Some("https://10.0.0.1:48668")),
            (None, "[fd00::1]:7", Some("https://[fd00::1]:7")),
            (None, "0.0.0.0:48668", None),
            (None, "[::]:48668", None),
            (Some("https://s1.example"), "0.0.0.0:7", Some("https://s1.example:48668")),
            (Some("https://s1.example:443"), "10.0.0.1:7", Some("https://s1.example:443")),
        ] {
            let configured = configured.map(|text| text.parse().expect("an address"));
            let link = link.parse().expect("an address");
            assert_eq!(advertised(configured, link).as_deref(), expected, "{link}");
        }
    }

    #[test]
    fn only_loopback_is_safe_without_tls() {
        for (scheme, api, exposed) in [
            ("http", "127.0.0.1:1", false),
            ("http", "127.9.9.9:1", false),
            ("http", "[::1]:1", false),
            ("http", "0.0.0.0:1", true),
            ("http", "[::]:1", true),
            ("http", "10.0.0.1:1", true),
            ("https", "0.0.0.0:1", false),
        ] {
            assert_eq!(is_exposed(scheme, api.parse().expect("an address")), exposed, "{scheme} {api}");
        }
    }
}
