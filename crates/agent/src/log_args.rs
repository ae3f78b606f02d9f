//! The program's own log: which lines it has, and in which form. The output of managed processes is another matter.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Server, agent and `up` have the same flags.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// How this program's own log is written to standard error
    #[arg(long, env = "PROCFLEET_LOG_FORMAT", value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// The lines that it has: error, warn, info, debug or trace, or a filter such as info,procfleet_server=debug
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

impl LogArgs {
    /// As arguments for another program of ours; what is the default is left out.
    pub fn arguments(&self) -> Vec<(&'static str, String)> {
        let format = (self.log_format != LogFormat::default()).then_some("json");
        let level = Some(self.log_level.as_str()).filter(|level| *level != DEFAULT_LEVEL);
        let given = [("--log-format", format), ("--log-level", level)];
        given.into_iter().filter_map(|(flag, value)| Some((flag, value?.to_owned()))).collect()
    }

    /// From now on, events go to standard error.
    pub fn init_tracing(&self) {
        let log = tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.log_level))
            .with_writer(std::io::stderr)
            .with_target(false);
        // A second logger is a caller's own; it stays.
        let _ = match self.log_format {
            LogFormat::Text => log.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
            LogFormat::Json => log.json().with_ansi(false).try_init(),
        };
    }
}

/// A variable that is set to nothing counts as not set.
fn level(text: &str) -> Result<String, String> {
    let text = if text.is_empty() { DEFAULT_LEVEL } else { text };
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("{error}; expected error, warn, info, debug, trace, or TARGET=LEVEL,…")),
    }
}
