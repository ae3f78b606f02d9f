//! Background workers of the server, one file each: they run from the start to the end of the server.
//!
//! Each worker reads its work from the store, so it may end at any point and continue after the next start.

pub mod ca_follower;
pub mod cut_off;
pub mod refusals;
pub mod retention;
pub mod succession;
pub mod wakes;
pub mod webhooks;
