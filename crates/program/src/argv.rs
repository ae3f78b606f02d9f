//! Takes a secret out of the arguments: every user of the machine can read them while a program runs.
//!
//! The program executes itself again with the secret in its environment, which only its own account can read.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;

/// The arguments without an option and its value. `None`: the option is not among them.
pub fn without_option(arguments: impl Iterator<Item = OsString>, option: &str) -> Option<Vec<OsString>> {
    let (mut kept, mut is_there) = (Vec::new(), false);
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.as_encoded_bytes().strip_prefix(option.as_bytes()) {
            Some(b"") => {
                is_there = true;
                arguments.next();
            }
            Some([b'=', ..]) => is_there = true,
            Some(_) | None => kept.push(argument),
        }
    }
    is_there.then_some(kept)
}

/// Executes this program again with these arguments, of which the first is its name, and one more environment
/// variable. Returns only on failure.
#[expect(clippy::disallowed_methods, reason = "this makes no process: it is what this program becomes")]
pub fn reexec_with_env(arguments: &[OsString], variable: &str, value: &str) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let (name, arguments) =
        arguments.split_first().map_or((None, arguments), |(name, rest)| (Some(name), rest));
    let mut command = std::process::Command::new(&program);
    command.arg0(name.map_or(program.as_os_str(), OsString::as_os_str));
    command.args(arguments).env(variable, value).exec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_taken_out_of_the_arguments_with_its_value() {
        let check = |arguments: &str, expected: Option<&str>| {
            let left = without_option(arguments.split(' ').map(OsString::from), "--store");
            let left = left.map(|left| left.join(" ".as_ref()).into_string().expect("plain"));
            assert_eq!(left.as_deref(), expected, "{arguments}");
        };
        check("procfleet server --data x", None);
        check("procfleet server --store secret --data x", Some("procfleet server --data x"));
        check("procfleet server --data x --store=secret", Some("procfleet server --data x"));
        check("procfleet server --store-file f", None);
        check("procfleet server --store", Some("procfleet server"));
    }
}
