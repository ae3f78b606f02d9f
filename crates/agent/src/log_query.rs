//! Answers the server's queries for logs. It runs no command and stores nothing.

use crate::exec::{ExecContext, LogExcerpt, LogQuestion, Start};
use procfleet_core::code::Code;
use procfleet_core::id::ProcKey;
use procfleet_proto::link::{LOG_BYTES, LogRead, OmittedAccounts, ReadLog};
use std::sync::Arc;
use std::time::Duration;

/// The answer to a server of an earlier version that wants a renamed log to get its name back.
const NO_REOPENING: &str = "this agent gives no renamed log its name back any more; the agent rotates logs itself \
    (--log-size, --log-keep), and an outside logrotate needs copytruncate";
/// Maximum wait, whatever the server asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(crate) async fn answer(
    context: Arc<ExecContext>,
    question: ReadLog,
    omitted: OmittedAccounts,
) -> LogRead {
    let accounts = question.readable_accounts(omitted);
    let ReadLog { id, namespace, name, at, lines, most, wait_ms, beyond, reopen, .. } = question;
    let proc = ProcKey { namespace, name };
    let reading = match (reopen, accounts) {
        (true, _) => Err((Code::UnknownOp, NO_REOPENING.to_owned())),
        (false, Err(fault)) => Err((Code::ArgsInvalid, format!("the server sent {fault}"))),
        (false, Ok(accounts)) => {
            let start = at.map_or(Start::Last(lines), Start::At);
            let most = usize::try_from(most).unwrap_or(LOG_BYTES).min(LOG_BYTES);
            let wait = Duration::from_millis(wait_ms).min(LONGEST_WAIT);
            context.read_log(LogQuestion { proc, start, most, wait, beyond, accounts }).await
        }
    };
    match reading {
        Ok(LogExcerpt { begin, bytes, end, skipped, file, note }) => {
            LogRead { id, code: Code::Success.number(), message: note, begin, bytes, end, skipped, file }
        }
        Err((code, message)) => LogRead { id, code: code.number(), message, ..LogRead::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Containment;

    #[tokio::test]
    async fn a_request_to_reopen_a_log_from_an_earlier_server_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let context =
            Arc::new(ExecContext::open(folder.path().join("output"), Containment::Auto).expect("a context"));
        let question = ReadLog {
            id: 7,
            namespace: "web".to_owned(),
            name: "nginx".to_owned(),
            reopen: true,
            ..ReadLog::default()
        };
        let answer = answer(context, question, OmittedAccounts::MeanEverybody).await;
        assert_eq!((answer.id, answer.code), (7, Code::UnknownOp.number()));
        assert!(answer.message.contains("copytruncate"), "{answer:?}");
    }

    #[tokio::test]
    async fn a_question_without_accounts_is_refused_if_the_server_always_states_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let context =
            Arc::new(ExecContext::open(folder.path().join("output"), Containment::Auto).expect("a context"));
        let question = ReadLog { id: 7, namespace: "web".to_owned(), ..ReadLog::default() };
        let answer = answer(context, question, OmittedAccounts::AreRefused).await;
        assert_eq!((answer.id, answer.code), (7, Code::ArgsInvalid.number()));
        assert!(answer.message.contains("accounts"), "{answer:?}");
    }
}
