//! `procfleet server --print-systemd-unit`: a unit that runs the server with the arguments that were given.

use crate::store_argument::StoreArgument;
use anyhow::{Context, Result};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command, ValueHint};
use procfleet_program::systemd::quoted;
use std::path::Path;

/// The flag that prints the unit. It is not repeated in the unit.
const ASKING: &str = "print_systemd_unit";

const STORE: &str = "store";
/// The server does not start without the file.
const SECRETS: &str = "\n# The URL of the store has a password. Write PROCFLEET_STORE=URL into this file, which only root may read (0600).\n\
                       EnvironmentFile=/etc/procfleet/server.env";

/// `command` is that of `procfleet server`; `given` has the values from flags and environment.
pub(crate) fn print(command: &Command, given: &ArgMatches) -> Result<()> {
    // A URL that cannot be read may have a password, which must not be in the unit.
    given.get_one::<StoreArgument>(STORE).cloned().map(|store| store.url("--store")).transpose()?;
    let program = std::env::current_exe().context("finding this program")?;
    let mut line = format!("{} server", quoted(&program.to_string_lossy()));
    for word in arguments(command, given)? {
        line.push(' ');
        line.push_str(&quoted(&word));
    }
    if has_password(given) {
        line.push_str(SECRETS);
    }
    Ok(procfleet_program::print(include_str!("server.service").replace("@COMMAND@", &line))?)
}

/// Whether the URL of the store must not be in the unit, which every user can read.
fn has_password(given: &ArgMatches) -> bool {
    given.get_one::<StoreArgument>(STORE).is_some_and(StoreArgument::has_password)
}

/// Everything that is not a default, and the data directory in any case: paths in full, because a unit has
/// another directory.
fn arguments(command: &Command, given: &ArgMatches) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for argument in command.get_arguments().filter(|argument| argument.get_id() != ASKING) {
        let (id, Some(long)) = (argument.get_id().as_str(), argument.get_long()) else { continue };
        let is_given =
            matches!(given.value_source(id), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        if !is_given && id != "data" || id == STORE && has_password(given) {
            continue;
        }
        if !argument.get_action().takes_values() {
            if given.get_flag(id) {
                words.push(format!("--{long}"));
            }
            continue;
        }
        for value in given.get_raw(id).into_iter().flatten() {
            let is_path = matches!(
                argument.get_value_hint(),
                ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath
            );
            let value = match is_path {
                true => {
                    std::path::absolute(Path::new(value)).context("making a path absolute")?.into_os_string()
                }
                false => value.to_owned(),
            };
            words.extend([format!("--{long}"), value.to_string_lossy().into_owned()]);
        }
    }
    Ok(words)
}
