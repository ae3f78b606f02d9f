//! Which top-level modules of a crate use which others, read from `crate::` and `super::` paths.
//!
//! The reading is by text: it follows `use` trees and paths in code, and the re-exports of `lib.rs`. Comments
//! and test code are left out, and so are `lib.rs` and `main.rs`, which may use everything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

#[derive(Debug, Default)]
pub(crate) struct Graph(BTreeMap<String, BTreeSet<String>>);

impl Graph {
    pub(crate) fn of(src: &Path) -> Graph {
        let files = super::rust_files(src);
        let module_of = |file: &Path| {
            let path = file.strip_prefix(src).expect("below src").with_extension("");
            let parts: Vec<String> = path
                .iter()
                .map(|part| part.to_string_lossy().into_owned())
                .filter(|part| part != "mod")
                .collect();
            parts
        };
        let modules: BTreeSet<String> =
            files.iter().filter_map(|file| module_of(file).into_iter().next()).collect();
        let root = std::fs::read_to_string(src.join("lib.rs")).unwrap_or_default();
        let reexports = reexports(&without_comments_and_tests(&root));
        let mut graph = Graph::default();
        for file in &files {
            let path = module_of(file);
            let is_root = path.len() == 1 && ["lib", "main"].contains(&path[0].as_str());
            if is_root || path.iter().any(|part| part.starts_with("tests")) {
                continue;
            }
            let text = without_comments_and_tests(&std::fs::read_to_string(file).expect("a file"));
            let own = graph.0.entry(path[0].clone()).or_default();
            let to_root = "super::".repeat(path.len());
            for used in ["crate::", &to_root].into_iter().flat_map(|prefix| names_after(&text, prefix)) {
                let used = reexports.get(&used).cloned().unwrap_or(used);
                if used != path[0] && modules.contains(&used) {
                    own.insert(used);
                }
            }
        }
        graph
    }

    /// Modules that use one another in a circle, the first again at the end.
    pub(crate) fn cycle(&self) -> Option<Vec<String>> {
        self.0.keys().find_map(|start| self.path_to(start, start, &mut BTreeSet::new()))
    }

    fn path_to<'a>(&'a self, from: &'a str, to: &str, seen: &mut BTreeSet<&'a str>) -> Option<Vec<String>> {
        for next in self.0.get(from).into_iter().flatten() {
            if next == to {
                return Some(vec![from.to_owned(), to.to_owned()]);
            }
            if seen.insert(next)
                && let Some(rest) = self.path_to(next, to, seen)
            {
                return Some(std::iter::once(from.to_owned()).chain(rest).collect());
            }
        }
        None
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (module, used) in self.0.iter().filter(|(_, used)| !used.is_empty()) {
            writeln!(f, "{module} -> {}", used.iter().map(String::as_str).collect::<Vec<_>>().join(" "))?;
        }
        Ok(())
    }
}

/// rustfmt indents, so an item that begins at some column ends at that column.
fn without_comments_and_tests(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            kept.push_str(line);
            kept.push('\n');
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let end = format!("{indent}}}");
        for line in lines.by_ref() {
            let is_attribute = line.trim_start().starts_with("#[");
            let is_one_line = line.starts_with(indent)
                && !line[indent.len()..].starts_with(' ')
                && (line.ends_with(';') || line.ends_with(',') || line.ends_with("{}"));
            if line == end || (is_one_line && !is_attribute) {
                break;
            }
        }
    }
    kept
}

/// The first name of each path that begins with `prefix`, in use trees too: `crate::{a::B, c}` has a and c.
fn names_after(text: &str, prefix: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':') {
            continue;
        }
        names.extend(first_names(&text[at + prefix.len()..]));
    }
    names.retain(|name| !["", "self", "super"].contains(&name.as_str()));
    names
}

fn first_names(path: &str) -> Vec<String> {
    match path.strip_prefix('{') {
        None => vec![name(path)],
        Some(tree) => branches(tree).into_iter().map(|branch| name(branch.trim_start())).collect(),
    }
}

/// The parts of a use tree, up to the brace that closes it.
fn branches(tree: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, letter) in tree.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&tree[from..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&tree[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts
}

fn name(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

/// From the names that `lib.rs` exports to the modules that they are from.
fn reexports(root: &str) -> BTreeMap<String, String> {
    let mut exported = BTreeMap::new();
    for (at, _) in root.match_indices("pub use ") {
        let path = &root[at + "pub use ".len()..];
        let path = path.strip_prefix("crate::").unwrap_or(path);
        let module = name(path);
        let Some(rest) = path[module.len()..].strip_prefix("::") else { continue };
        let statement = rest.split(';').next().unwrap_or_default();
        // Names of modules inside the tree are inserted, too, which has no effect: they are never looked up.
        for word in statement.split(|letter: char| !(letter.is_alphanumeric() || letter == '_')) {
            if !word.is_empty() {
                exported.insert(word.to_owned(), module.clone());
            }
        }
    }
    exported
}

#[test]
fn paths_are_read_from_use_trees_and_code_but_not_from_comments_and_tests() {
    let text = "use crate::a::B;\nuse crate::{\n    c::{D, e::F},\n    g,\n};\nfn f() -> crate::h::I {}\n\
                // crate::not_a_comment\n#[cfg(test)]\nmod tests;\nfn j() { super::k::l() }\n\
                #[cfg(test)]\n#[path = \"x\"]\nmod tests {\n    use crate::not_a_test;\n}\nuse crate::m;\n";
    let text = without_comments_and_tests(text);
    assert_eq!(names_after(&text, "crate::"), ["a", "c", "g", "h", "m"]);
    assert_eq!(names_after(&text, "super::"), ["k"]);
    assert_eq!(reexports("pub use a::{B, c::D};").get("D").map(String::as_str), Some("a"));
}

#[test]
fn a_cycle_is_found_over_several_modules() {
    let graph = |arrows: &[(&str, &str)]| {
        let mut graph = Graph::default();
        for (from, to) in arrows {
            graph.0.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        graph
    };
    assert_eq!(graph(&[("a", "b"), ("b", "c"), ("a", "c")]).cycle(), None);
    let cycle = graph(&[("x", "a"), ("a", "b"), ("b", "c"), ("c", "a")]).cycle();
    assert_eq!(cycle, Some(["a", "b", "c", "a"].map(str::to_owned).to_vec()));
}
