//! The names of namespaces and procs in requests. A name goes into keys, logs and the store, so every name is
//! checked here.

use super::batch::LONGEST_NAME;
use super::fault::Faults;
use super::read::Reader;

/// Maximum number of `names`. Each is looked for on its own.
const MOST_NAMES: usize = 10_000;
/// Maximum number of names that are globs. Each reads all procs of the namespace.
const MOST_GLOBS: usize = 100;

/// A required name.
pub(super) fn read_name(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> String {
    let name = reader.required_text(field, LONGEST_NAME, faults);
    if has_control_character(&name) {
        faults.add(reader.path(field), CONTROL_CHARACTER);
    }
    name
}

/// The optional `names`, which go on after the first name. Each may be a glob.
pub(super) fn read_names(reader: &Reader<'_>, first: &str, faults: &mut Faults) -> Vec<String> {
    const FIELD: &str = "names";
    if !reader.at_most(FIELD, MOST_NAMES, faults) {
        return Vec::new();
    }
    let texts = reader.texts(FIELD, faults);
    let names = std::iter::once(first).chain(texts.iter().map(|(_, name)| *name));
    let globs = names.filter(|name| is_glob(name)).count();
    if globs > MOST_GLOBS {
        let reason = format!("has {globs} names with * or ?, at most {MOST_GLOBS} are allowed in one call");
        faults.add(reader.path(FIELD), reason);
        return Vec::new();
    }
    let mut names = Vec::with_capacity(texts.len());
    for (path, name) in texts {
        let length = name.chars().count();
        if name.trim().is_empty() {
            faults.add(path.clone(), "must not be empty");
        }
        if length > LONGEST_NAME {
            faults.add(path.clone(), format!("has {length} characters, at most {LONGEST_NAME} are allowed"));
        }
        if has_control_character(name) {
            faults.add(path, CONTROL_CHARACTER);
        }
        names.push(name.to_owned());
    }
    names
}

/// Whether the name means all procs that match it.
pub fn is_glob(name: &str) -> bool {
    name.contains(['*', '?'])
}

const CONTROL_CHARACTER: &str = "contains a control character";

fn has_control_character(name: &str) -> bool {
    name.chars().any(char::is_control)
}
