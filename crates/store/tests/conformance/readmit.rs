//! Agents that a restored backup does not know, or that renewed their certificate after the backup was made.

use super::*;

/// An agent that comes back with a certificate that ends at this time.
fn back(name: &str, last: u8, mark: u8, expires_at: Option<i64>) -> JoiningAgent {
    let certificate =
        CertificateRecord { sha256: [mark; 32], ca: Some([1; 32]), issued_at: None, expires_at };
    JoiningAgent { certificate, ..joining(name, last) }
}

on_each_engine!(an_unknown_agent_is_readmitted_unless_its_host_has_another);
async fn an_unknown_agent_is_readmitted_unless_its_host_has_another(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    let readmit =
        async |name, last| store.readmit(back(name, last, 9, Some(500)), 100).await.expect("no error");
    let host = |last| Host { cloud: CloudId(0), ip: host(last).ip };
    assert_eq!(readmit("a", 1).await, Ok(host(1)), "the default cloud area");
    let taken = ReadmitRefusal::HostTaken { host: host(1), agent: "a".to_owned() };
    assert_eq!(readmit("b", 1).await, Err(taken));
    assert_eq!(readmit("b", 2).await, Ok(host(2)));
    let a = store.agent(&agent("a")).await.expect("no error").expect("it is known");
    assert_eq!((a.host, a.business, a.certificate_expires_at), (host(1), BusinessId::DEFAULT, Some(500)));
    let audit = store.list_audit(10, AuditFilter::default()).await.expect("no error").records;
    let entries = audit.iter().map(|record| &record.entry);
    let subjects: Vec<(&str, &str)> =
        entries.map(|entry| (entry.action.as_str(), entry.subject.as_str())).collect();
    assert_eq!(subjects, [("agent_readmit", "b"), ("agent_readmit", "a")], "a refusal readmits nobody");
}

on_each_engine!(a_known_agent_is_readmitted_with_a_newer_certificate_only);
async fn a_known_agent_is_readmitted_with_a_newer_certificate_only(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let a = agent("a");
    let known =
        CertificateRecord { sha256: [10; 32], ca: Some([1; 32]), issued_at: None, expires_at: Some(130) };
    store.give_certificate(&a, known).await.expect("given");
    let may_use = async |mark: u8| {
        let found = store.agent_with_certificate(&a, [mark; 32]).await.expect("no error").expect("known");
        found.1.is_some()
    };
    for (mark, expires_at, expected) in [
        (20, Some(129), Err(ReadmitRefusal::OldCertificate)),
        (21, Some(130), Err(ReadmitRefusal::OldCertificate)),
        (22, None, Err(ReadmitRefusal::OldCertificate)),
        // The agent renewed its certificate after the backup.
        (23, Some(131), Ok(host(1))),
        (24, Some(131), Err(ReadmitRefusal::OldCertificate)),
    ] {
        let readmitted = store.readmit(back("a", 7, mark, expires_at), 100).await.expect("no error");
        assert_eq!(readmitted, expected, "{expires_at:?}");
        assert_eq!(may_use(mark).await, expected.is_ok(), "{expires_at:?}");
    }
    let record = store.agent(&a).await.expect("no error").expect("known");
    assert_eq!(record.host, host(1), "it keeps its host, whatever address it comes from");
}

on_each_engine!(a_revoked_or_retired_agent_is_not_readmitted);
async fn a_revoked_or_retired_agent_is_not_readmitted(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["revoked", "retired"]).await;
    let audit = NewAudit { action: "agents_revoke".to_owned(), ..NewAudit::default() };
    store.revoke_agents(vec![agent("revoked")], "lost".to_owned(), 1_600, audit).await.expect("revoked");
    let joined = store.join(shown(), joining("new", 2), 1_700).await.expect("no error").expect("joined");
    assert_eq!(joined.retired, [agent("retired")]);
    for (last, name) in [(1, "revoked"), (2, "retired")] {
        let readmitted = store.readmit(back(name, last, 20, Some(9_000)), 1_800).await.expect("no error");
        assert_eq!(readmitted, Err(ReadmitRefusal::Dismissed), "{name}");
        assert!(
            store.agent_connected(&agent(name), "0.1.0", "null", 1_900, NEVER_CONNECTED).await.is_err(),
            "{name}"
        );
    }
}
