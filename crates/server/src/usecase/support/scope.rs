//! What the scope of a JOB call stands for: the businesses that it is about.

use crate::usecase::{AppError, Caller, Services};
use procfleet_core::grants::GrantScope;
use procfleet_core::id::BusinessId;
use procfleet_proto::http::fault::Faults;
use procfleet_proto::http::job::{NamedScope, ScopeOf};
use std::collections::BTreeSet;

/// They exist, as far as the caller may know. Whether it may use them is for the use case to ask, together
/// with all else.
pub async fn businesses(
    services: &Services,
    caller: &Caller,
    named: NamedScope,
) -> Result<GrantScope<BusinessId>, AppError> {
    let missing = |what: String| AppError::Faults(Faults::one(named.field, format!("there is no {what}")));
    match named.of {
        // One that is not granted is denied in the same words whether it exists or not.
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
