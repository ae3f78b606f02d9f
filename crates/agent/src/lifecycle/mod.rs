//! The agent program itself, as opposed to the processes that it supervises.
//!
//! - `life`: `agent.json`, which shows that the agent is ready;
//! - `upgrade`: `procfleet agent upgrade`, and its check;
//! - `reexec`: the agent re-executes itself, with the same pid and children;
//! - `signals`: signals that the agent ignores.

pub(crate) mod life;
pub(crate) mod reexec;
pub(crate) mod signals;
pub(crate) mod upgrade;
