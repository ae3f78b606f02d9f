//! Bounds on the rows of one agent, so that a compromised one cannot fill the store.

/// Procs of one agent. A host with 10,000 was measured; the list of one agent must not exhaust the server.
pub const PROCS: usize = 20_000;
/// A state above this size is a large one. All large states of one agent together have at most
/// [`LARGE_STATES`] bytes.
pub const LARGE_STATE: usize = 8 * 1024;
pub const LARGE_STATES: usize = 64 * 1024 * 1024;

/// Namespaces with process groups of one agent.
pub const GROUP_NAMESPACES: usize = 1_000;
