//! Runs a test in a separate process.

use std::process::Command;

/// Set in the process that runs one test.
const APART: &str = "PROCFLEET_TEST_APART";

/// Runs the calling test in a separate process and returns its result. For tests that change state which all
/// tests of a program share: its children, or the pids of the machine.
///
/// False if the caller itself must run the test: in that process, or if tests run one after the other.
/// `wrapper` is a program with arguments that starts the process, or empty.
///
/// ```no_run
/// if procfleet_testkit::played_apart(&[]) {
///     return;
/// }
/// ```
#[expect(clippy::disallowed_methods, reason = "it is the test program itself")]
pub fn played_apart(wrapper: &[&str]) -> bool {
    let thread = std::thread::current();
    // The harness gives each test a thread with the test's name, unless it runs them one after the other.
    let test = match thread.name() {
        Some(name) if name != "main" && std::env::var_os(APART).is_none() => name,
        Some(_) | None => return false,
    };
    let this = std::env::current_exe().expect("this program has a path");
    let mut command = match wrapper {
        [] => Command::new(this),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(this);
            command
        }
    };
    let played = command.args(["--exact", test, "--nocapture"]).env(APART, "1").output();
    let played = played.expect("this program can be run");
    let said = String::from_utf8_lossy(&[played.stdout, played.stderr].concat()).into_owned();
    assert!(played.status.success(), "{}: {said}", played.status);
    assert!(said.contains("1 passed"), "no test is called {test}: {said}");
    true
}
