//! The public JSON: GSE's and JOB's process APIs and procfleet's own.
//!
//! A request goes through [`read::Reader`], which collects every fault with its place; a shape is converted
//! to `core`'s types only if there was none. Callers' habits that must be tolerated (unknown fields, `null`
//! for absent, both names of a policy) are written down where the field is read.

pub mod agents;
pub mod batch;
pub mod content;
pub mod document;
pub mod events;
pub mod fault;
pub mod groups;
pub mod job;
pub mod keyed;
pub mod login;
pub mod login_service;
pub mod logs;
pub mod manage;
pub mod native;
pub mod operate;
pub mod query;
pub mod read;
pub mod record;
pub mod result;
pub mod spec_form;
pub mod status;
pub mod task_state;
pub mod typos;
pub mod upgrade;
pub mod users;
