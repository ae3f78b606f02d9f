//! The supervision machine against a simulated host: the effect of each operation in each state.

mod accounts;
mod again;
#[path = "../common/mod.rs"]
mod common;
mod given;
mod leftovers;
mod queue;
mod restart;
mod start;
mod stop;
mod table;
mod upkeep;
