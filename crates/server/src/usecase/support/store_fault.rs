//! Errors of the store that are faults of the request.

use crate::usecase::AppError;
use procfleet_proto::http::fault::Faults;
use procfleet_store::StoreError;

/// An object that exists already, or is missing, is a fault of the request.
pub(in crate::usecase) fn as_fault(error: StoreError) -> AppError {
    match error {
        StoreError::Exists { .. } | StoreError::Missing { .. } | StoreError::NoSuchAgent(_) => {
            let mut faults = Faults::default();
            faults.add("", error.to_string());
            faults.into()
        }
        other => other.into(),
    }
}
