//! One-time setup by an operator: units, logs, completion, manual pages.

use crate::up;
use procfleet_testkit::{Op, PATIENCE, Program, Signal, Up, programs, wait_until};
use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");

#[test]
fn the_server_has_a_unit_with_the_arguments_that_were_given() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let unit = Program::new(BINARY)
        .args([
            "server",
            "--print-systemd-unit",
            "--link",
            "0.0.0.0:48668",
            "--data",
            "data",
            "--log-format",
            "json",
        ])
        .env("PROCFLEET_KEEP_DAYS", "7")
        .current_dir(folder.path())
        .run();
    assert_eq!(unit.code, Some(0), "{unit:?}");
    let data = folder.path().join("data");
    let line = unit.stdout.lines().find(|line| line.starts_with("ExecStart=")).expect("a command");
    for words in [
        " server ",
        &format!("--data {}", data.display()),
        "--link 0.0.0.0:48668",
        "--keep-days 7",
        "--log-format json",
    ] {
        assert!(line.contains(words), "{words:?} is not in {line}");
    }
    assert!(!line.contains("--listen") && !line.contains("print"), "{line}");
    assert!(unit.stdout.contains("RestartPreventExitStatus=78"), "{unit:?}");
    assert!(!data.exists(), "nothing was started");
}

/// The program cannot tell whether such a URL has a password.
#[test]
fn no_unit_is_printed_for_a_store_whose_url_cannot_be_used() {
    let url = "postgres://procfleet:sesame@db/fleet?sslmode=verify-full&sslcert=missing";
    for flags in [&["--store", url][..], &[]] {
        let unit = Program::new(BINARY)
            .args(["server", "--print-systemd-unit"])
            .args(flags)
            .env("PROCFLEET_STORE", url)
            .run();
        assert_eq!(unit.code, Some(2), "{unit:?}");
        assert_eq!(unit.stdout, "", "{unit:?}");
        assert!(unit.stderr.contains("--store: ") && !unit.stderr.contains("sesame"), "{unit:?}");
    }
}

#[test]
fn the_log_is_json_where_that_is_wanted_and_has_the_lines_of_its_level() {
    let mut up = Up::start_with(BINARY, &["--log-format", "json", "--log-level", "debug"]);
    let proc = up.proc("logged").starts(&programs::foreground());
    proc.start();
    proc.op(Op::Kill).assert_success();
    wait_until(PATIENCE, "server and agent have logged it", || {
        let log = up.stderr();
        ["op accepted", "op ended"].iter().all(|words| log.contains(words))
    });
    up.end(Signal::TERM);
    let mut levels = Vec::new();
    for line in up.stderr().lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        levels.push(line["level"].as_str().expect("a level").to_owned());
        assert!(line["timestamp"].is_string() && line["fields"]["message"].is_string(), "{line}");
    }
    assert!(levels.iter().any(|level| level == "DEBUG"), "{levels:?}");

    let bad = Program::new(BINARY).args(["server", "--log-level", "loud=very", "--data", "/nowhere"]).run();
    assert_eq!(bad.code, Some(2), "{bad:?}");
    assert!(bad.stderr.contains("--log-level"), "{bad:?}");
}

#[test]
fn completion_and_manual_pages_are_made_from_the_command_line() {
    let up = up();
    for (shell, words) in
        [("bash", "_procfleet()"), ("zsh", "#compdef procfleet"), ("fish", "complete -c procfleet")]
    {
        let script = up.cli(&["completions", shell]);
        assert_eq!(script.code, Some(0), "{shell}");
        assert!(script.stdout.contains(words) && script.stdout.contains("is-running"), "{shell}");
    }
    let folder = up.folder("man");
    let page = up.cli(&["man"]);
    assert!(page.stdout.contains(".TH procfleet 1"), "{page:?}");
    let made = up.cli(&["man", folder.to_str().expect("a plain path")]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
    assert!(read("procfleet-stop.1").contains("Exit status"));
    assert!(read("procfleet-task-list.1").contains(".TH procfleet-task-list 1"));
}
