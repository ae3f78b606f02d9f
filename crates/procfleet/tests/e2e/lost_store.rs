//! A server whose store or CA is damaged or gone says so and ends; one whose first start was cut off comes up
//! all the same.

use procfleet_testkit::{PATIENCE, Program, Signal, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// EX_CONFIG: an operator has to look.
const NEEDS_OPERATOR: i32 = 78;

fn begun(verb: &[&str], data: &Path) -> Program {
    let mut program = Program::new(env!("CARGO_BIN_EXE_procfleet"))
        .args(verb)
        .args(["--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--data"])
        .args([data]);
    program.start();
    program
}

fn server(data: &Path) -> Program {
    begun(&["server"], data)
}

#[track_caller]
fn ready(mut program: Program) -> Program {
    wait_until(PATIENCE, "it is ready", || {
        assert!(program.is_running(), "it has ended: {}", program.stderr());
        program.stdout().contains(" is ready")
    });
    program
}

#[track_caller]
fn comes_up(data: &Path) -> Program {
    ready(server(data))
}

/// The data folder of a server that has ended in order.
fn data() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temp dir");
    let data = folder.path().join("data");
    comes_up(&data).end(Signal::TERM, PATIENCE);
    (folder, data)
}

#[test]
fn a_store_that_cannot_be_used_is_left_alone_and_its_server_says_what_can_be_done() {
    let (_folder, data) = data();
    let store = data.join("server.db");
    let sound = fs::read(&store).expect("it is there");
    // Most of the file are the free pages that are reserved for a full disk.
    let part = sound.len() / 10;
    let torn: [(&str, Vec<u8>, &str); 4] = [
        ("no head", [vec![0; 100], sound[100..].to_vec()].concat(), "file is not a database"),
        ("a part of it", sound[..part].to_vec(), "malformed"),
        ("most of it is zeros", [sound[..part].to_vec(), vec![0; sound.len() - part]].concat(), "malformed"),
        (
            "a text",
            b"this is no database, and it is long enough to be read as one".repeat(99),
            "not a database",
        ),
    ];
    for (how, bytes, words) in torn {
        fs::write(&store, &bytes).expect("our own file");
        let done = server(&data).finish(PATIENCE);
        assert_eq!(done.code, Some(NEEDS_OPERATOR), "{how}: {done:?}");
        let path = store.display().to_string();
        for words in [path.as_str(), words, "left as it is", "backup", ".recover"] {
            assert!(done.stderr.contains(words), "{how}: no {words:?} in {}", done.stderr);
        }
        assert_eq!(fs::read(&store).expect("it is there"), bytes, "{how}");
    }
    fs::remove_file(&store).expect("our own file");
    fs::create_dir(&store).expect("our own folder");
    let done = server(&data).finish(PATIENCE);
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{done:?}");
    assert!(done.stderr.contains("it is a folder"), "{done:?}");
    fs::remove_dir(&store).expect("our own folder");
    fs::write(&store, &sound).expect("our own file");
    comes_up(&data);
}

/// SQLite would read its log up to the bit that flipped, and forget what was accepted after it.
#[test]
fn a_store_whose_log_was_altered_is_not_believed() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let data = folder.path().join("data");
    comes_up(&data).end(Signal::KILL, PATIENCE);
    let log = data.join("server.db-wal");
    let sound = fs::read(&log).expect("it was killed, so its log is there");
    let mut altered = sound.clone();
    // In the first frame: frames behind the newest may belong to an older log, which is not read.
    altered[200] ^= 4;
    fs::write(&log, &altered).expect("our own file");
    let done = server(&data).finish(PATIENCE);
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{done:?}");
    assert!(done.stderr.contains("its write-ahead log was altered at byte "), "{done:?}");
    assert_eq!(fs::read(&log).expect("it is there"), altered, "it is left as it is");
    fs::write(&log, &sound).expect("our own file");
    comes_up(&data);
}

#[test]
fn a_store_that_is_gone_is_not_silently_replaced() {
    let (_folder, data) = data();
    let store = data.join("server.db");
    let sound = fs::read(&store).expect("it is there");
    let no_tables = {
        let other = data.join("other.db");
        let database = rusqlite::Connection::open(&other).expect("a database");
        database.pragma_update(None, "journal_mode", "WAL").expect("written");
        drop(database);
        let bytes = fs::read(&other).expect("it is there");
        fs::remove_file(&other).expect("our own file");
        bytes
    };
    assert!(!no_tables.is_empty());
    for (how, bytes) in [("gone", None), ("empty", Some(Vec::new())), ("empty", Some(no_tables))] {
        match &bytes {
            None => fs::remove_file(&store).expect("our own file"),
            Some(bytes) => fs::write(&store, bytes).expect("our own file"),
        }
        let done = server(&data).finish(PATIENCE);
        assert_eq!(done.code, Some(NEEDS_OPERATOR), "{how}: {done:?}");
        for words in ["server.db is ", how, "ca.cert.der", "backup", "an empty store", "join again"] {
            assert!(done.stderr.contains(words), "{how}: no {words:?} in {}", done.stderr);
        }
        assert_eq!(fs::read(&store).ok(), bytes, "nothing was made in its place");
    }
    // Both ways out.
    fs::write(&store, &sound).expect("our own file");
    comes_up(&data);
    fs::remove_file(&store).expect("our own file");
    fs::rename(data.join("ca.cert.der"), data.join("old-ca.cert.der")).expect("our own file");
    comes_up(&data);
}

/// The next start keeps the files that the first has made, and makes the missing ones.
#[test]
fn a_first_start_that_is_killed_at_any_moment_comes_up_the_next_time() {
    for made in
        ["", "server.db.lock", "server.db", "server.db-wal", "ca.key.pem", "ca.cert.der", "admin.json"]
    {
        let folder = tempfile::tempdir().expect("a temp dir");
        let data = folder.path().join("data");
        let mut cut_off = server(&data);
        wait_until(PATIENCE, "it has come so far", || data.join(made).exists());
        cut_off.end(Signal::KILL, PATIENCE);
        comes_up(&data);
    }
    // The moments of a first start, distinguished by the files that exist.
    let (_folder, whole) = data();
    for missing in [
        &["admin.json"][..],
        &["admin.json", "ca.cert.der"],
        &["admin.json", "ca.cert.der", "ca.key.pem"],
        &["admin.json", "ca.cert.der", "ca.key.pem", "server.db"],
    ] {
        let folder = tempfile::tempdir().expect("a temp dir");
        for entry in fs::read_dir(&whole).expect("a folder") {
            let entry = entry.expect("an entry");
            let name = entry.file_name();
            match name.to_str().is_some_and(|name| missing.contains(&name)) {
                // It was made, and nothing was written to it.
                true if name == "server.db" => fs::write(folder.path().join(name), "").expect("our own file"),
                true => {}
                false => _ = fs::copy(entry.path(), folder.path().join(name)).expect("a copy"),
            }
        }
        comes_up(folder.path());
    }
}

#[test]
fn small_files_that_are_damaged_are_named_and_left_as_they_are() {
    let (_folder, data) = data();
    for (name, words) in [
        ("ca.key.pem", &["ca.key.pem cannot be used: it holds no private key", "backup", "--new-ca"][..]),
        ("ca.cert.der", &["ca.cert.der cannot be used: it holds no certificate", "backup", "--new-ca"]),
        ("server.db.generation", &["server.db.generation does not hold the number", "backup"]),
    ] {
        let file = data.join(name);
        let sound = fs::read(&file).expect("it is there");
        let garbage = "-----BEGIN PRIVATE";
        fs::write(&file, garbage).expect("our own file");
        let done = server(&data).finish(PATIENCE);
        assert_eq!(done.code, Some(NEEDS_OPERATOR), "{name}: {done:?}");
        for words in words {
            assert!(done.stderr.contains(words), "{name}: no {words:?} in {}", done.stderr);
        }
        assert_eq!(fs::read(&file).expect("it is there"), garbage.as_bytes(), "{name}");
        fs::write(&file, sound).expect("our own file");
    }
    fs::remove_file(data.join("admin.json")).expect("our own file");
    let server = comes_up(&data);
    assert!(server.stderr().contains("admin.json is missing or cannot be read"), "{}", server.stderr());
}

/// With another CA no host that has joined could come back, and nothing would say why.
#[test]
fn a_ca_that_is_gone_is_not_silently_replaced() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let data = folder.path().join("data");
    // Its own host joins.
    ready(begun(&["up"], &data)).end(Signal::TERM, PATIENCE);
    let certificate = data.join("ca.cert.der");
    let kept = fs::read(&certificate).expect("it is there");
    fs::remove_file(&certificate).expect("our own file");
    let done = server(&data).finish(PATIENCE);
    assert_eq!(done.code, Some(NEEDS_OPERATOR), "{done:?}");
    for words in ["ca.cert.der is gone", "hosts have joined (now 1)", "backup", "--new-ca", "join again"] {
        assert!(done.stderr.contains(words), "no {words:?} in {}", done.stderr);
    }
    assert!(!certificate.exists());
    // Both ways out.
    fs::write(&certificate, &kept).expect("our own file");
    comes_up(&data).end(Signal::TERM, PATIENCE);
    fs::remove_file(&certificate).expect("our own file");
    ready(begun(&["server", "--new-ca"], &data)).end(Signal::TERM, PATIENCE);
    assert_ne!(fs::read(&certificate).expect("there is a new one"), kept);
    let again = begun(&["server", "--new-ca"], &data).finish(PATIENCE);
    assert_eq!(again.code, Some(NEEDS_OPERATOR), "{again:?}");
    assert!(again.stderr.contains("no CA was lost"), "{again:?}");
}
