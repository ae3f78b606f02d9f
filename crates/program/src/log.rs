//! Flags and setup of the program's own log. Not for the output of managed processes.

use crate::{panics, stream};
use clap::ValueEnum;
use std::io;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Server, agent and `up` have the same flags.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// How this program's own log is written to standard error
    #[arg(long, env = "PROCFLEET_LOG_FORMAT", value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// Log level: error, warn, info, debug or trace, or a filter such as info,procfleet_server=debug
    #[arg(long, env = "PROCFLEET_LOG", value_name = "LEVEL", default_value = DEFAULT_LEVEL, value_parser = level)]
    pub log_level: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object on each line
    Json,
}

const DEFAULT_LEVEL: &str = "info";

/// Dropping the guard waits briefly until a slow reader of standard error has taken the last lines.
#[must_use = "the last lines of the log are written when the guard is dropped"]
#[derive(Debug)]
pub struct LogGuard(());

impl LogArgs {
    /// As arguments for another program of procfleet, without defaults.
    pub fn arguments(&self) -> Vec<(&'static str, String)> {
        let format = (self.log_format != LogFormat::default()).then_some("json");
        let level = Some(self.log_level.as_str()).filter(|level| *level != DEFAULT_LEVEL);
        let given = [("--log-format", format), ("--log-level", level)];
        given.into_iter().filter_map(|(flag, value)| Some((flag, value?.to_owned()))).collect()
    }

    /// From now on, events go to standard error, and panics are events.
    pub fn init_tracing(&self) -> LogGuard {
        let log = tracing_subscriber::fmt::layer()
            .with_writer(LogWriter)
            // tracing reports its own errors by `eprintln!`, which panics when standard error cannot be
            // written.
            .log_internal_errors(false)
            .with_target(false);
        // Unlike EnvFilter, Targets needs no regular expressions, which are 0.3 MB of code.
        let filter: Targets = self.log_level.parse().unwrap_or_default();
        let log = match self.log_format {
            LogFormat::Text => log.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).boxed(),
            LogFormat::Json => log.json().with_ansi(false).boxed(),
        };
        // The filter is a layer of its own: as the filter of one layer it would look up the span of a session
        // whenever the session does anything. This fails if the caller has installed a logger, which stays.
        let _ = tracing_subscriber::registry().with(log).with(filter).try_init();
        panics::install_hook();
        LogGuard(())
    }
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        stream::STDOUT.flush();
        stream::STDERR.flush();
    }
}

/// Writes each event by one call, and always succeeds.
#[derive(Clone, Copy, Debug)]
struct LogWriter;

impl io::Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        stream::STDERR.write(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogWriter;

    fn make_writer(&'a self) -> LogWriter {
        LogWriter
    }
}

/// An empty environment variable counts as unset.
fn level(text: &str) -> Result<String, String> {
    let text = if text.is_empty() { DEFAULT_LEVEL } else { text };
    match text.parse::<Targets>() {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; expected error, warn, info, debug, trace, or TARGET=LEVEL,…")),
    }
}
