//! The use cases, one file each. They know the store and the keeper, and nothing of HTTP.

pub mod agents;
pub mod audit;
pub mod operate;
pub mod procs;
pub mod registration;
pub mod results;
pub mod setup;
pub mod status;
pub mod tasks;
pub mod tokens;

use crate::clock::Clock;
use crate::keeper::Keeper;
use crate::metrics::Metrics;
use crate::pki::Ca;
use crate::sessions::Presences;
use crate::store::{Store, StoreError};
use std::net::IpAddr;
use std::sync::Arc;

/// What every use case may need.
#[derive(Clone, Debug)]
pub struct App {
    pub store: Store,
    pub keeper: Keeper,
    pub clock: Clock,
    pub presences: Presences,
    pub ca: Arc<Ca>,
    pub metrics: Arc<Metrics>,
    pub unfinished: registration::Unfinished,
}

/// Who asks, after the login was checked.
#[derive(Clone, Debug)]
pub struct Caller {
    pub app: String,
    pub username: String,
    pub from: IpAddr,
}

#[derive(Debug, thiserror::Error)]
pub enum AppError {
    #[error("no task {0}")]
    NoTask(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("none of the agents is known")]
    NoSuchAgents,
    #[error("the server is ending")]
    Ending,
}
