//! `procfleet server`.

use crate::memory;
use crate::store_argument::{BadArgument, StoreArgument};
use anyhow::{Context, Result};
use procfleet_core::server_address::{BadAddress, ServerAddress};
use procfleet_core::server_name::ServerName;
use procfleet_program::signals::{Hangup, stop_requested_or_hangup, unblock_signals};
use procfleet_program::{LogArgs, announce};
use procfleet_server::backlog::Load;
use procfleet_server::config::{ServerSettings, StoreLocation, TlsSource};
use procfleet_server::login_service::LoginUrl;
use procfleet_server::peer::AddressBlock;
use procfleet_server::seal::SEAL_KEY;
use procfleet_server::{Server, files};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Tokio wakes the thread for blocking calls that has waited longest. With its default of ten seconds, a few
/// calls a second keep as many threads as there ever were, each with its own stack and its cache of freed
/// memory.
const IDLE_THREAD: Duration = Duration::from_millis(200);

#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Data folder of the server; it must be missing, empty or a data folder of a server
    #[arg(long, env = "PROCFLEET_DATA", default_value = "./procfleet-data")]
    pub(crate) data: PathBuf,
    /// PostgreSQL database that holds the server's state: postgres://USER@HOST[,HOST…]/DATABASE[?sslmode=…].
    /// The CA's private key is stored there, too, sealed (--seal-key). Put a URL with a password into
    /// PROCFLEET_STORE [default: one SQLite file in the data folder]
    #[arg(long, env = crate::store_argument::VARIABLE, value_name = "URL", hide_env_values = true)]
    pub(crate) store: Option<StoreArgument>,
    /// File of a key that seals the CA's private key in the database, the same on all servers. Mode 0600;
    /// the first server on an empty database creates the file. To replace a key, name the new and the old
    /// one: the first one seals, all open (procfleet ca reseal) [default: seal.key in the data folder]
    #[arg(long, env = "PROCFLEET_SEAL_KEY", value_name = "FILE", requires = "store", value_delimiter = ',')]
    pub(crate) seal_key: Vec<PathBuf>,
    /// Address of the API (port 0 picks a free one)
    #[arg(long, env = "PROCFLEET_LISTEN", default_value = "127.0.0.1:52030")]
    pub(crate) listen: SocketAddr,
    /// Address of the link for agents (port 0 picks a free one)
    #[arg(long, env = "PROCFLEET_LINK", default_value = "127.0.0.1:48668")]
    pub(crate) link: SocketAddr,
    /// Name of this server in `procfleet servers` [default: the name of the machine]
    #[arg(long, env = "PROCFLEET_SERVER_NAME", value_name = "NAME")]
    pub(crate) name: Option<ServerName>,
    /// URL of the link as agents and other servers reach it: https://HOST:PORT. Servers of one database tell
    /// it to their agents [default: the address of --link, unless it is 0.0.0.0 or ::]
    #[arg(long, env = "PROCFLEET_ADVERTISE", value_name = "URL", value_parser = advertised_address)]
    pub(crate) advertise: Option<ServerAddress>,
    /// Days to keep tasks with their results, events and audit records
    #[arg(long, env = "PROCFLEET_KEEP_DAYS", value_name = "DAYS", default_value_t = 30,
          value_parser = clap::value_parser!(u64).range(1..=3_650))]
    pub(crate) keep_days: u64,
    /// Maximum number of open ops. Beyond it callers wait up to 2 s and are then refused
    /// (HTTP 503, Retry-After)
    #[arg(long, env = "PROCFLEET_MAX_OPEN_OPS", value_name = "N", default_value_t = 500_000,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_open_ops: u32,
    /// Maximum size of the specs of open requests, in MiB
    #[arg(long, env = "PROCFLEET_MAX_OPEN_SPECS", value_name = "MIB", default_value_t = 256,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) max_open_specs: u32,
    /// Lifetime of an agent's certificate in days; agents renew it after two thirds of this time
    #[arg(long, env = "PROCFLEET_AGENT_CERT_DAYS", value_name = "DAYS", default_value_t = 365,
          value_parser = clap::value_parser!(u64).range(1..=3_650))]
    pub(crate) agent_cert_days: u64,
    /// Lifetime of an agent's certificate in seconds, for tests of the renewal
    #[arg(long, value_name = "SECS", hide = true, conflicts_with = "agent_cert_days",
          value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) agent_cert_secs: Option<u64>,
    /// After a restore: accept agents that joined or renewed their certificates after the backup, for this
    /// many minutes from the start. They get cloud area 0 and the default business
    #[arg(long, env = "PROCFLEET_READMIT", value_name = "MINUTES", value_parser = clap::value_parser!(u64).range(1..=10_080))]
    pub(crate) readmit: Option<u64>,
    /// Replace a lost CA by a new one; every host has to join again
    #[arg(long)]
    pub(crate) new_ca: bool,
    /// URL of the BlueKing login service that validates bk_token: http(s)://…/login/accounts/is_login/
    #[arg(long, env = "PROCFLEET_LOGIN_URL", value_name = "URL")]
    pub(crate) login_url: Option<LoginUrl>,
    /// Serve the API with TLS: the certificate with its CA chain (PEM). It is reloaded when
    /// it changes, and on SIGHUP
    #[arg(
        long,
        env = "PROCFLEET_TLS_CERT",
        value_name = "FILE",
        requires = "tls_key",
        conflicts_with = "tls"
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, env = "PROCFLEET_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Serve the API with TLS, with a certificate of the built-in CA for the address of --listen, loopback
    /// and --tls-name
    #[arg(long, env = "PROCFLEET_TLS", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) tls: bool,
    /// Name or address of this server in the certificate of --tls
    #[arg(long, env = "PROCFLEET_TLS_NAME", value_name = "NAME", requires = "tls", value_delimiter = ',',
          value_parser = certificate_name)]
    pub(crate) tls_name: Vec<String>,
    /// Network from which the administrator's app may be used, such as 10.0.0.0/8 [default: anywhere]
    #[arg(long, env = "PROCFLEET_ADMIN_FROM", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) admin_from: Vec<AddressBlock>,
    /// Network of a TCP proxy in front of this server. Connections from there, to both ports, must begin with
    /// a PROXY header (version 2), and the address in it counts as the caller's or the agent's [default:
    /// none]
    #[arg(long, env = "PROCFLEET_PROXY_FROM", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) proxy_from: Vec<AddressBlock>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
    /// Fail points of the chaos test
    #[cfg(feature = "failpoints")]
    #[arg(long, env = "PROCFLEET_FAILPOINTS", hide = true, default_value = "")]
    failpoints: procfleet_failpoint::FailPlan,
}

impl TryFrom<Args> for ServerSettings {
    type Error = BadArgument;

    fn try_from(args: Args) -> Result<ServerSettings, BadArgument> {
        let store = match args.store {
            Some(store) => StoreLocation::Postgres(store.url("--store")?),
            None => StoreLocation::Embedded,
        };
        let seal_keys = match args.seal_key.is_empty() {
            true => vec![args.data.join(SEAL_KEY)],
            false => args.seal_key,
        };
        Ok(ServerSettings {
            data: args.data,
            seal_keys,
            store,
            listen: args.listen,
            link: args.link,
            name: args.name.unwrap_or_else(procfleet_server::config::default_name),
            advertise: args.advertise,
            keep: Duration::from_secs(args.keep_days * 86_400),
            most_open: Load {
                ops: args.max_open_ops as usize,
                bytes: args.max_open_specs as usize * 1024 * 1024,
            },
            agent_certificate: Duration::from_secs(
                args.agent_cert_secs.unwrap_or(args.agent_cert_days * 86_400),
            ),
            readmit: args.readmit.map(|minutes| Duration::from_secs(minutes * 60)),
            new_ca: args.new_ca,
            login_url: args.login_url,
            tls: match (args.tls_cert, args.tls_key, args.tls) {
                (Some(certificate), Some(key), _) => Some(TlsSource::Files { certificate, key }),
                (_, _, true) => Some(TlsSource::BuiltIn { names: args.tls_name }),
                (_, _, false) => None,
            },
            admin_from: args.admin_from,
            proxy_from: args.proxy_from,
        })
    }
}

impl Args {
    /// Executes the program again if a password is among the arguments.
    pub(crate) fn hide_password(&self) -> Result<()> {
        match &self.store {
            Some(store) => store
                .hide("--store")
                .context("executing the program again, without the URL among its arguments"),
            None => Ok(()),
        }
    }
}

fn advertised_address(text: &str) -> Result<ServerAddress, String> {
    let address: ServerAddress = text.parse().map_err(|fault: BadAddress| fault.to_string())?;
    let unspecified = |ip: IpAddr| ip.to_canonical().is_unspecified();
    match address.host.parse().is_ok_and(unspecified) {
        true => Err("nobody can connect to the unspecified address; name a host".to_owned()),
        false => Ok(address),
    }
}

fn certificate_name(text: &str) -> Result<String, String> {
    match procfleet_server::pki::is_certificate_name(text) {
        true => Ok(text.to_owned()),
        false => Err("expected a host's name or an address".to_owned()),
    }
}

pub(crate) fn run(args: Args) -> Result<()> {
    args.hide_password()?;
    let _log = args.log.init_tracing();
    #[cfg(feature = "failpoints")]
    procfleet_failpoint::follow(args.failpoints.clone());
    let settings: ServerSettings = args.try_into()?;
    files::raise_limit();
    let hangup = hangup(&settings);
    runtime()?.block_on(async {
        let mut server = Server::start(settings).await?;
        // Before the ready message: after it, a signal must end the server in order.
        let stop = stop_requested_or_hangup(hangup);
        unblock_signals();
        server.add_part("the return of memory", memory::trim(server.services.backlog.clone()));
        announce(&format!(
            "procfleet server is ready: {} (agents: https://{})",
            server.shown_url(),
            server.link
        ));
        tokio::select! {
            // A part that fails ends the program, so that the service manager can restart it.
            failed = server.failed() => return Err(failed.into()),
            () = stop => {}
        }
        server.stop().await;
        Ok(())
    })
}

/// Only a server with certificate files has something to load again.
pub(crate) fn hangup(settings: &ServerSettings) -> Hangup {
    match settings.tls {
        Some(TlsSource::Files { .. }) => Hangup::Reload,
        Some(TlsSource::BuiltIn { .. }) | None => Hangup::Stop,
    }
}

pub(crate) fn runtime() -> Result<Runtime> {
    memory::limit();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.thread_keep_alive(IDLE_THREAD).enable_all().build().context("starting the runtime")
}
