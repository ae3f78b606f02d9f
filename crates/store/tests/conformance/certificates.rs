//! Certificates of agents, and revocation.

use super::*;

fn certificate(mark: u8, ca: u8) -> CertificateRecord {
    let (issued_at, expires_at) = (Some(i64::from(mark) * 10), Some(i64::from(mark) * 10 + 30));
    CertificateRecord { sha256: [mark; 32], ca: Some([ca; 32]), issued_at, expires_at }
}

on_each_engine!(the_old_certificate_stays_good_beside_the_new_one);
async fn the_old_certificate_stays_good_beside_the_new_one(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    let a = agent("a");
    store.backfill_certificate_ca([1; 32]).await.expect("named");
    assert_eq!(store.agents_of_ca([1; 32]).await.expect("no error"), 2, "those from before there were two");
    store.give_certificate(&a, certificate(10, 2)).await.expect("given");
    let seen = async |mark: u8| {
        let found = store.agent_with_certificate(&a, [mark; 32]).await.expect("no error").expect("known");
        (found.0.certificate_sha256[0], found.1.map(|certificate| certificate.ca))
    };
    assert_eq!(seen(9).await, (9, Some(Some([1; 32]))));
    assert_eq!(seen(10).await, (9, Some(Some([2; 32]))));
    assert_eq!(seen(11).await, (9, None), "nobody gave it that");
    assert_eq!(store.agents_of_ca([1; 32]).await.expect("no error"), 2, "given is not used");
    store.use_certificate(&a, [10; 32]).await.expect("used");
    store.use_certificate(&a, [77; 32]).await.expect("no error, and no effect");
    assert_eq!(seen(9).await.0, 10);
    assert_eq!(store.agents_of_ca([1; 32]).await.expect("no error"), 1);
    let record = store.agent(&a).await.expect("no error").expect("known");
    assert_eq!(record.certificate_expires_at, Some(130));
}

on_each_engine!(an_agent_that_asks_again_and_again_has_a_few_certificates_and_the_one_that_it_uses);
async fn an_agent_that_asks_again_and_again_has_a_few_certificates_and_the_one_that_it_uses(
    engine: TestEngine,
) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let a = agent("a");
    for mark in 20..60 {
        store.give_certificate(&a, certificate(mark, 1)).await.expect("given");
    }
    let mut good = Vec::new();
    for mark in 0..60 {
        let found = store.agent_with_certificate(&a, [mark; 32]).await.expect("no error").expect("known");
        good.extend(found.1.map(|_| mark));
    }
    assert_eq!(good, [9, 52, 53, 54, 55, 56, 57, 58, 59]);
}

on_each_engine!(a_revoked_agent_gets_neither_a_session_nor_a_certificate);
async fn a_revoked_agent_gets_neither_a_session_nor_a_certificate(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b"]).await;
    let a = agent("a");
    let audit = NewAudit { action: "agents_revoke".to_owned(), ..NewAudit::default() };
    for (why, at) in [("lost", 1_600), ("again", 1_700)] {
        store.revoke_agents(vec![a.clone()], why.to_owned(), at, audit.clone()).await.expect("revoked");
    }
    let record = store.agent(&a).await.expect("no error").expect("known");
    assert_eq!(record.revoked, Some(Revoked { at: 1_600, why: "lost".to_owned() }), "the first reason stays");
    assert!(store.agent_connected(&a, "0.1.0", "null", 1_800, NEVER_CONNECTED).await.is_err());
    assert!(store.give_certificate(&a, certificate(10, 1)).await.is_err());
    store
        .agent_connected(&agent("b"), "0.1.0", "null", 1_800, NEVER_CONNECTED)
        .await
        .expect("the other one is let in");
    // A join for its host is the one way back.
    let joined = store.join(shown(), joining("new", 1), 1_900).await.expect("no error").expect("joined");
    assert_eq!(joined.retired, [a]);
    store.agent_connected(&agent("new"), "0.1.0", "null", 1_950, NEVER_CONNECTED).await.expect("let in");
}
