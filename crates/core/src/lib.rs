//! The words and rules of procfleet.
//!
//! Values, and decisions about values. This crate has no I/O, no clock, no randomness and no async: `now` is
//! always an argument, and actions are returned as data. The crates around it (server, agent, cli) carry them
//! out.

pub mod batch_size;
pub mod boot_time;
pub mod change;
pub mod clones;
pub mod code;
pub mod cut_off;
pub mod data_folder;
pub mod dispatch;
mod grant_scope;
pub mod grants;
pub mod groups;
pub mod health;
pub mod host_policy;
pub mod id;
mod jitter;
pub mod membership;
pub mod op;
pub mod parts;
pub mod process;
pub mod rebalance;
pub mod request;
pub mod select;
pub mod server_address;
pub mod server_choice;
pub mod server_name;
pub mod signal;
pub mod spec;
pub mod stagger;
pub mod store_clock;
pub mod supervise;
mod usage;

pub use boot_time::BootTime;
pub use code::Code;
pub use id::{AgentId, BootId, BusinessId, CloudId, Epoch, Host, OpId, ProcKey, TaskId};
pub use op::{Content, OpKind, Outcome};
pub use process::{Absence, Exit, Process, Sighting};
pub use spec::Spec;
