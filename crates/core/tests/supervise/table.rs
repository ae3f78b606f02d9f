//! Every operation in every state, and the refusals.

use crate::common::{World, spec};
use crate::given::{Given, Then, given, state};
use procfleet_core::spec::Spec;
use procfleet_core::{Content, OpKind};

#[test]
fn every_operation_in_every_state() {
    use Given::{Down, Ending, GaveUp, Launching, Unknown, UpHosted, UpUnhosted};
    use OpKind::{
        Group, Host, Kill, Query, Register, Reload, Restart, Start, Stop, Unhost, Unregister, Update,
    };
    const H: bool = true;
    const U: bool = false;
    let rows = [
        // legal: something is done
        (Unknown, Start, 0, H, Then::Up),
        (Unknown, Host, 0, H, Then::Up),
        (Unknown, Restart, 0, U, Then::Up),
        (Unknown, Query, 0, U, Then::Down),
        (Down, Start, 0, H, Then::Up),
        (Down, Host, 0, H, Then::Up),
        (Down, Restart, 0, U, Then::Up),
        (Down, Query, 0, U, Then::Down),
        (UpUnhosted, Stop, 0, U, Then::Down),
        (UpUnhosted, Query, 0, U, Then::Up),
        (UpUnhosted, Host, 0, H, Then::Up),
        (UpUnhosted, Restart, 0, U, Then::Up),
        (UpUnhosted, Reload, 0, U, Then::Up),
        (UpUnhosted, Kill, 0, U, Then::Down),
        (UpHosted, Stop, 0, U, Then::Down),
        (UpHosted, Query, 0, H, Then::Up),
        (UpHosted, Unhost, 0, U, Then::Up),
        (UpHosted, Restart, 0, H, Then::Up),
        (UpHosted, Reload, 0, H, Then::Up),
        (UpHosted, Kill, 0, U, Then::Down),
        (GaveUp, Start, 0, H, Then::Up),
        (GaveUp, Host, 0, H, Then::Up),
        (GaveUp, Restart, 0, H, Then::Up),
        (GaveUp, Query, 0, H, Then::GaveUp),
        (GaveUp, Unhost, 0, U, Then::Down),
        // these wait for the launch, or overtake it
        (Launching, Stop, 0, U, Then::Down),
        (Launching, Query, 0, H, Then::Up),
        (Launching, Host, 0, H, Then::Up),
        (Launching, Unhost, 0, U, Then::Up),
        (Launching, Restart, 0, H, Then::Up),
        (Launching, Reload, 0, H, Then::Up),
        (Launching, Kill, 0, U, Then::Down),
        // these wait for the stop, or overtake it
        (Ending, Start, 0, H, Then::Up),
        (Ending, Query, 0, U, Then::Down),
        (Ending, Host, 0, H, Then::Up),
        (Ending, Unhost, 0, U, Then::Down),
        (Ending, Restart, 0, U, Then::Up),
        (Ending, Kill, 0, U, Then::Down),
        // already so
        (Unknown, Stop, 829, U, Then::Down),
        (Unknown, Unhost, 0, U, Then::Down),
        (Unknown, Reload, 829, U, Then::Down),
        (Unknown, Kill, 829, U, Then::Down),
        (Down, Stop, 829, U, Then::Down),
        (Down, Unhost, 0, U, Then::Down),
        (Down, Reload, 829, U, Then::Down),
        (Down, Kill, 829, U, Then::Down),
        (UpUnhosted, Start, 828, U, Then::Up),
        (UpUnhosted, Unhost, 0, U, Then::Up),
        (UpHosted, Start, 828, H, Then::Up),
        (UpHosted, Host, 0, H, Then::Up),
        (GaveUp, Stop, 829, U, Then::Down),
        (GaveUp, Reload, 829, H, Then::GaveUp),
        (GaveUp, Kill, 829, U, Then::Down),
        (Launching, Start, 828, H, Then::Up),
        (Ending, Stop, 829, U, Then::Down),
        (Ending, Reload, 829, U, Then::Down),
        // the known state, and nothing else
        (Unknown, Register, 0, U, Then::Down),
        (Down, Register, 850, U, Then::Down),
        (UpUnhosted, Register, 850, U, Then::Up),
        (UpHosted, Register, 850, H, Then::Up),
        (GaveUp, Register, 850, H, Then::GaveUp),
        (Launching, Register, 850, H, Then::Up),
        (Ending, Register, 850, U, Then::Down),
        (Unknown, Update, 0, U, Then::Down),
        (Down, Update, 0, U, Then::Down),
        (UpUnhosted, Update, 0, U, Then::Up),
        (UpHosted, Update, 0, H, Then::Up),
        (GaveUp, Update, 0, H, Then::GaveUp),
        (Launching, Update, 0, H, Then::Up),
        (Ending, Update, 0, U, Then::Down),
        // about a namespace: the machine of one proc is not involved
        (Unknown, Group, 832, U, Then::Down),
        (Down, Group, 832, U, Then::Down),
        (UpUnhosted, Group, 832, U, Then::Up),
        (UpHosted, Group, 832, H, Then::Up),
        (GaveUp, Group, 832, H, Then::GaveUp),
        (Launching, Group, 832, H, Then::Up),
        (Ending, Group, 832, U, Then::Down),
        (Unknown, Unregister, 829, U, Then::Down),
        (Down, Unregister, 0, U, Then::Down),
        (GaveUp, Unregister, 0, U, Then::Down),
        (Ending, Unregister, 0, U, Then::Down),
    ];
    // Unregistering a running proc leaves an unknown process: this has its own test.
    assert_eq!(rows.len(), 7 * OpKind::ALL.len() - 3);
    for (before, kind, code, hosted, then) in rows {
        let row = format!("{} when {before:?}", kind.verb());
        let mut world = given(before);
        let outcome = world.order(kind, &spec());
        world.run_for(30_000);
        assert_eq!(outcome.code.number(), code, "{row}: {}", outcome.message);
        assert_eq!(world.hosted(), hosted, "{row}");
        assert_eq!(state(&world), then, "{row}");
        assert!(world.max_mains <= 1, "{row}");
        assert!(world.open_ops().is_empty(), "{row}");
        if let Content::Control { hosted: told, .. } = outcome.content {
            assert_eq!(told, hosted, "{row}");
        }
    }
}

/// It could not be started again when it ends, whether it runs now or not.
#[test]
fn a_spec_without_a_start_command_is_never_hosted() {
    let mut bare = spec();
    bare.control.start_cmd.clear();
    bare.control.restart_cmd = "restart".to_owned();
    for (before, kind, hosted) in [
        (Given::UpUnhosted, OpKind::Host, false),
        (Given::UpHosted, OpKind::Host, true),
        (Given::UpHosted, OpKind::Update, true),
        (Given::UpHosted, OpKind::Restart, true),
        (Given::Down, OpKind::Host, false),
    ] {
        let mut world = given(before);
        let outcome = world.order(kind, &bare);
        assert_eq!(outcome.code.number(), 827, "{before:?} {}: {}", kind.verb(), outcome.message);
        assert_eq!(world.hosted(), hosted, "{before:?}");
        assert_eq!(
            world.machine.spec().map(|spec| (**spec).clone()),
            Some(spec()),
            "{before:?}: the stored spec stays"
        );
    }
    let mut world = given(Given::UpUnhosted);
    assert_eq!(world.order(OpKind::Update, &bare).code.number(), 0, "what is not hosted may have none");
}

#[test]
fn an_impossible_operation_is_refused_and_changes_nothing() {
    let mut bare = spec();
    bare.control.start_cmd.clear();
    bare.control.reload_cmd.clear();
    let rows = [
        // no spec anywhere
        (OpKind::Start, None, 801),
        (OpKind::Stop, None, 801),
        (OpKind::Query, None, 801),
        (OpKind::Host, None, 801),
        (OpKind::Restart, None, 801),
        (OpKind::Reload, None, 801),
        (OpKind::Kill, None, 801),
        // no command
        (OpKind::Start, Some(bare.clone()), 827),
        (OpKind::Host, Some(bare.clone()), 827),
        (OpKind::Restart, Some(bare.clone()), 827),
        (OpKind::Reload, Some(bare), 827),
        // no properties to find it by
        (OpKind::Query, Some(Spec::default()), 801),
    ];
    for (kind, spec, code) in rows {
        let mut world = World::new();
        let op = world.send(kind, spec);
        let outcome = world.outcome(op);
        assert_eq!(outcome.code.number(), code, "{}: {}", kind.verb(), outcome.message);
        assert!(world.machine.is_blank(), "{}", kind.verb());
        assert!(world.starts.is_empty() && !world.hosted(), "{}", kind.verb());
    }
}
