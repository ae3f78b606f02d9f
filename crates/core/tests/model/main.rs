//! A checked model of several servers on one store: membership, fencing, dispatch, the agents' journals and
//! the outcomes (ADR 25). Every state that can be reached within the bounds is looked at.
//!
//! The decisions are core's own: `dispatch::decide`, `OwnBeat::may_act` and `PeerBeats::observe`. What is
//! around them is a copy, in a few lines, of `server/src/dispatcher`, `store/src/postgres` and the agent's
//! link and journal; a change there wants the same change here. [`Protection`] lists the rules that can be
//! switched off, and with each off the tests show the shortest way to a broken [`Property`].
//!
//! Bounds: two servers, of which one has the lease `unheld`; to begin with, agents are connected to either.
//!
//! | agents | ops | sessions of an agent | faults |
//! |---|---|---|---|
//! | 1 | 1 | 3 | any two |
//! | 1 | 2 | 2 | any one |
//! | 2 | one for each | 2 | any one |
//!
//! A fault is the end of a server, by a crash or with a farewell (it may start again at any time), a pause of
//! its beats that is long enough to be declared dead, or a break of a connection that the agent, the server,
//! or both notice late. Between them everything happens in any order: ops, reports and acknowledgements
//! arrive late, are lost with their session and are repeated in the next one, which is with either server; a
//! server that was declared dead finds out at any time, and writes what it had decided before.
//!
//! Time has no numbers. Deadlines and a minute's grace pass at any moment. A beat is fresh, unconfirmed or
//! old, which are all the cases that core's rules know. `RECONNECT_GRACE` counts as over at once. All of this
//! allows more than the program does. An op is carried out when it arrives, and reported at any time after.
//!
//! Not in the model: cancellation, agents that are dismissed, states and groups, the crash of an agent (its
//! journal makes it a break), reads that fail, and decisions between the begin of a new run and the moment
//! when the dispatcher learns of it.

mod agent;
mod properties;
mod protections;
mod search;
mod server;
mod situations;
mod step;
mod store;
mod world;

use properties::Property;
use protections::{Protection, Protections};
use search::{Counterexample, explore};
use situations::Situations;
use std::time::Duration;
use step::Step;
use world::{
    AgentState, Faults, Journalled, Link, OpRow, Peer, Phase, Run, ServerState, SessionRow, StoreRows, World,
};

/// What is explored.
#[derive(Clone, Debug)]
struct Fleet {
    agents: usize,
    ops: usize,
    /// How many sessions each agent has at most, the one to begin with included.
    sessions: u8,
    faults: Faults,
    protections: Protections,
    /// Look for counterexamples of this property only.
    only: Option<Property>,
    situations: Situations,
}

impl Fleet {
    fn new(agents: usize, ops: usize, sessions: u8, faults: u8) -> Fleet {
        Fleet {
            agents,
            ops,
            sessions,
            faults: Faults { ends: faults, pauses: faults, breaks: faults, all: faults },
            protections: Protections::ALL,
            only: None,
            situations: Situations::default(),
        }
    }

    fn agent_of(&self, op: usize) -> usize {
        op % self.agents
    }

    /// Both servers are up, server 0 has the lease, and no op was accepted.
    fn starts(&self) -> Vec<World> {
        let server = ServerState {
            waits: false,
            peer: (!self.protections.has(Protection::EveryDeath)).then_some(Peer::LastRun),
            ..ServerState::just_started()
        };
        let row = OpRow { accepted: None, outcome: None, is_contradicted: false, is_hasty: false };
        let session = SessionRow { epoch: 0, holder: Run::Earlier, connected: false, is_orphaned: false };
        let agent = AgentState { link: Link::Away, frames: Default::default() };
        let journalled = Journalled { runs: 0, is_acknowledged: false };
        let mut servers = [server.clone(), server];
        servers[0].has_unheld = true;
        let away = World {
            store: StoreRows {
                is_up: [true; 2],
                unheld: Run::Last(0),
                sessions: [session.clone(), session],
                ops: [row.clone(), row],
            },
            servers,
            agents: [agent.clone(), agent],
            journal: [journalled.clone(), journalled],
            phase: Phase::MayBegin,
            left: self.faults,
        };
        let connected = |first: usize| {
            let mut world = away.clone();
            for agent in 0..self.agents {
                let server = (first + agent) % 2;
                let holder = store::last_run(server);
                world.store.sessions[agent] =
                    SessionRow { epoch: 1, holder, connected: true, is_orphaned: false };
                let held = &mut world.servers[server].agents[agent];
                (held.session, held.epoch) = (1, 1);
                world.agents[agent].link = Link::Open { server: agent::number(server), epoch: 1 };
            }
            world
        };
        vec![connected(0), connected(1)]
    }

    /// The property that breaks on the way. Steps that are not possible are left out.
    fn replay(&self, start: &World, steps: &[Step]) -> Option<Property> {
        let possible = |world: &World| {
            let mut possible = Vec::new();
            self.steps(world, &mut possible);
            possible
        };
        let mut world = start.clone();
        for step in steps {
            if possible(&world).contains(step) {
                world = self.next(&world, *step).unwrap_or(world);
            }
            if let Some(broken) = self.broken(&world) {
                return Some(broken);
            }
        }
        let goes_on = |step: Step| step.is_certain() && self.next(&world, step).is_some();
        match possible(&world).into_iter().any(goes_on) {
            true => None,
            false => self.broken_at_rest(&world),
        }
    }
}

/// All properties hold in all states.
#[expect(clippy::print_stdout, reason = "what was found is for readers")]
fn check_all(fleet: &Fleet) {
    let explored = explore(fleet);
    println!("{} states, at most {} steps away", explored.states, explored.depth);
    if let Some(found) = &explored.found {
        print(found);
    }
    assert!(explored.found.is_none(), "a counterexample was found, see above");
    assert!(explored.rests, "the servers could be busy for ever");
}

/// With this protection off, this property breaks within so many faults, and not with the protection on.
#[expect(clippy::print_stdout, reason = "what was found is for readers")]
fn check_without(off: Protection, faults: u8, breaks: Property) {
    let all = Fleet { only: Some(breaks), ..Fleet::new(1, 1, 2, faults) };
    let fleet = Fleet { protections: Protections::ALL.without(off), ..all.clone() };
    let explored = explore(&fleet);
    println!("without {off:?}, after {} states:", explored.states);
    let found = explored.found.expect("no counterexample was found");
    print(&found);
    assert_eq!(found.breaks, breaks);
    assert_eq!(all.replay(&found.start, &found.steps), None, "the protection does not help");
}

#[expect(clippy::print_stdout, reason = "what was found is for readers")]
fn print(found: &Counterexample) {
    println!("{:?} breaks:", found.breaks);
    for (agent, state) in found.start.agents.iter().enumerate() {
        if let Link::Open { server, .. } = state.link {
            println!("  agent {agent} is connected to server {server}");
        }
    }
    for step in &found.steps {
        println!("  {step}");
    }
}

/// The three kinds of beat in the model are all that there are.
#[test]
fn a_server_is_declared_dead_after_it_has_stopped_to_trust_itself() {
    let mut kinds = Vec::new();
    for age in (0..30_000).step_by(100).map(Duration::from_millis) {
        kinds.push((server::trusts_itself(age), server::is_silent(age)));
    }
    kinds.dedup();
    assert_eq!(kinds, [(true, false), (false, false), (false, true)]);
}

#[test]
fn all_holds_for_one_op_and_two_faults() {
    let fleet = Fleet::new(1, 1, 3, 2);
    check_all(&fleet);
    assert_eq!(fleet.situations.missing(), [], "never came about");
}

#[test]
fn all_holds_for_two_ops_of_one_agent() {
    check_all(&Fleet::new(1, 2, 2, 1));
}

#[test]
fn all_holds_for_two_agents() {
    check_all(&Fleet::new(2, 2, 2, 1));
}

#[test]
fn without_the_row_lock_an_outcome_is_untrue() {
    check_without(Protection::RowLock, 1, Property::NothingUntrue);
}

#[test]
fn without_the_epoch_an_outcome_is_untrue() {
    check_without(Protection::Epoch, 2, Property::NothingUntrue);
}

/// With the epochs, a dead server's late outcomes are true all the same. But it may store a session that no
/// living server knows of.
#[test]
fn without_the_term_an_op_never_ends() {
    check_without(Protection::Term, 2, Property::EveryOpEnds);
}

#[test]
fn without_the_grace_an_op_ends_while_its_agent_is_on_its_way() {
    check_without(Protection::Grace, 1, Property::TimeToComeBack);
}

#[test]
fn without_the_journal_an_op_runs_twice() {
    check_without(Protection::Dedupe, 1, Property::RunsAtMostOnce);
}

#[test]
fn without_the_session_at_acceptance_an_outcome_is_untrue() {
    check_without(Protection::SentBefore, 1, Property::NothingUntrue);
}

#[test]
fn without_the_first_outcome_winning_an_op_has_two() {
    check_without(Protection::FirstWins, 0, Property::OneOutcome);
}

#[test]
fn without_waiting_for_the_commit_an_acknowledged_outcome_is_lost() {
    check_without(Protection::AckAfterCommit, 0, Property::NothingAcknowledgedIsLost);
}

/// The row locks and the epochs are enough for what the model looks at: a message may be late on its way even
/// if its sender asked whether it may send, so nothing relies on that. It saves work that would be refused.
#[test]
fn trust_is_not_needed_for_any_property() {
    let mut fleet = Fleet::new(1, 1, 2, 2);
    fleet.protections = Protections::ALL.without(Protection::Trust);
    fleet.faults.breaks = 0;
    check_all(&fleet);
}

// Rules that the dispatcher lacked until this search found them.

#[test]
fn without_dropping_unwritten_decisions_an_outcome_is_untrue() {
    check_without(Protection::Reread, 1, Property::NothingUntrue);
}

#[test]
fn without_correcting_the_table_an_op_never_ends() {
    check_without(Protection::Reread, 1, Property::EveryOpEnds);
}

#[test]
fn without_the_death_in_the_row_an_op_ends_while_its_agent_is_on_its_way() {
    check_without(Protection::GraceFromStore, 1, Property::TimeToComeBack);
}

/// The same by another way: the taker has had the agent before, and counts from that time.
#[test]
fn an_agent_that_was_here_before_has_its_time_to_come_back() {
    let steps = [
        Step::Break(0),
        Step::Gone(0, 0, 1),
        Step::Connect(0, 1),
        Step::Welcome(0),
        Step::Turn(1),
        Step::Stop(1),
        Step::Look(0),
        Step::Accept(0),
        Step::Turn(0),
        Step::Commit(0),
    ];
    let all = Fleet::new(1, 1, 3, 2);
    let without = Fleet { protections: Protections::ALL.without(Protection::GraceFromStore), ..all.clone() };
    assert_eq!(all.replay(&all.starts()[0], &steps), None);
    assert_eq!(without.replay(&without.starts()[0], &steps), Some(Property::TimeToComeBack));
}

#[test]
fn without_trust_at_the_read_an_op_never_ends() {
    check_without(Protection::ReadInTrust, 2, Property::EveryOpEnds);
}

#[test]
fn without_reading_for_a_session_that_has_ended_an_op_never_ends() {
    check_without(Protection::ReadAfterGone, 2, Property::EveryOpEnds);
}

#[test]
fn without_the_run_of_a_session_its_agent_gets_no_ops() {
    check_without(Protection::RunOfSession, 2, Property::ConnectedAgentsAreServed);
}

#[test]
fn without_noticing_every_death_an_op_never_ends() {
    check_without(Protection::EveryDeath, 2, Property::EveryOpEnds);
}
