//! A server whose store is replaced or removed while it runs accepts nothing more, and ends with 78.

use crate::up;
use procfleet_testkit::{Program, Signal, Up};
use serde_json::json;
use std::fs;
use std::path::Path;

const NEEDS_OPERATOR: i32 = 78;

/// Asks for join tokens, each of which is a change of the store, until the server is gone. None of them may
/// be granted.
#[track_caller]
fn nothing_is_accepted(up: &mut Up, reason: &[&str]) {
    loop {
        let wanted = json!({"bk_cloud_id": 0, "bk_biz_id": 1, "ttl_secs": 60, "uses": 1});
        let Ok(answer) = up.client.try_post("/api/v1/tokens", &[], &wanted) else { break };
        assert_eq!(answer.body["result"], false, "{answer:?}");
    }
    let done = up.finish();
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{}", done.stderr);
    for words in reason {
        assert!(done.stderr.contains(words), "no {words:?} in {}", done.stderr);
    }
}

type Harm<'a> = &'a (dyn Fn(&Path) + Sync);

#[test]
fn a_store_that_is_replaced_or_removed_while_the_server_runs_ends_it() {
    let replace = |store: &Path| {
        let copy = store.with_file_name("copy.db");
        fs::copy(store, &copy).expect("a copy");
        fs::rename(&copy, store).expect("our own file");
    };
    let remove = |store: &Path| fs::remove_file(store).expect("our own file");
    let remove_log =
        |store: &Path| fs::remove_file(store.with_file_name("server.db-wal")).expect("our own file");
    // The inode is the same; its content is not.
    let overwrite = |store: &Path| {
        let (data, copy) = (store.parent().expect("a folder"), store.with_file_name("copy.db"));
        let program = Program::new(env!("CARGO_BIN_EXE_procfleet")).args(["store", "backup"]);
        let done = program.args([&copy]).env("PROCFLEET_DATA", data).run();
        assert_eq!(done.code, Some(0), "{done:?}");
        fs::copy(&copy, store).expect("our own file");
    };
    let cut_log = |store: &Path| {
        fs::File::create(store.with_file_name("server.db-wal")).expect("our own file");
    };
    let replaced =
        ["server.db", "was replaced or removed while the server ran", "procfleet store restore", "-wal"];
    let cut = ["server.db", "was cut or overwritten while the server ran", "procfleet store restore"];
    let ways: [(Harm<'_>, &[&str]); 5] = [
        (&replace, &replaced),
        (&remove, &replaced),
        (&remove_log, &replaced),
        (&overwrite, &replaced),
        (&cut_log, &cut),
    ];
    std::thread::scope(|scope| {
        for (harm, reason) in ways {
            scope.spawn(move || {
                let mut up = up();
                harm(&up.data().join("server.db"));
                nothing_is_accepted(&mut up, reason);
            });
        }
    });
}

/// A server that has nothing to write looks at its files all the same. It leaves alone what is there now.
#[test]
fn an_idle_server_notices_that_its_store_was_replaced() {
    let mut up = up();
    let kept = up.data().join("kept.db");
    up.end(Signal::TERM);
    let store = up.data().join("server.db");
    fs::copy(&store, &kept).expect("a copy");
    up.again();
    let bytes = fs::read(&kept).expect("our own file");
    fs::rename(&kept, &store).expect("our own file");
    let done = up.finish();
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{}", done.stderr);
    assert_eq!(fs::read(&store).expect("it is there"), bytes, "it was left as it is");
}
