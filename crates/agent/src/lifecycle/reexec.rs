//! The agent re-executes itself: another program in the same process.
//!
//! The pid stays, and with it the children: their exit statuses are not lost, and orphans still come to the
//! agent. Open files have O_CLOEXEC. Inherited attributes such as resource limits are reset to their original
//! values.

use super::signals;
use crate::exec::restore_nofile_limit;
use procfleet_program::signals::unblock_signals;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;

/// Executes the program in place of this one. If that fails, executes the present program again. Returns only
/// if both fail.
#[expect(clippy::disallowed_methods, reason = "this makes no process: it is what the agent becomes")]
pub(crate) fn reexec(program: &Path, arguments: &[OsString]) -> io::Error {
    restore_nofile_limit();
    signals::ignore_hangup();
    // An earlier version would never unblock inherited signals.
    unblock_signals();
    let error = std::process::Command::new(program).args(arguments).exec();
    tracing::error!(program = %program.display(), %error, "cannot execute the new program; re-executing the old one. Check the file and upgrade again");
    // The file of this program may have another name by now, or none.
    std::process::Command::new("/proc/self/exe").args(arguments).exec()
}

/// Executes this program again with these arguments, of which the first is its name, and more environment
/// variables, which only its own account can read. Returns only on failure.
#[expect(clippy::disallowed_methods, reason = "this makes no process: it is what the agent becomes")]
pub(crate) fn reexec_with_env(arguments: &[OsString], variables: &[(&str, OsString)]) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let (name, arguments) =
        arguments.split_first().map_or((None, arguments), |(name, rest)| (Some(name), rest));
    let mut command = std::process::Command::new(&program);
    command.arg0(name.map_or(program.as_os_str(), OsString::as_os_str));
    command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value))).exec()
}
