//! What must hold in every state.

use crate::Fleet;
use crate::world::{Ending, Link, Phase, Run, World};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    RunsAtMostOnce,
    OneOutcome,
    /// No outcome says that nothing was done about an op that ran, or runs later.
    NothingUntrue,
    /// What an agent was told to be stored is stored.
    NothingAcknowledgedIsLost,
    /// No op ends as undeliverable while its agent is on the way from a dead server.
    TimeToComeBack,
    /// When nothing is left that happens by itself, every op has an outcome.
    EveryOpEnds,
    /// When nothing is left that happens by itself, the server that an agent is connected to decides about
    /// its ops.
    ConnectedAgentsAreServed,
}

impl Fleet {
    /// A property that does not hold in a state. Those about states at rest: see [`Fleet::broken_at_rest`].
    pub(crate) fn broken(&self, world: &World) -> Option<Property> {
        let broken = world.store.ops.iter().zip(&world.journal).flat_map(|(op, entry)| {
            let denies = op.outcome == Some(Ending::NothingWasDone);
            [
                (entry.runs > 1, Property::RunsAtMostOnce),
                (op.is_contradicted, Property::OneOutcome),
                (denies && entry.runs > 0, Property::NothingUntrue),
                (entry.is_acknowledged && op.outcome.is_none(), Property::NothingAcknowledgedIsLost),
                (op.is_hasty, Property::TimeToComeBack),
            ]
        });
        self.first_of_interest(broken)
    }

    /// The same for a state in which nothing happens by itself any more: agents that are away stay away, and
    /// servers that are down stay down.
    pub(crate) fn broken_at_rest(&self, world: &World) -> Option<Property> {
        // Then the search looks no further, and servers may still have something to do.
        if (0..self.ops).all(|op| self.is_over(world, op)) {
            return None;
        }
        let is_running = world.servers.iter().any(|server| server.is_running);
        let has_open_op = world.phase == Phase::Overdue && world.open_ops().next().is_some();
        let has_idle_agent = (0..self.agents).any(|agent| match world.agents[agent].link {
            Link::Open { server, .. } if world.is_served(agent) => {
                world.store.sessions[agent].holder != Run::Last(server)
            }
            Link::Open { .. } | Link::Stored { .. } | Link::Away => false,
        });
        let broken = [
            (is_running && has_open_op, Property::EveryOpEnds),
            (has_idle_agent, Property::ConnectedAgentsAreServed),
        ];
        self.first_of_interest(broken.into_iter())
    }

    fn first_of_interest(&self, mut broken: impl Iterator<Item = (bool, Property)>) -> Option<Property> {
        let is_of_interest = |property| self.only.is_none_or(|only| only == property);
        broken.find_map(|(is_broken, property)| (is_broken && is_of_interest(property)).then_some(property))
    }
}
