//! Shared by the long-lived programs: server, agent and `up`.
//!
//! - [`LogArgs`]: the flags of the program's own log, which goes to standard error. Writing to it never fails
//!   and never blocks its caller (`stream`): lines that cannot be written are dropped and counted.
//! - [`panics`]: a panic is logged with its location and counted. It ends the program, unless it was
//!   [contained](panics::contain) in a single request or session.
//! - [`Parts`]: the tasks that a program consists of. None of them may end before the program does.
//! - [`signals`]: the program's own signals, from its start to its end.
//! - [`argv`]: takes secrets out of the arguments.
//! - [`memory`]: settings of the allocator.
//! - [`systemd`]: quoting for unit files.
//! - [`print()`], [`announce`], [`print_error`]: lines for people. Unlike `println!`, they do not panic when
//!   the reader is gone.

pub mod argv;
mod log;
pub mod memory;
pub mod panics;
mod parts;
pub mod signals;
mod stream;
pub mod systemd;

pub use log::{LogArgs, LogFormat, LogGuard};
pub use parts::{PartEnded, Parts};

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// The exit code after a panic (EX_SOFTWARE of sysexits.h). The service manager should restart the program.
pub const EXIT_PANICKED: u8 = 70;

/// How many lines of the log were dropped because standard error could not be written.
pub fn log_lines_dropped() -> u64 {
    stream::STDERR.dropped()
}

/// Writes the complete result of a command to standard output. A broken pipe (`| head -1`) is not an error.
pub fn print(text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line to standard output without blocking. The line is dropped if its reader is gone.
pub fn announce(line: &str) {
    stream::STDOUT.write(format!("{line}\n").as_bytes());
}

/// Writes the final error of a program to standard error, if possible.
pub fn print_error(line: &str) {
    stream::STDERR.write(format!("error: {line}\n").as_bytes());
    stream::STDERR.flush();
}

/// Prints the text. The exit code is success if that worked.
pub fn printed(text: &str) -> ExitCode {
    match print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("writing to standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}
