//! The agent program itself: not the processes that it looks after.
//!
//! - `life`: `agent.json`, which says that the agent is ready;
//! - `upgrade`: `procfleet agent upgrade`, and its check;
//! - `reexec`: the agent re-executes itself, with the same pid and children;
//! - `signals`: signals that the agent ignores.

pub(crate) mod life;
pub(crate) mod reexec;
pub(crate) mod signals;
pub(crate) mod upgrade;
