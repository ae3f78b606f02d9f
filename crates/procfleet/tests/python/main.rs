//! Public Python packages, unmodified, against the built program: the clients of platforms, and schemathesis.
//!
//! `scripts/venv` puts the packages of requirements.txt into `target/venv`.

use procfleet_testkit::{Finished, Program, Up, account};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than any of them should take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(1_800);
/// Made-up requests for each operation of the document.
const EXAMPLES: &str = "10";
/// One without hosts; schemathesis_hooks.py knows it too.
const BUSINESS: &str = "900";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python")
}

/// A program of the virtual environment, which must have the packages of today's requirements.txt.
#[track_caller]
fn program(name: &str) -> Program {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv");
    let wanted = fs::read_to_string(folder().join("requirements.txt")).expect("our own file");
    let installed = fs::read_to_string(venv.join("requirements.txt")).unwrap_or_default();
    assert!(
        installed == wanted,
        "the Python packages are not in target/venv: run scripts/venv, which installs them"
    );
    // Nothing is to be written beside the sources.
    Program::new(venv.join("bin").join(name)).env("PYTHONDONTWRITEBYTECODE", "1")
}

fn up() -> Up {
    let up = Up::start(env!("CARGO_BIN_EXE_procfleet"));
    up.wait_for_agent();
    up
}

#[track_caller]
fn assert_success(finished: &Finished) {
    assert_eq!(finished.code, Some(0), "{}\n{}", finished.stdout, finished.stderr);
}

/// Runs the tests of a file as a platform would run: with its app and the gateway's address in its
/// environment.
#[track_caller]
fn platform(file: &str) {
    let up = up();
    let agents = up.client.data("/api/v1/agents");
    let field = |name: &str| match &agents[0][name] {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut pytest = program("python")
        .args(["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"])
        .args([folder().join(file)])
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .env("BK_APP_CODE", &up.client.app_code)
        .env("BK_APP_SECRET", &up.client.app_secret)
        .env("BK_COMPONENT_API_URL", &up.client.url)
        .env("BK_API_URL_TMPL", format!("{}/api/{{api_name}}", up.client.url))
        .env("TEST_IP", field("ip"))
        .env("TEST_CLOUD", field("bk_cloud_id"))
        .env("TEST_AGENT", field("bk_agent_id"))
        .env("TEST_USER", account())
        .env("TEST_FOLDER", up.folder("python"))
        .current_dir(&up.folder("pytest"));
    pytest.start();
    assert_success(&pytest.finish(PATIENCE));
}

#[test]
fn a_platform_on_the_old_gateway() {
    platform("test_esb.py");
}

#[test]
fn a_platform_that_runs_processes_through_job() {
    platform("test_job.py");
}

#[test]
fn a_platform_on_the_new_gateway() {
    platform("test_gateway.py");
}

/// The API's document holds for thousands of generated requests and their answers.
///
/// The app may ask for everything, but only for hosts of a business that has none: whatever a text is that
/// was made up, no command is ever run.
#[test]
fn schemathesis_finds_no_fault() {
    let up = up();
    let made = up.cli(&["business", "create", BUSINESS, "empty"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let secret = up.cli(&["app", "create", "schemathesis"]).stdout;
    let granted = up.cli(&[
        "app",
        "grant",
        "schemathesis",
        "--business",
        BUSINESS,
        "--namespace",
        "*",
        "--op",
        "*",
        "--account",
        "*",
    ]);
    assert_eq!(granted.code, Some(0), "{granted:?}");
    let app = up.client.as_app("schemathesis", secret.trim());
    let login = json!({"bk_app_code": app.app_code, "bk_app_secret": app.app_secret});
    let checks =
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    let mut run = program("schemathesis")
        .args(["--no-color", "run", &format!("{}/api/openapi.json", up.client.url)])
        .args(["--checks", checks, "--phases", "examples,coverage,fuzzing"])
        .args(["--max-examples", EXAMPLES, "--seed", "1", "--workers", "1", "--continue-on-failure"])
        .args(["--generation-database", "none", "--suppress-health-check", "all"])
        .args(["--header", &format!("X-Bkapi-Authorization: {login}")])
        .env("PYTHONPATH", folder())
        .env("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
        .current_dir(&up.folder("schemathesis"));
    run.start();
    let finished = run.finish(PATIENCE);
    assert_success(&finished);
    // How much was asked.
    println!("{}", finished.stdout.split("SUMMARY").last().unwrap_or_default());
    assert!(!up.stderr().contains("op accepted"), "an operation reached the agent:\n{}", up.stderr());
}
