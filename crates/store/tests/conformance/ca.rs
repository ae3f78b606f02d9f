//! Which CA holds, and the sealed keys of CAs.

use super::*;
use procfleet_testkit::PATIENCE;
use std::time::Duration;

fn pins(current: u8, next: Option<u8>) -> CaPins {
    CaPins { current: [current; 32], next: next.map(|next| [next; 32]) }
}

fn change(seen: Option<CaPins>, to: CaPins) -> CaChange {
    let action = format!("to {} {:?}", to.current[0], to.next.map(|next| next[0]));
    let audit = Some(NewAudit { action, ..NewAudit::default() });
    CaChange { seen, to, sealing: None, old: OldCa::Keep, audit }
}

/// A change that stores sealed CAs where the engine keeps them.
fn sealing(engine: TestEngine, change: CaChange, key: &str, cas: &[u8]) -> CaChange {
    let sealing = Sealing { key: key.to_owned(), cas: cas.iter().map(|mark| sealed(*mark, key)).collect() };
    CaChange { sealing: (engine == TestEngine::Postgres).then_some(sealing), ..change }
}

fn sealed(mark: u8, key: &str) -> SealedCa {
    let sealed_key = format!("{mark} under {key}").into_bytes();
    SealedCa { sha256: [mark; 32], certificate: vec![mark; 5], sealed_key }
}

fn signed(mark: u8, ca: u8) -> CertificateRecord {
    CertificateRecord { sha256: [mark; 32], ca: Some([ca; 32]), issued_at: None, expires_at: None }
}

async fn make(store: &Store, change: CaChange) -> Result<(), CaRefusal> {
    store.change_ca(change).await.expect("no error")
}

async fn actions(store: &Store) -> Vec<String> {
    let page = store.list_audit(100, AuditFilter::default()).await.expect("no error");
    page.records.into_iter().rev().map(|row| row.entry.action).filter(|name| name.starts_with("to")).collect()
}

/// Stops units in the middle until it is dropped: those that change the row of `ca`, or use a token.
struct Stopped {
    client: tokio_postgres::Client,
}

impl Stopped {
    /// `None`: the units of this engine run one after the other anyway.
    async fn by(engine: TestEngine, folder: &TempDir, sql: &str) -> Option<Stopped> {
        if engine == TestEngine::Sqlite {
            return None;
        }
        let client = administrator(folder).await;
        client.batch_execute(&format!("BEGIN; {sql}")).await.expect("locked");
        Some(Stopped { client })
    }

    /// Lets the units go on once so many of them wait for a lock.
    async fn go_on_when(stopped: Option<Stopped>, waiting: i64) {
        let Some(Stopped { client }) = stopped else { return };
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
                   AND wait_event_type = 'Lock'";
        let wait = async {
            loop {
                // The view is a snapshot for the rest of the transaction otherwise.
                client.batch_execute("SELECT pg_stat_clear_snapshot()").await.expect("no error");
                let row = client.query_one(sql, &[]).await.expect("no error");
                if row.get::<_, i64>(0) == waiting {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the units wait for their locks");
        client.batch_execute("ROLLBACK").await.expect("released");
    }
}

on_each_engine!(a_change_of_the_ca_needs_the_pins_that_hold);
async fn a_change_of_the_ca_needs_the_pins_that_hold(engine: TestEngine) {
    let Fixture { folder, store } = engine.fixture().await;
    assert_eq!(store.ca().await.expect("no error"), None);
    let first = pins(1, None);
    assert_eq!(make(&store, change(Some(first), pins(2, None))).await, Err(CaRefusal::Changed(None)));
    assert_eq!(make(&store, change(None, first)).await, Ok(()));
    for stale in [None, Some(pins(2, None)), Some(pins(1, Some(2)))] {
        let refused = make(&store, change(stale, pins(3, None))).await;
        assert_eq!(refused, Err(CaRefusal::Changed(Some(first))), "{stale:?}");
    }
    assert_eq!(make(&store, change(Some(first), pins(1, Some(2)))).await, Ok(()));
    assert_eq!(make(&store, change(Some(pins(1, Some(2))), pins(2, None))).await, Ok(()));
    assert_eq!(store.ca().await.expect("no error"), Some(pins(2, None)));
    assert_eq!(actions(&store).await, ["to 1 None", "to 1 Some(2)", "to 2 None"], "refused ones have none");
    store.close().await.expect("closed");
    let store = engine.reopen(&folder).await.expect("opens again");
    assert_eq!(store.ca().await.expect("no error"), Some(pins(2, None)));
}

on_each_engine!(of_two_changes_of_the_ca_at_once_one_is_made);
async fn of_two_changes_of_the_ca_at_once_one_is_made(engine: TestEngine) {
    let Fixture { folder, store } = engine.fixture().await;
    let mut seen = None;
    // The first round has no row to lock yet.
    for (round, new) in [10, 20, 30].into_iter().enumerate() {
        // Both have read the pins, and stop before they write.
        let stopped = Stopped::by(engine, &folder, "LOCK TABLE ca IN SHARE MODE").await;
        let racing = [new, new + 1].map(|mark| {
            let (store, change) = (store.clone(), change(seen, pins(mark, None)));
            tokio::spawn(async move { make(&store, change).await })
        });
        Stopped::go_on_when(stopped, 2).await;
        let [one, other] = racing;
        let answers = [one.await.expect("no panic"), other.await.expect("no panic")];
        let now = store.ca().await.expect("no error").expect("a CA");
        let winner = usize::from(now.current[0] - new);
        assert_eq!(answers[winner], Ok(()), "{answers:?}");
        assert_eq!(answers[1 - winner], Err(CaRefusal::Changed(Some(now))));
        assert_eq!(actions(&store).await.len(), round + 1, "the loser leaves no record");
        seen = Some(now);
    }
}

on_each_engine!(certificates_and_tokens_of_a_ca_that_does_not_sign_are_not_given_out);
async fn certificates_and_tokens_of_a_ca_that_does_not_sign_are_not_given_out(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let a = agent("a");
    store.give_certificate(&a, signed(40, 9)).await.expect("no CA is decided on yet");
    make(&store, change(None, pins(1, None))).await.expect("made");
    let check = async |presented: u8, signing: u8| {
        for ca in 1..4 {
            let given = store.give_certificate(&a, signed(40 + ca, ca)).await;
            let named = format!("new-{presented}-{signing}-{ca}");
            let joining = JoiningAgent { certificate: signed(50 + ca, ca), ..joining(&named, 200 + ca) };
            let joined = store.join(shown(), joining, 1_500).await;
            for refused in [given.err(), joined.map(|joined| joined.expect("the token is good")).err()] {
                let is_refused = matches!(refused, Some(StoreError::CaChanged));
                assert_eq!(is_refused, ca != signing, "{ca}: {refused:?}");
            }
            let token = NewToken { id: format!("t-{named}"), ca: Some([ca; 32]), ..token(1) };
            let created = store.create_token(token).await;
            assert_eq!(matches!(created, Err(StoreError::CaChanged)), ca != presented, "{ca}: {created:?}");
        }
    };
    check(1, 1).await;
    make(&store, change(Some(pins(1, None)), pins(1, Some(2)))).await.expect("made");
    check(1, 2).await;
    let retire =
        CaChange { old: OldCa::Retire { at: 1_600 }, ..change(Some(pins(1, Some(2))), pins(2, None)) };
    assert_eq!(make(&store, retire).await, Ok(()), "by force");
    assert_eq!(store.usable_tokens(1_500).await.expect("no error"), 0, "all named the retired CA");
    store
        .create_token(NewToken { id: "t3".to_owned(), ca: Some([2; 32]), ..token(1) })
        .await
        .expect("created");
}

on_each_engine!(a_ca_that_agents_or_tokens_need_is_retired_by_force_only);
async fn a_ca_that_agents_or_tokens_need_is_retired_by_force_only(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    store.backfill_certificate_ca([1; 32]).await.expect("named");
    make(&store, change(None, pins(1, Some(2)))).await.expect("made");
    let retire = |at: i64| CaChange {
        old: OldCa::RetireIfUnneeded { at },
        ..change(Some(pins(1, Some(2))), pins(2, None))
    };
    let needed = |agents, tokens| Err(CaRefusal::Needed { agents, tokens });
    assert_eq!(make(&store, retire(1_500)).await, needed(1, 1));
    assert_eq!(make(&store, retire(2_500)).await, needed(1, 0), "the token has expired");
    store.give_certificate(&agent("a"), signed(40, 2)).await.expect("given");
    assert_eq!(make(&store, retire(1_500)).await, needed(1, 1), "given is not used");
    store.use_certificate(&agent("a"), [40; 32]).await.expect("used");
    assert_eq!(make(&store, retire(1_500)).await, needed(0, 1));
    assert_eq!(store.ca().await.expect("no error"), Some(pins(1, Some(2))));
    assert_eq!(make(&store, retire(2_500)).await, Ok(()));
    assert_eq!(store.ca().await.expect("no error"), Some(pins(2, None)));
}

// The join has compared its certificate with the pins and is not committed when the retirement begins.
on_each_engine!(a_retirement_waits_for_a_join_under_way_and_counts_its_agent);
async fn a_retirement_waits_for_a_join_under_way_and_counts_its_agent(engine: TestEngine) {
    let Fixture { folder, store } = engine.with_agents(&["a"]).await;
    make(&store, change(None, pins(1, None))).await.expect("made");
    let stopped = Stopped::by(engine, &folder, "SELECT 1 FROM tokens FOR UPDATE").await;
    let joining = JoiningAgent { certificate: signed(50, 1), ..joining("b", 2) };
    let join = tokio::spawn({
        let store = store.clone();
        async move { store.join(shown(), joining, 1_500).await.expect("no error") }
    });
    if stopped.is_none() {
        join.await.expect("no panic").expect("joined");
        let refused = retire_first(&store).await;
        assert_eq!(refused, Err(CaRefusal::Needed { agents: 1, tokens: 0 }));
        return;
    }
    let watcher = Stopped::by(engine, &folder, "SELECT 1").await;
    Stopped::go_on_when(watcher, 1).await;
    let retiring = tokio::spawn({
        let store = store.clone();
        async move { retire_first(&store).await }
    });
    Stopped::go_on_when(stopped, 2).await;
    join.await.expect("no panic").expect("joined");
    assert_eq!(retiring.await.expect("no panic"), Err(CaRefusal::Needed { agents: 1, tokens: 0 }));
}

/// Replaces the first CA at a time when the token has expired.
async fn retire_first(store: &Store) -> Result<(), CaRefusal> {
    let old = OldCa::RetireIfUnneeded { at: 2_500 };
    make(store, CaChange { old, ..change(Some(pins(1, None)), pins(2, None)) }).await
}

on_each_engine!(sealed_keys_change_with_the_pins_where_the_engine_keeps_them);
async fn sealed_keys_change_with_the_pins_where_the_engine_keeps_them(engine: TestEngine) {
    let Fixture { folder, store } = engine.fixture().await;
    let stored = store.stored_cas().await.expect("no error");
    if engine == TestEngine::Sqlite {
        assert_eq!(stored, None);
        let sealing = Some(Sealing { key: "k".to_owned(), cas: vec![sealed(1, "k")] });
        let refused = store.change_ca(CaChange { sealing, ..change(None, pins(1, None)) }).await;
        assert!(matches!(refused, Err(StoreError::Unwritable { .. })), "{refused:?}");
        assert_eq!(store.ca().await.expect("no error"), None);
        return;
    }
    let StoredCas { store: id, pins: none, cas } = stored.expect("the engine keeps keys");
    assert_eq!((none, cas), (None, Vec::new()));
    let check = async |store: &Store, expected: CaPins, cas: &[SealedCa]| {
        let stored = store.stored_cas().await.expect("no error").expect("keys");
        assert_eq!(stored, StoredCas { store: id, pins: Some(expected), cas: cas.to_vec() });
    };
    make(&store, change(None, pins(1, None))).await.expect("its key is a file");
    check(&store, pins(1, None), &[]).await;
    make(&store, sealing(engine, change(Some(pins(1, None)), pins(1, None)), "k", &[1])).await.expect("made");
    check(&store, pins(1, None), &[sealed(1, "k")]).await;
    let rotate = change(Some(pins(1, None)), pins(1, Some(2)));
    make(&store, sealing(engine, rotate.clone(), "k", &[2])).await.expect("made");
    let refused = make(&store, sealing(engine, rotate, "other", &[1, 3])).await;
    assert_eq!(refused, Err(CaRefusal::Changed(Some(pins(1, Some(2))))));
    check(&store, pins(1, Some(2)), &[sealed(1, "k"), sealed(2, "k")]).await;
    let reseal = change(Some(pins(1, Some(2))), pins(1, Some(2)));
    make(&store, sealing(engine, reseal, "new", &[1, 2])).await.expect("made");
    check(&store, pins(1, Some(2)), &[sealed(1, "new"), sealed(2, "new")]).await;
    make(&store, change(Some(pins(1, Some(2))), pins(2, None))).await.expect("made");
    check(&store, pins(2, None), &[sealed(2, "new")]).await;
    store.close().await.expect("closed");
    let store = engine.reopen(&folder).await.expect("opens again");
    check(&store, pins(2, None), &[sealed(2, "new")]).await;
    let other = engine.fixture().await;
    assert_ne!(other.store.stored_cas().await.expect("no error").expect("keys").store, id);
}

on_each_engine!(nothing_is_sealed_under_a_key_that_a_server_lacks);
async fn nothing_is_sealed_under_a_key_that_a_server_lacks(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let enter = async |server: &str, keys: &[&str]| {
        let keys = keys.iter().map(|key| (*key).to_owned()).collect();
        store.enter_seal_keys(server, keys).await.expect("entered");
    };
    enter("b", &["old"]).await;
    enter("a", &["new", "old"]).await;
    let listed = store.seal_keys_of_servers().await.expect("no error");
    if engine == TestEngine::Sqlite {
        assert_eq!(listed, []);
        return;
    }
    let texts = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<Vec<String>>();
    assert_eq!(listed, [("a".to_owned(), texts(&["new", "old"])), ("b".to_owned(), texts(&["old"]))]);
    let first = sealing(engine, change(None, pins(1, None)), "first", &[1]);
    make(&store, first).await.expect("servers that start have nothing to lose");
    let reseal = |key| sealing(engine, change(Some(pins(1, None)), pins(1, None)), key, &[1]);
    assert_eq!(make(&store, reseal("new")).await, Err(CaRefusal::NoKeyAt(texts(&["b"]))));
    assert_eq!(make(&store, reseal("lost")).await, Err(CaRefusal::NoKeyAt(texts(&["a", "b"]))));
    assert_eq!(make(&store, reseal("old")).await, Ok(()));
    enter("b", &["new"]).await;
    assert_eq!(make(&store, reseal("new")).await, Ok(()));
}
