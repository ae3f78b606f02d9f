//! What people and scripts see: tables, ages, JSON. Nothing here knows a verb.

use crate::error::Error;
use comfy_table::{Table, presets};
use std::fmt;
use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::time::Duration;

/// Everything a verb touches beside the server. Made once by [`run`](crate::run), or by a test.
pub struct Surroundings<'a> {
    /// Read for `-f -`.
    pub input: &'a mut dyn Read,
    /// Results, and with `--json` nothing but one document.
    pub out: &'a mut dyn Write,
    /// Progress, hints and errors.
    pub err: &'a mut dyn Write,
    pub progress: Progress,
    /// Seconds since 1970, UTC: what ages are counted to.
    pub now: i64,
    pub pace: Pace,
}

/// How the ops of a waited-for task are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A bar on the process's stderr, for a person who watches.
    Bar,
    /// A line for each op that ended.
    Lines,
}

/// How often a client that waits bothers its server.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The least time between two questions: ops that end one by one would otherwise cause an answer each, and
    /// each answer lists all of them.
    pub between: Duration,
    /// The pause after the server could not be reached, and how many of them in a row are borne.
    pub pause: Duration,
    pub tries: u32,
}

impl Default for Pace {
    /// A restart of the server takes a few seconds; a minute covers a slow one.
    fn default() -> Self {
        Pace { between: Duration::from_millis(150), pause: Duration::from_secs(1), tries: 60 }
    }
}

/// `--json` or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// The flag that every verb has.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Output {
    /// Print the answer as one JSON document
    #[arg(long)]
    pub json: bool,
}

impl Output {
    pub(crate) fn format(self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }
}

impl<'a> Surroundings<'a> {
    pub(crate) fn of_process(
        input: &'a mut dyn Read,
        out: &'a mut dyn Write,
        err: &'a mut dyn Write,
    ) -> Surroundings<'a> {
        let progress = if std::io::stderr().is_terminal() { Progress::Bar } else { Progress::Lines };
        let now = jiff::Timestamp::now().as_second();
        Surroundings { input, out, err, progress, now, pace: Pace::default() }
    }

    /// A line of the result.
    pub(crate) fn say(&mut self, text: &str) -> Result<(), Error> {
        match writeln!(self.out, "{text}").and_then(|()| self.out.flush()) {
            // Whoever read it has seen enough (`procfleet ps | head`). The exit still tells how the ops ended.
            Err(fault) if fault.kind() == ErrorKind::BrokenPipe => Ok(()),
            written => written.map_err(Error::Output),
        }
    }

    /// A line beside the result. If even stderr is closed there is nobody left to tell.
    pub(crate) fn note(&mut self, text: &str) {
        let _ = writeln!(self.err, "{text}");
    }

    pub(crate) fn json(&mut self, data: &serde_json::Value) -> Result<(), Error> {
        let text = serde_json::to_string_pretty(data).expect("a JSON value has only text keys");
        self.say(&text)
    }

    /// Nothing on stdout when there are no rows, so that scripts see no lines rather than a header.
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
        self.say(&table(header, rows))
    }
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").field("progress", &self.progress).finish_non_exhaustive()
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

/// One line without control characters. Messages come from hosts and from what runs there; they must not be able
/// to move the cursor of the person who reads them.
pub(crate) fn plain(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The same for a text whose lines are worth keeping, such as a command's output.
pub(crate) fn plain_lines(text: &str) -> String {
    text.trim().lines().map(plain).collect::<Vec<_>>().join("\n    ")
}

/// How long ago something was, in one unit that says enough. 0 is the time of what never happened.
pub(crate) fn age(then: i64, now: i64) -> String {
    if then == 0 { "-".to_owned() } else { span(now.saturating_sub(then)) }
}

pub(crate) fn span(secs: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    // Two clocks never agree fully: what is not yet has just been.
    let secs = secs.max(0);
    match secs {
        _ if secs < 2 * MINUTE => format!("{secs}s"),
        _ if secs < 2 * HOUR => format!("{}m", secs / MINUTE),
        _ if secs < 2 * DAY => format!("{}h", secs / HOUR),
        _ => format!("{}d", secs / DAY),
    }
}

/// A moment for people, in UTC because the hosts of a fleet share no other.
pub(crate) fn moment(secs: i64) -> String {
    jiff::Timestamp::from_second(secs).map_or_else(|_| secs.to_string(), |at| at.to_string())
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

    #[test]
    fn moments_are_utc() {
        assert_eq!(moment(1_763_240_040), "2025-11-15T20:54:00Z");
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

    #[test]
    fn a_reader_that_left_is_no_error() {
        let (mut input, mut err) = (std::io::empty(), std::io::sink());
        let mut around = Surroundings {
            input: &mut input,
            out: &mut Closed,
            err: &mut err,
            progress: Progress::Lines,
            now: 0,
            pace: Pace::default(),
        };
        assert!(around.say("x").is_ok());
    }
}
