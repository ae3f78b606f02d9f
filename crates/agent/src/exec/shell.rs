//! The interpreters that a command runs through: `spawn` starts them, and `scan` recognises them.

pub(super) const SHELL: &str = "/bin/sh";
/// The arguments between PowerShell's name and the command.
pub(super) const POWERSHELL_FLAGS: [&str; 3] = ["-NoProfile", "-NonInteractive", "-Command"];
