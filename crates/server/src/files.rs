//! RLIMIT_NOFILE: each agent and each caller needs a file descriptor.

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

/// How many descriptors agents and callers may use. Neither can take those of the others, or those that the
/// store, webhooks and other servers need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileShares {
    pub agents: u32,
    pub callers: u32,
}

impl FileShares {
    pub(crate) fn of_this_process() -> FileShares {
        FileShares::of_limit(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    fn of_limit(files: u64) -> FileShares {
        let files = u32::try_from(files).unwrap_or(u32::MAX);
        let callers = (files / 8).clamp((files / 2).clamp(16, 1_024), 4_096);
        let others = (files / 16).clamp(32, 256);
        FileShares { agents: files.saturating_sub(callers + others).max(16), callers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_callers_and_the_rest_share_the_descriptors() {
        for (files, agents, callers) in [
            (10, 16, 16),
            (200, 68, 100),
            (1_024, 448, 512),
            (4_096, 2_816, 1_024),
            (20_000, 17_244, 2_500),
            (524_288, 519_936, 4_096),
            (u64::MAX, u32::MAX - 4_352, 4_096),
        ] {
            assert_eq!(FileShares::of_limit(files), FileShares { agents, callers }, "{files}");
        }
    }
}
