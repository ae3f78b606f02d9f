//! `procfleet store copy`: the copy answers as the original does, whatever it is asked.

use super::*;
use procfleet_core::boot_time::BootTime;
use procfleet_core::grants::{Dimension, Grants};
use procfleet_core::request::UnusableTarget;
use procfleet_core::spec::ProcessGroup;
use procfleet_proto::http::cursor::{AgentOrder, ProcOrder};
use procfleet_store::clock::{BootNumber, ClockMark, ClockReading};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const BOOT: &str = "5b0b9c5e";
const WHEN: ClockReading = ClockReading { wall: i64::MIN, mark: None };

fn note(action: &str) -> NewAudit {
    NewAudit { at: 7, action: action.to_owned(), detail: "with a \0".to_owned(), ..NewAudit::default() }
}

fn under(kind: KeyKind, key: &str, request: u8) -> Submission {
    let key = SubmissionKey { kind, text: key.to_owned() };
    Submission { key, request_hash: [request; 32], since: WHEN }
}

fn again() -> Submission {
    Submission { since: ClockReading { wall: 1_500, mark: None }, ..under(KeyKind::Idempotency, "again", 2) }
}

/// With characters that PostgreSQL cannot store.
fn odd_event(number: u64) -> NewEvent {
    let (message, details) = ("it said \0".to_owned(), "{\"text\":\"\\u0000\"}".to_owned());
    NewEvent { message, details, report_id: 3, ..event(number, "exited") }
}

/// A store with rows in each of its tables. Returns its tasks.
async fn fill(store: &Store) -> Vec<TaskId> {
    store.enter_boot(Some("an earlier boot".to_owned())).await.expect("a boot");
    let boot = store.enter_boot(Some(BOOT.to_owned())).await.expect("a boot");
    store
        .create_business(Business { id: BusinessId(7), name: "games".to_owned() }, note("b"))
        .await
        .expect("made");
    let set = BusinessSet { id: 9, name: "all".to_owned(), businesses: vec![BusinessId(1), BusinessId(7)] };
    store.create_business_set(set, note("s")).await.expect("made");
    for app in ["console", "robot"] {
        store.create_app(new_app(app), Some(note("app"))).await.expect("an app");
    }
    let mut grants = Grants::default();
    for (dimension, word) in [(Dimension::Namespace, "web*"), (Dimension::Op, "start")] {
        grants.add(dimension, word).expect("a grant");
    }
    store
        .change_grants("robot", GrantChange::Grant(grants), note("g"))
        .await
        .expect("no error")
        .expect("granted");
    store.change_app("console", AppChange::Disable(4), note("off")).await.expect("changed");
    store.create_user("ann", 1, note("user")).await.expect("a user");
    let token_of_ann =
        NewUserToken { user: "ann".to_owned(), token_hash: [3; 32], created_at: 1, expires_at: 100 };
    store.create_user_token(token_of_ann, note("token")).await.expect("a token");

    store.create_token(token(100)).await.expect("a token");
    store.create_token(NewToken { id: "t2".to_owned(), ..token(5) }).await.expect("a token");
    store.revoke_token("t2".to_owned(), 9, note("revoke")).await.expect("no error").expect("known");
    for (last, name) in (1..).zip(["a", "b", "old", "bad"]) {
        store.join(shown(), joining(name, last), 1_500).await.expect("no error").expect("joined");
    }
    store.join(shown(), joining("new", 3), 1_600).await.expect("no error").expect("in place of old");
    store
        .revoke_agents(vec![agent("bad")], "lost \0".to_owned(), 1_700, note("revoke"))
        .await
        .expect("revoked");
    let labels = BTreeMap::from([("zone".to_owned(), "south".to_owned())]);
    store.label_agents(vec![agent("a")], labels, Vec::new(), note("label")).await.expect("labelled");
    store.assign(vec![agent("b")], BusinessId(7), note("assign")).await.expect("assigned");
    let certificate =
        CertificateRecord { sha256: [4; 32], ca: Some([5; 32]), issued_at: Some(1), expires_at: Some(9_000) };
    store.give_certificate(&agent("a"), certificate).await.expect("given");
    store.use_certificate(&agent("a"), [4; 32]).await.expect("used");
    store
        .change_ca(CaChange {
            seen: None,
            to: CaPins { current: [5; 32], next: Some([6; 32]) },
            sealing: None,
            old: OldCa::Keep,
            audit: None,
        })
        .await
        .expect("no error")
        .expect("kept");

    let mark = ClockMark { boot, moment: BootTime(12_345) };
    for _ in 0..3 {
        store
            .agent_connected(&agent("a"), "0.2.0", "{\"os\":\"linux\"}", 1_800, NEVER_CONNECTED)
            .await
            .expect("connected");
    }
    let epoch =
        store.agent_connected(&agent("b"), "0.2.0", "null", 1_800, NEVER_CONNECTED).await.expect("connected");
    let at = ClockReading { wall: 1_900, mark: Some(mark) };
    store.agent_disconnected(&agent("b"), epoch, at, 1_850).await.expect("disconnected");

    let status = |name: &str, state: &str| ProcRecord {
        proc: proc(name),
        revision: 6,
        status: format!("{{\"of\":\"{name} \0\"}}"),
        listing: ProcListing {
            state: state.to_owned(),
            started_at: 1_763_000_000,
            failed: state == "gave_up",
        },
    };
    let procs = vec![status("nginx", "running"), status("odd\0name", "gave_up"), status("Zeta", "stopped")];
    store.put_procs(&agent("a"), Epoch(3), procs, Vec::new()).await.expect("stored");
    let group = ProcessGroup { id: "g".to_owned(), cpu_pool_limit: Some(20.5), ..ProcessGroup::default() };
    let groups = GroupsRecord { namespace: "web".to_owned(), revision: 2, groups: vec![group] };
    store.put_process_groups(&agent("a"), Epoch(3), vec![groups]).await.expect("stored");

    store.add_events(&agent("a"), vec![odd_event(1), odd_event(2)], 9).await.expect("stored");
    store.add_webhook("http://h/gone".to_owned(), 3, note("hook")).await.expect("stored").expect("new");
    let hook =
        store.add_webhook("http://h/".to_owned(), 3, note("hook")).await.expect("stored").expect("new");
    store.add_events(&agent("b"), vec![odd_event(1)], 10).await.expect("stored");
    store.webhook_delivered(hook.id, 3).await.expect("stored");
    let counted = AuditCount { row: None, times: 5, last_at: 99 };
    store.count_audit(vec![(note("refused"), counted)]).await.expect("counted");

    let mut tasks = Vec::new();
    let dated = || NewTask { mark: Some(mark), username: "a\0b".to_owned(), ..new_task(&["a", "b"]) };
    let first = store.create_task(NewTask { audit: Some(note("operate")), ..dated() }).await.expect("a task");
    let reports = vec![
        finished(op(first, 0), None, Code::Timeout),
        Finished { at: 9_000, ..finished(op(first, 0), Some("a"), Code::Success) },
        finished(op(first, 1), Some("b"), Code::Success),
    ];
    for report in reports {
        store.finish_ops(vec![report]).await.expect("applied");
    }
    tasks.push(first);
    let open = store.create_task(NewTask { retry_of: Some(first), ..dated() }).await.expect("a task");
    assert!(store.cancel_task(open, 8, note("cancel")).await.expect("no error"));
    tasks.push(open);
    let mut odd = NewTask { app: "robot".to_owned(), ..new_task(&["a", "b", "b"]) };
    odd.ops[1].target = Target::SupplierHost(host(2), 4);
    let unusable = UnusableTarget { name: "no \0 host".to_owned(), supplier: None, reason: String::new() };
    odd.ops[2].target = Target::Unusable(unusable);
    odd.ops[2].ended = Some(Box::new(finished(op(first, 0), None, Code::ArgsInvalid).outcome));
    tasks.push(store.create_task(odd).await.expect("a task"));
    // The last one is a key that is used again, for another request, after its time.
    for (created_at, submission) in [
        (1_000, under(KeyKind::Idempotency, "key \0", 1)),
        (1_000, under(KeyKind::RequestId, "id", 1)),
        (1_000, under(KeyKind::RequestId, "id", 2)),
        (1_000, under(KeyKind::Idempotency, "again", 1)),
        (2_000, again()),
    ] {
        let mut task = NewTask { created_at, ..new_task(&["b"]) };
        task.requests[0].proc = proc(&submission.key.text);
        match store.submit_task(task, submission).await.expect("no error") {
            Submitted::New(task) => tasks.push(task),
            other => panic!("{other:?}"),
        }
    }
    // A task that is deleted while most of its ops are not.
    let deleted = store.create_task(NewTask { created_at: 1, ..new_task(&["a"; 50]) }).await.expect("a task");
    let ended = (0..50).map(|index| finished(op(deleted, index), None, Code::Success)).collect();
    store.finish_ops(ended).await.expect("applied");
    let some = store.delete_tasks(2, Slice { tasks: 1, ops: 10 }).await.expect("deleted");
    assert_eq!((some.tasks, some.ops, some.more), (1, 10, true));
    tasks
}

/// Every answer of the store that does not change it.
async fn answers(store: &Store, tasks: &[TaskId]) -> Vec<(String, String)> {
    let mut said = Vec::new();
    macro_rules! ask {
        ($($question:expr),* $(,)?) => {
            $(said.push((
                stringify!($question).split_whitespace().collect::<String>(),
                // As PostgreSQL stores a NUL byte; and no agent is connected to a server of the copy.
                format!("{:?}", $question.await.expect("no error"))
                    .replace("\\0", "\u{fffd}")
                    .replace("connected: true", "connected: false"),
            ));)*
        };
    }
    let all = GrantScope::All;
    ask!(
        store.open_tasks(),
        open_ops(store, OpScope::All),
        store.list_tasks(TaskFilter::default(), None, 100),
        store.list_tasks(TaskFilter { app: Some("robot".to_owned()), ..TaskFilter::default() }, None, 100),
        store.all_agents(),
        store.list_agents(AgentFilter::of(&all), AgentOrder::Heard, None, 100),
        store.count_agents(AgentFilter::of(&all)),
        store.count_connectable_agents(),
        store.agents_of_ca([5; 32]),
        store.usable_tokens(1_500),
        store.tokens(),
        store.was_restored(),
        store.is_newly_restored(),
        store.ca(),
        store.list_procs(every_proc(), ProcOrder::Host, None, 100),
        store.list_procs(every_proc(), ProcOrder::Since, None, 100),
        store.proc_page("web", &all, 0, 100),
        store.process_groups("web", vec![agent("a"), agent("b")]),
        store.events(EventFilter::default(), &all, EventPage::After(0, 100)),
        store.events(EventFilter::default(), &all, EventPage::After(1, 100)),
        store.count_events(EventFilter::default(), &all),
        store.last_event(),
        store.newest_event_number(),
        store.event_lost_at(2),
        store.event_lost_at(5),
        store.webhooks(),
        store.apps(),
        store.users(50),
        store.token_holder([3; 32], 50),
        store.businesses(),
        store.business_sets(),
        store.list_audit(100, AuditFilter::default()),
        store.submitted_before("console".to_owned(), under(KeyKind::Idempotency, "key \0", 1)),
        store.submitted_before("console".to_owned(), under(KeyKind::Idempotency, "key \0", 2)),
        store.submitted_before("console".to_owned(), under(KeyKind::RequestId, "id", 2)),
        store.submitted_before("console".to_owned(), under(KeyKind::RequestId, "id", 3)),
        store.submitted_before("console".to_owned(), again()),
        store.join_refusal(shown(), host(1).ip, 1_500),
        store.join_refusal(TokenUse { secret_hash: [8; 32], ..shown() }, host(1).ip, 1_500),
        store.resolve(&[Target::Host(host(3)), Target::Agent(agent("b")), Target::Agent(agent("old"))]),
    );
    for name in ["a", "b", "old", "bad", "new"] {
        ask!(
            store.agent(&agent(name)),
            store.agent_with_certificate(&agent(name), [4; 32]),
            store.agent_with_certificate(&agent(name), [9; 32]),
            store.last_heard(vec![agent(name)]),
        );
    }
    for app in store.apps().await.expect("no error") {
        said.push((format!("the secret of {}", app.code), format!("{:?}", app.secret_hash)));
    }
    for task in tasks {
        ask!(store.task_results(*task), open_ops(store, OpScope::Tasks(vec![*task])));
    }
    said
}

/// Without what a server concludes from sessions: those of the old store have no server in the new one.
async fn open_ops(store: &Store, scope: OpScope) -> Result<Vec<OpenOpRow>, StoreError> {
    let rows = store.open_ops(scope).await?.into_iter();
    Ok(rows
        .map(|row| OpenOpRow { sent: SentBefore::Maybe, epoch: None, holder: None, dismissal: None, ..row })
        .collect())
}

#[track_caller]
fn assert_same(originals: &[(String, String)], copies: &[(String, String)]) {
    for ((question, original), (_, copy)) in originals.iter().zip(copies) {
        assert_eq!(copy, original, "{question}");
    }
    assert_eq!(originals.len(), copies.len());
}

async fn new_database() -> String {
    tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database")
}

async fn psql(url: &str, sql: &str) -> String {
    let (url, sql) = (url.to_owned(), sql.to_owned());
    let database = url.rsplit('/').next().expect("a name").to_owned();
    let rows = tokio::task::spawn_blocking(move || Cluster::shared().psql(&database, &sql));
    rows.await.expect("it ends").expect("psql works")
}

async fn copy_to(from: CopySource, url: &str) -> Result<(CopyReport, Vec<TableComparison>), StoreError> {
    let mut tables = Vec::new();
    let report = copy(from, &url.parse().expect("a url"), |table| tables.push(table)).await?;
    Ok((report, tables))
}

fn store_at(path: &Path) -> CopySource {
    CopySource::Store(path.to_owned())
}

async fn connect(url: &str) -> Store {
    Store::connect(&url.parse().expect("a url")).await.expect("it opens")
}

/// A closed store with something in each table, and what it answers.
async fn filled() -> (TempDir, Vec<TaskId>, Vec<(String, String)>) {
    let Fixture { folder, store } = TestEngine::Sqlite.fixture().await;
    let tasks = fill(&store).await;
    store.close().await.expect("closed");
    // No agent is connected to a server that has just started.
    let store = TestEngine::Sqlite.reopen(&folder).await.expect("it opens");
    let answers = answers(&store, &tasks).await;
    store.close().await.expect("closed");
    (folder, tasks, answers)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_store_answers_as_the_original() {
    let (folder, tasks, originals) = filled().await;
    let url = new_database().await;
    let (report, tables) = copy_to(store_at(&path(&folder)), &url).await.expect("copied");
    assert_eq!(report.origin, CopyOrigin::Stopped);
    assert_eq!(report.tables, tables.len());
    assert_eq!(report.rows, tables.iter().map(|table| table.rows).sum::<u64>());
    assert!(report.replaced_texts > 10, "{report:?}");
    let rows = |name: &str| tables.iter().find(|table| table.table == name).map(|table| table.rows);
    assert_eq!(
        (rows("tasks"), rows("ops"), rows("late_reports")),
        (Some(8), Some(12), Some(1)),
        "{tables:?}"
    );
    assert!(tables.iter().all(|table| table.rows > 0 || table.table == "generations"), "{tables:?}");
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("our own folder").flatten().collect();
    assert!(!left.iter().any(|file| file.file_name().to_string_lossy().contains("copying")), "{left:?}");

    let store = connect(&url).await;
    assert_same(&originals, &answers(&store, &tasks).await);

    // Whatever comes next gets a number of its own.
    let boots = [Some(BOOT.to_owned()), Some("another machine".to_owned())];
    for (boot, expected) in boots.into_iter().zip([BootNumber(2), BootNumber(3)]) {
        assert_eq!(store.enter_boot(boot).await.expect("a boot"), expected);
    }
    for created_at in [1_000, 1_763_239_000_000] {
        let new = store.create_task(NewTask { created_at, ..new_task(&["a"]) }).await.expect("a task");
        assert!(tasks.iter().all(|old| old.number < new.number), "{new}");
    }
    let hook =
        store.add_webhook("http://h/2".to_owned(), 3, note("hook")).await.expect("stored").expect("new");
    // Two of them, one of the takeover, and one more.
    assert_eq!((hook.id, hook.delivered), (3, 4));
    store.add_events(&agent("a"), vec![odd_event(2), odd_event(3)], 9).await.expect("stored");
    let new = store.events(EventFilter::default(), &GrantScope::All, EventPage::After(4, 9)).await;
    let new: Vec<_> =
        new.expect("no error").iter().map(|new| (new.number, new.event.journal_number)).collect();
    assert_eq!(new, [(5, 3)]);
    let epoch =
        store.agent_connected(&agent("a"), "0.2.0", "null", 2_000, NEVER_CONNECTED).await.expect("connected");
    assert_eq!(epoch.0, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ops_of_copied_tasks_are_dropped_when_the_last_of_them_is_deleted() {
    const LARGE: Slice = Slice { tasks: 1_000, ops: 100_000 };
    const NOW: i64 = 1_763_239_000_000;
    let (folder, tasks, _) = filled().await;
    let url = new_database().await;
    copy_to(store_at(&path(&folder)), &url).await.expect("copied");
    let store = connect(&url).await;
    let partition = "SELECT count(*) FROM pg_class WHERE relname = 'ops_d0'";
    store.delete_tasks(NOW, LARGE).await.expect("deleted");
    assert_eq!(psql(&url, partition).await, "1", "some are open");
    let open = store.open_ops(OpScope::All).await.expect("no error");
    let ended = open.iter().map(|row| finished(row.op, None, Code::Timeout)).collect();
    store.finish_ops(ended).await.expect("applied");
    assert!(!store.delete_tasks(NOW, LARGE).await.expect("deleted").more);
    assert_eq!(store.task(tasks[1]).await.expect("no error"), None);
    assert_eq!(psql(&url, partition).await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_is_repeated_until_a_server_has_used_it() {
    let (folder, mut tasks, _) = filled().await;
    let url = new_database().await;
    copy_to(store_at(&path(&folder)), &url).await.expect("copied");
    let store = TestEngine::Sqlite.reopen(&folder).await.expect("it opens");
    tasks.push(store.create_task(new_task(&["a"])).await.expect("a task"));
    store.change_app("robot", AppChange::Disable(9), note("off")).await.expect("changed");
    let originals = answers(&store, &tasks).await;
    store.close().await.expect("closed");
    copy_to(store_at(&path(&folder)), &url).await.expect("copied again");

    let copy = connect(&url).await;
    assert_same(&originals, &answers(&copy, &tasks).await);
    let used = copy_to(store_at(&path(&folder)), &url).await.expect_err("a server uses it").to_string();
    assert!(used.ends_with("a server is using it now"), "{used}");
    copy.close().await.expect("closed");
    let used = copy_to(store_at(&path(&folder)), &url).await.expect_err("a server has used it").to_string();
    assert!(used.contains("a server has used it") && used.contains("empty database"), "{used}");
    assert_same(&originals, &answers(&connect(&url).await, &tasks).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_a_store_in_use_counts_as_a_restored_backup() {
    let Fixture { folder, store } = TestEngine::Sqlite.fixture().await;
    let tasks = fill(&store).await;
    let originals = answers(&store, &tasks).await;
    let url = new_database().await;
    let backup = folder.path().join("backup.db");
    procfleet_store::backup(&path(&folder), &backup).expect("a backup");
    for (from, origin) in
        [(store_at(&path(&folder)), CopyOrigin::Running), (CopySource::Backup(backup), CopyOrigin::Backup)]
    {
        let (report, _) = copy_to(from, &url).await.expect("copied");
        assert_eq!(report.origin, origin);
    }
    let copy = connect(&url).await;
    assert!(copy.is_newly_restored().await.expect("no error"));
    assert_eq!(copy.event_lost_at(4).await.expect("no error"), None, "it is in the copy");
    assert!(
        copy.event_lost_at(5).await.expect("no error").is_some(),
        "the server may have assigned it since"
    );
    assert_eq!(copy.newest_event_number().await.expect("no error"), 1_000_000_000);
    copy.add_events(&agent("a"), vec![odd_event(3)], 9).await.expect("stored");
    assert_eq!(copy.last_event().await.expect("no error"), 1_000_000_001);
    // The original goes on as if nothing had happened.
    assert_same(&originals, &answers(&store, &tasks).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_connected_when_its_store_is_copied_is_lost_a_day_later() {
    const DAY: i64 = 86_400_000;
    let Fixture { folder, store } = TestEngine::Sqlite.with_agents(&["old"]).await;
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_millis());
    let now = now.expect("a time of today");
    let plain = NewToken {
        id: "t2".to_owned(),
        expires_at: now + 9 * DAY,
        replaces: Replaces::LostAgents,
        ..token(10)
    };
    store.create_token(plain).await.expect("a token");
    store.agent_connected(&agent("old"), "0.1.0", "null", 1_800, NEVER_CONNECTED).await.expect("connected");
    let url = new_database().await;
    copy_to(store_at(&path(&folder)), &url).await.expect("copied");
    let shown = || TokenUse { id: "t2".to_owned(), secret_hash: SECRET };
    let in_use = JoinTokenRefusal::HostInUse(host(1));
    let copy = connect(&url).await;
    let refusal =
        async |copy: &Store, now| copy.join_refusal(shown(), host(1).ip, now).await.expect("no error");
    assert_eq!(refusal(&copy, now + DAY / 2).await, Some(in_use));
    assert_eq!(copy.join(shown(), joining("new", 1), now + DAY / 2).await.expect("no error"), Err(in_use));
    assert_eq!(refusal(&copy, now + 2 * DAY).await, None);
    psql(&url, &format!("UPDATE server_ends SET ended_at = ended_at - {}", 9 * DAY)).await;
    copy.close().await.expect("closed");
    let copy = connect(&url).await;
    assert_eq!(refusal(&copy, now).await, None, "also after a start days later");
    let joined = copy.join(shown(), joining("new", 1), now).await.expect("no error");
    assert_eq!(joined.map(|joined| joined.retired), Ok(vec![agent("old")]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_fails_leaves_the_earlier_one() {
    let (folder, tasks, originals) = filled().await;
    let url = new_database().await;
    copy_to(store_at(&path(&folder)), &url).await.expect("copied");
    let store = TestEngine::Sqlite.reopen(&folder).await.expect("it opens");
    store
        .create_business(Business { id: BusinessId(8), name: "more".to_owned() }, note("b"))
        .await
        .expect("made");
    store.close().await.expect("closed");
    for (change, expected) in [
        ("IF NEW.id = 8 THEN NEW.name = 'other'; END IF; RETURN NEW;", "the row with id 8 has another name"),
        ("IF NEW.id = 8 THEN RETURN NULL; END IF; RETURN NEW;", "the row with id 8 is missing"),
        ("IF NEW.id = 7 THEN RETURN NULL; END IF; RETURN NEW;", "violates foreign key constraint"),
        ("NEW.id = NEW.id + 1; RETURN NEW;", "violates foreign key constraint"),
    ] {
        let trigger = format!(
            "CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {change} END $$; \
             CREATE OR REPLACE TRIGGER change BEFORE INSERT ON businesses FOR EACH ROW EXECUTE FUNCTION change()"
        );
        psql(&url, &trigger).await;
        let failed = copy_to(store_at(&path(&folder)), &url).await.expect_err("the trigger");
        let said = chain(&failed);
        assert!(said.contains(expected) && said.contains("the table business"), "{change}: {said}");
    }
    psql(&url, "DROP TRIGGER change ON businesses").await;
    assert_same(&originals, &answers(&connect(&url).await, &tasks).await);
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_does_not_start_on_a_copy_that_is_not_complete() {
    let (folder, _, _) = filled().await;
    let url = new_database().await;
    copy_to(store_at(&path(&folder)), &url).await.expect("copied");
    // The copy waits at this trigger until the test releases the lock.
    psql(
        &url,
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN PERFORM pg_advisory_xact_lock(77); RETURN NEW; END $$; \
         CREATE TRIGGER wait BEFORE INSERT ON audit FOR EACH STATEMENT EXECUTE FUNCTION wait();",
    )
    .await;
    let (gate, connection) =
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("a connection");
    tokio::spawn(connection);
    gate.execute("SELECT pg_advisory_lock(77)", &[]).await.expect("locked");
    let copying = tokio::spawn({
        let (from, url) = (store_at(&path(&folder)), url.clone());
        async move { copy_to(from, &url).await.map(|(report, _)| report) }
    });
    let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while psql(&url, waits).await == "0" {
        assert!(!copying.is_finished(), "it does not wait");
        tokio::task::yield_now().await;
    }
    let early = Store::connect(&url.parse().expect("a url")).await.expect_err("not complete").to_string();
    assert!(early.contains("`procfleet store copy` is writing to"), "{early}");
    gate.execute("SELECT pg_advisory_unlock(77)", &[]).await.expect("unlocked");
    let report = copying.await.expect("it ends").expect("copied");
    assert!(report.rows > 0);
    connect(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_a_sound_store_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("a temp folder");
    let url = new_database().await;
    let file = |name: &str, bytes: &[u8]| {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).expect("our own folder");
        file
    };
    let other = folder.path().join("other.db");
    rusqlite::Connection::open(&other)
        .and_then(|other| other.execute_batch("CREATE TABLE t (x)"))
        .expect("a database");
    let (garbage, gone) = (file("garbage.db", &[7; 9_999]), folder.path().join("gone.db"));
    for (from, expected) in [
        (CopySource::Store(gone.clone()), "gone.db: No such file"),
        (CopySource::Backup(gone), "gone.db: No such file"),
        (CopySource::Store(garbage.clone()), "garbage.db cannot be used: file is not a database"),
        (CopySource::Backup(garbage), "garbage.db cannot be copied: file is not a database"),
        (
            CopySource::Backup(other),
            "other.db cannot be copied: it is a database, and not a store of procfleet",
        ),
    ] {
        let refused = copy_to(from.clone(), &url).await.expect_err("no store");
        assert!(chain(&refused).contains(expected), "{from:?}: {}", chain(&refused));
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("our own folder").flatten().collect();
    assert!(!left.iter().any(|file| file.file_name().to_string_lossy().contains("copying")), "{left:?}");
}
