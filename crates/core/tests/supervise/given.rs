//! The state before a test, and the expected state after it.

use crate::common::{Does, Term, World, daemon, spec};
use procfleet_core::OpKind;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Given {
    Unknown,
    Down,
    UpUnhosted,
    UpHosted,
    GaveUp,
    Launching,
    Ending,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Then {
    Up,
    Down,
    GaveUp,
}

pub(crate) fn given(given: Given) -> World {
    let mut world = World::new();
    match given {
        Given::Unknown => {}
        Given::Down => {
            world.order(OpKind::Start, &spec());
            world.order(OpKind::Stop, &spec());
        }
        Given::UpUnhosted => {
            world.order(OpKind::Start, &spec());
            world.order(OpKind::Unhost, &spec());
        }
        Given::UpHosted => {
            world.order(OpKind::Start, &spec());
        }
        Given::GaveUp => {
            world.set("start", Does::Exit { after: 10, code: 1 });
            world.order(OpKind::Host, &spec());
            world.run_for(60_000);
            assert!(!world.note().is_empty(), "it has given up");
            world.set("start", daemon());
        }
        Given::Launching => {
            world.send(OpKind::Start, Some(spec()));
            world.run_for(500);
        }
        Given::Ending => {
            world.term = Term::Dies { after: 1_000 };
            world.order(OpKind::Start, &spec());
            world.send(OpKind::Stop, Some(spec()));
            world.run_for(500);
        }
    }
    world
}

pub(crate) fn state(world: &World) -> Then {
    assert!(!world.machine.is_busy());
    assert_eq!(world.machine.process().map(|process| process.pid), world.main_pid());
    match (world.main_pid(), world.note().as_str()) {
        (Some(_), _) => Then::Up,
        (None, "") => Then::Down,
        (None, _) => Then::GaveUp,
    }
}

/// When each start was, counted from the first.
pub(crate) fn seconds(world: &World) -> Vec<u64> {
    let first = world.starts[0].0;
    world.starts.iter().map(|(at, _)| at.since(first).as_secs()).collect()
}
