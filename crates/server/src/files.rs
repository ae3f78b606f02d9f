//! How many files this program may have open: each agent needs one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// The soft limit that this program was given. What it starts should have no more.
#[derive(Clone, Copy, Debug)]
pub struct InheritedLimit(Rlimit);

/// Raises the soft limit to the hard one: it is low for the sake of old programs, and this one has an agent
/// on each.
pub fn take_all() -> InheritedLimit {
    let given = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: given.maximum, maximum: given.maximum }) {
        Ok(()) => info!(files = given.maximum, "open files: as many as are allowed here"),
        Err(error) => warn!(files = given.current, %error, "open files: no more than were given"),
    }
    InheritedLimit(given)
}

impl InheritedLimit {
    /// Does something, such as starting a program, with the limit as it was. For so long nobody else can open
    /// more either.
    pub fn within<T>(self, act: impl FnOnce() -> T) -> T {
        let taken = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, self.0);
        let done = act();
        let _ = setrlimit(Resource::Nofile, taken);
        done
    }
}
