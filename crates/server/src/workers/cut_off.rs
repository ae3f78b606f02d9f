//! Sends the agents of a server to other servers if only this server does not reach the database. The rule is
//! in [`procfleet_core::cut_off`].

use crate::clock::Clock;
use crate::dispatcher::{Dispatcher, DispatcherMessage};
use crate::peers::Peers;
use procfleet_core::cut_off::{CutOffStep, CutOffVerdict, CutOffWatch};
use procfleet_store::Membership;
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

const LOOK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct CutOff {
    pub membership: Membership,
    pub peers: Peers,
    pub dispatcher: Dispatcher,
    pub clock: Clock,
    pub stop: watch::Receiver<bool>,
}

impl CutOff {
    pub async fn run(mut self) {
        let mut own = CutOffWatch::default();
        let mut logged = None;
        loop {
            tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let may_act = self.membership.may_act();
            if may_act {
                logged = None;
            }
            if own.look(self.clock.now(), may_act) == CutOffStep::Nothing {
                continue;
            }
            let holder = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                holder = self.peers.peer_that_reaches_database() => holder,
            };
            // The database may have come back while the others were asked.
            if own.look(self.clock.now(), self.membership.may_act()) == CutOffStep::Nothing {
                continue;
            }
            // An outage may last for hours.
            if logged.replace(holder.is_some()) != Some(holder.is_some()) {
                match &holder {
                    Some(peer) => warn!(%peer, "another server reaches the database, and this one does not"),
                    None => warn!("no other server reaches the database either; agents stay connected"),
                }
            }
            if own.answered(self.clock.now(), holder.is_some()) == CutOffVerdict::Leave {
                self.dispatcher.send(DispatcherMessage::CutOff).await;
            }
        }
    }
}
