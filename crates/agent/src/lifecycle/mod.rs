//! The agent program itself: not the processes that it looks after.
//!
//! - `life`: `agent.json`, which says that the agent is ready;
//! - `upgrade`: `procfleet agent upgrade`, and its check;
//! - `reexec`: the agent re-executes itself, with the same pid and children;
//! - `signals`: signals to the program before it has handlers;
//! - `memory`: settings of the allocator.

pub(crate) mod life;
pub mod memory;
pub(crate) mod reexec;
pub mod signals;
pub(crate) mod upgrade;
