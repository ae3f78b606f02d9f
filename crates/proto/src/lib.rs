//! Messages and formats between programs.
//!
//! `http` is the public JSON: requests are read into `core`'s types, with all faults of a request at once,
//! and answers are made of them. `link` has the messages between server and agent, `peer` those between
//! servers. `cron` is the parser of crontab rules that both ends share. `proxy_header` and `tunnel` are the
//! two protocols of proxies on the way. This crate opens no sockets.

pub mod cron;
pub mod http;
pub mod link;
pub mod peer;
pub mod proxy_header;
pub mod state;
pub mod tunnel;
