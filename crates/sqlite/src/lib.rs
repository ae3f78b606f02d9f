//! What the server's store and the agent's journal have in common as users of SQLite.

mod reserve;

pub use reserve::Reserve;
