//! What crosses a wire.
//!
//! `http` holds the public JSON: requests are read into `core`'s types with every fault of a request
//! collected at once, and answers are made from them. `link` holds the messages between server and agent.
//! Nothing here opens a socket. `cron` is the one reading of a crontab rule that both ends share.

pub mod cron;
pub mod http;
pub mod link;
pub mod state;
