//! The README's commands, run as they stand there, give the answers that stand below them. `…` stands for
//! anything.

use procfleet_testkit::{PATIENCE, Program, Up, wait_for};
use std::path::{Path, PathBuf};

/// A command and the answer that the README promises.
struct Line {
    command: String,
    answer: String,
}

fn console_lines(readme: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut inside = false;
    for text in readme.lines() {
        match (inside, text) {
            (false, "```console") => inside = true,
            (true, "```") => inside = false,
            (true, text) => match text.strip_prefix("$ ") {
                Some(command) => lines.push(Line { command: command.to_owned(), answer: String::new() }),
                None => lines.last_mut().expect("an answer follows a command").answer.push_str(text),
            },
            (false, _) => {}
        }
    }
    lines
}

/// Whether `text` is `pattern`, where `…` matches anything.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    rest.is_empty() || last.is_some_and(|part| part.is_empty() || text.ends_with(part))
}

fn copy_example(to: &Path) {
    let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/hello");
    std::fs::create_dir_all(to).expect("a folder");
    for name in ["hello.sh", "request.sh"] {
        std::fs::copy(from.join(name), to.join(name)).expect("a copy");
    }
}

#[test]
fn the_commands_of_the_readme_work() {
    let up = Up::start(env!("CARGO_BIN_EXE_procfleet"));
    let home = up.folder("readme");
    copy_example(&home.join("examples/hello"));
    let url = up.admin()["url"].as_str().expect("a url").to_owned();
    let readme = include_str!("../../../README.md");
    let address = url.trim_start_matches("http://").to_owned();
    let data = up.data().display().to_string();

    let mut shorthands = String::new();
    let mut tasks: Vec<String> = Vec::new();
    let lines = console_lines(readme);
    assert!(lines.len() >= 8, "the README shows start, result, query, reload and stop");
    for Line { command, answer } in lines {
        let command = command.replace("127.0.0.1:52030", &address).replace("procfleet-data", &data);
        if command.contains("() {") {
            shorthands.push_str(&command);
            shorthands.push('\n');
            continue;
        }
        let command = match command.split_once("GSETASK:…:") {
            None => command,
            Some((before, number)) => {
                let place: usize = number.trim().parse().expect("the task's number");
                format!("{before}{}", tasks[place - 1])
            }
        };
        let said = wait_for(PATIENCE, &command, || {
            let script = format!("{shorthands}{command}");
            let said = Program::new("sh").args(["-c", &script]).current_dir(&home).run().stdout;
            (!said.contains("\"error_code\":115")).then_some(said)
        });
        let said = said.trim_end();
        assert!(matches(&answer, said), "$ {command}\nthe README says\n{answer}\nand it answered\n{said}");
        if let Some(task) = said.split('"').find(|text| text.starts_with("GSETASK:")) {
            tasks.push(task.to_owned());
        }
    }
    assert_eq!(tasks.len(), 4, "start, query, reload, stop");
}

#[test]
fn the_wildcard_matches_anything_and_nothing_else() {
    assert!(matches("a…c", "abc") && matches("a…", "abc") && matches("abc", "abc") && matches("…c…", "abcd"));
    assert!(!matches("a…c", "abcd") && !matches("b…", "abc") && !matches("abc", "abcd"));
}
