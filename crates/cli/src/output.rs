//! The output for people and scripts: tables, ages, JSON. Independent of the verbs.

use crate::error::Error;
use comfy_table::{Table, presets};
use jiff::tz::TimeZone;
use std::convert::Infallible;
use std::fmt;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::time::Duration;

/// The environment of a verb. Created once by [`run`](crate::run), or by a test.
pub struct Console<'a> {
    /// Read for `-f -`.
    pub input: &'a mut dyn Read,
    /// Results, and with `--json` nothing but one document.
    pub out: &'a mut dyn Write,
    /// Progress, hints and errors.
    pub err: &'a mut dyn Write,
    pub progress: ProgressDisplay,
    pub prompts: Prompts,
    /// Whether results are coloured.
    pub colors: Colors,
    /// The time zone of printed times, unless `--utc` is given.
    pub zone: TimeZone,
    /// The current time in seconds since 1970, UTC; ages are relative to it.
    pub now: i64,
    pub pace: PollPace,
}

/// Whether a person can be asked for confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// A person at a terminal.
    Allowed,
    /// A script: it continues without confirmation.
    Forbidden,
}

/// Whether standard output is a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colors {
    Shown,
    Plain,
}

/// How the progress of a task is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgressDisplay {
    /// A progress bar on stderr, for a person at a terminal.
    Bar,
    /// A line for each op that has ended.
    Lines,
}

/// How often a waiting client polls the server.
#[derive(Clone, Copy, Debug)]
pub struct PollPace {
    /// The minimum time between two polls: otherwise each op that ends would cause an answer that lists all
    /// ops.
    pub between: Duration,
    /// The pause after a failed connection, and the maximum number of consecutive failures.
    pub pause: Duration,
    pub tries: u32,
}

impl Default for PollPace {
    /// A restart of the server takes a few seconds; a minute covers a slow one.
    fn default() -> Self {
        PollPace { between: Duration::from_millis(150), pause: Duration::from_secs(1), tries: 60 }
    }
}

/// `--json` or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// The output flags of every verb.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputFlag {
    /// Print the answer as one JSON document
    #[arg(long)]
    pub json: bool,
    /// Show times in UTC instead of the local time zone
    #[arg(long)]
    pub utc: bool,
    /// Whether to colour states; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub color: When,
    /// See <https://no-color.org>
    #[arg(long, env = "NO_COLOR", hide = true, action = clap::ArgAction::Set, value_parser = not_empty, default_value = "")]
    pub no_color: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    #[default]
    Auto,
    Always,
    Never,
}

fn not_empty(text: &str) -> Result<bool, Infallible> {
    Ok(!text.is_empty())
}

impl OutputFlag {
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

impl<'a> Console<'a> {
    pub(crate) fn of_process(
        input: &'a mut dyn Read,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
    ) -> Console<'a> {
        let progress =
            if std::io::stderr().is_terminal() { ProgressDisplay::Bar } else { ProgressDisplay::Lines };
        let at_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let prompts = if at_terminal { Prompts::Allowed } else { Prompts::Forbidden };
        let colors = if std::io::stdout().is_terminal() { Colors::Shown } else { Colors::Plain };
        let (zone, now) = (TimeZone::system(), jiff::Timestamp::now().as_second());
        Console { input, out, err, progress, prompts, colors, zone, now, pace: PollPace::default() }
    }

    /// A line of the result.
    pub(crate) fn print_line(&mut self, text: &str) -> Result<(), Error> {
        match writeln!(self.out, "{text}").and_then(|()| self.out.flush()) {
            // The reader has closed the pipe (`procfleet ps | head`). The exit status still reports the
            // outcomes.
            Err(fault) if fault.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(Error::Output),
        }
    }

    /// A line on stderr. A closed stderr is ignored.
    pub(crate) fn note(&mut self, text: &str) {
        let _ = writeln!(self.err, "{text}");
    }

    /// A question to a person, whose answer is on the same line.
    pub(crate) fn ask(&mut self, text: &str) -> Result<(), Error> {
        write!(self.err, "{text}").and_then(|()| self.err.flush()).map_err(Error::Output)
    }

    /// A point in time, for people.
    pub(crate) fn moment(&self, secs: i64) -> String {
        match jiff::Timestamp::from_second(secs) {
            Err(_) => secs.to_string(),
            Ok(at) if self.zone == TimeZone::UTC => at.to_string(),
            Ok(at) => at.to_zoned(self.zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string(),
        }
    }

    /// Applies the output flags.
    pub(crate) fn apply_flags(&mut self, output: OutputFlag) {
        if output.utc {
            self.zone = TimeZone::UTC;
        }
        self.colors = match output.color {
            When::Always => Colors::Shown,
            When::Never => Colors::Plain,
            When::Auto if output.no_color => Colors::Plain,
            When::Auto => self.colors,
        };
    }

    pub(crate) fn json(&mut self, data: &serde_json::Value) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(data).expect("a JSON value has only text keys");
        self.print_line(&text)
    }

    /// Prints nothing to stdout if there are no rows, so that scripts do not see a header.
    pub(crate) fn table<const N: usize>(
        &mut self,
        header: [&str; N],
        rows: Vec<[String; N]>,
        if_empty: &str,
    ) -> Result<(), Error> {
        if rows.is_empty() {
            self.note(if_empty);
            return Ok(());
        }
        let state = header.iter().position(|name| *name == STATE).filter(|_| self.colors == Colors::Shown);
        let colored: Vec<Option<&str>> =
            rows.iter().map(|row| state.and_then(|index| color_of(&row[index]))).collect();
        let text = table(header, rows);
        // Coloured after alignment, because escape sequences would shift the columns.
        let lines = text.lines().enumerate().map(|(number, line)| {
            match number.checked_sub(1).and_then(|row| colored.get(row).copied().flatten()) {
                Some(color) => format!("\u{1b}[{color}m{line}\u{1b}[0m"),
                None => line.to_owned(),
            }
        });
        self.print_line(&lines.collect::<Vec<_>>().join("\n"))
    }
}

/// The column by which a row is coloured.
const STATE: &str = "STATE";

/// States that need attention are coloured.
fn color_of(state: &str) -> Option<&'static str> {
    const RED: &str = "31";
    const YELLOW: &str = "33";
    const GREY: &str = "90";
    let begins = |words: &[&str]| words.iter().any(|word| state.starts_with(word));
    match state {
        _ if begins(&["failed", "gave up", "unknown", "revoked", "dead"]) => Some(RED),
        _ if state.ends_with('?') || begins(&["away", "no answer", "draining"]) => Some(YELLOW),
        _ if begins(&["open", "changing", "starting", "stopping", "restarting", "reloading"]) => Some(YELLOW),
        _ if begins(&["stopped", "left"]) => Some(GREY),
        _ => None,
    }
}

impl fmt::Debug for Console<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console").field("progress", &self.progress).finish_non_exhaustive()
    }
}

pub(crate) fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| if cell.is_empty() { "-".to_owned() } else { plain(&cell) }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// One line without control characters. Messages contain text of hosts and processes, which must not send
/// escape sequences to the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Like [`plain`], but keeps the lines of a text such as a command's output.
pub(crate) fn plain_lines(text: &str) -> String {
    text.trim().lines().map(plain).collect::<Vec<_>>().join("\n    ")
}

/// The time since `then`, in one unit. `then` is 0 if it never happened.
pub(crate) fn age(then: i64, now: i64) -> String {
    if then == 0 { "-".to_owned() } else { span(now.saturating_sub(then)) }
}

pub(crate) fn span(secs: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    // Clocks differ slightly, so a time in the future counts as now.
    let secs = secs.max(0);
    match secs {
        _ if secs < 2 * MINUTE => format!("{secs}s"),
        _ if secs < 2 * HOUR => format!("{}m", secs / MINUTE),
        _ if secs < 2 * DAY => format!("{}h", secs / HOUR),
        _ => format!("{}d", secs / DAY),
    }
}

pub(crate) fn yes_no(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages() {
        for (then, text) in [
            (0, "-"),
            (1_000_000, "0s"),
            (1_000_005, "0s"),
            (999_881, "119s"),
            (999_880, "2m"),
            (1_000_000 - 7_200, "2h"),
            (1_000_000 - 86_400, "24h"),
            (1_000_000 - 172_800, "2d"),
        ] {
            assert_eq!(age(then, 1_000_000), text, "{then}");
        }
    }

    #[test]
    fn a_table_has_no_frame_no_trailing_spaces_and_no_control_characters() {
        let text = table(
            ["HOST", "NOTE"],
            vec![
                ["0:127.0.0.1".to_owned(), "bad\n\u{1b}[31mred".to_owned()],
                ["1:10.0.0.1".to_owned(), String::new()],
            ],
        );
        assert_eq!(text, "HOST         NOTE\n0:127.0.0.1  bad  [31mred\n1:10.0.0.1   -");
    }

    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn output(line: &str) -> OutputFlag {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            output: OutputFlag,
        }
        <Command as clap::Parser>::parse_from(std::iter::once("x").chain(line.split_whitespace())).output
    }

    fn with<T>(out: &mut dyn Write, act: impl FnOnce(&mut Console<'_>) -> T) -> T {
        let (mut input, mut err) = (std::io::empty(), std::io::sink());
        act(&mut Console {
            input: &mut input,
            out,
            err: &mut err,
            progress: ProgressDisplay::Lines,
            prompts: Prompts::Forbidden,
            colors: Colors::Plain,
            zone: TimeZone::fixed(jiff::tz::offset(8)),
            now: 0,
            pace: PollPace::default(),
        })
    }

    #[test]
    fn a_closed_pipe_is_not_an_error() {
        assert!(with(&mut Closed, |console| console.print_line("x")).is_ok());
    }

    #[test]
    fn moments_are_local_or_utc() {
        let moment = |line: &str| {
            with(&mut std::io::sink(), |console| {
                console.apply_flags(output(line));
                console.moment(1_763_240_040)
            })
        };
        assert_eq!(moment(""), "2025-11-16T04:54:00+08:00");
        assert_eq!(moment("--utc"), "2025-11-15T20:54:00Z");
    }

    #[test]
    fn colours_are_shown_on_a_terminal_or_by_flag() {
        let table = |line: &str, colors: Colors| {
            let mut out = Vec::new();
            let rows = vec![["running".to_owned()], ["gave up".to_owned()]];
            with(&mut out, |console| {
                console.colors = colors;
                console.apply_flags(output(line));
                console.table(["STATE"], rows, "").expect("written");
            });
            String::from_utf8(out).expect("text")
        };
        let (plain, colored) = ("STATE\nrunning\ngave up\n", "STATE\nrunning\n\u{1b}[31mgave up\u{1b}[0m\n");
        for (line, colors, expected) in [
            ("", Colors::Plain, plain),
            ("", Colors::Shown, colored),
            ("--no-color x", Colors::Shown, plain),
            ("--color never", Colors::Shown, plain),
            ("--color always", Colors::Plain, colored),
            ("--color always --no-color x", Colors::Plain, colored),
        ] {
            assert_eq!(table(line, colors), expected, "{line} {colors:?}");
        }
    }
}
