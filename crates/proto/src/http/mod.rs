//! The public JSON.

pub mod native;
