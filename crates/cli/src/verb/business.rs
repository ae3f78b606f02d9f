//! `procfleet business`: the businesses that hosts belong to.

use super::common::CommonFlags;
use crate::{Console, Error, VerbExit};
use procfleet_core::id::BusinessId;
use procfleet_proto::http::native::{BusinessRow, BusinessSetRow};

#[derive(Clone, Debug, clap::Subcommand)]
pub enum BusinessVerb {
    /// Create a business
    Create(BusinessCreate),
    /// List the businesses
    List(CommonFlags),
    /// Create a set of businesses
    SetCreate(SetCreate),
    /// List the sets of businesses
    SetList(CommonFlags),
}

#[derive(Clone, Debug, clap::Args)]
pub struct BusinessCreate {
    /// Number of the business, from 1
    #[arg(value_name = "ID")]
    pub id: BusinessId,
    /// Name of the business
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub common: CommonFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct SetCreate {
    /// Number of the set, from 1
    #[arg(value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    pub id: u32,
    /// Name of the set
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Business of the set; repeatable
    #[arg(long = "business", value_name = "N", required = true)]
    pub businesses: Vec<BusinessId>,
    #[command(flatten)]
    pub common: CommonFlags,
}

impl BusinessVerb {
    pub(crate) fn run(&self, console: &mut Console<'_>) -> Result<VerbExit, Error> {
        match self {
            BusinessVerb::Create(BusinessCreate { id, name, common }) => {
                let wanted = BusinessRow { bk_biz_id: id.0, bk_biz_name: name.clone() };
                let answer = common.post("/api/v1/businesses", &wanted)?;
                common.show(console, &answer, |console, answer| show(console, &[answer.read()?]))
            }
            BusinessVerb::List(common) => {
                let answer = common.get("/api/v1/businesses")?;
                common.show(console, &answer, |console, answer| show(console, &answer.read::<Vec<_>>()?))
            }
            BusinessVerb::SetCreate(SetCreate { id, name, businesses, common }) => {
                let wanted = BusinessSetRow {
                    bk_biz_set_id: *id,
                    bk_biz_set_name: name.clone(),
                    bk_biz_ids: businesses.iter().map(|business| business.0).collect(),
                };
                let answer = common.post("/api/v1/business_sets", &wanted)?;
                common.show(console, &answer, |console, answer| show_sets(console, &[answer.read()?]))
            }
            BusinessVerb::SetList(common) => {
                let answer = common.get("/api/v1/business_sets")?;
                common.show(console, &answer, |console, answer| show_sets(console, &answer.read::<Vec<_>>()?))
            }
        }
    }
}

fn show(console: &mut Console<'_>, rows: &[BusinessRow]) -> Result<(), Error> {
    let cells = |row: &BusinessRow| [row.bk_biz_id.to_string(), row.bk_biz_name.clone()];
    console.table(["BUSINESS", "NAME"], rows.iter().map(cells).collect(), "no businesses")
}

fn show_sets(console: &mut Console<'_>, rows: &[BusinessSetRow]) -> Result<(), Error> {
    let cells = |row: &BusinessSetRow| {
        let members: Vec<String> = row.bk_biz_ids.iter().map(u32::to_string).collect();
        [row.bk_biz_set_id.to_string(), row.bk_biz_set_name.clone(), members.join(", ")]
    };
    console.table(["SET", "NAME", "BUSINESSES"], rows.iter().map(cells).collect(), "no business sets")
}
