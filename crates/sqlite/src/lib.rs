//! What the server's store and the agent's journal have in common as users of SQLite.

mod explain;
mod reserve;

pub use explain::explain;
pub use reserve::Reserve;
