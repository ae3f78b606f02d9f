//! House rules that a compiler does not check.

#[path = "house_rules/modules.rs"]
mod modules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            files.extend(rust_files(&entry));
        } else if entry.extension().is_some_and(|ending| ending == "rs") {
            files.push(entry);
        }
    }
    files
}

fn crates() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("crates")).expect("the crates");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
}

/// The crates on which a crate may depend. Tests may depend on the testkit, too.
fn allowed(krate: &str) -> &'static [&'static str] {
    match krate {
        "core" | "failpoint" | "http-client" | "program" => &[],
        "sqlite" => &["failpoint"],
        "proto" => &["core"],
        "cli" => &["core", "http-client", "proto"],
        "store" => &["core", "failpoint", "program", "proto", "sqlite"],
        "server" => &["core", "failpoint", "http-client", "program", "proto", "store"],
        "agent" => &["core", "failpoint", "program", "proto", "sqlite"],
        "procfleet" => &["agent", "cli", "core", "failpoint", "program", "proto", "server", "store"],
        "testkit" => &["core", "proto"],
        // Simulated agents use the agent's TLS and back-off, and do not know the server.
        "sim" => &["agent", "core", "program", "proto"],
        other => panic!("{other} is not in the map of crates: add it to ARCHITECTURE.md and here"),
    }
}

#[test]
fn dependencies_point_one_way() {
    for krate in crates() {
        let manifest = std::fs::read_to_string(root().join("crates").join(&krate).join("Cargo.toml"))
            .expect("a manifest");
        let own = manifest.split("[dev-dependencies]").next().expect("a first part");
        let known: BTreeSet<&str> = own
            .lines()
            .filter_map(|line| line.strip_prefix("procfleet-"))
            .filter_map(|rest| rest.split(['.', ' ', '=']).next())
            .collect();
        for other in known {
            assert!(allowed(&krate).contains(&other), "{krate} must not depend on {other}");
        }
    }
}

#[test]
fn core_depends_on_serde_and_thiserror_only() {
    let manifest = std::fs::read_to_string(root().join("crates/core/Cargo.toml")).expect("a manifest");
    let dependencies =
        manifest.split("[dependencies]").nth(1).and_then(|rest| rest.split('[').next()).expect("a table");
    let names: Vec<&str> =
        dependencies.lines().filter_map(|line| line.split('.').next()).filter(|n| !n.is_empty()).collect();
    assert_eq!(names, ["serde", "thiserror"]);
}

#[test]
fn every_file_begins_with_a_module_comment() {
    for krate in crates() {
        for file in rust_files(&root().join("crates").join(krate).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a file");
            let first = text.lines().find(|line| !line.is_empty() && !line.starts_with("#!["));
            assert!(
                first.is_some_and(|line| line.starts_with("//!")),
                "{} has no module comment",
                file.display()
            );
        }
    }
}

/// Drawings and tables may be wider.
#[test]
fn comments_are_wrapped_at_110_columns() {
    for file in crates().into_iter().flat_map(|krate| rust_files(&root().join("crates").join(krate))) {
        let text = std::fs::read_to_string(&file).expect("a file");
        let mut is_drawing = false;
        for (number, line) in text.lines().enumerate() {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let comment = comment.trim_start_matches(['/', '!']).trim_start();
            is_drawing ^= comment.starts_with("```");
            let is_short = line.chars().count() <= 110;
            assert!(
                is_short || is_drawing || comment.starts_with('|'),
                "{}:{}: wrap the comment",
                file.display(),
                number + 1
            );
        }
    }
}

#[test]
fn comments_of_scripts_are_wrapped_at_110_columns() {
    for folder in ["scripts", "scripts/bench.d", "crates/procfleet/tests/python"] {
        let entries = std::fs::read_dir(root().join(folder)).expect("a folder");
        let files = entries.map(|entry| entry.expect("an entry").path()).filter(|path| path.is_file());
        for file in files.filter(|path| path.extension().is_none_or(|ending| ending == "py")) {
            let text = std::fs::read_to_string(&file).expect("a file");
            for (number, line) in (1..).zip(text.lines()) {
                let is_short = line.chars().count() <= 110 || !line.trim_start().starts_with('#');
                assert!(is_short, "{}:{number}: wrap the comment", file.display());
            }
        }
    }
}

/// Type names that are defined more than once, and their common meaning. Add a name only if a reader who
/// knows one of the types knows the other one, too; otherwise rename one of them.
const SAME_NAME_SAME_MEANING: &[(&str, &str)] = &[
    ("Inner", "the state behind the handle in the same file"),
    ("Args", "the flags of a program or subcommand"),
    ("Main", "the command line of a program"),
    ("Conditions", "the conditions of a list's query, in the SQL of the engine"),
    ("AdminFile", "admin.json: the server writes the file, the client reads it"),
];

/// Test code is left out: the testkit sees the same things from outside (`Op`, `Outcome`, `Task`).
#[test]
fn a_type_name_is_defined_once() {
    let mut definitions: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for krate in crates().into_iter().filter(|krate| krate != "testkit") {
        for file in rust_files(&root().join("crates").join(krate).join("src")) {
            if file.components().any(|part| part.as_os_str().to_string_lossy().starts_with("tests")) {
                continue;
            }
            let text = std::fs::read_to_string(&file).expect("a file");
            // Items inside functions and test modules are indented, and private to them.
            for line in text.lines().filter(|line| !line.starts_with(' ')) {
                let rest = line.strip_prefix("pub").unwrap_or(line);
                let rest =
                    rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, r)| r);
                let mut words = rest.split_whitespace();
                if !matches!(words.next(), Some("struct" | "enum" | "trait" | "type")) {
                    continue;
                }
                let name = words.next().unwrap_or_default();
                let name = name.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
                definitions.entry(name.to_owned()).or_default().push(file.clone());
            }
        }
    }
    for (name, _) in SAME_NAME_SAME_MEANING {
        let count = definitions.get(*name).map_or(0, Vec::len);
        assert!(count > 1, "{name} is defined {count} times: remove it from SAME_NAME_SAME_MEANING");
    }
    for (name, files) in definitions {
        let explained = SAME_NAME_SAME_MEANING.iter().any(|(allowed, _)| *allowed == name);
        assert!(files.len() == 1 || explained, "{name} is defined in {files:#?}: give one another name");
    }
}

/// `agent/src/exec` works with processes, `agent/src/lifecycle` with the agent program itself, and
/// `program/src/memory.rs` calls two functions of glibc that have no safe wrapper.
#[test]
fn unsafe_stays_where_it_is_explained() {
    let allowed = ["agent/src/exec/", "agent/src/lifecycle/", "program/src/memory.rs"];
    for krate in crates() {
        for file in rust_files(&root().join("crates").join(krate).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a file");
            let words = ["unsafe {", "unsafe fn", "unsafe extern", "unsafe impl"];
            let is_unsafe = words.iter().any(|word| text.contains(word));
            let path = file.to_string_lossy();
            assert!(!is_unsafe || allowed.iter().any(|dir| path.contains(dir)), "{path}");
        }
    }
}

#[test]
fn error_numbers_are_written_in_one_file() {
    for file in rust_files(&root().join("crates/server/src"))
        .into_iter()
        .chain(rust_files(&root().join("crates/agent/src")))
    {
        let text = std::fs::read_to_string(&file).expect("a file");
        for number in ["65535", "65_535", "1306", "1_306", "1000811", "829", "836"] {
            let code = text
                .lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .any(|line| line.contains(number));
            assert!(!code, "{} spells out {number}", file.display());
        }
    }
}

/// A request reads the rows that it is about, never a list that is as long as the fleet. The whole list of
/// agents is for the start of the server, and lists of procs, agents and tasks have a limit.
#[test]
fn no_request_reads_the_whole_fleet() {
    let server = root().join("crates/server/src");
    let dispatcher = server.join("dispatcher");
    for file in rust_files(&server).into_iter().filter(|file| !file.starts_with(&dispatcher)) {
        let text = std::fs::read_to_string(&file).expect("a file");
        assert!(!text.contains(".all_agents("), "{} reads the whole fleet", file.display());
    }
    let contract = std::fs::read_to_string(root().join("crates/store/src/contract.rs")).expect("a file");
    let unlimited: BTreeSet<&str> = contract.split("\n    fn ").skip(1).filter_map(unlimited_list).collect();
    let explained: BTreeSet<&str> = UNLIMITED_LISTS.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        unlimited, explained,
        "the lists without a limit in the contract of the store, and those that are explained here"
    );
}

/// Reads of the store that return as many rows as there are, and why they may.
const UNLIMITED_LISTS: [(&str, &str); 13] = [
    ("all_agents", "for the start of the server; checked above"),
    ("open_tasks", "for the dispatcher, which holds all of them; the backlog bounds them"),
    ("open_ops", "for the dispatcher, as open_tasks"),
    ("task_results", "of one task, which the limits of a request bound"),
    ("change_grants", "the grants of one app that a change would leave without effect"),
    ("tokens", "administrators make them, and the server deletes expired ones"),
    ("seal_keys_of_servers", "one for each server"),
    ("servers", "a bounded number of runs is kept"),
    ("webhooks", "administrators make them"),
    ("apps", "administrators make them"),
    ("users", "administrators make them"),
    ("businesses", "administrators make them"),
    ("business_sets", "administrators make them"),
];

/// The name of a method of the contract that returns a list which no argument bounds. Arguments that bound a
/// list are a limit, and a list of what is asked for.
fn unlimited_list(method: &str) -> Option<&str> {
    let signature = method.split(";\n").next()?;
    let (call, answer) = signature.split_once("->")?;
    let (name, arguments) = call.split_once('(')?;
    let is_list = ["Vec<", "HashMap<", "HashSet<", "BTreeMap<"].iter().any(|list| answer.contains(list));
    let bounds = ["limit: ", "most: ", "page: EventPage", ": Vec<", ": &["];
    let is_bounded = bounds.iter().any(|bound| arguments.contains(bound));
    (is_list && !is_bounded).then_some(name)
}

#[test]
fn lists_without_a_limit_are_recognised() {
    for (method, expected) in [
        ("process_groups(namespace: &str) -> HashMap<AgentId, Vec<ProcessGroup>>;", Some("process_groups")),
        ("process_groups(namespace: &str, agents: Vec<AgentId>) -> HashMap<AgentId, Group>;", None),
        ("resolve(targets: &[Target]) -> Vec<Option<AgentId>>;", None),
        ("find_procs(\n        filter: ProcFilter,\n        limit: usize,\n    ) -> Vec<Host>;", None),
        ("agents_of_ca(ca: [u8; 32]) -> u64;", None),
        ("agents_of_ca(ca: [u8; 32]) -> Vec<AgentId>;\n", Some("agents_of_ca")),
        ("agents() -> Vec<AgentRecord>;", Some("agents")),
    ] {
        assert_eq!(unlimited_list(method), expected, "{method}");
    }
}

/// Callers must handle every code of the table, so a code that is never produced is deleted.
#[test]
fn every_error_code_is_produced_somewhere() {
    let table = root().join("crates/core/src/code.rs");
    let text = std::fs::read_to_string(&table).expect("a file");
    let rows = text.lines().filter_map(|line| line.trim_start().strip_prefix("(Code::"));
    let codes: Vec<&str> = rows.filter_map(|row| row.split(',').next()).collect();
    assert!(codes.len() > 20, "the table of codes: {codes:?}");
    let sources = crates().into_iter().map(|krate| root().join("crates").join(krate).join("src"));
    let files = sources.flat_map(|folder| rust_files(&folder));
    let is_producer = |file: &PathBuf| {
        *file != table
            && !file.components().any(|part| part.as_os_str() == "words" || part.as_os_str() == "tests")
    };
    let produced: String =
        files.filter(is_producer).map(|file| std::fs::read_to_string(file).expect("a file")).collect();
    for code in codes {
        let is_named = produced
            .split(&format!("Code::{code}"))
            .skip(1)
            .any(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()));
        assert!(is_named, "nothing produces Code::{code}: delete it, with its words");
    }
}

/// Whether a line compares a measured time with a bound that it must stay below. The deadline of a loop that
/// waits is such a bound, too, and has one of two names.
fn says_how_soon(line: &str) -> bool {
    const MEASURED: [&str; 7] =
        ["took", "elapsed", "elapsed()", "began_at", "as_millis()", "as_secs()", "as_secs_f64()"];
    line.match_indices(" <").any(|(at, _)| {
        let (left, right) = line.split_at(at);
        let right = right.trim_start_matches([' ', '<', '=']);
        let is_deadline = ["DEADLINE", "PATIENCE"].iter().any(|name| right.starts_with(name));
        let is_measured = MEASURED.iter().any(|word| left.ends_with(word));
        !is_deadline && (is_measured || right.starts_with("Duration::") && left.contains("assert"))
    })
}

/// The lines of a file below `src` that belong to its tests.
fn test_lines<'a>(file: &Path, text: &'a str) -> Vec<(usize, &'a str)> {
    let is_test_file = file.iter().any(|part| part == "tests" || part == "tests.rs");
    let lines = text.lines().enumerate();
    lines.skip_while(|(_, line)| !is_test_file && !line.starts_with("#[cfg(test)]")).collect()
}

/// A loaded machine may be late with anything. A test waits with a deadline that only a defect exceeds, and
/// may check that something did not happen early. Below `src` only assertions count: the tests there have
/// loops of their own. Tests with a paused clock are exempt, and so are those of `core`, whose time is
/// simulated.
#[test]
fn no_test_asserts_how_soon_something_happens() {
    for (line, soon) in [
        ("assert!(took < Duration::from_secs(1));", true),
        ("assert!(now - instance.began_at < 30);", true),
        ("assert!(began.elapsed() <= LIMIT);", true),
        ("assert!(took >= Duration::from_secs(1));", false),
        ("assert!(began.elapsed() < DEADLINE);", false),
        ("assert!(text.len() < 100);", false),
    ] {
        assert_eq!(says_how_soon(line), soon, "{line}");
    }
    for krate in crates().into_iter().filter(|krate| krate != "core") {
        let folder = root().join("crates").join(krate);
        let tests = Some(folder.join("tests")).filter(|tests| tests.is_dir());
        let tests = tests.map(|tests| rust_files(&tests)).unwrap_or_default();
        for file in tests.iter().chain(&rust_files(&folder.join("src"))) {
            if file.ends_with("house_rules.rs") {
                continue;
            }
            let text = std::fs::read_to_string(file).expect("a file");
            let below_src = file.starts_with(folder.join("src"));
            if below_src && text.contains("start_paused") {
                continue;
            }
            let lines = if below_src { test_lines(file, &text) } else { text.lines().enumerate().collect() };
            for (number, line) in lines {
                let counts = !below_src || line.contains("assert");
                assert!(
                    !(counts && says_how_soon(line)),
                    "{}:{}: how soon depends on the machine",
                    file.display(),
                    number + 1
                );
            }
        }
    }
}

/// Where the tests of each mark are. The page's first table lists the marks with their commands.
const MARKS: [(&str, &str); 5] = [
    ("", "crates/procfleet/tests/e2e"),
    ("exec", "crates/agent/tests/exec_processes"),
    ("agent", "crates/agent/src"),
    ("server", "crates/server/src"),
    ("store", "crates/store/tests/conformance"),
];

/// The paths of the tests that a text names, each with the mark before it: *exec* `ours::a_process_is_ours`.
fn named_tests(text: &str) -> Vec<(&str, &str)> {
    let pieces: Vec<&str> = text.split('`').collect();
    let spans = pieces.windows(2).step_by(2).filter(|pair| pair[1].contains("::"));
    spans
        .map(|pair| {
            let before = pair[0].trim_end().strip_suffix('*').and_then(|before| before.rsplit_once('*'));
            (before.map_or("", |(_, mark)| mark), pair[1])
        })
        .collect()
}

/// Each row and each paragraph of the security page names the tests that show it, and they exist.
#[test]
fn the_security_page_names_existing_tests() {
    let page = std::fs::read_to_string(root().join("docs/operator/security.md")).expect("the page");
    let is_test = |mark: &str, path: &str| {
        let (modules, function) = path.rsplit_once("::").expect("a module and a test");
        let module = modules.rsplit("::").find(|module| *module != "tests").expect("a module");
        let (_, folder) = MARKS.iter().find(|(known, _)| *known == mark).expect("a mark of the first table");
        rust_files(&root().join(folder))
            .iter()
            .filter(|file| file.file_stem().is_some_and(|stem| stem == module))
            .any(|file| {
                let text = std::fs::read_to_string(file).expect("a file");
                let Some((before, _)) = text.split_once(&format!("fn {function}(")) else { return false };
                // Attributes are between the last blank line and the function.
                let own = before.rsplit("\n\n").next().unwrap_or_default();
                let engines = format!("on_each_engine!({function});");
                ["#[test]", "#[tokio::test", &engines].iter().any(|attribute| own.contains(attribute))
            })
    };
    let (intro, attackers) = page.split_once("\n## ").expect("a first attacker");
    for (mark, _) in MARKS.iter().filter(|(mark, _)| !mark.is_empty()) {
        assert!(intro.contains(&format!("| *{mark}* |")), "the first table has no command for {mark}");
    }
    let names = named_tests(attackers);
    assert!(names.len() > 60, "the page names its tests: {names:?}");
    for (mark, path) in names {
        assert!(is_test(mark, path), "docs/operator/security.md names *{mark}* `{path}`, which is nowhere");
    }
    // Headings have no full stop.
    for paragraph in attackers.split("\n\n").filter(|paragraph| paragraph.contains('.')) {
        let (shown, reasoning) = paragraph.split_once("*Reasoning:*").unwrap_or((paragraph, ""));
        assert!(
            shown.is_empty() || !named_tests(shown).is_empty(),
            "docs/operator/security.md names no test for: {shown}"
        );
        assert!(named_tests(reasoning).is_empty(), "tests stand before *Reasoning:* in: {paragraph}");
    }
}

/// The arrows between modules point one way at every depth, and a reviewer sees a new arrow between top-level
/// modules.
#[test]
fn modules_of_a_crate_form_no_cycle_and_their_graph_is_checked_in() {
    let mut text = String::new();
    for krate in crates().into_iter().collect::<BTreeSet<String>>() {
        let modules = modules::Modules::of(&root().join("crates").join(&krate).join("src"));
        for parent in modules.parents() {
            if let Some(cycle) = modules.graph(parent).cycle() {
                panic!(
                    "crates/{krate}/src/{}: modules use one another in a cycle: {}. Move the items that both need into a \
                     module of their own, or into that of the parent",
                    parent.join("/"),
                    cycle.join(" -> ")
                );
            }
        }
        text.push_str(&format!("[{krate}]\n{}\n", modules.graph(&[])));
    }
    let pinned = root().join("crates/procfleet/tests/house_rules/modules.txt");
    if std::fs::read_to_string(&pinned).unwrap_or_default() != text {
        let now = Path::new(env!("CARGO_TARGET_TMPDIR")).join("modules.txt");
        std::fs::write(&now, text).expect("the target folder");
        panic!(
            "the arrows between modules have changed. Read the difference; if it is wanted, check it in:\n\
             diff {pinned} {now}\n\
             cp {now} {pinned}",
            now = now.display(),
            pinned = pinned.display()
        );
    }
}
