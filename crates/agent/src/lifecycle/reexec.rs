//! The agent becomes its own successor: another program in the same process.
//!
//! The pid stays, and with it the children: their exit statuses are not lost, and orphans go on coming here.
//! What the agent had open is closed by the kernel, for all of it is marked so. What else a process hands
//! down, such as limits, is put back to what the agent itself was given.

use super::signals;
use crate::exec::allow_files_as_given;
use procfleet_program::signals::unblock_signals;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Runs the program in place of this one. Returns only if that is not possible; then the program that is
/// running now is begun anew, and if that is not possible either, there is nothing left but to end.
#[expect(clippy::disallowed_methods, reason = "this makes no process: it is what the agent becomes")]
pub(crate) fn renew(program: &Path, arguments: &[OsString]) -> io::Error {
    allow_files_as_given();
    signals::ignore_hangup();
    // An earlier version would never unblock what it inherits.
    unblock_signals();
    let error = std::process::Command::new(program).args(arguments).exec();
    tracing::error!(program = %program.display(), %error, "cannot execute the new program; re-executing the old one. Check the file and upgrade again");
    // Its file may have another name by now, or none.
    std::process::Command::new("/proc/self/exe").args(arguments).exec()
}

/// Begins this program anew with these arguments, the first of which is its name, and one more variable in
/// its environment, which only its own account can read. Returns only if that is not possible.
#[expect(clippy::disallowed_methods, reason = "this makes no process: it is what the agent becomes")]
pub(crate) fn begin_anew_with(arguments: &[OsString], variable: &str, value: &str) -> io::Error {
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
