//! The tasks that a program consists of. A task that ends before the program ends the program.

use std::collections::HashMap;
use tokio::runtime::Handle;
use tokio::task::{Id, JoinError, JoinSet};

/// Dropping it aborts all tasks.
#[derive(Debug, Default)]
pub struct Parts {
    tasks: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

/// A part has ended before the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartEnded {
    #[error("{0} panicked; see the log for file and line")]
    Panicked(&'static str),
    #[error("{0} ended before shutdown")]
    Early(&'static str),
}

impl Parts {
    pub fn spawn(&mut self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        let id = self.tasks.spawn(part).id();
        self.names.insert(id, name);
    }

    /// On the threads of another runtime.
    pub fn spawn_on(
        &mut self,
        name: &'static str,
        part: impl Future<Output = ()> + Send + 'static,
        threads: &Handle,
    ) {
        let id = self.tasks.spawn_on(part, threads).id();
        self.names.insert(id, name);
    }

    /// Returns when a part has ended. Before the shutdown of the program, that is a defect.
    pub async fn ended(&mut self) -> PartEnded {
        match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => PartEnded::Early(self.name(id)),
            Some(Err(error)) => self.failed(&error),
            None => std::future::pending().await,
        }
    }

    /// Waits until all parts have ended after a shutdown. Returns those that panicked.
    pub async fn join(&mut self) -> Vec<PartEnded> {
        let mut failed = Vec::new();
        while let Some(ended) = self.tasks.join_next_with_id().await {
            if let Err(error) = ended {
                failed.push(self.failed(&error));
            }
        }
        failed
    }

    fn failed(&self, error: &JoinError) -> PartEnded {
        match error.is_panic() {
            true => PartEnded::Panicked(self.name(error.id())),
            false => PartEnded::Early(self.name(error.id())),
        }
    }

    fn name(&self, id: Id) -> &'static str {
        self.names.get(&id).copied().unwrap_or("a part")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_or_returns_is_named() {
        let mut parts = Parts::default();
        parts.spawn("the first", std::future::pending());
        parts.spawn("the second", async { panic!("on purpose") });
        assert_eq!(parts.ended().await, PartEnded::Panicked("the second"));
        parts.spawn("the third", async {});
        assert_eq!(parts.ended().await, PartEnded::Early("the third"));
    }

    #[tokio::test]
    async fn all_parts_are_joined_at_the_end() {
        let mut parts = Parts::default();
        parts.spawn("the first", async {});
        parts.spawn("the second", async { panic!("on purpose") });
        assert_eq!(parts.join().await, [PartEnded::Panicked("the second")]);
    }
}
