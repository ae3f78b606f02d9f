//! A simulated fleet: thousands of agents in one process, each with its own key, certificate and session over
//! the real link.
//!
//! For the server a simulated agent is an agent in everything but its processes, which follow a script: how
//! long an op takes, how it ends, when the connection breaks. It uses the agent's own TLS and its back-off
//! between two sessions, and it knows nothing of the server's code.
//!
//! - [`Fleet`]: all of them, running;
//! - [`FleetPlan`]: how many, where to, and how they behave ([`Script`]);
//! - [`Figures`]: their counters;
//! - [`ManualPeer`]: an agent whose every message the test decides;
//! - [`ManualServer`]: a server whose every message the test decides.
//!
//! A simulated fleet has no journal: when it ends, ops that its agents had taken and not reported are lost,
//! as if each host had lost its disk. While it runs, a broken connection makes it neither forget nor repeat
//! an op.

mod agent;
mod connect;
mod enroll;
mod figures;
mod files;
mod fleet;
mod identities;
mod peer;
mod procs;
mod random;
mod script;
mod server;
mod trace;

pub use agent::Held;
pub use enroll::SimEnrollError;
pub use figures::Figures;
pub use files::{agents_for_files, take_all_files};
pub use fleet::{Fleet, FleetError, FleetPlan};
pub use peer::{ManualPeer, PeerError, ShownCertificate, Talk};
pub use script::{BadScript, DelayRange, Drops, Script, ScriptedEnd, Slow};
pub use server::{ManualServer, ManualServerError, ManualSession};
