//! One file for each verb: its flags, its requests and its output.

pub(crate) mod agents;
pub(crate) mod app;
pub(crate) mod audit;
pub(crate) mod business;
pub(crate) mod ca;
mod common;
pub(crate) mod events;
pub(crate) mod list;
pub(crate) mod logs;
mod object;
pub(crate) mod operate;
pub(crate) mod ps;
mod request;
pub(crate) mod servers;
pub(crate) mod show;
pub(crate) mod spec_flags;
mod status;
pub(crate) mod targets;
pub(crate) mod task;
pub(crate) mod time_span;
pub(crate) mod token;
pub(crate) mod user;
pub(crate) mod webhook;
