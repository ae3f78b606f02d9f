//! House rules for the Markdown files: wrapped lines, working links, file names that exist.

use procfleet_core::Code;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 110;
/// More than that and the README stops being an introduction: docs/ has the rest.
const README_LINES: usize = 150;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Files with this extension below a folder, without build output and hidden folders.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if entry.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(files(&entry, extension));
        } else if entry.extension().is_some_and(|ending| ending == extension) {
            found.push(entry);
        }
    }
    found
}

/// The lines outside code blocks and outside the reports that `--record` writes, with their numbers.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let (mut is_code, mut is_report) = (false, false);
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        is_report = line.starts_with("<!-- written by") || is_report && line != "<!-- end -->";
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code && !is_report {
            lines.push((number, line));
        }
    }
    lines
}

/// The line without its code spans.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// Targets of `[text](target)`.
fn links(line: &str) -> Vec<String> {
    let line = without_code(line);
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
    kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#'))).collect()
}

/// Tables, code blocks and lines that consist of one long link or one long code span cannot be wrapped.
#[test]
fn markdown_is_wrapped_at_110_columns() {
    for file in files(&root(), "md") {
        for (number, line) in prose(&read(&file)) {
            let is_table = line.trim_start().starts_with('|');
            let is_short = line.chars().count() <= COLUMNS;
            let is_one_piece = line.trim().matches(' ').count() < 2 || line.trim_start().starts_with("<!--");
            assert!(
                is_short || is_table || is_one_piece,
                "{}:{number}: wrap the line at {COLUMNS} columns",
                file.display()
            );
        }
    }
}

#[test]
fn links_in_markdown_lead_somewhere() {
    for file in files(&root(), "md") {
        let text = read(&file);
        for (number, line) in prose(&text) {
            for link in links(line).iter().filter(|link| !link.contains("://")) {
                let (path, heading) = link.split_once('#').unwrap_or((link, ""));
                let target = match path {
                    "" => file.clone(),
                    path => file.parent().expect("a folder").join(path),
                };
                assert!(target.exists(), "{}:{number}: {link} leads nowhere", file.display());
                if !heading.is_empty() {
                    let known = anchors(&read(&target));
                    assert!(
                        known.contains(heading),
                        "{}:{number}: {link}: no such heading in {known:?}",
                        file.display()
                    );
                }
            }
        }
    }
}

/// Comments, `--help` texts, scripts and the changelog name documents by their paths.
#[test]
fn documents_that_are_named_in_code_exist() {
    let sources = ["rs", "md", "py", "toml", "sh", "service"].map(|ending| files(&root(), ending)).concat();
    let scripts = std::fs::read_dir(root().join("scripts")).expect("the scripts");
    let scripts = scripts.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
    let is_path = |letter: char| letter.is_alphanumeric() || "/-_.".contains(letter);
    for file in sources.into_iter().chain(scripts) {
        if file.ends_with("tests/markdown.rs") {
            continue;
        }
        for name in read(&file).split(|letter| !is_path(letter)) {
            let name = name.trim_end_matches('.');
            // `NAME` in a path is a placeholder.
            if name.starts_with("docs/") && name.ends_with(".md") && !name.contains("NAME") {
                assert!(root().join(name).exists(), "{} names {name}", file.display());
            }
        }
    }
}

#[test]
fn the_readme_is_an_introduction() {
    let lines = read(&root().join("README.md")).lines().count();
    assert!(
        lines <= README_LINES,
        "README.md has {lines} lines, at most {README_LINES}: move the rest to docs/"
    );
}

/// `{a,b}.rs` means `a.rs` and `b.rs`.
fn expand(name: &str) -> Vec<String> {
    match name.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        None => vec![name.to_owned()],
        Some((before, (choices, after))) => {
            choices.split(',').map(|choice| format!("{before}{}{after}", choice.trim())).collect()
        }
    }
}

/// A path is written from the crate's name on, without `src`: `server/dispatcher.rs` is
/// `crates/server/src/dispatcher.rs`.
#[test]
fn files_that_the_architecture_names_exist() {
    let known: Vec<String> = files(&root().join("crates"), "rs")
        .into_iter()
        .map(|file| file.strip_prefix(root().join("crates")).expect("below crates").display().to_string())
        .flat_map(|file| [file.replacen("/src/", "/", 1), format!("crates/{file}"), file])
        .collect();
    let text = read(&root().join("ARCHITECTURE.md"));
    let names: Vec<String> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| !name.contains(' '))
        .map(|name| name.split("::").next().unwrap_or(name))
        .filter(|name| name.ends_with(".rs"))
        .flat_map(expand)
        .collect();
    assert!(names.len() > 40, "ARCHITECTURE.md names files: {names:?}");
    for name in names {
        assert!(known.contains(&name), "ARCHITECTURE.md names {name}, which is not a file below crates/");
    }
}

#[test]
fn the_table_of_error_codes_in_troubleshooting_is_that_of_core() {
    let page = read(&root().join("docs/operator/troubleshooting.md"));
    let (_, table) = page.split_once("\n## By error code\n").expect("the section");
    let first_cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let shown: BTreeSet<u32> = first_cells.filter_map(|cell| cell.parse().ok()).collect();
    let known: BTreeSet<u32> = Code::all().map(Code::number).collect();
    assert_eq!(shown, known, "docs/operator/troubleshooting.md and crates/core/src/code.rs");
}

/// `house_rules.rs` checks that the named tests exist.
#[test]
fn every_row_of_the_security_page_names_a_test() {
    let page = read(&root().join("docs/operator/security.md"));
    let rows: Vec<&str> = page
        .split("| cannot | shown by |\n|---|---|\n")
        .skip(1)
        .flat_map(|table| table.lines().take_while(|line| line.starts_with('|')))
        .collect();
    assert!(rows.len() > 30, "the tables of the page: {rows:?}");
    for row in rows {
        assert!(row.contains("::"), "docs/operator/security.md names no test for: {row}");
    }
}

#[test]
fn anchors_are_those_of_github() {
    assert_eq!(anchor(" Exit status 78: an operator has to act"), "exit-status-78-an-operator-has-to-act");
    assert_eq!(anchor(" What a `pid` file may be"), "what-a-pid-file-may-be");
    assert_eq!(expand("exec/{a,b}.rs"), ["exec/a.rs", "exec/b.rs"]);
    assert_eq!(links("see [a](b.md#c) and `[x](y)`"), ["b.md#c"]);
}
