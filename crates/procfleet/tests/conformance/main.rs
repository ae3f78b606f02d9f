//! Recorded requests and the answers that their callers rely on, played against the built program.
//!
//! Each file `API/CASE.json` is a test of that name; README.md beside this file says what is in one. All
//! cases share one `procfleet up` with a real agent, and each has a namespace and a folder of its own, so
//! they run side by side.

#![expect(clippy::print_stderr, reason = "a test may fail with its output")]

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

mod case;
mod player;
mod template;

use player::Stage;

/// Most of a case is waiting for processes.
const AT_ONCE: usize = 16;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    // Not made before a case needs it: listing the cases starts nothing.
    let stage: Arc<OnceLock<Stage>> = Arc::default();
    let tests = case_files().into_iter().enumerate().map(|(number, (name, path))| {
        let stage = stage.clone();
        let play = move || stage.get_or_init(Stage::set_up).play(&path, number).map_err(Failed::from);
        Trial::test(name, play)
    });
    let conclusion = libtest_mimic::run(&arguments, tests.collect());
    if let (true, Some(stage)) = (conclusion.has_failed(), stage.get()) {
        eprintln!("---- warnings and errors in up's log ----\n{}", stage.complaints());
    }
    // Dropping the player ends all that it started; `exit` would not wait for that.
    drop(stage);
    conclusion.exit_code()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

/// `API/CASE` and its file, in the order of their names.
fn case_files() -> Vec<(String, PathBuf)> {
    let mut cases = Vec::new();
    for api in entries(&folder()).into_iter().filter(|entry| entry.is_dir()) {
        for file in entries(&api).into_iter().filter(|file| file.extension().is_some_and(|it| it == "json")) {
            let word = |path: &Path| path.file_stem().expect("a name").to_string_lossy().into_owned();
            cases.push((format!("{}/{}", word(&api), word(&file)), file));
        }
    }
    cases.sort();
    cases
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder of ours");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}
