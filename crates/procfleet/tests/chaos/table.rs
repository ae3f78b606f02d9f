//! The printed table: a row for each game.

use crate::history::Verdict;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) name: String,
    rounds: u64,
    verdict: Option<Verdict>,
    /// Faults that the history does not count.
    trouble: Vec<String>,
    /// Why it was not played.
    left_out: Option<String>,
}

impl Row {
    /// The game could not be played to its end; the output before it says why.
    pub(crate) fn broken_off(name: &str) -> Row {
        let trouble = vec!["broken off".to_owned()];
        Row { name: name.to_owned(), rounds: 0, verdict: None, trouble, left_out: None }
    }

    /// The game cannot be played on this machine.
    pub(crate) fn left_out(name: &str, why: &str) -> Row {
        let left_out = Some(why.to_owned());
        Row { name: name.to_owned(), rounds: 0, verdict: None, trouble: Vec::new(), left_out }
    }

    pub(crate) fn played(name: &str, rounds: u64, verdict: Verdict, trouble: Vec<String>) -> Row {
        Row { name: name.to_owned(), rounds, verdict: Some(verdict), trouble, left_out: None }
    }

    /// No op may have ended so.
    pub(crate) fn must_not_end_with(&mut self, code: u64) {
        let count = self.verdict.as_ref().and_then(|verdict| verdict.codes.get(&code));
        self.trouble.extend(count.map(|count| format!("{count} ops have ended with {code}")));
    }

    pub(crate) fn is_well(&self) -> bool {
        let well = self.verdict.as_ref().is_some_and(Verdict::is_well) || self.left_out.is_some();
        self.trouble.is_empty() && well
    }

    pub(crate) fn line(&self) -> String {
        let Some(verdict) = &self.verdict else {
            let why = self.left_out.clone().unwrap_or_else(|| self.trouble.join("; "));
            return format!("| {} | 0 | | | | | | {why} |", self.name);
        };
        let codes: Vec<String> =
            verdict.codes.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        let mut line = format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            self.name,
            self.rounds,
            verdict.ops,
            verdict.lost,
            verdict.twice,
            verdict.without,
            verdict.untrue,
            codes.join(", ")
        );
        for note in verdict.notes.iter().chain(&self.trouble) {
            let _ = write!(line, "\n    {note}");
        }
        line
    }
}

pub(crate) fn text(rows: &[Row]) -> String {
    let mut text =
        "| point | rounds | ops | lost | run twice | without outcome | untrue | outcomes by code |\n\
                    |---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for row in rows {
        let _ = writeln!(text, "{}", row.line());
    }
    let verdicts = rows.iter().filter_map(|row| row.verdict.as_ref());
    let examples: BTreeMap<u64, &String> =
        verdicts.flat_map(|verdict| verdict.examples.iter().map(|(code, said)| (*code, said))).collect();
    for (code, said) in examples {
        let _ = writeln!(text, "{code}: {said}");
    }
    text
}
