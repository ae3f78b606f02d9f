//! Helpers that several use cases share. They are not use cases themselves.

pub mod access;
pub(crate) mod peer_fault;
pub mod scope;
pub(super) mod size;
pub(super) mod store_fault;
