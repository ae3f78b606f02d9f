//! The public JSON: GSE's and JOB's process APIs and procfleet's own.
//!
//! A request goes through [`read::Reader`], which collects all faults with their JSON paths; it is converted
//! to `core`'s types only if there are none. Tolerated habits of callers (unknown fields, `null` for absent,
//! both names of a policy) are documented where the field is read.

pub mod agents;
pub mod batch;
pub mod content;
pub mod cursor;
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
mod names;
pub mod native;
pub mod operate;
pub mod query;
pub mod read;
pub mod record;
pub mod result;
pub mod servers;
pub mod spec_form;
pub mod status;
pub mod task_state;
pub mod typos;
pub mod upgrade;
pub mod users;
