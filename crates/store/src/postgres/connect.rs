//! Opens connections to the database.
//!
//! ```text
//! address 1 --TCP connected, then silent----------------------------> dropped
//!        \--STAGGER--> address 2 --TCP, TLS, login, writable?--> the connection
//! ```
//!
//! A URL may name several hosts, and a host name may have several addresses. tokio-postgres tries them one
//! after the other, with a timeout for the TCP connect only. A stopped primary accepts connections by the
//! backlog of its kernel and never answers, so the standby behind it would never be tried. Here the attempts
//! race as in Happy Eyeballs (RFC 8305): each begins `STAGGER` after the one before it, or when one fails,
//! and the first usable connection wins. Callers set the deadline, which includes their first statements.

use super::fault::PgFault;
use super::url::{Connector, StoreUrl};
use crate::StoreError;
use deadpool_postgres::{Connect, Manager, ManagerConfig, RecyclingMethod};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::config::{Host, LoadBalanceHosts, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Error, Socket};

/// How long an address may take before the next one is tried, too.
const STAGGER: Duration = Duration::from_millis(200);

/// Settings of connections outside the pool, whose statements are short. `lock_timeout` is below the time
/// limit of a beat (1.2 s), so a beat that waits for a lock ends at the database before the next one begins.
/// `client_connection_check_interval` ends a backend whose client is gone.
const SETTINGS: &str = "SET statement_timeout = '2s'; SET lock_timeout = '1s'; \
     SET idle_in_transaction_session_timeout = '5s'; SET client_connection_check_interval = '5s'; \
     SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3; SET tcp_keepalives_count = 3; \
     SET tcp_user_timeout = 15000; SET jit = off; SET TimeZone = 'UTC'; SET client_min_messages = warning";

/// The database of a store, as its URL names it.
#[derive(Clone)]
pub(super) struct Database {
    config: Config,
    connector: Connector,
}

/// A connection that nobody drives yet.
pub(super) type Opened = (Client, Connection<Socket, <Connector as MakeTlsConnect<Socket>>::Stream>);

/// A connection outside the pool. Dropping it closes the socket even while a statement is under way, so that
/// the database can notice.
pub(super) struct OwnConnection {
    client: Client,
    driver: AbortHandle,
}

impl Database {
    pub(super) fn of(url: &StoreUrl) -> Result<Database, StoreError> {
        let connector = url.connector().map_err(|fault| StoreError::Url(fault.to_string()))?;
        Ok(Database { config: url.config().clone(), connector })
    }

    /// For a pool.
    pub(super) fn manager(&self) -> Manager {
        let manner = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        Manager::from_connect(self.config.clone(), self.clone(), manner)
    }

    /// A connection with the settings of connections outside the pool.
    pub(super) async fn connect(&self) -> Result<OwnConnection, PgFault> {
        let connection = self.connect_as_it_is().await?;
        connection.batch_execute(SETTINGS).await?;
        Ok(connection)
    }

    /// A connection with the settings of the database.
    pub(super) async fn connect_as_it_is(&self) -> Result<OwnConnection, Error> {
        let (client, driver) = driven(self.open().await?);
        Ok(OwnConnection { client, driver: driver.abort_handle() })
    }

    /// A connection that the caller drives.
    pub(super) async fn open(&self) -> Result<Opened, Error> {
        let (hosts, addresses) = (self.config.get_hosts().len(), self.config.get_hostaddrs().len());
        let (ports, count) = (self.config.get_ports().len(), hosts.max(addresses));
        let is_consistent = (hosts == 0 || addresses == 0 || hosts == addresses) && ports <= count;
        if count == 0 || !is_consistent {
            // tokio-postgres returns an error that names the inconsistent parameters.
            return self.config.connect(self.connector.clone()).await;
        }
        let mut order: Vec<usize> = (0..count).collect();
        if self.config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            fastrand::shuffle(&mut order);
        }
        let attempts = order
            .into_iter()
            .map(|index| -> Attempt<'_, Opened> { Box::pin(self.open_host(of_host(&self.config, index))) });
        race(attempts.collect()).await
    }

    /// `config` has one host.
    async fn open_host(&self, config: Config) -> Result<Opened, Error> {
        let attempts = addresses(&config).await.into_iter().map(|address| -> Attempt<'_, Opened> {
            let mut config = config.clone();
            // The addresses may be those of a primary and its standbys, as several hosts are.
            config.hostaddr(address).target_session_attrs(TargetSessionAttrs::ReadWrite);
            Box::pin(async move { config.connect(self.connector.clone()).await })
        });
        let attempts: VecDeque<_> = attempts.collect();
        match attempts.is_empty() {
            true => config.connect(self.connector.clone()).await,
            false => race(attempts).await,
        }
    }
}

impl Connect for Database {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        Box::pin(async { Ok(driven(self.open().await?)) })
    }
}

impl Deref for OwnConnection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for OwnConnection {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Drop for OwnConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn driven((client, connection): Opened) -> (Client, JoinHandle<()>) {
    let driver = tokio::spawn(async move {
        // The calls of the client return the errors of the connection.
        let _ = connection.await;
    });
    (client, driver)
}

type Attempt<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// The first success. Each attempt begins STAGGER after the one before it, or when one has failed.
async fn race<T>(mut attempts: VecDeque<Attempt<'_, T>>) -> Result<T, Error> {
    let mut under_way = FuturesUnordered::new();
    let mut failure: Option<Error> = None;
    loop {
        under_way.extend(attempts.pop_front());
        let stagger = match attempts.is_empty() {
            true => Duration::MAX,
            false => STAGGER,
        };
        match tokio::time::timeout(stagger, under_way.next()).await {
            Ok(Some(Ok(connection))) => return Ok(connection),
            // Keep an error that the database has sent: it says more than a network error.
            Ok(Some(Err(error))) if failure.as_ref().is_some_and(|known| known.as_db_error().is_some()) => {
                drop(error);
            }
            Ok(Some(Err(error))) => failure = Some(error),
            Ok(None) => return Err(failure.expect("there was an attempt, and each has failed")),
            Err(_) => {}
        }
    }
}

/// The addresses of a host, if it is a name that has several.
async fn addresses(config: &Config) -> Vec<IpAddr> {
    let [Host::Tcp(name)] = config.get_hosts() else { return Vec::new() };
    if !config.get_hostaddrs().is_empty() || name.parse::<IpAddr>().is_ok() {
        return Vec::new();
    }
    // Without an address, the attempt itself says why the name has none.
    let Ok(found) = tokio::net::lookup_host((name.as_str(), 0)).await else { return Vec::new() };
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    if found.len() > 1 { found } else { Vec::new() }
}

/// The configuration with one of its hosts only. tokio-postgres has no method that removes hosts.
fn of_host(all: &Config, index: usize) -> Config {
    let mut one = Config::new();
    match all.get_hosts().get(index) {
        Some(Host::Tcp(name)) => drop(one.host(name)),
        Some(Host::Unix(path)) => drop(one.host_path(path)),
        None => {}
    }
    if let Some(address) = all.get_hostaddrs().get(index) {
        one.hostaddr(*address);
    }
    if let Some(port) = all.get_ports().get(index).or(all.get_ports().first()) {
        one.port(*port);
    }
    if let Some(user) = all.get_user() {
        one.user(user);
    }
    if let Some(password) = all.get_password() {
        one.password(password);
    }
    if let Some(database) = all.get_dbname() {
        one.dbname(database);
    }
    if let Some(options) = all.get_options() {
        one.options(options);
    }
    if let Some(name) = all.get_application_name() {
        one.application_name(name);
    }
    if let Some(timeout) = all.get_connect_timeout() {
        one.connect_timeout(*timeout);
    }
    if let Some(timeout) = all.get_tcp_user_timeout() {
        one.tcp_user_timeout(*timeout);
    }
    if let Some(interval) = all.get_keepalives_interval() {
        one.keepalives_interval(interval);
    }
    if let Some(retries) = all.get_keepalives_retries() {
        one.keepalives_retries(retries);
    }
    one.keepalives(all.get_keepalives())
        .keepalives_idle(all.get_keepalives_idle())
        .ssl_mode(all.get_ssl_mode())
        .ssl_negotiation(all.get_ssl_negotiation())
        .target_session_attrs(all.get_target_session_attrs())
        .channel_binding(all.get_channel_binding())
        .load_balance_hosts(all.get_load_balance_hosts());
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMETERS: &str = "dbname=fleet&options=-c%20geqo%3Doff&application_name=x&sslmode=require\
        &sslnegotiation=direct&connect_timeout=7&tcp_user_timeout=8&keepalives=0&keepalives_idle=9\
        &keepalives_interval=10&keepalives_retries=11&target_session_attrs=read-write\
        &channel_binding=require&load_balance_hosts=random";

    #[test]
    fn the_configuration_of_one_host_has_all_other_parameters() {
        let parse = |hosts: &str, addresses: &str| -> Config {
            let url = format!("postgres://me:secret@{hosts}/?{PARAMETERS}{addresses}");
            url.parse().expect("a url")
        };
        for (all, index, one) in [
            (parse("db1:5433", ""), 0, parse("db1:5433", "")),
            (parse("db1:1,db2:2", ""), 0, parse("db1:1", "")),
            (parse("db1:1,db2:2", ""), 1, parse("db2:2", "")),
            (parse("%2Frun%2Fpg:1,db2:2", ""), 0, parse("%2Frun%2Fpg:1", "")),
            (parse("db1:1,db2:2", "&hostaddr=10.0.0.1,10.0.0.2"), 1, parse("db2:2", "&hostaddr=10.0.0.2")),
        ] {
            assert_eq!(of_host(&all, index), one, "{all:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_success_wins_and_failures_do_not_delay_it() {
        // For each attempt: its time in milliseconds, and whether it succeeds.
        for (attempts, winner, after) in [
            (&[(5, true), (0, true)][..], Some(0), 5),
            (&[(300, true), (0, true)], Some(1), 200),
            (&[(250, true), (100, true)], Some(0), 250),
            (&[(10, false), (10, true)], Some(1), 20),
            (&[(100_000, true), (100_000, true), (1, true)], Some(2), 401),
            (&[(100_000, true), (5, false), (1, true)], Some(2), 206),
            (&[(300, false), (5, false)], None, 300),
        ] {
            let began = tokio::time::Instant::now();
            let attempts =
                attempts.iter().enumerate().map(|(index, (time, succeeds))| -> Attempt<'_, usize> {
                    Box::pin(async move {
                        tokio::time::sleep(Duration::from_millis(*time)).await;
                        match succeeds {
                            true => Ok(index),
                            false => Err("no_such_parameter=1".parse::<Config>().expect_err("an error")),
                        }
                    })
                });
            let won = race(attempts.collect()).await.ok();
            assert_eq!((won, began.elapsed().as_millis()), (winner, after));
        }
    }
}
