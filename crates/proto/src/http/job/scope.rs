//! The business, or set of businesses, of a call: `bk_biz_id`, or `bk_scope_type` with `bk_scope_id`.

use crate::http::fault::Faults;
use crate::http::read::Reader;
use procfleet_core::id::BusinessId;

/// A scope as a caller names it. Whether the business exists is checked later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedScope {
    pub of: ScopeOf,
    /// The JSON path of the scope in the request, for faults.
    pub field: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeOf {
    Business(BusinessId),
    /// A business set.
    Set(u32),
}

const BUSINESS: &str = "bk_biz_id";
const TYPE: &str = "bk_scope_type";
const ID: &str = "bk_scope_id";

/// `None`: there was a fault.
pub(super) fn read(reader: &Reader<'_>, faults: &mut Faults) -> Option<NamedScope> {
    reader.either(&[&[BUSINESS], &[TYPE, ID]]);
    let business = read_id(reader, BUSINESS, faults).map(BusinessId);
    let scope = read_pair(reader, faults);
    let business = reader.has(BUSINESS).then_some(business);
    let scope = (reader.has(TYPE) || reader.has(ID)).then_some(scope);
    match (business, scope) {
        (None, None) => {
            faults.add(BUSINESS, format!("is required (or {TYPE} and {ID})"));
            None
        }
        (Some(business), None) => Some(NamedScope { of: ScopeOf::Business(business?), field: BUSINESS }),
        (None, Some(of)) => Some(NamedScope { of: of?, field: ID }),
        (Some(business), Some(of)) => {
            let (business, of) = (business?, of?);
            if of != ScopeOf::Business(business) {
                let reason = format!("names business {business}, and {TYPE} with {ID} name another scope");
                faults.add(BUSINESS, reason);
            }
            Some(NamedScope { of, field: BUSINESS })
        }
    }
}

fn read_pair(reader: &Reader<'_>, faults: &mut Faults) -> Option<ScopeOf> {
    match (reader.has(TYPE), reader.has(ID)) {
        (true, false) => reader.missing(ID, faults),
        (false, true) => reader.missing(TYPE, faults),
        (true, true) | (false, false) => {}
    }
    let kind = reader.text(TYPE, 16, faults);
    let id = read_id(reader, ID, faults);
    match kind.as_str() {
        "biz" => Some(ScopeOf::Business(BusinessId(id?))),
        "biz_set" => Some(ScopeOf::Set(id?)),
        other => {
            if reader.is_text(TYPE) {
                faults.add(TYPE, format!("is {other:?}, must be \"biz\" or \"biz_set\""));
            }
            None
        }
    }
}

fn read_id(reader: &Reader<'_>, field: &str, faults: &mut Faults) -> Option<u32> {
    reader.integer(field, 1..=i64::from(u32::MAX), faults).and_then(|id| u32::try_from(id).ok())
}
