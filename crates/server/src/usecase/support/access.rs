//! Access control of callers, and the audit record of denied calls.

use crate::usecase::{AppError, Caller, Services, audit};
use crate::workers::refusals::RefusalSource;
use procfleet_core::code::Code;
use procfleet_core::grants::{self, Denial, GrantScope, Rights};
use procfleet_core::id::BusinessId;
use procfleet_core::request::Request;

/// Maximum number of denials in a message.
const SHOWN: usize = 50;

/// Checks the businesses, namespaces, operations and accounts of all requests. Hosts are checked one by one
/// later.
pub fn permit(
    caller: &Caller,
    requests: &[Request],
    within: &GrantScope<BusinessId>,
) -> Result<(), AppError> {
    refuse(caller, &grants::denials(&caller.rights, requests, within))
}

pub fn permit_namespace(caller: &Caller, namespace: &str) -> Result<(), AppError> {
    match caller.rights.allows_namespace(namespace) {
        true => Ok(()),
        false => refuse(caller, &[Denial::Namespace(namespace.to_owned())]),
    }
}

/// Checks the right to read the output of processes in this namespace.
pub fn permit_reading(caller: &Caller, namespace: &str) -> Result<(), AppError> {
    refuse(caller, &grants::reading_denials(&caller.rights, namespace))
}

pub fn administrators_only(caller: &Caller, api: &str) -> Result<(), AppError> {
    match *caller.rights {
        Rights::Administrator => Ok(()),
        Rights::Granted(_) => {
            let reason = format!("app {:?} may not use {api}: it is for administrators only", caller.app);
            Err(AppError::Denied { reason, missing: Vec::new() })
        }
    }
}

/// Whether the caller may see the output of processes of this OS account: notes and messages may contain
/// output, too. The account is empty if it is unknown.
pub(in crate::usecase) fn may_see_output_of(caller: &Caller, account: &str) -> bool {
    match caller.rights.accounts() {
        GrantScope::All => true,
        GrantScope::Only(some) => some.contains(account),
    }
}

/// Whether the caller may read the tasks of this app.
pub(in crate::usecase) fn may_read_tasks_of(caller: &Caller, app: &str) -> bool {
    match *caller.rights {
        Rights::Administrator => true,
        Rights::Granted(_) => caller.app == app,
    }
}

/// Records a denied call in the audit log, although it changed nothing.
pub async fn record_denied(services: &Services, caller: &Caller, api: &'static str, reason: &str) {
    let mut entry = audit::entry(services, caller, api, "", reason.to_owned());
    entry.code = Code::AppDenied.external();
    services.refusals.record(RefusalSource::App(caller.app.clone()), entry).await;
}

fn refuse(caller: &Caller, denials: &[Denial]) -> Result<(), AppError> {
    if denials.is_empty() {
        return Ok(());
    }
    let missing: Vec<Denial> = denials.iter().take(SHOWN).cloned().collect();
    let named: Vec<String> = missing.iter().map(Denial::to_string).collect();
    let more = match denials.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    let reason = format!("app {:?} may not use {}{more}", caller.app, named.join("; "));
    Err(AppError::Denied { reason, missing })
}
