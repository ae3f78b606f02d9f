//! The names of namespaces and procs in requests. A name goes into keys, logs and the store, so every name is
//! checked here.

use super::batch::LONGEST_NAME;
use super::fault::Faults;
use super::read::Reader;

/// A required name.
pub(super) fn read_name(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> String {
    let name = reader.required_text(field, LONGEST_NAME, faults);
    if has_control_character(&name) {
        faults.add(reader.path(field), CONTROL_CHARACTER);
    }
    name
}

/// The names of an optional list. Each may be a glob.
pub(super) fn read_names(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> Vec<String> {
    let mut names = Vec::new();
    for (path, name) in reader.texts(field, faults) {
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

const CONTROL_CHARACTER: &str = "contains a control character";

fn has_control_character(name: &str) -> bool {
    name.chars().any(char::is_control)
}
