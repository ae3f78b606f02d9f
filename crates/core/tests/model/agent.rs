//! What an agent does: its link, outbox and journal (`crates/agent/src`).

use crate::Fleet;
use crate::protections::Protection;
use crate::situations::Situation;
use crate::world::{Link, World};
use procfleet_core::dispatch::OpProgress;
use procfleet_core::id::Epoch;

impl Fleet {
    /// The agent says hello, and the server stores its session.
    pub(crate) fn connect(&self, world: &mut World, agent: usize, server: usize) {
        if world.store.hold(server, self.protections).is_ok() {
            let epoch = world.store.connect(agent, server);
            world.agents[agent].link = Link::Stored { server: number(server), epoch, is_stale: false };
        }
    }

    /// The agent is welcomed, and the dispatcher learns of the session.
    pub(crate) fn welcome(&self, world: &mut World, agent: usize) {
        let Link::Stored { server, epoch, is_stale } = world.agents[agent].link else { return };
        if is_stale && self.protections.has(Protection::RunOfSession) {
            return world.agents[agent].leave();
        }
        world.agents[agent].link = Link::Open { server, epoch };
        world.servers[usize::from(server)].agents[agent].connecting = epoch;
    }

    /// The connection breaks before the welcome: the dispatcher learns only of the end of the session.
    pub(crate) fn give_up(&self, world: &mut World, agent: usize) {
        let Link::Stored { server, epoch, is_stale } = world.agents[agent].link else { return };
        world.agents[agent].leave();
        let server = usize::from(server);
        if world.store.hold(server, self.protections).is_ok() {
            world.store.disconnect(agent, epoch);
        }
        let reads = !is_stale && self.protections.has(Protection::ReadAfterGone);
        world.servers[server].agents[agent].to_read |= reads;
    }

    /// An op arrives in the agent's session, and is carried out.
    pub(crate) fn receive(&self, world: &mut World, op: usize) {
        let agent = self.agent_of(op);
        if !world.is_served(agent) {
            self.situations.note(Situation::LateFrame);
        }
        world.agents[agent].frames[op] = false;
        let entry = &mut world.journal[op];
        if entry.runs > 0 && self.protections.has(Protection::Dedupe) {
            self.situations.note(Situation::Deduplicated);
        } else {
            entry.runs = (entry.runs + 1).min(2);
        }
        // Answered from the journal, if it was carried out before.
        entry.is_acknowledged = false;
    }

    /// The agent reports an outcome that is not acknowledged.
    pub(crate) fn report(&self, world: &mut World, op: usize) {
        let Link::Open { server, epoch } = world.agents[self.agent_of(op)].link else { return };
        let entry = &mut world.servers[usize::from(server)].ops[op];
        entry.has_report = true;
        entry.progress = entry.progress.map(|_| OpProgress::Taken(Epoch(epoch.into())));
        if !self.protections.has(Protection::AckAfterCommit) {
            self.acknowledge(world, usize::from(server), op);
        }
    }
}

pub(crate) fn number(server: usize) -> u8 {
    u8::from(server == 1)
}
