//! Which modules of a crate use which others, at every depth, read from `crate::`, `self::` and `super::`
//! paths.
//!
//! The reading is by text: it follows `use` trees, paths in code, and names that a module imports from
//! another one. Comments and test code are left out, and so are `lib.rs` and `main.rs`, which may use
//! everything.
//!
//! A graph is one of siblings, which are the modules of one parent, each with all modules below it. A parent
//! may use its children, and children may use the items that their parent defines itself. A name that the
//! parent only imports is an item of the module that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

/// The names from the root of the crate to a module or an item. The root has none.
type Names = Vec<String>;

/// How many imports are followed from a name to its definition.
const MOST_IMPORTS: u32 = 8;

/// All modules of a crate.
#[derive(Debug, Default)]
pub(crate) struct Modules(BTreeMap<Names, Module>);

#[derive(Debug, Default)]
struct Module {
    /// The paths in its code.
    used: Vec<Names>,
    /// The names that `use` brings into it.
    imports: BTreeMap<String, Names>,
    /// The modules of which `use` brings all names into it.
    globs: Vec<Names>,
    /// The names that it defines.
    items: BTreeSet<String>,
}

impl Modules {
    pub(crate) fn of(src: &Path) -> Modules {
        let files = super::rust_files(src).into_iter().map(|file| {
            let path = file.strip_prefix(src).expect("below src").with_extension("");
            let mut names: Names = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            names.pop_if(|last| last == "mod" || path == Path::new("lib") || path == Path::new("main"));
            (names, std::fs::read_to_string(&file).expect("a file"))
        });
        Modules::read(files)
    }

    fn read(files: impl Iterator<Item = (Names, String)>) -> Modules {
        let mut texts: BTreeMap<Names, String> = BTreeMap::new();
        for (module, text) in files.filter(|(module, _)| !module.iter().any(|part| part.starts_with("tests")))
        {
            // `lib.rs` and `main.rs` are the same module here.
            texts.entry(module).or_default().push_str(&without_comments_and_tests(&text));
        }
        let known: BTreeSet<&Names> = texts.keys().collect();
        Modules(texts.iter().map(|(own, text)| (own.clone(), Module::read(own, text, &known))).collect())
    }

    /// The modules that may have children.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &[String]> {
        self.0.keys().map(Vec::as_slice)
    }

    /// The graph of the children of a module.
    pub(crate) fn graph(&self, parent: &[String]) -> Graph {
        let child = |module: &Names| module.strip_prefix(parent).and_then(|below| below.first().cloned());
        let mut graph = Graph::default();
        for (module, Module { used, .. }) in &self.0 {
            let Some(own) = child(module) else { continue };
            let targets = used.iter().filter_map(|path| child(&self.definition(path, MOST_IMPORTS)));
            let others = targets.filter(|other| *other != own).collect::<BTreeSet<String>>();
            graph.0.entry(own).or_default().extend(others);
        }
        graph
    }

    /// The module that defines the item at a path, or the module at that path.
    fn definition(&self, path: &[String], imports: u32) -> Names {
        let is_module = |length: &usize| self.0.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(is_module).unwrap_or_default();
        let (at, rest) = path.split_at(length);
        let (Some(module), [item, below @ ..]) = (self.0.get(at), rest) else { return at.to_vec() };
        if imports == 0 || module.items.contains(item) {
            return at.to_vec();
        }
        if let Some(from) = module.imports.get(item) {
            return self.definition(&[from.as_slice(), below].concat(), imports - 1);
        }
        let globs = module.globs.iter().map(|glob| [glob.as_slice(), std::slice::from_ref(item)].concat());
        let found = globs.map(|path| self.definition(&path, imports - 1));
        let mut found = found.filter(|at| self.0.get(at).is_some_and(|module| module.items.contains(item)));
        found.next().unwrap_or_else(|| at.to_vec())
    }
}

impl Module {
    fn read(own: &[String], text: &str, known: &BTreeSet<&Names>) -> Module {
        let used = ["crate::", "self::", "super::"].into_iter().flat_map(|first| paths_with(text, first));
        let used = used.filter_map(|path| absolute(own, &path.names));
        let mut module = Module { used: used.collect(), items: items(text), ..Module::default() };
        for UsedPath { names, name } in used_by_statements(text) {
            let below = [own, &names].concat();
            let is_child = known.contains(&below[..=own.len()].to_vec());
            let Some(mut from) = absolute(own, &names).or(is_child.then_some(below)) else { continue };
            match name.as_str() {
                "*" => {
                    from.pop();
                    module.globs.push(from);
                }
                _ => drop(module.imports.insert(name, from)),
            }
        }
        module
    }
}

/// The names from the root. `None`: the path begins at another crate, or at a name in scope.
fn absolute(own: &[String], path: &[String]) -> Option<Names> {
    let up = path.iter().take_while(|name| *name == "super").count();
    match path.first().map(String::as_str) {
        Some("crate") => Some(path[1..].to_vec()),
        Some("self") => Some([own, &path[1..]].concat()),
        // A module inside a file has one parent more than its file.
        Some("super") => Some([&own[..own.len().saturating_sub(up)], &path[up..]].concat()),
        Some(_) | None => None,
    }
}

/// Modules and the modules that they use.
#[derive(Debug, Default)]
pub(crate) struct Graph(BTreeMap<String, BTreeSet<String>>);

impl Graph {
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

/// A path, and the name that `use` gives to its item.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UsedPath {
    names: Names,
    name: String,
}

/// The paths in code that begin with `first`, in use trees too: `crate::{a::B, c}` has `crate::a::B` and
/// `crate::c`.
fn paths_with(text: &str, first: &str) -> Vec<UsedPath> {
    let begins = |at: usize| {
        let before = text[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == ':')
    };
    let places = text.match_indices(first).map(|(at, _)| at).filter(|at| begins(*at));
    places.flat_map(|at| paths(&text[at..])).collect()
}

/// The paths of all statements `use …;` of a file that are not inside an item.
fn used_by_statements(text: &str) -> Vec<UsedPath> {
    let is_statement = |at: usize| {
        let before = text[..at].rsplit('\n').next().unwrap_or_default();
        before.is_empty() || before == "pub " || (before.starts_with("pub(") && before.ends_with(") "))
    };
    let places = text.match_indices("use ").map(|(at, word)| (at, at + word.len()));
    places.filter(|(at, _)| is_statement(*at)).flat_map(|(_, after)| paths(&text[after..])).collect()
}

/// The paths of the use tree, or the path, at the beginning of a text.
fn paths(text: &str) -> Vec<UsedPath> {
    let text = text.trim_start();
    if let Some(tree) = text.strip_prefix('{') {
        return branches(tree).into_iter().flat_map(paths).collect();
    }
    let first = if text.starts_with('*') { "*".to_owned() } else { name(text) };
    if first.is_empty() {
        return Vec::new();
    }
    let rest = &text[first.len()..];
    let mut found = rest.strip_prefix("::").map(paths).unwrap_or_default();
    for path in &mut found {
        if path.names == ["self"] {
            path.names.clear();
        }
        if path.name == "self" {
            path.name.clone_from(&first);
        }
        path.names.insert(0, first.clone());
    }
    if found.is_empty() {
        let alias = rest.trim_start().strip_prefix("as ").map(name);
        found.push(UsedPath { names: vec![first.clone()], name: alias.unwrap_or(first) });
    }
    found
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

/// The names that a file defines, outside of other items.
fn items(text: &str) -> BTreeSet<String> {
    const KINDS: [&str; 8] = ["struct", "enum", "fn", "const", "type", "trait", "static", "macro_rules!"];
    let item = |line: &str| {
        let line = line.strip_prefix("pub").unwrap_or(line);
        let line =
            line.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(line, |(_, rest)| rest);
        let mut words = line.split_whitespace().skip_while(|word| ["async", "unsafe"].contains(word));
        let kind = words.next().filter(|kind| KINDS.contains(kind))?;
        match (kind, words.next()?) {
            ("const", "fn" | "unsafe" | "async") => words.find(|word| *word != "fn").map(name),
            (_, word) => Some(name(word)),
        }
    };
    text.lines().filter(|line| !line.starts_with(' ')).filter_map(item).collect()
}

fn modules(files: &[(&str, &str)]) -> Modules {
    let names = |path: &str| path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    Modules::read(files.iter().map(|(path, text)| (names(path), (*text).to_owned())))
}

#[test]
fn paths_are_read_from_use_trees_and_code_but_not_from_comments_and_tests() {
    let text = "use crate::a::B;\nuse crate::{\n    c::{D, e::F},\n    g,\n};\nfn f() -> crate::h::I {}\n\
                // crate::not_a_comment\n#[cfg(test)]\nmod tests;\nfn j() { super::k::l::<u8>() }\n\
                #[cfg(test)]\n#[path = \"x\"]\nmod tests {\n    use crate::not_a_test;\n}\n\
                pub(super) use crate::m::{self, N as O, p::*};\n";
    let text = without_comments_and_tests(text);
    let shown = |paths: Vec<UsedPath>| -> Vec<String> {
        paths.into_iter().map(|path| format!("{} {}", path.names.join("::"), path.name)).collect()
    };
    let statements = ["crate::a::B B", "crate::c::D D", "crate::c::e::F F", "crate::g g"];
    let last = ["crate::m m", "crate::m::N O", "crate::m::p::* *"];
    let crate_paths = [statements.as_slice(), &["crate::h::I I"], &last].concat();
    assert_eq!(shown(paths_with(&text, "crate::")), crate_paths);
    assert_eq!(shown(paths_with(&text, "super::")), ["super::k::l l"]);
    assert_eq!(shown(used_by_statements(&text)), [statements.as_slice(), &last].concat());
}

#[test]
fn items_are_read_with_every_visibility_and_kind() {
    let text = "pub struct A<T> {\n    pub const fn b\n}\npub(in crate::x) const fn c() {}\nasync fn d() {}\n\
                static E: u8 = 1;\nconst F: u8 = 1;\nuse g::H;\nmacro_rules! i {\n}\nimpl J {}\n";
    assert_eq!(items(text), BTreeSet::from(["A", "E", "F", "c", "d", "i"].map(str::to_owned)));
}

/// Below the module `a`.
#[test]
fn siblings_at_every_depth_form_no_cycle() {
    let check = |what: &str, files: &[(&str, &str)], expected: &[&str]| {
        let cycle = modules(files).graph(&["a".to_owned()]).cycle().unwrap_or_default();
        assert_eq!(cycle, expected, "{what}");
    };
    check(
        "parent and child",
        &[("a", "mod b;\nuse b::X;\npub struct Own;\n"), ("a/b", "use super::Own;\npub struct X;\n")],
        &[],
    );
    check(
        "two modules",
        &[("a", ""), ("a/b", "use super::c::Y;\n"), ("a/c", "fn f(y: crate::a::b::Z) {}\n")],
        &["b", "c", "b"],
    );
    check(
        "through a name that the parent exports",
        &[
            ("a", "pub use b::X;\n"),
            ("a/b", "use super::c::Y;\npub struct X;\n"),
            ("a/c", "use crate::a::X;\npub struct Y;\n"),
        ],
        &["b", "c", "b"],
    );
    check(
        "through globs and a name that the parent imports",
        &[
            ("", "pub use a::*;\n"),
            ("a", "use self::b::X as Z;\npub use c::*;\n"),
            ("a/b", "fn f() { crate::Y }\npub struct X;\n"),
            ("a/c", "use super::Z;\npub struct Y;\n"),
        ],
        &["b", "c", "b"],
    );
    check(
        "of modules below the siblings",
        &[("a", ""), ("a/b", ""), ("a/b/d", "use crate::a::c;\n"), ("a/c", "use super::b::d::D;\n")],
        &["b", "c", "b"],
    );
    check(
        "only in tests",
        &[
            ("a", ""),
            ("a/b", "use super::c;\n"),
            ("a/c", "#[cfg(test)]\nmod tests {\n    use super::super::b;\n}\n"),
            ("a/c/tests", "use super::super::b;\n"),
        ],
        &[],
    );
    check(
        "of the parents, which the graph above shows",
        &[("a", ""), ("a/b", "use crate::e::c;\n"), ("e", ""), ("e/c", "use crate::a::b;\n")],
        &[],
    );
}

/// `crate::process` is the module, also beside an item of another crate's module of the same name.
#[test]
fn a_name_of_another_crate_is_no_module() {
    let root = "pub use a::{B, c::D};\npub use rustix::process::Signal;\n";
    let files = [("", root), ("a", "use crate::{Signal, process::Id};\n"), ("process", "use crate::x;\n")];
    assert_eq!(modules(&files).graph(&[]).to_string(), "a -> process\n");
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
