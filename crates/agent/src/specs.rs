//! Answers the server's queries for stored specs. It runs no command and stores nothing.

use crate::exec::ExecContext;
use crate::journal::Journal;
use procfleet_core::code::Code;
use procfleet_core::grants::GrantScope;
use procfleet_core::id::ProcKey;
use procfleet_core::op::OpKind;
use procfleet_core::spec::Spec;
use procfleet_proto::link::{MAX_FRAME, OmittedAccounts, ReadSpec, SpecRead};
use std::sync::Arc;

/// A larger spec does not fit a frame. Requests are limited to less; only many changes of single fields add
/// up to more.
const LARGEST: usize = MAX_FRAME - 4 * 1024;

pub(crate) async fn answer(
    context: Arc<ExecContext>,
    journal: Journal,
    question: ReadSpec,
    omitted: OmittedAccounts,
) -> SpecRead {
    let accounts = question.readable_accounts(omitted);
    let ReadSpec { id, namespace, name, .. } = question;
    let proc = ProcKey { namespace, name };
    let answer = match (context.allow().refusal(OpKind::Query, None), accounts) {
        (Some(reason), _) => Err((Code::NotAllowed, reason)),
        (None, Err(fault)) => Err((Code::ArgsInvalid, format!("the server sent {fault}"))),
        (None, Ok(accounts)) => match journal.spec(proc.clone()).await {
            Ok(Some(spec)) => readable(&spec, &accounts),
            Ok(None) => Err((Code::NoSpec, format!("no spec of {proc} is stored on this host"))),
            Err(failure) => Err((Code::SystemError, format!("the journal cannot be read: {failure}"))),
        },
    };
    match answer {
        Ok(spec) => SpecRead { id, code: Code::Success.number(), message: String::new(), spec },
        Err((code, message)) => SpecRead { id, code: code.number(), message, spec: Vec::new() },
    }
}

fn readable(spec: &Spec, accounts: &GrantScope<String>) -> Result<Vec<u8>, (Code, String)> {
    let user = &spec.identity.user;
    if !accounts.allows(user) {
        let reason = format!("the spec is of user {user:?}, and the app may not use that account");
        return Err((Code::NotAllowed, reason));
    }
    let json = serde_json::to_vec(spec).map_err(|failure| (Code::SystemError, failure.to_string()))?;
    match json.len() {
        size if size > LARGEST => {
            Err((Code::BeyondLimit, format!("the spec has {size} bytes, and at most {LARGEST} can be sent")))
        }
        _ => Ok(json),
    }
}
