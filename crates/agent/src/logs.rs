//! Answers to the server's questions about logs. Nothing is run for them, and nothing is written down.

use crate::exec::{Host, Question, Reading, Start};
use procfleet_core::code::Code;
use procfleet_core::id::ProcKey;
use procfleet_proto::link::{LOG_BYTES, LogRead, ReadLog};
use std::sync::Arc;
use std::time::Duration;

/// However long the server would wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(crate) async fn answer(host: Arc<Host>, question: ReadLog) -> LogRead {
    let accounts = question.readers_accounts();
    let ReadLog { id, namespace, name, at, lines, most, wait_ms, beyond, reopen, .. } = question;
    let proc = ProcKey { namespace, name };
    let reading = match reopen {
        true => host.reopen_log(proc, &accounts).await,
        false => {
            let start = at.map_or(Start::Last(lines), Start::At);
            let most = usize::try_from(most).unwrap_or(LOG_BYTES).min(LOG_BYTES);
            let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
            host.read_log(Question { proc, start, most, wait, beyond, accounts }).await
        }
    };
    match reading {
        Ok(Reading { begin, bytes, end, skipped, file, note }) => {
            LogRead { id, code: Code::Success.number(), message: note, begin, bytes, end, skipped, file }
        }
        Err((code, message)) => LogRead { id, code: code.number(), message, ..LogRead::default() },
    }
}
