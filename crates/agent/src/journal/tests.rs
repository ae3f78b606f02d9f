//! The journal at its boundary, on real files.

use super::*;
use procfleet_core::boot_time::BootTime;
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::Epoch;
use procfleet_core::op::Content;
use procfleet_core::process::{Evidence, Found, Process, ProgramFile};
use procfleet_core::server_address::ServerAddress;
use procfleet_core::spec::Spec;
use procfleet_core::supervise::{Event, Hosting, Rest, ScheduledRun};

fn key(name: &str) -> ProcKey {
    ProcKey { namespace: "web".to_owned(), name: name.to_owned() }
}

fn order(number: u32, kind: OpKind) -> Order {
    let op = format!("20190813145456-8-{number}").parse().expect("an op id");
    Order { op, kind, spec: Some(Spec::default()), start_by: BootTime(5_000), accounts: GrantScope::All }
}

fn outcome() -> Outcome {
    let content =
        Content::Control { hosted: true, proc_name: "nginx".to_owned(), setup_path: "/srv".to_owned() };
    Outcome::new(Code::Success, "success", content)
}

fn record() -> Record {
    let process = Process { pid: 7, start_ticks: 11, found: Found::PidFile, evidence: Evidence::default() };
    let rest = Rest::Retry { at: BootTime(9), why: "restart 1 of 4; it died".to_owned() };
    Record {
        spec: Arc::default(),
        older: Vec::new(),
        dead: None,
        hosting: Hosting::Hosted,
        process: Some(process),
        streak: Default::default(),
        rest,
        fault: None,
        run: None,
    }
}

/// Records of every released version.
#[test]
fn a_record_of_any_age_is_read() {
    let first = r#"{"spec":{},"hosting":"Hosted","process":null,"streak":{"restarts":0,"last_start":null},"rest":"Idle"}"#;
    let read: Record = serde_json::from_str(first).expect("the first version's record");
    assert_eq!((read.rest.clone(), read.fault.clone(), read.hosting), (Rest::Idle, None, Hosting::Hosted));
    let retry = first.replace(r#""Idle""#, r#"{"Retry":{"at":9}}"#);
    let read_retry: Record = serde_json::from_str(&retry).expect("the first version's retry");
    assert_eq!(read_retry.rest, Rest::Retry { at: BootTime(9), why: String::new() });
    for rest in [Rest::Due { at: BootTime(7) }, Rest::Begun { at: BootTime(8) }] {
        let record = Record { rest, fault: Some("it used too much".to_owned()), ..read.clone() };
        let again: Record = serde_json::from_str(&json(&record)).expect("our own record");
        assert_eq!(again, record);
        assert_eq!(again.after_reboot().rest, Rest::Idle, "moments mean nothing then");
    }
    let running = first.replace(r#""Idle"}"#, r#""Idle","run":{"deadline":9,"missed":2,"told_at":7}}"#);
    let read: Record = serde_json::from_str(&running).expect("a record of a run that is under way");
    let run = Box::new(ScheduledRun { deadline: BootTime(9), missed: 2, told_at: Some(BootTime(7)) });
    assert_eq!((read.run.clone(), json(&read).contains(r#""run":{"deadline":9,"#)), (Some(run), true));
    assert_eq!(read.after_reboot().run, None);
}

#[test]
fn a_process_without_evidence_is_written_as_it_always_was() {
    let old = r#"{"pid":7,"start_ticks":11,"found":"PidFile"}"#;
    let process: Process = serde_json::from_str(old).expect("an old record");
    assert_eq!(process.evidence, Evidence::default());
    assert_eq!(json(&process), old);
    let evidence =
        Evidence { serial: 9.try_into().ok(), program: Some(ProgramFile::at(2, 3)), run: 5.try_into().ok() };
    let known = Process { evidence, ..process };
    assert_eq!(serde_json::from_str::<Process>(&json(&known)).expect("our own record"), known);
}

async fn reopened(path: &Path, boot: &str) -> (Journal, Past) {
    Journal::open(path, &BootId(boot.to_owned())).await.expect("a journal")
}

#[tokio::test]
async fn an_op_is_new_once_and_its_outcome_is_kept() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let (journal, past) = reopened(&path, "one").await;
    assert!(past.procs.is_empty() && past.unacknowledged.is_empty());
    let start = order(0, OpKind::Start);
    let accept =
        || async { journal.accept(vec![(key("a"), start.clone())]).await.expect("writable").remove(0) };
    assert_eq!(accept().await, Acceptance::New(vec![(key("a"), start.clone())]));
    assert_eq!(accept().await, Acceptance::Known);
    journal
        .write(&key("a"), &[Write::Begun(start.op), Write::Done(start.op, outcome())], &EventProc::default())
        .await;
    assert_eq!(accept().await, Acceptance::Done(outcome()));
    let second = Outcome { message: "another".to_owned(), ..outcome() };
    journal.write(&key("a"), &[Write::Done(start.op, second)], &EventProc::default()).await;
    assert_eq!(accept().await, Acceptance::Done(outcome()), "the first outcome stands");

    drop(journal);
    let (journal, past) = reopened(&path, "one").await;
    assert_eq!(past.unacknowledged, [(start.op, outcome())]);
    journal.confirm(vec![start.op]).await;
    drop(journal);
    let (journal, past) = reopened(&path, "one").await;
    assert!(past.unacknowledged.is_empty(), "confirmed ops are not reported again");
    assert_eq!(
        journal.accept(vec![(key("a"), start.clone())]).await.expect("writable"),
        [Acceptance::Done(outcome())]
    );
}

#[tokio::test]
async fn the_journal_distinguishes_begun_from_waiting_ops_and_boots() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let (journal, _) = reopened(&path, "one").await;
    let (begun, waiting, lone) = (order(0, OpKind::Stop), order(1, OpKind::Start), order(2, OpKind::Reload));
    let orders = vec![(key("a"), begun.clone()), (key("a"), waiting.clone()), (key("b"), lone.clone())];
    journal.accept(orders).await.expect("writable");
    journal
        .write(&key("a"), &[Write::Record(Box::new(record())), Write::Begun(begun.op)], &EventProc::default())
        .await;
    journal.write(&key("b"), &[Write::Begun(lone.op)], &EventProc::default()).await;
    drop(journal);

    let (journal, past) = reopened(&path, "one").await;
    let [a, b] = &past.procs[..] else { panic!("two procs: {past:?}") };
    assert_eq!(
        (&a.record, &a.interrupted, &a.waiting),
        (&Some(record()), &vec![(begun.op, OpKind::Stop)], &vec![waiting.clone()])
    );
    assert_eq!((&b.record, &b.interrupted), (&None, &vec![(lone.op, OpKind::Reload)]));
    drop(journal);

    let (_journal, past) = reopened(&path, "two").await;
    let a = &past.procs[0];
    assert_eq!(a.record, Some(record().after_reboot()));
    assert_eq!(
        (&a.interrupted, &a.unbegun),
        (&vec![(begun.op, OpKind::Stop)], &vec![(waiting.op, OpKind::Start)])
    );
    assert!(a.waiting.is_empty(), "no deadline outlives a boot");
}

/// A journal as the first version wrote it. It must be readable for ever.
#[tokio::test]
async fn a_journal_of_the_first_format_is_understood() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let old = Connection::open(&path).expect("a database");
    old.execute_batch(include_str!("golden/format-1.sql")).expect("the old journal");
    drop(old);
    let (_journal, past) = reopened(&path, "one").await;
    let [a] = &past.procs[..] else { panic!("one proc: {past:?}") };
    let record = a.record.as_ref().expect("a record");
    assert_eq!((record.hosting, record.process.map(|process| process.pid)), (Hosting::Hosted, Some(7)));
    assert_eq!((a.interrupted.len(), a.waiting.len(), past.unacknowledged.len()), (1, 1, 1));
    assert!(past.groups.is_empty());
}

/// The first format with events and process groups.
#[tokio::test]
async fn a_journal_of_the_third_format_is_understood() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let old = Connection::open(&path).expect("a database");
    old.execute_batch(include_str!("golden/format-3.sql")).expect("the old journal");
    drop(old);
    let (journal, past) = reopened(&path, "one").await;
    assert_eq!((past.procs.len(), past.unacknowledged.len()), (1, 1));
    let events = journal.oldest_events(10_000).await.expect("readable");
    assert_eq!((events.len(), events[0].number, events[0].report_id), (1, 5, 7));
    let [(namespace, groups)] = &past.groups[..] else { panic!("one namespace: {past:?}") };
    assert_eq!((namespace.as_str(), groups.as_slice()), ("demo", &[group("pool")][..]));
}

fn group(id: &str) -> ProcessGroup {
    let weight = procfleet_core::spec::Weight::Limit;
    ProcessGroup {
        id: id.to_owned(),
        cpu_pool_limit: Some(20.5),
        mem_pool_weight: weight,
        ..ProcessGroup::default()
    }
}

#[tokio::test]
async fn groups_are_replaced_together_with_the_outcome() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    // A journal of the first format, which is migrated.
    let old = Connection::open(&path).expect("a database");
    old.execute_batch(include_str!("golden/format-1.sql")).expect("the old journal");
    drop(old);
    let (journal, _) = reopened(&path, "one").await;
    let key = ProcKey { namespace: "web".to_owned(), name: String::new() };
    let orders: Vec<Order> = (10..13).map(|number| order(number, OpKind::Group)).collect();
    let all: Vec<_> = orders.iter().map(|order| (key.clone(), order.clone())).collect();
    let expected: Vec<_> = all.iter().map(|one| Acceptance::New(vec![one.clone()])).collect();
    assert_eq!(journal.accept(all).await.expect("writable"), expected);
    journal.set_groups("web", &[group("a"), group("b")], orders[0].op, &outcome()).await;
    journal.set_groups("db", &[group("c")], orders[1].op, &outcome()).await;
    journal.set_groups("web", &[group("d")], orders[2].op, &outcome()).await;
    drop(journal);
    let (journal, past) = reopened(&path, "one").await;
    let expected = [("db".to_owned(), vec![group("c")]), ("web".to_owned(), vec![group("d")])];
    assert_eq!(past.groups, expected);
    assert_eq!(past.unacknowledged.len(), 1 + 3, "each outcome is there with its groups");
    journal.set_groups("web", &[], orders[2].op, &outcome()).await;
    drop(journal);
    let (_journal, past) = reopened(&path, "two").await;
    assert_eq!(past.groups, [("db".to_owned(), vec![group("c")])], "an empty list clears it");
}

#[tokio::test]
async fn events_wait_in_order_until_the_server_has_them() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let (journal, _) = reopened(&path, "one").await;
    let known = EventProc { report_id: 7, proc_name: "nginx".to_owned(), user: "www".to_owned() };
    for reason in ["first", "second", "third"] {
        let gave_up = Write::Event(Event::GaveUp { reason: reason.to_owned() });
        journal.write(&key("a"), &[gave_up], &known).await;
    }
    let all = journal.oldest_events(10_000).await.expect("readable");
    let told: Vec<&str> = all.iter().map(|event| event.message.as_str()).collect();
    assert_eq!(told, ["first", "second", "third"]);
    assert_eq!((all[0].kind.as_str(), all[0].report_id, all[0].name.as_str()), ("gave_up", 7, "a"));
    assert_eq!(all[0].user, "www");
    assert_eq!(journal.oldest_events(1).await.expect("readable").len(), 1, "one always fits");
    journal.forget_events(all[1].number).await;
    drop(journal);
    let (journal, _) = reopened(&path, "one").await;
    assert_eq!(journal.oldest_events(10_000).await.expect("readable"), all[2..]);
    journal.forget_events(all[2].number).await;
    journal.write(&key("a"), &[Write::Event(Event::RestartSucceeded { pid: 7 })], &known).await;
    let next = journal.oldest_events(10_000).await.expect("readable").remove(0);
    assert!(next.number > all[2].number && next.journal == all[0].journal, "no number comes twice");
}

#[tokio::test]
async fn a_newer_journal_is_refused() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    Connection::open(&path).expect("a database").pragma_update(None, "user_version", 99).expect("writable");
    let refused = Journal::open(&path, &BootId("one".to_owned())).await.expect_err("too new");
    assert!(matches!(refused, JournalError::TooNew { found: 99, .. }), "{refused}");
}

fn parts_of(acceptance: Acceptance) -> Vec<(String, OpId, Option<String>)> {
    let Acceptance::New(parts) = acceptance else { panic!("{acceptance:?}") };
    let path = |order: &Order| order.spec.as_ref().map(|spec| spec.identity.pid_path.clone());
    parts.into_iter().map(|(key, order)| (key.name, order.op, path(&order))).collect()
}

/// From its acceptance, through a crash, to its confirmation.
#[tokio::test]
async fn an_op_on_several_instances_is_one_op_in_parts() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let (journal, _) = reopened(&path, "one").await;
    let mut start = order(0, OpKind::Start);
    let spec = start.spec.as_mut().expect("a spec");
    (spec.instances, spec.identity.pid_path) = (Instances(3), "/run/a".to_owned());
    let row = |name: &str, instance: u32, path: &str| {
        (name.to_owned(), start.op.part(instance), Some(path.to_owned()))
    };
    let rows = [row("a", 1, "/run/a"), row("a#2", 2, "/run/a.2"), row("a#3", 3, "/run/a.3")];
    let accepted = journal.accept(vec![(key("a"), start.clone())]).await.expect("writable").remove(0);
    assert_eq!(parts_of(accepted), rows);
    let again = async |journal: &Journal| {
        journal.accept(vec![(key("a"), start.clone())]).await.expect("writable").remove(0)
    };
    assert_eq!(again(&journal).await, Acceptance::Known);

    // One part has ended, one has begun, one has not. Then the agent crashes.
    journal.write(&key("a"), &[Write::Done(start.op.part(1), outcome())], &EventProc::default()).await;
    journal.write(&key("a#2"), &[Write::Begun(start.op.part(2))], &EventProc::default()).await;
    assert_eq!(again(&journal).await, Acceptance::Known);
    drop(journal);
    let (journal, past) = reopened(&path, "one").await;
    assert!(past.unacknowledged.is_empty());
    let parts = OpParts::from([(1, Some(outcome())), (2, None), (3, None)]);
    assert_eq!(past.divided, [(start.op, parts)]);
    let open: Vec<_> = past.procs.iter().map(|p| (p.interrupted.len(), p.waiting.len())).collect();
    assert_eq!(open, [(1, 0), (0, 1)]);

    let already = Outcome { code: Code::AlreadyRunning, ..outcome() };
    journal.write(&key("a#2"), &[Write::Done(start.op.part(2), already)], &EventProc::default()).await;
    journal.write(&key("a#3"), &[Write::Done(start.op.part(3), outcome())], &EventProc::default()).await;
    assert_eq!(again(&journal).await, Acceptance::Done(outcome()));
    drop(journal);
    let (journal, past) = reopened(&path, "one").await;
    assert_eq!((past.unacknowledged, past.divided), (vec![(start.op, outcome())], vec![]));
    journal.confirm(vec![start.op]).await;
    drop(journal);
    let (journal, past) = reopened(&path, "one").await;
    assert!(past.unacknowledged.is_empty() && past.procs.is_empty(), "{past:?}");
    assert_eq!(again(&journal).await, Acceptance::Done(outcome()));
}

#[tokio::test]
async fn an_order_without_a_spec_goes_to_known_and_pending_instances() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let (journal, _) = reopened(&folder.path().join("agent.db"), "one").await;
    let numbered = |number: u32, kind: OpKind, instances: Option<u32>| {
        let spec = instances.map(|n| Spec { instances: Instances(n), ..Spec::default() });
        Order { spec, ..order(number, kind) }
    };
    let accept = async |name: &str, order: Order| {
        let accepted = journal.accept(vec![(key(name), order)]).await.expect("writable").remove(0);
        parts_of(accepted).into_iter().map(|(name, _, _)| name).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(accept("a", numbered(0, OpKind::Stop, Some(3))).await, "a", "no other instance is known");
    assert_eq!(accept("a", numbered(1, OpKind::Start, Some(2))).await, "a a#2");
    assert_eq!(accept("a", numbered(2, OpKind::Stop, None)).await, "a a#2", "on its way");
    assert_eq!(accept("a", numbered(3, OpKind::Restart, None)).await, "a a#2");
    for done in 0..4 {
        let op = order(done, OpKind::Start).op;
        let ops = [op, op.part(1), op.part(2)].map(|op| Write::Done(op, outcome()));
        journal.write(&key("a"), &ops, &EventProc::default()).await;
    }
    assert_eq!(accept("a", numbered(4, OpKind::Stop, None)).await, "a", "none is left");
    for (name, instances) in [("a", 3), ("a#2", 3), ("a#5", 5), ("a#7", 1), ("a#x", 9), ("ab", 9)] {
        let spec = Arc::new(Spec { instances: Instances(instances), ..Spec::default() });
        let stored = Write::Record(Box::new(Record { spec, ..record() }));
        journal.write(&key(name), &[stored], &EventProc::default()).await;
    }
    assert_eq!(accept("a", numbered(5, OpKind::Query, None)).await, "a a#2 a#5", "a#7 is another proc");
    assert_eq!(accept("a", numbered(6, OpKind::Restart, None)).await, "a a#2 a#3 a#5");
    assert_eq!(accept("a", numbered(7, OpKind::Host, Some(1))).await, "a");
    assert_eq!(accept("a#2", numbered(8, OpKind::Restart, Some(3))).await, "a#2", "it alone");
}

/// The data folder of an agent that has joined and has some procs.
async fn joined_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join(FILE);
    let (journal, _) = reopened(&path, "one").await;
    std::fs::write(folder.path().join("agent.id"), "an id").expect("our own folder");
    for number in 0..200 {
        let key = key(&format!("proc-{number}"));
        journal.accept(vec![(key.clone(), order(number, OpKind::Start))]).await.expect("writable");
        let done = Write::Done(order(number, OpKind::Start).op, outcome());
        let event = Write::Event(Event::Started { pid: number });
        journal.write(&key, &[Write::Record(Box::new(record())), done, event], &EventProc::default()).await;
    }
    journal.close().await;
    folder
}

fn spoil(path: &Path, from: usize, bytes: &[u8]) {
    let mut file = std::fs::read(path).expect("it is there");
    file[from..from + bytes.len()].copy_from_slice(bytes);
    std::fs::write(path, file).expect("our own folder");
}

/// The agent does not create a new journal, names the file and what to do, and leaves the file unchanged.
#[tokio::test]
async fn a_journal_that_cannot_be_used_is_refused_and_left_as_it_is() {
    type Spoil = fn(&Path);
    let rows: [(&str, Spoil, &str); 6] = [
        ("empty", |path| std::fs::write(path, "").expect("ours"), "it is empty, and this agent had one"),
        ("gone", |path| std::fs::remove_file(path).expect("ours"), "it is gone, and this agent had one"),
        (
            "a folder",
            |path| {
                std::fs::remove_file(path).expect("ours");
                std::fs::create_dir(path).expect("ours");
            },
            "it is a folder",
        ),
        ("its head is torn", |path| spoil(path, 0, &[0; 64]), "file is not a database"),
        ("a page is torn", |path| spoil(path, 3 * 4096, &[0xff; 2048]), ""),
        ("it is cut short", |path| spoil_length(path), ""),
    ];
    for (what, spoil, reason) in rows {
        let folder = joined_folder().await;
        let path = folder.path().join(FILE);
        spoil(&path);
        let before = std::fs::read(&path).ok();
        let refused = Journal::open(&path, &BootId("one".to_owned())).await.map(|_| ());
        let refused = refused.expect_err(what);
        assert!(matches!(refused, JournalError::Broken { .. }), "{what}: {refused:?}");
        let said = refused.to_string();
        assert!(said.contains(&format!("{} cannot be used: {reason}", path.display())), "{what}: {said}");
        assert!(said.contains("procfleet agent repair --data"), "{what}: {said}");
        assert_eq!(std::fs::read(&path).ok(), before, "{what}: nothing was changed");
        assert!(examine(&path).is_err(), "{what}");

        let saved = repair(folder.path()).expect(what).to_string();
        let (journal, past) = reopened(&path, "one").await;
        assert!(past.unreadable.is_empty(), "{what}: {saved}");
        assert!(saved.contains("answered as interrupted"), "{what}: {saved}");
        // An unknown op from before the repair may have been done. A later one has not.
        let lost = Order { op: "20190813145456-9-77".parse().expect("an op id"), ..order(0, OpKind::Start) };
        let answer = journal.accept(vec![(key("a"), lost)]).await.expect("writable").remove(0);
        assert!(
            matches!(&answer, Acceptance::Done(done) if done.code == Code::Interrupted),
            "{what}: {answer:?}"
        );
        let new = Order { op: "20990101000000-9-77".parse().expect("an op id"), ..order(0, OpKind::Start) };
        let answer = journal.accept(vec![(key("a"), new)]).await.expect("writable").remove(0);
        assert!(matches!(answer, Acceptance::New(_)), "{what}: {answer:?}");
    }
}

/// SQLite would ignore the log after the flipped bit, and the agent would repeat ops.
#[tokio::test]
async fn a_journal_whose_log_was_altered_is_refused_and_repaired_without_repeating_anything() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join(FILE);
    let (journal, _) = reopened(&path, "one").await;
    for number in 0..20 {
        let order = order(number, OpKind::Start);
        journal.accept(vec![(key("a"), order.clone())]).await.expect("writable");
        let done = [Write::Record(Box::new(record())), Write::Done(order.op, outcome())];
        journal.write(&key("a"), &done, &EventProc::default()).await;
    }
    // A copy of the files is what kill -9 leaves.
    let killed = tempfile::tempdir().expect("a temp dir");
    let log = format!("{FILE}-wal");
    for file in [FILE, &log] {
        std::fs::copy(folder.path().join(file), killed.path().join(file)).expect("both are there");
    }
    let (path, log) = (killed.path().join(FILE), killed.path().join(log));
    assert_eq!(examine(&path).expect("a sound one"), 1);
    let sound = std::fs::read(&log).expect("it is there");
    let flipped = (sound.len() / 2, sound[sound.len() / 2] ^ 1);
    spoil(&log, flipped.0, &[flipped.1]);
    let before = (std::fs::read(&path).expect("it is there"), std::fs::read(&log).expect("it is there"));
    let refused = Journal::open(&path, &BootId("one".to_owned())).await.map(|_| ()).expect_err("altered");
    assert!(matches!(refused, JournalError::Broken { .. }), "{refused:?}");
    let said = refused.to_string();
    assert!(said.contains("cannot be used: its write-ahead log was altered at byte "), "{said}");
    assert!(said.contains(&format!(" of {}, and what was written", sound.len())), "{said}");
    assert!(examine(&path).is_err());
    let after = (std::fs::read(&path).expect("it is there"), std::fs::read(&log).expect("it is there"));
    assert!(before == after, "nothing was changed");

    let saved = repair(killed.path()).expect("some of it can be read");
    assert!(!saved.whole && saved.ops < 20, "{saved}");
    let (journal, _) = reopened(&path, "one").await;
    for number in 0..20 {
        let answer = journal.accept(vec![(key("a"), order(number, OpKind::Start))]).await.expect("writable");
        let [Acceptance::Done(_) | Acceptance::Known] = &answer[..] else { panic!("{number}: {answer:?}") };
    }
}

fn spoil_length(path: &Path) {
    let file = std::fs::read(path).expect("it is there");
    std::fs::write(path, &file[..file.len() / 2]).expect("our own folder");
}

#[tokio::test]
async fn readable_rows_of_a_broken_journal_are_saved() {
    let folder = joined_folder().await;
    let path = folder.path().join(FILE);
    // An intact journal: nothing is lost, and events keep their numbers and journal name.
    let (journal, _) = reopened(&path, "one").await;
    let events = journal.oldest_events(1 << 20).await.expect("readable");
    journal.close().await;
    let saved = repair(folder.path()).expect("readable");
    assert_eq!((saved.procs.len(), saved.lost.len(), saved.ops, saved.whole), (200, 0, 200, true));
    assert!(saved.kept.as_deref().is_some_and(Path::exists));
    let (journal, past) = reopened(&path, "one").await;
    assert_eq!((past.procs.len(), past.unacknowledged.len()), (200, 200));
    assert_eq!(journal.oldest_events(1 << 20).await.expect("readable"), events);
    journal.close().await;

    // One record is invalid: its proc is reported, and the others are saved.
    let spoiled = Connection::open(&path).expect("a database");
    spoiled.execute("UPDATE procs SET record = 'x' WHERE name = 'proc-7'", []).expect("writable");
    drop(spoiled);
    let (journal, past) = reopened(&path, "one").await;
    assert_eq!((past.procs.len(), past.unreadable.len()), (199, 1));
    assert_eq!(past.unreadable[0].0, key("proc-7"));
    journal.close().await;
    let saved = repair(folder.path()).expect("readable");
    assert_eq!((saved.procs.len(), saved.lost), (199, vec!["web:proc-7".to_owned()]));
}

/// While the server is away, the newest events are kept.
#[tokio::test]
async fn above_a_limit_the_oldest_waiting_events_are_deleted() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let (journal, _) = reopened(&folder.path().join(FILE), "one").await;
    let batch: Vec<Write> = (0..1_000).map(|pid| Write::Event(Event::Started { pid })).collect();
    for _ in 0..11 {
        journal.write(&key("a"), &batch, &EventProc::default()).await;
    }
    let events = journal.oldest_events(1 << 30).await.expect("readable");
    let numbers = (events.first().map(|event| event.number), events.last().map(|event| event.number));
    assert_eq!((events.len(), numbers), (10_000, (Some(1_001), Some(11_000))));
}

fn servers(texts: &str) -> Vec<ServerAddress> {
    ServerAddress::read_all(texts.split_whitespace()).expect("good addresses")
}

#[tokio::test]
async fn the_highest_epoch_survives_a_restart_and_never_falls() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let (journal, _) = reopened(&path, "one").await;
    assert_eq!(journal.highest_epoch().await.expect("readable"), Epoch(0));
    for (accepted, highest) in [(7, 7), (3, 7), (u64::MAX, u64::MAX), (8, u64::MAX)] {
        journal.accept_epoch(Epoch(accepted)).await.expect("writable");
        assert_eq!(journal.highest_epoch().await.expect("readable"), Epoch(highest));
    }
    drop(journal);
    let (journal, _) = reopened(&path, "two").await;
    assert_eq!(journal.highest_epoch().await.expect("readable"), Epoch(u64::MAX));
    journal.forget_fleet().await.expect("writable");
    assert_eq!(journal.highest_epoch().await.expect("readable"), Epoch(0));
}

#[tokio::test]
async fn the_servers_of_the_last_welcome_survive_a_restart_but_no_change_of_the_command_line() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let (journal, _) = reopened(&path, "one").await;
    let (configured, listed) = (servers("a b"), servers("c d [::1]:7"));
    assert_eq!(journal.servers(&configured).await.expect("readable"), []);
    journal.store_servers(&configured, &listed).await.expect("writable");
    drop(journal);
    let (journal, _) = reopened(&path, "two").await;
    assert_eq!(journal.servers(&configured).await.expect("readable"), listed);
    assert_eq!(journal.servers(&servers("b a")).await.expect("readable"), listed, "the order says nothing");
    for changed in ["a", "a e", "a b e"] {
        assert_eq!(journal.servers(&servers(changed)).await.expect("readable"), [], "{changed}");
    }
    journal.forget_fleet().await.expect("writable");
    assert_eq!(journal.servers(&configured).await.expect("readable"), []);
}

/// The text of the first version that stored a list; and texts that no version wrote.
#[tokio::test]
async fn a_stored_list_of_servers_of_any_age_is_read() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let (journal, _) = reopened(&folder.path().join("agent.db"), "one").await;
    for (text, expected) in [
        (r#"{"configured":["https://a:48668"],"listed":["https://c:1","https://d:2"]}"#, "c:1 d:2"),
        (r#"{"configured":["https://a:48668"],"listed":["http://c","https://d:2"]}"#, "d:2"),
        (r#"{"configured":["https://a:48668"],"listed":[]}"#, ""),
        ("{", ""),
    ] {
        let write = move |t: &Connection| {
            t.execute("INSERT OR REPLACE INTO meta VALUES ('servers', ?1)", [text]).map(|_| ())
        };
        journal.run(write).await.expect("writable");
        assert_eq!(journal.servers(&servers("a")).await.expect("readable"), servers(expected), "{text}");
    }
}

#[tokio::test]
async fn changes_that_would_make_the_stored_spec_too_large_are_refused() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let (journal, _) = reopened(&folder.path().join("agent.db"), "one").await;
    let labelled = |number: u32, label: &str, bytes: usize| {
        let mut spec = Spec::default();
        spec.labels.insert(label.to_owned(), "v".repeat(bytes));
        spec.change = vec!["labels".to_owned(), "user".to_owned()];
        Order { spec: Some(spec), ..order(number, OpKind::Update) }
    };
    let accept = async |order: &Order| {
        journal.accept(vec![(key("a"), order.clone())]).await.expect("writable").remove(0)
    };
    let first = accept(&labelled(0, "a", 40_000)).await;
    assert!(matches!(first, Acceptance::New(_)), "{first:?}");
    let second = labelled(1, "b", 40_000);
    let Acceptance::Done(refused) = accept(&second).await else { panic!("the sum is too large") };
    assert_eq!(refused.code, Code::BadRequest);
    for words in ["update was not begun", "changed labels, user", "at most 49152", "send the whole spec"] {
        assert!(refused.message.contains(words), "{words}: {}", refused.message);
    }
    assert_eq!(accept(&second).await, Acceptance::Done(refused), "a repeat gets the same answer");
    // A label that is set again does not make the spec larger.
    let again = accept(&labelled(2, "a", 40_000)).await;
    assert!(matches!(again, Acceptance::New(_)), "{again:?}");
}

/// An earlier version could write them; the server would refuse each message that begins with one.
#[tokio::test]
async fn events_of_a_proc_that_no_server_accepts_are_neither_written_nor_kept() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let path = folder.path().join("agent.db");
    let (journal, _) = reopened(&path, "one").await;
    let write = async |name: &str| {
        let event = Event::GaveUp { reason: "it died".to_owned() };
        journal.write(&key(name), &[Write::Event(event)], &EventProc::default()).await;
    };
    write(&"n".repeat(ProcKey::LONGEST + 1)).await;
    write(&"n".repeat(ProcKey::LONGEST)).await;
    let count = async |journal: &Journal| journal.oldest_events(1 << 20).await.expect("readable").len();
    assert_eq!(count(&journal).await, 1);
    journal
        .run(|t| t.execute("UPDATE events SET name = name || 'n'", []).map(|_| ()))
        .await
        .expect("writable");
    drop(journal);
    let (journal, _) = reopened(&path, "one").await;
    assert_eq!(count(&journal).await, 0);
}
