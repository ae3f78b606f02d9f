//! Orders of apps that are limited to OS accounts: every operation in every state.

use crate::common::{World, spec};
use crate::given::{Given, given};
use procfleet_core::grants::GrantScope;
use procfleet_core::spec::Spec;
use procfleet_core::{Code, OpKind};

const STATES: [Given; 7] = [
    Given::Unknown,
    Given::Down,
    Given::UpUnhosted,
    Given::UpHosted,
    Given::GaveUp,
    Given::Launching,
    Given::Ending,
];

fn of(user: &str) -> Spec {
    let mut spec = spec();
    spec.identity.user = user.to_owned();
    spec
}

/// Everything that the world and the machine say of the proc.
fn sight(world: &World) -> String {
    let (machine, seen) = (&world.machine, (world.main_pid(), world.note(), &world.signals, &world.sweeps));
    format!("{:?} {:?} {:?} {seen:?}", machine.spec(), machine.hosting(), machine.process())
}

fn limited(mut world: World) -> World {
    world.accounts = GrantScope::Only(["www".to_owned()].into());
    world
}

#[test]
fn an_order_meets_the_stored_spec_of_another_account() {
    // `given` stores a spec whose account is the empty name, which is not granted.
    for state in STATES.into_iter().filter(|state| *state != Given::Unknown) {
        for kind in OpKind::ALL.into_iter().filter(|kind| *kind != OpKind::Group) {
            let mut world = limited(given(state));
            world.owner = "www".to_owned();
            let before = sight(&world);
            let op = world.send(kind, Some(of("www")));
            let (_, outcome) =
                world.done.iter().find(|(id, _)| *id == op).expect("it is refused at once").clone();
            assert_eq!(outcome.code, Code::NotAllowed, "{state:?} {kind:?}");
            assert!(outcome.message.contains("user \"\""), "{}", outcome.message);
            assert_eq!(sight(&world), before, "{state:?} {kind:?}");
        }
    }
}

#[test]
fn an_order_meets_the_process_of_another_account() {
    for kind in OpKind::ALL.into_iter().filter(|kind| *kind != OpKind::Group) {
        for registered in [true, false] {
            let mut world = World::new();
            world.order(OpKind::Start, &of("www"));
            if !registered {
                world.order(OpKind::Unregister, &of("www"));
            }
            let mut world = limited(world);
            world.owner = "root".to_owned();
            let before = sight(&world);
            let outcome = world.order(kind, &of("www"));
            assert_eq!(outcome.code, Code::NotAllowed, "{kind:?} {registered}");
            assert!(outcome.message.contains("user \"root\""), "{}", outcome.message);
            assert_eq!(sight(&world), before, "{kind:?} {registered}");
        }
    }
}

#[test]
fn an_order_that_involves_one_account_is_carried_out() {
    for kind in OpKind::ALL.into_iter().filter(|kind| *kind != OpKind::Group) {
        for first in [None, Some(OpKind::Start), Some(OpKind::Host), Some(OpKind::Register)] {
            let play = |limit: bool| {
                let mut world = World::new();
                if limit {
                    world = limited(world);
                    world.owner = "www".to_owned();
                }
                first.iter().for_each(|kind| {
                    world.order(*kind, &of("www"));
                });
                let outcome = world.order(kind, &of("www"));
                (outcome, sight(&world))
            };
            assert_eq!(play(true), play(false), "{kind:?} after {first:?}");
        }
    }
}

#[test]
fn a_stop_that_may_be_refused_cancels_no_start() {
    let mut world = World::new();
    world.order(OpKind::Start, &of("www"));
    world.send(OpKind::Restart, Some(of("www")));
    let start = world.send(OpKind::Update, Some(of("www")));
    world.owner = "root".to_owned();
    let mut world = limited(world);
    let stop = world.send(OpKind::Stop, Some(of("www")));
    world.run_for(60_000);
    let code = |op| world.done.iter().find(|(id, _)| *id == op).expect("it has ended").1.code;
    assert_eq!((code(stop), code(start)), (Code::NotAllowed, Code::Success));
    assert!(world.main_pid().is_some());
}

#[test]
fn a_sent_spec_of_another_account_is_refused() {
    let mut world = limited(World::new());
    let outcome = world.order(OpKind::Start, &of("root"));
    assert_eq!(outcome.code, Code::NotAllowed);
    assert!(world.starts.is_empty() && world.machine.is_blank());
    world.accounts = GrantScope::Only(Default::default());
    assert_eq!(world.order(OpKind::Start, &of("www")).code, Code::NotAllowed, "nobody is nobody");
}
