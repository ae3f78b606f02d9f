//! Resolves the scope of a JOB call to businesses.

use crate::usecase::{AppError, Caller, Services};
use procfleet_core::grants::GrantScope;
use procfleet_core::id::BusinessId;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::job::{NamedScope, ScopeOf};
use std::collections::BTreeSet;

/// The businesses exist, as far as the caller may know. The use case checks the caller's right to use them,
/// together with its other checks.
pub async fn businesses(
    services: &Services,
    caller: &Caller,
    named: NamedScope,
) -> Result<GrantScope<BusinessId>, AppError> {
    let missing = |what: String| AppError::Faults(Faults::one(named.field, format!("there is no {what}")));
    match named.of {
        // A business that is not granted is denied with the same message whether it exists or not.
        ScopeOf::Business(id) if !caller.rights.businesses().allows(&id) => Ok(only([id])),
        ScopeOf::Business(id) => {
            let known = services.store.businesses().await?.iter().any(|business| business.id == id);
            known.then(|| only([id])).ok_or_else(|| missing(format!("business {id}")))
        }
        ScopeOf::Set(id) => {
            let set = services.store.business_sets().await?.into_iter().find(|set| set.id == id);
            set.map(|set| only(set.businesses)).ok_or_else(|| missing(format!("business set {id}")))
        }
    }
}

fn only(businesses: impl IntoIterator<Item = BusinessId>) -> GrantScope<BusinessId> {
    GrantScope::Only(businesses.into_iter().collect::<BTreeSet<_>>())
}
