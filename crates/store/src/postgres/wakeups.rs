//! Wake-ups between servers: NOTIFY after the commit, and a LISTEN that proves that it works.
//!
//! ```text
//! unit, committed --> outgoing queue --5 ms--> one pg_notify for all --> listeners of all servers
//! probe to oneself, every PROBE --> heard within ECHO: Notified; else Polling, and a new connection
//! ```
//!
//! NOTIFY inside the transaction of a change would make all commits of all servers wait for one another: the
//! database holds a lock from there until the commit is flushed. A wake-up that is lost with a crash is
//! repaired by the dispatcher's own look at the store. A pooler may accept LISTEN and never deliver, so a
//! server trusts only what it has heard from itself.

use super::connect::{Database, OwnConnection};
use super::fault::PgFault;
use crate::membership::{Membership, Wake, WakeMode};
use futures_util::FutureExt;
use futures_util::future::Fuse;
use procfleet_core::TaskId;
use std::collections::HashSet;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::AsyncMessage;

const CHANNEL: &str = "procfleet";
const NOTIFY: &str = "SELECT pg_notify($1, $2)";
/// A transaction that only notifies would otherwise wait for the disk.
const NO_SYNC: &str = "SET synchronous_commit = off";
/// How long wake-ups are collected before they are sent together.
const COLLECT: Duration = Duration::from_millis(5);
/// The database takes less than 8,000 bytes for each.
const PAYLOAD: usize = 7_900;
const PROBE: Duration = Duration::from_secs(10);
const ECHO: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_secs(1);

/// Both tasks; they end when this is dropped.
#[derive(Debug)]
pub(super) struct Wakeups(Vec<AbortHandle>);

impl Drop for Wakeups {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

impl Wakeups {
    pub(super) fn start(
        membership: Membership,
        outgoing: mpsc::Receiver<Wake>,
        database: Database,
    ) -> Wakeups {
        let sending = tokio::spawn(send(outgoing, database.clone(), membership.clone()));
        let listening = tokio::spawn(listen(membership, database));
        Wakeups(vec![sending.abort_handle(), listening.abort_handle()])
    }
}

async fn send(mut outgoing: mpsc::Receiver<Wake>, database: Database, membership: Membership) {
    let mut client: Option<OwnConnection> = None;
    let mut wakes = Vec::new();
    while outgoing.recv_many(&mut wakes, 1).await > 0 {
        sleep(COLLECT).await;
        while let Ok(wake) = outgoing.try_recv() {
            wakes.push(wake);
        }
        let distinct: HashSet<Wake> = wakes.drain(..).collect();
        let sent = timeout(CONNECT, notify(&mut client, &database, payload(&membership, distinct)));
        if !matches!(sent.await, Ok(Ok(()))) {
            // The others look for themselves.
            client = None;
        }
    }
}

async fn notify(
    client: &mut Option<OwnConnection>,
    database: &Database,
    payload: String,
) -> Result<(), PgFault> {
    let client = match client {
        Some(client) if !client.is_closed() => client,
        _ => {
            let new = database.connect().await?;
            new.batch_execute(NO_SYNC).await?;
            client.insert(new)
        }
    };
    client.execute(NOTIFY, &[&CHANNEL, &payload]).await?;
    Ok(())
}

/// `RUN word word …`: the sender's run, and its wake-ups.
fn payload(membership: &Membership, wakes: HashSet<Wake>) -> String {
    let mut text = membership.run().0.to_string();
    for wake in wakes {
        let word = word(&wake);
        if text.len() + word.len() >= PAYLOAD {
            return format!("{} {}", membership.run().0, self::word(&Wake::Everything));
        }
        text.push(' ');
        text.push_str(&word);
    }
    text
}

fn word(wake: &Wake) -> String {
    match wake {
        Wake::Task(task) => task.to_string(),
        Wake::Cancelled => "cancelled".to_owned(),
        Wake::Dismissed => "dismissed".to_owned(),
        Wake::Outcomes => "outcomes".to_owned(),
        Wake::Events => "events".to_owned(),
        Wake::Ca => "ca".to_owned(),
        Wake::Everything => "*".to_owned(),
    }
}

/// A word that this version does not know means that anything may have happened.
fn read_word(word: &str) -> Wake {
    match word {
        "cancelled" => Wake::Cancelled,
        "dismissed" => Wake::Dismissed,
        "outcomes" => Wake::Outcomes,
        "events" => Wake::Events,
        "ca" => Wake::Ca,
        task => task.parse::<TaskId>().map_or(Wake::Everything, Wake::Task),
    }
}

/// Listens for ever, over as many connections as it takes.
async fn listen(membership: Membership, database: Database) {
    loop {
        if let Err(fault) = listen_once(&membership, &database).await {
            tracing::debug!(reason = fault.reason(), "listening for wake-ups failed; trying again");
        }
        if membership.wake_mode() == WakeMode::Notified {
            tracing::warn!(
                "wake-ups of the database do not arrive; looking for new work more often until they do"
            );
            membership.set_wake_mode(WakeMode::Polling);
        }
        sleep(RETRY).await;
    }
}

/// Returns when the connection has ended or does not deliver.
async fn listen_once(membership: &Membership, database: &Database) -> Result<(), PgFault> {
    let connecting = timeout(CONNECT, database.open()).await;
    let (client, mut connection) =
        connecting.map_err(|_| PgFault::Connection("the database does not answer".to_owned()))??;
    let (messages, mut notifications) = mpsc::channel(64);
    // The connection is driven by a task of its own, as the client's statements need it.
    let driver = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message
                && messages.send(notification.payload().to_owned()).await.is_err()
            {
                return;
            }
        }
    });
    let _driver = Wakeups(vec![driver.abort_handle()]);
    let statement = timeout(CONNECT, client.batch_execute(&format!("{NO_SYNC}; LISTEN {CHANNEL}"))).await;
    statement.map_err(|_| PgFault::Connection("the database does not answer".to_owned()))??;
    // Notifications that were sent before LISTEN are lost.
    membership.pass_on(Wake::Everything);
    let own_probe = format!("probe:{:x}", std::process::id() as u64 ^ (membership.run().0 as u64) << 32);
    let (client, payload) = (&client, &own_probe);
    let probe = || async move {
        client.execute(NOTIFY, &[&CHANNEL, payload]).await?;
        Ok(())
    };
    hear_all(membership, &mut notifications, &own_probe, probe).await
}

/// Passes notifications on, and sends a probe to itself every [`PROBE`]. Returns when the channel is closed
/// or a probe is not heard.
async fn hear_all<F: Future<Output = Result<(), PgFault>>>(
    membership: &Membership,
    notifications: &mut mpsc::Receiver<String>,
    own_probe: &str,
    send_probe: impl Fn() -> F,
) -> Result<(), PgFault> {
    let mut probe = Instant::now();
    let mut echo_by = None;
    // Notifications are read while the probe is being sent: its answer comes after those that are on their
    // way, and the driver waits while the channel is full.
    let mut sending = pin!(Fuse::terminated());
    loop {
        let wake_at = echo_by.unwrap_or(probe);
        tokio::select! {
            biased;
            payload = notifications.recv() => {
                let Some(payload) = payload else { return Ok(()) };
                if payload == own_probe {
                    echo_by = None;
                    if membership.wake_mode() == WakeMode::Polling {
                        tracing::info!("wake-ups of the database arrive");
                        membership.set_wake_mode(WakeMode::Notified);
                    }
                    continue;
                }
                hear(membership, &payload);
            }
            sent = &mut sending => {
                sent?;
                // The echo may have come first.
                echo_by = echo_by.map(|_| Instant::now() + ECHO);
            }
            () = tokio::time::sleep_until(wake_at) => {
                if echo_by.is_some() {
                    return Err(PgFault::Connection("the database does not answer a probe".to_owned()));
                }
                sending.set(send_probe().fuse());
                probe = Instant::now() + PROBE;
                echo_by = Some(Instant::now() + ECHO);
            }
        }
    }
}

fn hear(membership: &Membership, payload: &str) {
    let mut words = payload.split(' ');
    let sender = words.next().unwrap_or_default();
    // Ignore probes of other servers and this server's own notifications.
    if sender.starts_with("probe:") || sender == membership.run().0.to_string() {
        return;
    }
    words.map(read_word).for_each(|wake| membership.pass_on(wake));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wakes() -> Vec<Wake> {
        let task = TaskId { stamp: 20_261_115_203_000, number: 7 };
        vec![Wake::Task(task), Wake::Cancelled, Wake::Dismissed, Wake::Outcomes, Wake::Events, Wake::Ca]
    }

    #[test]
    fn every_wake_up_is_read_as_it_was_written() {
        for wake in wakes().into_iter().chain([Wake::Everything]) {
            assert_eq!(read_word(&word(&wake)), wake);
        }
        assert_eq!(read_word("of a later version"), Wake::Everything);
    }

    #[tokio::test]
    async fn more_than_fits_means_everything() {
        let (membership, _receiver) = Membership::shared();
        let few: HashSet<Wake> = wakes().into_iter().collect();
        assert!(payload(&membership, few).len() < PAYLOAD);
        let many = (0..1_000).map(|number| Wake::Task(TaskId { stamp: 20_261_115_203_000, number }));
        assert_eq!(payload(&membership, many.collect()), "0 *");
    }

    #[tokio::test]
    async fn a_server_does_not_hear_itself_nor_probes() {
        let (membership, _receiver) = Membership::shared();
        let mut heard = membership.wakes();
        for payload in ["probe:7", "0 events", "5 events outcomes"] {
            hear(&membership, payload);
        }
        assert_eq!(heard.try_recv(), Ok(Wake::Events));
        assert_eq!(heard.try_recv(), Ok(Wake::Outcomes));
        assert!(heard.try_recv().is_err());
    }

    /// The answer to the probe comes after more notifications than the channel holds.
    #[tokio::test(start_paused = true)]
    async fn a_probe_among_many_notifications_is_heard() {
        let (membership, _receiver) = Membership::shared();
        let heard = membership.wakes();
        let (messages, mut notifications) = mpsc::channel(64);
        let send_probe = || async {
            for _ in 0..1_000 {
                messages.send("5 events".to_owned()).await.expect("the listener reads");
            }
            messages.send("own".to_owned()).await.expect("the listener reads");
            Ok(())
        };
        let listening = hear_all(&membership, &mut notifications, "own", send_probe);
        assert!(timeout(PROBE * 3, listening).await.is_err(), "it goes on listening");
        assert_eq!(membership.wake_mode(), WakeMode::Notified);
        assert!(!heard.is_empty(), "the others are passed on");
    }

    #[tokio::test(start_paused = true)]
    async fn listening_ends_when_a_probe_is_not_heard() {
        let (membership, _receiver) = Membership::shared();
        let (_messages, mut notifications) = mpsc::channel(64);
        let ended =
            timeout(PROBE, hear_all(&membership, &mut notifications, "own", || async { Ok(()) })).await;
        assert!(matches!(ended, Ok(Err(PgFault::Connection(_)))), "{ended:?}");
        assert_eq!(membership.wake_mode(), WakeMode::Polling);
    }
}
