//! RLIMIT_NOFILE: each agent needs a file descriptor.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{info, warn};

/// The RLIMIT_NOFILE that this program inherited. Programs that it starts get the same.
#[derive(Clone, Copy, Debug)]
pub struct InheritedLimit(Rlimit);

/// Raises the soft limit of RLIMIT_NOFILE to the hard limit: the usual soft limit is low, for programs that
/// use `select`, and this server needs a descriptor for each agent.
pub fn raise_limit() -> InheritedLimit {
    let inherited = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: inherited.maximum, maximum: inherited.maximum }) {
        Ok(()) => info!(files = inherited.maximum, "RLIMIT_NOFILE raised to the hard limit"),
        Err(error) => {
            warn!(files = inherited.current, %error, "RLIMIT_NOFILE cannot be raised; the number of agents is limited by it")
        }
    }
    InheritedLimit(inherited)
}

impl InheritedLimit {
    /// Runs `act`, such as starting a program, with the inherited limit. Meanwhile other threads cannot open
    /// more files either.
    pub fn within<T>(self, act: impl FnOnce() -> T) -> T {
        let taken = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, self.0);
        let done = act();
        let _ = setrlimit(Resource::Nofile, taken);
        done
    }
}
