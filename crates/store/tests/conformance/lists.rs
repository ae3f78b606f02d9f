//! Lists page by page: orders, filters, totals, and what a page costs.

use super::*;
use procfleet_core::grants::Pattern;
use procfleet_core::select::{Candidate, Term, selects};
use procfleet_proto::http::cursor::{AgentCursor, AgentOrder, ProcCursor, ProcOrder};
use procfleet_proto::http::query::{OpFilter, TaskProgress};
use std::collections::{BTreeMap, BTreeSet};

fn listed(namespace: &str, name: &str, state: &str, started_at: i64) -> ProcRecord {
    let listing = ProcListing { state: state.to_owned(), started_at, failed: state == "gave_up" };
    let proc = ProcKey { namespace: namespace.to_owned(), name: name.to_owned() };
    ProcRecord { proc, revision: 1, status: "{}".to_owned(), listing }
}

fn key(host: &Host, record: &ProcRecord) -> String {
    format!("{host} {}", record.proc)
}

async fn put(store: &Store, on: &str, record: ProcRecord) {
    let epoch = store.agent(&agent(on)).await.expect("no error").expect("an agent").epoch;
    store.put_procs(&agent(on), epoch, vec![record], Vec::new()).await.expect("stored");
}

on_each_engine!(pages_of_procs_neither_repeat_nor_lose_a_row_while_procs_come_and_go);
async fn pages_of_procs_neither_repeat_nor_lose_a_row_while_procs_come_and_go(engine: TestEngine) {
    let states = ["running", "stopped", "gave_up", "starting"];
    for order in ProcOrder::ALL {
        let Fixture { folder: _folder, store } = engine.with_agents(&["c", "a", "b"]).await;
        let mut number = 0;
        for name in ["a", "b", "c"] {
            for proc in ["p1", "p2", "p3", "p4", "p5"] {
                number += 1;
                let state = states[number % states.len()];
                let started_at = i64::try_from(number % 3).expect("small");
                put(&store, name, listed(&format!("n{}", number % 2), proc, state, started_at)).await;
            }
        }
        let page = store.list_procs(every_proc(), order, None, 1_000).await.expect("no error");
        assert_eq!((page.procs.len(), page.total, &page.next), (15, 15, &None), "{order:?}");
        let before: BTreeSet<String> = page.procs.iter().map(|(_, host, record)| key(host, record)).collect();

        let mut seen: Vec<String> = Vec::new();
        let mut rows: Vec<(Host, ProcRecord)> = Vec::new();
        let mut after: Option<ProcCursor> = None;
        let mut round = 0;
        loop {
            let page = store.list_procs(every_proc(), order, after.take(), 2).await.expect("no error");
            seen.extend(page.procs.iter().map(|(_, host, record)| key(host, record)));
            rows.extend(page.procs.into_iter().map(|(_, host, record)| (host, record)));
            // New rows at both ends, in every state; and the last row that was shown is forgotten.
            round += 1;
            let (host, last) = rows.last().expect("a row").clone();
            for name in ["a", "c"] {
                put(&store, name, listed("n0", &format!("a{round}"), "changing", 9)).await;
                put(&store, name, listed("n1", &format!("z{round}"), "stopping", -1)).await;
            }
            let on = store.agent_at(host).await.expect("no error").expect("an agent").agent;
            store.put_procs(&on, NEVER_CONNECTED, Vec::new(), vec![last.proc]).await.expect("stored");
            match page.next {
                Some(next) => after = Some(ProcCursor::read(order, &next.text()).expect("its own cursor")),
                None => break,
            }
            assert!(round < 200, "{order:?} ends");
        }
        let unique: BTreeSet<String> = seen.iter().cloned().collect();
        assert_eq!(unique.len(), seen.len(), "{order:?} repeats a row: {seen:?}");
        assert!(unique.is_superset(&before), "{order:?} loses {:?}", before.difference(&unique));
        let sort_key = |(host, record): &(Host, ProcRecord)| {
            let (host, state) = (*host, record.listing.state.clone());
            let ProcKey { namespace, name } = record.proc.clone();
            match order {
                ProcOrder::Host => (String::new(), 0, Some(host), namespace, name, None),
                ProcOrder::Name => (String::new(), 0, None, namespace, name, Some(host)),
                ProcOrder::State => (state, 0, Some(host), namespace, name, None),
                ProcOrder::Since => {
                    (String::new(), -record.listing.started_at, Some(host), namespace, name, None)
                }
            }
        };
        assert!(rows.is_sorted_by_key(sort_key), "{order:?}: {seen:?}");
    }
}

on_each_engine!(hosts_are_ordered_by_their_addresses);
async fn hosts_are_ordered_by_their_addresses(engine: TestEngine) {
    let names: Vec<String> = (1..=12).map(|number| format!("a{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Fixture { folder: _folder, store } = engine.with_agents(&names).await;
    let page = store.list_agents(AgentFilter::of(&GrantScope::All), AgentOrder::Host, None, 20).await;
    let hosts: Vec<Host> = page.expect("no error").agents.iter().map(|agent| agent.host).collect();
    assert_eq!(hosts, (1..=12).map(host).collect::<Vec<_>>(), "10.0.0.2 comes before 10.0.0.10");
}

on_each_engine!(filters_of_procs_hold_for_pages_and_totals);
async fn filters_of_procs_hold_for_pages_and_totals(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b", "c"]).await;
    let shop = Business { id: BusinessId(7), name: "shop".to_owned() };
    store.create_business(shop, NewAudit::default()).await.expect("made");
    store.assign(vec![agent("c")], BusinessId(7), NewAudit::default()).await.expect("assigned");
    store.revoke_agents(vec![agent("b")], String::new(), 1, NewAudit::default()).await.expect("revoked");
    for name in ["a", "b", "c"] {
        store.agent_connected(&agent(name), "1", "null", 1_600, NEVER_CONNECTED).await.ok();
        for (namespace, proc, state) in
            [("web", "nginx", "running"), ("web", "ng[x", "stopped"), ("db", "redis", "gave_up")]
        {
            put(&store, name, listed(namespace, proc, state, 0)).await;
        }
    }
    let noted = ProcListing { state: "running".to_owned(), started_at: 0, failed: true };
    let status = r#"{"note": "over limit", "user": "www"}"#.to_owned();
    let proc = proc("noted");
    put(&store, "a", ProcRecord { proc, revision: 1, status, listing: noted }).await;
    let only = |business: u32| GrantScope::Only(BTreeSet::from([BusinessId(business)]));
    let names = |names: &[&str]| GrantScope::Only(names.iter().map(|name| (*name).to_owned()).collect());
    let failed = |accounts: GrantScope<String>| Some(FailedProcs { accounts });
    let patterns = |patterns: &[&str]| {
        let parsed = patterns.iter().map(|pattern| pattern.parse::<Pattern>().expect("a pattern"));
        GrantScope::Only(parsed.collect())
    };
    let on_a_and_c = AgentFilter {
        select: vec!["10.0.0.1".parse().expect("a term"), "c".parse().expect("a term")],
        ..AgentFilter::of(&GrantScope::All)
    };
    let every = every_proc;
    let of = |within: GrantScope<BusinessId>| ProcFilter { agents: AgentFilter::of(&within), ..every_proc() };
    let text = |text: &str| Some(text.to_owned());
    for (what, filter, expected) in [
        ("all", every(), 10),
        ("nothing by default", ProcFilter::default(), 0),
        ("one namespace", ProcFilter { namespace: text("web"), ..every() }, 7),
        ("one name", ProcFilter { namespace: text("web"), name: text("nginx"), ..every() }, 3),
        ("a name in any namespace", ProcFilter { name: text("redis"), ..every() }, 3),
        ("a glob", ProcFilter { name: text("n*x"), ..every() }, 6),
        ("a glob with a bracket", ProcFilter { name: text("ng[?"), ..every() }, 3),
        ("one host", ProcFilter { host: Some(host(2)), ..every() }, 3),
        ("a state", ProcFilter { state: Some("stopped"), ..every() }, 3),
        ("failed, or the agent is away", ProcFilter { failed: failed(GrantScope::All), ..every() }, 6),
        ("failed for this account", ProcFilter { failed: failed(names(&["www"])), ..every() }, 6),
        ("failed for another account", ProcFilter { failed: failed(names(&["db"])), ..every() }, 5),
        ("a selection", ProcFilter { agents: on_a_and_c, ..every() }, 7),
        ("a business", of(only(7)), 3),
        ("no business", of(GrantScope::Only(BTreeSet::new())), 0),
        ("usable", ProcFilter { agents: AgentFilter::usable(&GrantScope::All), ..every() }, 7),
        ("a namespace by grant", ProcFilter { within: patterns(&["web"]), ..every() }, 7),
        ("namespaces by grant", ProcFilter { within: patterns(&["d*", "none"]), ..every() }, 3),
        ("no namespace", ProcFilter { within: patterns(&[]), ..every() }, 0),
    ] {
        for order in ProcOrder::ALL {
            let page = store.list_procs(filter.clone(), order, None, 100).await.expect("no error");
            assert_eq!((page.procs.len(), page.total), (expected, expected as u64), "{what}, {order:?}");
            let part = store.list_procs(filter.clone(), order, None, 1).await.expect("no error");
            assert_eq!(part.total, expected as u64, "the total is that of all pages: {what}, {order:?}");
            assert_eq!(part.next.is_some(), expected > 1, "{what}, {order:?}");
        }
        let found = store.find_procs(filter, 100).await.expect("no error");
        assert_eq!(found.len(), expected, "{what}");
    }
}

on_each_engine!(a_selection_means_the_same_in_sql);
/// SQL decides what a selection means, and must decide it as core does.
async fn a_selection_means_the_same_in_sql(engine: TestEngine) {
    let names = ["a1", "a2", "b1", "web-10"];
    let Fixture { folder: _folder, store } = engine.with_agents(&names).await;
    let label = async |name: &str, labels: &[(&str, &str)]| {
        let set = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let set: BTreeMap<String, String> = set;
        store.label_agents(vec![agent(name)], set, Vec::new(), NewAudit::default()).await.expect("labelled");
    };
    label("a1", &[("role", "web"), ("dc", "east")]).await;
    label("a2", &[("role", "web2")]).await;
    label("b1", &[("role", "db"), ("dc", "west")]).await;
    let agents = store.all_agents().await.expect("no error");
    for line in [
        "",
        "10.0.0.1",
        "3:10.0.0.2",
        "4:10.0.0.2",
        "10.0.0.2-10.0.0.3",
        "10.0.0.0/30",
        "0.0.0.0/0",
        "::/0",
        "10.0.*",
        "3:10.0.0.?",
        "a*",
        "*-10",
        "a1 b1",
        "role=web",
        "role=web*",
        "role=* dc=?est",
        "a* role=web",
        "10.0.0.1 web-10 dc=*",
        "none",
    ] {
        let terms: Vec<Term> = line.split_whitespace().map(|term| term.parse().expect("a term")).collect();
        let meant: Vec<Host> = agents
            .iter()
            .filter(|agent| {
                let AgentRecord { host, agent, labels, .. } = agent;
                selects(&terms, &Candidate { host: *host, agent, labels })
            })
            .map(|agent| agent.host)
            .collect();
        let filter = AgentFilter { select: terms.clone(), ..AgentFilter::usable(&GrantScope::All) };
        let mut found = store.hosts_of_agents(filter.clone(), 100).await.expect("no error");
        let (mut expected, total) = (meant, store.count_agents(filter).await.expect("no error"));
        found.sort();
        expected.sort();
        assert_eq!((found, total), (expected.clone(), expected.len() as u64), "{line:?}");
    }
    let terms: Vec<Term> =
        ["a1", "none", "role=x", "10.0.*"].map(|term| term.parse().expect("a term")).into();
    let usable = AgentFilter::usable(&GrantScope::All);
    assert_eq!(store.terms_without_agents(usable, terms).await.expect("no error"), [1, 2]);
    // As many as a call may have, of each kind: SQLite bounds the depth of an expression.
    for term in ["10.0.0.0/8", "3:10.0.0.0-10.0.0.255", "a*", "a1", "role=*"] {
        let terms: Vec<Term> = vec![term.parse().expect("a term"); 900];
        let filter = AgentFilter { select: terms.clone(), ..AgentFilter::usable(&GrantScope::All) };
        assert!(!store.hosts_of_agents(filter, 100).await.expect("no error").is_empty(), "{term}");
        let usable = AgentFilter::usable(&GrantScope::All);
        assert_eq!(store.terms_without_agents(usable, terms).await.expect("no error"), [0_usize; 0]);
    }
}

on_each_engine!(pages_of_agents_neither_repeat_nor_lose_a_row_while_agents_join);
async fn pages_of_agents_neither_repeat_nor_lose_a_row_while_agents_join(engine: TestEngine) {
    for order in AgentOrder::ALL {
        let Fixture { folder: _folder, store } = engine.with_agents(&["m1", "m2", "m3", "m4", "m5"]).await;
        for (name, version, at) in [("m1", "2", 1_700), ("m2", "1", 1_600), ("m3", "2", 1_900)] {
            let epoch = store
                .agent_connected(&agent(name), version, "null", at, NEVER_CONNECTED)
                .await
                .expect("connected");
            if name == "m2" {
                let now = procfleet_store::clock::ClockReading { wall: at, mark: None };
                store.agent_disconnected(&agent(name), epoch, now, at).await.expect("gone");
            }
        }
        let all = AgentFilter::of(&GrantScope::All);
        let mut seen: Vec<AgentRecord> = Vec::new();
        let mut after: Option<AgentCursor> = None;
        let mut last = 5;
        loop {
            let page = store.list_agents(all.clone(), order, after.take(), 2).await.expect("no error");
            seen.extend(page.agents);
            for name in ["a", "z"] {
                last += 1;
                if last < 40 {
                    let joining = joining(&format!("{name}{last}"), last);
                    store.join(shown(), joining, 1_500).await.expect("no error").expect("joined");
                }
            }
            match page.next {
                Some(next) => {
                    let text = AgentCursor::of(next).text();
                    after = Some(AgentCursor::read(order, &text).expect("its own cursor"));
                }
                None => break,
            }
        }
        let ids: BTreeSet<&AgentId> = seen.iter().map(|agent| &agent.agent).collect();
        assert_eq!(ids.len(), seen.len(), "{order:?} repeats a row");
        for name in ["m1", "m2", "m3", "m4", "m5"] {
            assert!(ids.contains(&agent(name)), "{order:?} loses {name}");
        }
        let state = |agent: &AgentRecord| if agent.connected { "connected" } else { "away" };
        let sorted = seen.is_sorted_by_key(|agent| match order {
            AgentOrder::Id => (0, agent.agent.to_string(), None),
            AgentOrder::Host => (0, String::new(), Some(agent.host)),
            AgentOrder::Version => (0, agent.version.clone(), Some(agent.host)),
            AgentOrder::State => (0, state(agent).to_owned(), Some(agent.host)),
            AgentOrder::Heard => (-agent.heard_at, agent.agent.to_string(), None),
        });
        assert!(sorted, "{order:?}: {seen:?}");
    }
}

on_each_engine!(filters_of_agents_hold_for_pages_and_totals);
async fn filters_of_agents_hold_for_pages_and_totals(engine: TestEngine) {
    let Fixture { folder, store } = engine.with_agents(&["a", "b", "c"]).await;
    store.agent_connected(&agent("a"), "1.2.3", "null", 1_600, NEVER_CONNECTED).await.expect("connected");
    store.agent_connected(&agent("b"), "1.3.0", "null", 1_600, NEVER_CONNECTED).await.expect("connected");
    store.revoke_agents(vec![agent("c")], String::new(), 1, NewAudit::default()).await.expect("revoked");
    let check = async |store: &Store, filter: AgentFilter, expected: &[&str]| {
        let total = store.count_agents(filter.clone()).await.expect("no error");
        for order in AgentOrder::ALL {
            let page = store.list_agents(filter.clone(), order, None, 10).await.expect("no error");
            let mut found: Vec<&str> = page.agents.iter().map(|agent| agent.agent.as_str()).collect();
            found.sort_unstable();
            assert_eq!((found.as_slice(), total), (expected, expected.len() as u64), "{filter:?} {order:?}");
        }
    };
    let every = || AgentFilter::of(&GrantScope::All);
    check(&store, every(), &["a", "b", "c"]).await;
    check(&store, AgentFilter::default(), &[]).await;
    check(&store, AgentFilter { state: Some("connected"), ..every() }, &["a", "b"]).await;
    check(&store, AgentFilter { state: Some("revoked"), ..every() }, &["c"]).await;
    check(&store, AgentFilter::usable(&GrantScope::All), &["a", "b"]).await;
    check(&store, AgentFilter { version: Some("1.2.*".to_owned()), ..every() }, &["a"]).await;
    check(&store, AgentFilter { cloud: Some(CloudId(4)), ..every() }, &[]).await;
    check(&store, AgentFilter { business: Some(BusinessId::DEFAULT), ..every() }, &["a", "b", "c"]).await;
    check(&store, AgentFilter { among: Some(vec![agent("b"), agent("x")]), ..every() }, &["b"]).await;
    // A server that was killed wrote down of nobody that it went; after its start nobody is connected.
    store.close().await.expect("closed");
    let store = engine.reopen(&folder).await.expect("it opens again");
    check(&store, AgentFilter { state: Some("connected"), ..every() }, &[]).await;
    check(&store, AgentFilter { state: Some("away"), ..every() }, &["a", "b"]).await;
    check(&store, AgentFilter { away_since: Some(1_600), ..every() }, &["a", "b", "c"]).await;
    check(&store, AgentFilter { away_since: Some(1_599), ..every() }, &["c"]).await;
}

on_each_engine!(pages_of_tasks_neither_repeat_nor_lose_a_row_while_tasks_are_made);
async fn pages_of_tasks_neither_repeat_nor_lose_a_row_while_tasks_are_made(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let mut made = Vec::new();
    for number in 0..7 {
        let task = NewTask { created_at: 1_000 + number, ..new_task(&["a"]) };
        made.push(store.create_task(task).await.expect("a task"));
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.list_tasks(TaskFilter::default(), after, 2).await.expect("no error");
        seen.extend(page.tasks.iter().map(|task| task.id));
        store.create_task(new_task(&["a"])).await.expect("a task");
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    made.reverse();
    assert_eq!(seen, made, "the newest first, each once, and none that was made meanwhile");

    let ended = |index: usize, code: Code| finished(op(made[index], 0), Some("a"), code);
    store.finish_ops(vec![ended(0, Code::Success), ended(1, Code::Timeout)]).await.expect("ended");
    let check = async |filter: TaskFilter, expected: &[TaskId]| {
        let page = store.list_tasks(filter.clone(), None, 100).await.expect("no error");
        let ids: Vec<TaskId> = page.tasks.iter().map(|task| task.id).collect();
        assert_eq!((ids.as_slice(), page.total), (expected, expected.len() as u64), "{filter:?}");
    };
    let any = TaskFilter::default;
    check(TaskFilter { failed: true, ..any() }, &made[1..2]).await;
    check(TaskFilter { state: Some(TaskProgress::Ended), ..any() }, &made[..2]).await;
    check(TaskFilter { since: Some(1_005), ..any() }, &made[..2]).await;
    check(TaskFilter { since: Some(1_005), state: Some(TaskProgress::Open), ..any() }, &[]).await;
    check(TaskFilter { since: Some(9_000), ..any() }, &[]).await;
    check(TaskFilter { app: Some("other".to_owned()), ..any() }, &[]).await;
}

on_each_engine!(the_ops_of_a_task_are_read_page_by_page);
async fn the_ops_of_a_task_are_read_page_by_page(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a"]).await;
    let task = store.create_task(new_task(&["a"; 7])).await.expect("a task");
    let codes = [Code::Success, Code::AlreadyRunning, Code::NotRunning, Code::Timeout];
    let ended = codes.into_iter().zip(0..).map(|(code, index)| finished(op(task, index), Some("a"), code));
    store.finish_ops(ended.collect()).await.expect("ended");
    let check = async |filter: OpFilter, expected: &[u32]| {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.task_page(task, filter, Vec::new(), after, 2).await;
            let page = page.expect("no error").expect("the task");
            assert_eq!(page.total, expected.len() as u64, "{filter:?}");
            assert_eq!(page.task.counts.total, 7, "the counts are those of the whole task");
            seen.extend(page.ops.iter().map(|op| op.op.index));
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, expected, "{filter:?}");
    };
    check(OpFilter::All, &[0, 1, 2, 3, 4, 5, 6]).await;
    check(OpFilter::Open, &[4, 5, 6]).await;
    check(OpFilter::Ended, &[0, 1, 2, 3]).await;
    // A start of a running process had nothing to do; 829 is a failure of a start.
    check(OpFilter::Failed, &[2, 3]).await;
}

on_each_engine!(the_ops_of_a_task_are_selected_by_their_hosts);
async fn the_ops_of_a_task_are_selected_by_their_hosts(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.with_agents(&["a", "b", "c"]).await;
    let labels = BTreeMap::from([("role".to_owned(), "web".to_owned())]);
    let labelled = vec![agent("a"), agent("c")];
    store.label_agents(labelled, labels, Vec::new(), NewAudit::default()).await.expect("labelled");
    let mut new = new_task(&["a", "b", "c", "b", "a"]);
    // The last op found no agent at its host.
    new.ops.push(NewOp { target: Target::Host(host(9)), agent: None, ..new.ops[0].clone() });
    let task = store.create_task(new).await.expect("a task");
    let other = store.create_task(new_task(&["a", "b"])).await.expect("another task");
    store.finish_ops(vec![finished(op(task, 4), Some("a"), Code::Timeout)]).await.expect("ended");
    let check = async |terms: &[&str], filter: OpFilter, expected: &[u32]| {
        let select: Vec<Term> = terms.iter().map(|term| term.parse().expect("a term")).collect();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = store.task_page(task, filter, select.clone(), after, 2).await;
            let page = page.expect("no error").expect("the task");
            assert_eq!(page.total, expected.len() as u64, "{terms:?} {filter:?}");
            seen.extend(page.ops.iter().map(|op| op.op.index));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, expected, "{terms:?} {filter:?}");
    };
    check(&["3:10.0.0.2"], OpFilter::All, &[1, 3]).await;
    check(&["10.0.0.1-10.0.0.2"], OpFilter::All, &[0, 1, 3, 4]).await;
    check(&["role=web"], OpFilter::All, &[0, 2, 4]).await;
    check(&["role=web", "10.0.0.1"], OpFilter::All, &[0, 4]).await;
    check(&["a", "10.0.0.3"], OpFilter::Open, &[0, 2]).await;
    check(&["role=web"], OpFilter::Ended, &[4]).await;
    check(&["role=w*"], OpFilter::Failed, &[4]).await;
    check(&["10.0.0.9"], OpFilter::All, &[]).await;
    check(&[], OpFilter::All, &[0, 1, 2, 3, 4, 5]).await;
    // Another agent has taken over the host since: the op of the old one was on that host, too.
    store.join(shown(), joining("new", 2), 1_600).await.expect("no error").expect("joined");
    check(&["10.0.0.2"], OpFilter::All, &[1, 3]).await;
    let page = store.task_page(other, OpFilter::All, vec!["b".parse().expect("a term")], None, 9).await;
    assert_eq!(page.expect("no error").map(|page| page.total), Some(1), "ops of this task only");
}
