//! Many agents tell the store something at the same moment, and each gets its own answer.

use super::*;
use std::future::Future;
use std::pin::Pin;
use tokio::task::JoinSet;

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("agent-{number:02}")).collect()
}

async fn with_fleet(engine: TestEngine, count: usize) -> (Fixture, Vec<AgentId>) {
    let names = names(count);
    let fixture = engine.with_agents(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    (fixture, names.iter().map(|name| agent(name)).collect())
}

on_each_engine!(reports_of_a_whole_fleet_are_stored_and_only_the_wrong_ones_are_refused);
async fn reports_of_a_whole_fleet_are_stored_and_only_the_wrong_ones_are_refused(engine: TestEngine) {
    let (Fixture { folder: _folder, store }, agents) = with_fleet(engine, 40).await;
    let (old, foreign) = (agents[7].clone(), agent("nobody"));
    store.agent_connected(&old, "0.1.0", "null", 1, NEVER_CONNECTED).await.expect("connected");
    let mut tasks = JoinSet::new();
    for from in agents.iter().cloned().chain([foreign.clone()]) {
        let store = store.clone();
        tasks.spawn(async move {
            // Half of them replace all, the others add to what is there: nothing.
            let stored = match from.as_str().ends_with(['0', '2', '4', '6', '8']) {
                true => store.replace_procs(&from, NEVER_CONNECTED, vec![said("nginx", 1, "{}")]).await,
                false => {
                    store.put_procs(&from, NEVER_CONNECTED, vec![said("nginx", 1, "{}")], Vec::new()).await
                }
            };
            (from, stored)
        });
    }
    for (from, stored) in tasks.join_all().await {
        match stored {
            Ok(left_out) => assert_eq!((left_out, from != old && from != foreign), (0, true), "{from}"),
            Err(StoreError::OldSession(named)) => assert_eq!((&from, &named), (&old, &old)),
            Err(StoreError::NoSuchAgent(named)) => assert_eq!((&from, &named), (&foreign, &foreign)),
            Err(other) => panic!("{from}: {other:?}"),
        }
    }
    let page = store.proc_page("web", &GrantScope::All, 0, 100).await.expect("no error");
    assert_eq!(page.count, 39);
}

on_each_engine!(a_proc_that_goes_for_one_agent_stays_for_the_others);
async fn a_proc_that_goes_for_one_agent_stays_for_the_others(engine: TestEngine) {
    let (Fixture { folder: _folder, store }, agents) = with_fleet(engine, 20).await;
    for from in &agents {
        let both = vec![said("nginx", 1, "{}"), said("redis", 1, "{}")];
        store.replace_procs(from, NEVER_CONNECTED, both).await.expect("stored");
    }
    let mut tasks = JoinSet::new();
    for (number, from) in agents.iter().cloned().enumerate() {
        let store = store.clone();
        tasks.spawn(async move {
            let (changed, gone) = (vec![said("nginx", 2, "{}")], vec![proc("redis")]);
            match number % 4 {
                0 => store.put_procs(&from, NEVER_CONNECTED, changed, gone).await,
                1 => store.put_procs(&from, NEVER_CONNECTED, changed, Vec::new()).await,
                2 => store.replace_procs(&from, NEVER_CONNECTED, changed).await,
                _ => store.replace_procs(&from, NEVER_CONNECTED, Vec::new()).await,
            }
        });
    }
    for stored in tasks.join_all().await {
        assert_eq!(stored.expect("stored"), 0);
    }
    for (number, from) in agents.iter().enumerate() {
        let expected: &[&str] = [&["nginx"][..], &["nginx", "redis"], &["nginx"], &[]][number % 4];
        let both = ["nginx", "redis"].map(|name| (from.clone(), proc(name)));
        let known = store.known_procs(both.to_vec()).await.expect("no error");
        let mut known: Vec<String> = known.into_iter().map(|(_, proc)| proc.name).collect();
        known.sort();
        assert_eq!(known, expected, "{from}");
    }
}

on_each_engine!(every_agent_of_a_fleet_that_connects_gets_an_epoch);
async fn every_agent_of_a_fleet_that_connects_gets_an_epoch(engine: TestEngine) {
    let (Fixture { folder: _folder, store }, agents) = with_fleet(engine, 40).await;
    let revoked = vec![agents[3].clone()];
    store
        .revoke_agents(revoked.clone(), "lost".to_owned(), 1_700, NewAudit::default())
        .await
        .expect("revoked");
    let mut tasks = JoinSet::new();
    for (number, from) in (0_u64..).zip(agents.iter().cloned()) {
        let store = store.clone();
        tasks.spawn(async move {
            let facts = format!("{{\"number\": {number}}}");
            let epoch = store.agent_connected(&from, "0.3.0", &facts, 1_600, Epoch(number)).await;
            (number, from, facts, epoch)
        });
    }
    for (number, from, facts, epoch) in tasks.join_all().await {
        if revoked.contains(&from) {
            assert!(matches!(epoch, Err(StoreError::NoSuchAgent(_))), "{epoch:?}");
            continue;
        }
        assert_eq!(epoch.expect("connected"), Epoch(number + 1), "above what the agent knows");
        let record = store.agent(&from).await.expect("no error").expect("known");
        assert_eq!((record.facts, record.version.as_str(), record.connected), (facts, "0.3.0", true));
    }
}

on_each_engine!(events_of_a_whole_fleet_get_numbers_without_gaps);
async fn events_of_a_whole_fleet_get_numbers_without_gaps(engine: TestEngine) {
    let (Fixture { folder: _folder, store }, agents) = with_fleet(engine, 40).await;
    let mut tasks = JoinSet::new();
    for from in agents {
        let store = store.clone();
        tasks.spawn(async move {
            // The second report holds what the first one did, and one more.
            let first = store
                .add_events(&from, vec![event(1, "exited"), event(2, "exited")], 9)
                .await
                .expect("stored");
            let again = vec![event(1, "exited"), event(2, "exited"), event(3, "exited")];
            let second = store.add_events(&from, again, 9).await.expect("stored");
            (first.len(), second.len())
        });
    }
    assert_eq!(tasks.join_all().await, vec![(2, 1); 40]);
    let page = EventPage::After(0, 500);
    let events = store.events(EventFilter::default(), &GrantScope::All, page).await.expect("no error");
    let numbers: Vec<u64> = events.iter().map(|event| event.number).collect();
    assert_eq!(numbers, (1..=120).collect::<Vec<u64>>());
}

on_each_engine!(a_fleet_that_joins_at_once_spends_its_token_use_by_use);
async fn a_fleet_that_joins_at_once_spends_its_token_use_by_use(engine: TestEngine) {
    let Fixture { folder: _folder, store } = engine.fixture().await;
    store.create_token(token(25)).await.expect("a token");
    let mut tasks = JoinSet::new();
    for last in 1..=40_u8 {
        let (store, joining) = (store.clone(), joining(&format!("agent-{last}"), last));
        tasks.spawn(async move { store.join(shown(), joining, 1_500).await.expect("no error") });
    }
    let joined = tasks.join_all().await.into_iter().filter(Result::is_ok).count();
    assert_eq!(joined, 25);
    assert_eq!(store.all_agents().await.expect("no error").len(), 25);
}

/// Another server has stopped in the middle of a change that concerns one agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_whose_rows_are_locked_delays_only_itself() {
    type Telling = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send>>;
    let tellings: [fn(Store, &'static str) -> Telling; 4] = [
        |store, from| {
            Box::pin(async move {
                let (from, procs) = (agent(from), vec![said("nginx", 1, "{}")]);
                store.put_procs(&from, NEVER_CONNECTED, procs, Vec::new()).await.map(|_| ())
            })
        },
        |store, from| {
            Box::pin(async move {
                let from = agent(from);
                store.replace_process_groups(&from, NEVER_CONNECTED, Vec::new()).await.map(|_| ())
            })
        },
        |store, from| {
            Box::pin(
                async move { store.add_events(&agent(from), vec![event(1, "exited")], 9).await.map(|_| ()) },
            )
        },
        |store, from| {
            Box::pin(async move {
                store.agent_connected(&agent(from), "0.3.0", "null", 1, NEVER_CONNECTED).await.map(|_| ())
            })
        },
    ];
    let Fixture { folder, store } = TestEngine::Postgres.with_agents(&["a", "b"]).await;
    let other = administrator(&folder).await;
    for tell in tellings {
        other
            .batch_execute(
                "BEGIN; SELECT 1 FROM sessions JOIN agents USING (agent_id) WHERE agent_id = 'a' FOR UPDATE",
            )
            .await
            .expect("locked");
        let locked = tokio::spawn(tell(store.clone(), "a"));
        tell(store.clone(), "b").await.expect("it does not wait for the other one");
        assert!(!locked.is_finished());
        other.batch_execute("COMMIT").await.expect("unlocked");
        locked.await.expect("no panic").expect("it has waited");
    }
}
