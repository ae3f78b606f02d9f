//! Businesses, business sets, and the agents of each business.

use procfleet_core::BusinessId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Business {
    pub id: BusinessId,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusinessSet {
    pub id: u32,
    pub name: String,
    pub businesses: Vec<BusinessId>,
}
