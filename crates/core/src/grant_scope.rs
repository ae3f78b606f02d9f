//! How much of one dimension of a grant is allowed: everything, or some of it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The serde form is stored with tasks and in agents' journals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantScope<T: Ord> {
    All,
    Only(BTreeSet<T>),
}

impl<T: Ord> GrantScope<T> {
    /// For serde: a field that an older peer or record does not have is not limited.
    pub fn all() -> GrantScope<T> {
        GrantScope::All
    }

    pub fn is_all(&self) -> bool {
        matches!(self, GrantScope::All)
    }

    pub fn allows(&self, one: &T) -> bool {
        match self {
            GrantScope::All => true,
            GrantScope::Only(some) => some.contains(one),
        }
    }

    pub(crate) fn insert(&mut self, one: T) {
        match self {
            GrantScope::All => {}
            GrantScope::Only(some) => {
                some.insert(one);
            }
        }
    }

    pub(crate) fn with(self, more: GrantScope<T>) -> GrantScope<T> {
        match (self, more) {
            (GrantScope::All, _) | (_, GrantScope::All) => GrantScope::All,
            (GrantScope::Only(mut some), GrantScope::Only(more)) => {
                some.extend(more);
                GrantScope::Only(some)
            }
        }
    }

    pub(crate) fn without(self, less: &GrantScope<T>) -> GrantScope<T> {
        match (self, less) {
            (_, GrantScope::All) => GrantScope::Only(BTreeSet::new()),
            (GrantScope::All, GrantScope::Only(_)) => GrantScope::All,
            (GrantScope::Only(mut some), GrantScope::Only(less)) => {
                some.retain(|one| !less.contains(one));
                GrantScope::Only(some)
            }
        }
    }
}

impl<T: Ord> Default for GrantScope<T> {
    fn default() -> Self {
        GrantScope::Only(BTreeSet::new())
    }
}
