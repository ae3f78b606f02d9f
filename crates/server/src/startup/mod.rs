//! Steps of the server's start that write to the store before the first request is served.

pub mod ca;
pub mod ca_opening;
pub mod restored;
pub mod sealed_ca;
pub mod setup;
