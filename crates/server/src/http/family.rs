//! The families of APIs.

/// The family of an API: each has its own envelope, and its own numbers for some errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallFamily {
    /// Includes procfleet's own API.
    Gse,
    Job,
}
