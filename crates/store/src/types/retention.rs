//! Bounds and results of deleting old rows.

/// Maximum number of rows that one transaction deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    pub tasks: u32,
    pub ops: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleted {
    pub tasks: u64,
    pub ops: u64,
    /// Whether there is more to delete.
    pub more: bool,
}
