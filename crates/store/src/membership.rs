//! What one server knows about itself and the other servers of its store.
//!
//! A server that has an embedded store is alone: it always may act and has every lease. Servers that share a
//! database keep [`Membership`] up to date by beats (`postgres/membership.rs`); the rules are in
//! [`procfleet_core::membership`].

use crate::clock::boot_now;
use procfleet_core::membership::OwnBeat;
use procfleet_core::{BootTime, TaskId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{broadcast, mpsc, watch};

/// Wake-ups that a slow receiver may lag behind. It misses the oldest, and its next look at the store finds
/// what they were about.
const WAKES: usize = 1_024;
/// Wake-ups that wait to be sent to other servers. Beyond it they are dropped: every server looks by itself.
const OUTGOING: usize = 4_096;

/// One run of one server on a shared store. A server that starts again, or was declared dead, gets another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub i64);

/// Work that one server does for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lease {
    /// Deciding about ops of agents that no living server holds.
    Unheld,
    Webhooks,
    Retention,
    /// The succession of CAs.
    Succession,
    /// Correcting the store's time after a jump of the database's clock.
    Clock,
}

impl Lease {
    pub const ALL: [Lease; 5] =
        [Lease::Unheld, Lease::Webhooks, Lease::Retention, Lease::Succession, Lease::Clock];

    /// As it is stored and shown.
    pub fn name(self) -> &'static str {
        match self {
            Lease::Unheld => "unheld",
            Lease::Webhooks => "webhooks",
            Lease::Retention => "retention",
            Lease::Succession => "succession",
            Lease::Clock => "clock",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Lease> {
        Lease::ALL.into_iter().find(|lease| lease.name() == name)
    }
}

/// How a server presents itself to operators, agents and other servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerIntro {
    pub name: String,
    /// The URL of its link, for agents and other servers. Empty: it has no address that others can use.
    pub advertise: String,
    pub version: String,
}

/// Figures that a server sends with its beats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerLoad {
    pub agents: u64,
    pub open_ops: u64,
}

/// How a server learns of new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeMode {
    /// Notifications of the database arrive.
    Notified,
    /// Notifications do not arrive, and the server polls more often.
    Polling,
}

/// Whether a server takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    Up,
    /// The server was stopped in order.
    Left,
    /// The server was silent, and another one has declared it dead.
    Dead,
}

/// A server as the store knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecord {
    pub id: ServerId,
    pub intro: ServerIntro,
    pub state: ServerState,
    /// Whether it sends its agents to other servers.
    pub drains: bool,
    pub started_at: i64,
    pub load: ServerLoad,
    pub wakes: WakeMode,
    pub leases: Vec<String>,
}

/// The result of a request to drain a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainOutcome {
    Done,
    /// No living server has this name.
    Unknown,
    /// All other living servers drain, or there are none.
    Last,
}

/// A server that is up, as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingServer {
    /// The URL of its link. Empty: it has no address that others can use.
    pub url: String,
    pub agents: u64,
    pub drains: bool,
}

/// Changes of this server that a shared store may have lost: its database failed over or was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLoss {
    /// How often that happened while this server ran.
    pub times: u64,
    /// Nothing that was confirmed before this time is lost.
    pub safe_until: BootTime,
}

impl Default for StoreLoss {
    fn default() -> StoreLoss {
        StoreLoss { times: 0, safe_until: BootTime(0) }
    }
}

impl StoreLoss {
    pub(crate) fn again(self, safe_until: BootTime) -> StoreLoss {
        StoreLoss { times: self.times + 1, safe_until }
    }
}

/// A time in the life of a server: from its entry into the store, or the last time that the store went back,
/// until the next. The store may not know a session that was stored in an earlier term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTerm {
    pub run: ServerId,
    pub losses: u64,
}

/// The servers of the store, as this one saw them last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipView {
    pub run: ServerId,
    pub leases: BTreeSet<Lease>,
    /// All living servers, this one included.
    pub alive: BTreeMap<ServerId, LivingServer>,
    /// An operator wants this server to be without agents.
    pub drains: bool,
    /// Changes whenever a server has ended, also one that was never seen alive.
    pub ended: i64,
    pub loss: StoreLoss,
}

impl MembershipView {
    fn advertised(&self) -> Vec<String> {
        let takes = |server: &&LivingServer| !server.drains && !server.url.is_empty();
        self.alive.values().filter(takes).map(|server| server.url.clone()).collect()
    }

    /// The other living servers that do not drain: agents of this one can be sent there.
    pub fn takers(&self) -> impl Iterator<Item = &LivingServer> {
        self.alive.iter().filter(|(id, server)| **id != self.run && !server.drains).map(|(_, server)| server)
    }
}

/// Something that a server tells all others. It carries no data: receivers read the store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    Task(TaskId),
    /// A task was cancelled.
    Cancelled,
    /// Agents were retired or revoked.
    Dismissed,
    /// Ops have ended.
    Outcomes,
    Events,
    /// The CA was changed.
    Ca,
    /// Anything may have happened: wake-ups were lost.
    Everything,
}

/// The handle. Clones share one state.
#[derive(Clone, Debug)]
pub struct Membership {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kind: MembershipKind,
    own: Mutex<OwnBeat>,
    view: watch::Sender<MembershipView>,
    /// The URLs of [`Membership::advertised`]. Apart from the view, which changes all the time.
    advertised: watch::Sender<Arc<[String]>>,
    load: (AtomicU64, AtomicU64),
    notified: AtomicBool,
    /// Offset that is added to a boot time to get the store's time.
    offset: AtomicI64,
    clock_jumps: AtomicU64,
    incoming: broadcast::Sender<Wake>,
    outgoing: Option<mpsc::Sender<Wake>>,
    intro: Mutex<ServerIntro>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MembershipKind {
    Alone,
    Shared,
}

impl Membership {
    /// The only server of an embedded store.
    pub(crate) fn alone() -> Membership {
        let view = MembershipView { leases: Lease::ALL.into(), ..MembershipView::default() };
        Membership::new(MembershipKind::Alone, view, None)
    }

    /// One of the servers of a database. The receiver has the wake-ups for the others.
    pub(crate) fn shared() -> (Membership, mpsc::Receiver<Wake>) {
        let (sender, receiver) = mpsc::channel(OUTGOING);
        (Membership::new(MembershipKind::Shared, MembershipView::default(), Some(sender)), receiver)
    }

    fn new(kind: MembershipKind, view: MembershipView, outgoing: Option<mpsc::Sender<Wake>>) -> Membership {
        let shared = Shared {
            kind,
            own: Mutex::default(),
            view: watch::channel(view).0,
            advertised: watch::channel(Arc::default()).0,
            load: Default::default(),
            notified: AtomicBool::new(false),
            offset: AtomicI64::new(0),
            clock_jumps: AtomicU64::new(0),
            incoming: broadcast::channel(WAKES).0,
            outgoing,
            intro: Mutex::default(),
        };
        Membership { shared: Arc::new(shared) }
    }

    /// Whether other servers may use the same store.
    pub fn is_shared(&self) -> bool {
        self.shared.kind == MembershipKind::Shared
    }

    /// Whether this server may send ops and decide about them now. To be asked at the point of use.
    pub fn may_act(&self) -> bool {
        !self.is_shared() || self.own().may_act(boot_now())
    }

    /// Whether this server does the work of the lease. To be asked at the point of use.
    pub fn has(&self, lease: Lease) -> bool {
        self.may_act() && self.shared.view.borrow().leases.contains(&lease)
    }

    pub fn run(&self) -> ServerId {
        self.shared.view.borrow().run
    }

    pub fn term(&self) -> ServerTerm {
        let view = self.shared.view.borrow();
        ServerTerm { run: view.run, losses: view.loss.times }
    }

    pub fn view(&self) -> watch::Receiver<MembershipView> {
        self.shared.view.subscribe()
    }

    /// The URLs of the links that agents should connect to: of all living servers that have one and do not
    /// drain. Empty: the server is alone, or none has one.
    pub fn advertised(&self) -> watch::Receiver<Arc<[String]>> {
        self.shared.advertised.subscribe()
    }

    /// Figures for the next beats.
    pub fn set_load(&self, load: ServerLoad) {
        self.shared.load.0.store(load.agents, Ordering::Relaxed);
        self.shared.load.1.store(load.open_ops, Ordering::Relaxed);
    }

    pub fn wake_mode(&self) -> WakeMode {
        match self.shared.notified.load(Ordering::Relaxed) {
            true => WakeMode::Notified,
            false => WakeMode::Polling,
        }
    }

    /// Tells all other servers, as soon as possible and without a promise: they look for themselves, too.
    pub fn wake_others(&self, wake: Wake) {
        if let Some(outgoing) = &self.shared.outgoing {
            // A full queue loses only a wake-up.
            let _ = outgoing.try_send(wake);
        }
    }

    /// The wake-ups of other servers.
    pub fn wakes(&self) -> broadcast::Receiver<Wake> {
        self.shared.incoming.subscribe()
    }

    /// The store's time minus the boot-time clock, in milliseconds. `None`: the server's own wall clock is
    /// the store's.
    pub fn store_offset(&self) -> Option<i64> {
        self.is_shared().then(|| self.shared.offset.load(Ordering::Relaxed))
    }

    /// How often this server has seen the database's clock jump.
    pub fn clock_jumps(&self) -> u64 {
        self.shared.clock_jumps.load(Ordering::Relaxed)
    }

    /// Figures that were set last.
    pub fn load(&self) -> ServerLoad {
        ServerLoad {
            agents: self.shared.load.0.load(Ordering::Relaxed),
            open_ops: self.shared.load.1.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn intro(&self) -> ServerIntro {
        self.shared.intro.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_intro(&self, intro: ServerIntro) {
        *self.shared.intro.lock().unwrap_or_else(PoisonError::into_inner) = intro;
    }

    pub(crate) fn own(&self) -> MutexGuard<'_, OwnBeat> {
        self.shared.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_offset(&self, offset: i64) {
        self.shared.offset.store(offset, Ordering::Relaxed);
    }

    pub(crate) fn set_clock_jumps(&self, jumps: u64) {
        self.shared.clock_jumps.store(jumps, Ordering::Relaxed);
    }

    pub(crate) fn set_wake_mode(&self, mode: WakeMode) {
        self.shared.notified.store(mode == WakeMode::Notified, Ordering::Relaxed);
    }

    /// Wakes only those who wait for something that has changed.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut MembershipView)) {
        self.shared.view.send_if_modified(|view| {
            let before = view.clone();
            change(view);
            *view != before
        });
        let advertised = self.shared.view.borrow().advertised();
        self.shared.advertised.send_if_modified(|known| {
            let is_other = **known != advertised;
            if is_other {
                *known = advertised.into();
            }
            is_other
        });
    }

    pub(crate) fn pass_on(&self, wake: Wake) {
        // Fails only if nobody listens.
        let _ = self.shared.incoming.send(wake);
    }
}
