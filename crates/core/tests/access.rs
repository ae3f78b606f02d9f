//! Rights against requests, row by row.

use procfleet_core::grants::{Dimension, GrantScope, Grants, Rights, denials};
use procfleet_core::id::{BusinessId, ProcKey};
use procfleet_core::op::OpKind;
use procfleet_core::request::Request;
use procfleet_core::spec::Spec;

/// `business:1 namespace:web* op:start account:app`.
fn grants(text: &str) -> Grants {
    let mut grants = Grants::default();
    for word in text.split_whitespace() {
        let (dimension, text) = word.split_once(':').expect("DIMENSION:TEXT");
        grants.add(Dimension::from_word(dimension).expect("a dimension"), text).expect("a grant");
    }
    grants
}

/// `start web:nginx app`; without an account it has no spec, and `-` is a spec without an account.
fn request(text: &str) -> Request {
    let words: Vec<&str> = text.split(' ').collect();
    let (namespace, name) = words[1].split_once(':').expect("NAMESPACE:NAME");
    let spec = words.get(2).map(|account| {
        let mut spec = Spec::default();
        spec.identity.user = account.trim_matches('-').to_owned();
        spec
    });
    let kind = OpKind::ALL.into_iter().find(|kind| kind.verb() == words[0]).expect("a verb");
    let proc = ProcKey { namespace: namespace.to_owned(), name: name.to_owned() };
    Request { proc, kind, spec, targets: Vec::new(), refused: None }
}

#[track_caller]
fn check(granted: &str, requests: &[&str], expected: &[&str]) {
    let requests: Vec<Request> = requests.iter().map(|text| request(text)).collect();
    let denied = denials(&Rights::Granted(grants(granted)), &requests, &GrantScope::All);
    let said: Vec<String> = denied.iter().map(|denial| denial.to_string()).collect();
    let brief: Vec<&str> = said.iter().map(|text| text.split(" (").next().unwrap_or_default()).collect();
    assert_eq!(brief, expected, "{granted} for {requests:?}");
    assert!(denials(&Rights::Administrator, &requests, &GrantScope::All).is_empty());
}

#[test]
fn missing_grants_are_denied_and_all_are_named() {
    let unnamed = "the account that the host has stored for web:nginx";
    let most = "namespace:web op:start op:query account:app";
    check(most, &["start web:nginx app"], &[]);
    check(most, &["query web:nginx app", "start web:nginx app"], &[]);
    check("", &["start web:nginx app"], &["namespace \"web\"", "op start", "account \"app\""]);
    check(most, &["query db:redis app"], &["namespace \"db\""]);
    check(most, &["stop web:nginx app"], &["op stop"]);
    check(most, &["start web:nginx root"], &["account \"root\""]);
    // Each thing once, whichever element it is in.
    check(
        most,
        &["stop db:redis root", "kill db:mongo root", "stop web:nginx app"],
        &["namespace \"db\"", "op kill", "op stop", "account \"root\""],
    );
    // Only the host knows the account.
    check(most, &["start web:nginx"], &[unnamed]);
    check(most, &["query web:nginx -"], &[unnamed]);
    check("namespace:web op:* account:*", &["start web:nginx", "kill web:nginx -"], &[]);
    check("op:* account:*", &["start web:nginx"], &["namespace \"web\""]);
    // The limits of a group end processes of every account in its namespace.
    check("namespace:web op:group account:*", &["group web: -"], &[]);
    check("namespace:web op:group account:app", &["group web: -"], &["all accounts"]);
    check("namespace:web op:group", &["group web: -"], &["all accounts"]);
    check(most, &["group web: -"], &["op group", "all accounts"]);
}

#[test]
fn a_star_at_the_end_is_any_end() {
    let (op, account) = ("op:start", "account:app");
    for (granted, namespace, allowed) in [
        ("web", "web", true),
        ("web", "web1", false),
        ("web", "we", false),
        ("web*", "web", true),
        ("web*", "web1", true),
        ("web*", "we", false),
        ("*", "anything", true),
    ] {
        let granted = format!("namespace:{granted} {op} {account}");
        let expected = if allowed { vec![] } else { vec![format!("namespace {namespace:?}")] };
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check(&granted, &[&format!("start {namespace}:x app")], &expected);
    }
}

#[test]
fn businesses_are_asked_about_one_by_one() {
    let allowed =
        |text: &str, business: u32| Rights::Granted(grants(text)).businesses().allows(&BusinessId(business));
    assert!(allowed("business:2", 2) && !allowed("business:2", 1) && !allowed("namespace:*", 1));
    assert!(allowed("business:*", 1) && Rights::Administrator.businesses().allows(&BusinessId(9)));
    assert!(Grants::everything().businesses.allows(&BusinessId(3)));
}

#[test]
fn a_business_that_a_request_names_must_be_granted() {
    let check = |granted: &str, named: &[u32], denied: &[&str], left: &[u32]| {
        let rights = Rights::Granted(grants(granted));
        let ids = |numbers: &[u32]| GrantScope::Only(numbers.iter().copied().map(BusinessId).collect());
        let said: Vec<String> =
            denials(&rights, &[], &ids(named)).iter().map(|denial| denial.to_string()).collect();
        assert_eq!(said, denied, "{granted} for {named:?}");
        assert_eq!(rights.businesses_within(&ids(named)), ids(left), "{granted} for {named:?}");
        assert!(denials(&Rights::Administrator, &[], &ids(named)).is_empty());
        assert_eq!(Rights::Administrator.businesses_within(&ids(named)), ids(named));
    };
    check("business:1 business:2", &[1], &[], &[1]);
    check("business:*", &[1, 9], &[], &[1, 9]);
    check("business:1", &[1, 2, 3], &["business 2", "business 3"], &[1]);
    check("namespace:*", &[1], &["business 1"], &[]);
    check("business:1", &[], &[], &[]);

    let rights = Rights::Granted(grants("business:1"));
    assert!(denials(&rights, &[], &GrantScope::All).is_empty(), "it names none");
    assert_eq!(rights.businesses_within(&GrantScope::All), *rights.businesses());
    assert_eq!(Rights::Administrator.businesses_within(&GrantScope::All), GrantScope::All);
}

#[test]
fn invalid_grants_are_refused() {
    for (dimension, text) in [
        (Dimension::Business, "0"),
        (Dimension::Business, "one"),
        (Dimension::Namespace, ""),
        (Dimension::Namespace, "*web"),
        (Dimension::Namespace, "a*b*"),
        (Dimension::Namespace, "a\nb"),
        (Dimension::Op, "status"),
        (Dimension::Account, ""),
    ] {
        assert!(Grants::default().add(dimension, text).is_err(), "{dimension} {text:?}");
    }
}

#[test]
fn grants_come_and_go() {
    let check = |before: &str, less: &str, expected: Result<&str, &str>| {
        let after = grants(before).without(&grants(less));
        let after = after.map_err(|still| still.iter().map(|s| s.to_string()).collect::<Vec<_>>().join("; "));
        match (after, expected) {
            (Ok(after), Ok(expected)) => assert_eq!(after, grants(expected), "{before} - {less}"),
            (Err(said), Err(expected)) => assert!(said.contains(expected), "{before} - {less}: {said}"),
            (after, _) => panic!("{before} - {less}: {after:?}"),
        }
    };
    check("business:1 business:2", "business:1", Ok("business:2"));
    check("business:1", "business:7", Ok("business:1"));
    check("business:1 op:start", "business:*", Ok("op:start"));
    check("op:*", "op:start", Err("op \"start\" is still granted by \"*\""));
    check("namespace:web* namespace:web1", "namespace:web1", Err("still granted by \"web*\""));
    check("namespace:web*", "namespace:web*", Ok(""));
    check("namespace:web1", "namespace:web*", Ok("namespace:web1"));

    assert_eq!(grants("business:1").with(grants("business:2 op:*")), grants("business:1 business:2 op:*"));
    assert_eq!(grants("op:*").with(grants("op:start")), grants("op:*"));
    let words = grants("account:app op:stop business:1 namespace:web*").words();
    let words: Vec<String> = words.iter().map(|(dimension, text)| format!("{dimension}:{text}")).collect();
    assert_eq!(words, ["business:1", "namespace:web*", "op:stop", "account:app"]);
}
