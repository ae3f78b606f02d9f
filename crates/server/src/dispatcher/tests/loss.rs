//! A database that went back in time while this server ran: two servers on one PostgreSQL database, of which
//! the test says until when nothing is lost.

use super::takeover::{MAYBE, waiting};
use super::*;
use procfleet_core::boot_time::BootTime;
use procfleet_core::dispatch::OpProgress;
use procfleet_testkit::Cluster as PostgresCluster;

const LATER: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_ops_are_sent_again_and_agents_whose_reports_may_be_lost_connect_again() {
    for (what, was_stored, is_safe, is_in_doubt) in [
        ("nothing was stored since", false, true, false),
        ("its states were stored since", true, true, true),
        ("its session began since", false, false, true),
    ] {
        let mut waiting = waiting().await;
        let (term, heard) = (waiting.servers.one.membership().term(), LastHeard::at(0));
        let epoch = waiting.connect_to(&waiting.servers.one).await;
        let mut orders = waiting.announce(term, epoch, heard.clone());
        let op = waiting.op;
        waiting.servers.work.follow_cluster().await;
        waiting.servers.work.settle().await;
        assert_eq!(waiting.progress(op), Some(OpProgress::Sent(epoch)), "{what}");
        assert!(matches!(orders.try_recv(), Some(Body::Op(_))), "{what}");
        // The database has lost the outcome of the op, and has begun a generation.
        assert!(waiting.servers.work.forget(op));
        let database = waiting.servers.url.name().rsplit('/').next().expect("a name").to_owned();
        let sql = "INSERT INTO generations (events_before, events_from, began_at) \
                   SELECT 0, 1, max(created_at) FROM tasks";
        let inserted = tokio::task::spawn_blocking(move || PostgresCluster::shared().psql(&database, sql));
        inserted.await.expect("no panic").expect("inserted");

        let now = waiting.servers.work.clock.now();
        if was_stored {
            heard.states_stored(now + LATER);
        }
        waiting.servers.work.go_back(if is_safe { now } else { BootTime(0) });
        waiting.servers.work.follow_cluster().await;
        assert_eq!(waiting.progress(op), MAYBE, "{what}: it may have been sent");
        waiting.servers.work.settle().await;
        let order = orders.try_recv();
        match is_in_doubt {
            false => {
                assert!(matches!(order, Some(Body::Op(_))), "{what}: {order:?}");
                assert_eq!(waiting.progress(op), Some(OpProgress::Sent(epoch)), "{what}");
            }
            true => {
                assert!(matches!(order, Some(Body::Drain(_))), "{what}: {order:?}");
                assert_eq!(waiting.progress(op), MAYBE, "{what}: it waits for the agent");
                assert!(!waiting.servers.work.sessions.contains_key(&waiting.fixture.agent), "{what}");
            }
        }
    }
}
