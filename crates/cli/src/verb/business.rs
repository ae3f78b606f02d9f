//! `procfleet business`: whose hosts they are.

use crate::output::{Format, OutputFlag};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use procfleet_core::id::BusinessId;
use procfleet_proto::http::native::{BusinessRow, BusinessSetRow};

#[derive(Clone, Debug, clap::Subcommand)]
pub enum BusinessVerb {
    /// Make a business
    Create(BusinessCreate),
    /// Show the businesses
    List(BusinessList),
    /// Make a set of businesses
    SetCreate(SetCreate),
    /// Show the sets of businesses
    SetList(BusinessList),
}

#[derive(Clone, Debug, clap::Args)]
pub struct BusinessCreate {
    /// Its number, from 1 on
    #[arg(value_name = "ID")]
    pub id: BusinessId,
    #[arg(value_name = "NAME")]
    pub name: String,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct SetCreate {
    /// Its number, from 1 on
    #[arg(value_name = "ID", value_parser = clap::value_parser!(u32).range(1..))]
    pub id: u32,
    #[arg(value_name = "NAME")]
    pub name: String,
    /// A business of the set; may be given several times
    #[arg(long = "business", value_name = "N", required = true)]
    pub businesses: Vec<BusinessId>,
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
pub struct BusinessList {
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl BusinessVerb {
    pub(crate) fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        match self {
            BusinessVerb::Create(create) => create.run(around),
            BusinessVerb::List(list) => list.run(around),
            BusinessVerb::SetCreate(create) => create.run(around),
            BusinessVerb::SetList(list) => list.run_sets(around),
        }
    }
}

impl BusinessCreate {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let wanted = BusinessRow { bk_biz_id: self.id.0, bk_biz_name: self.name.clone() };
        let answer = self.connection.client()?.post("/api/v1/businesses", &wanted)?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => show(around, &[answer.read()?])?,
        }
        Ok(VerbExit::Done)
    }
}

impl SetCreate {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let wanted = BusinessSetRow {
            bk_biz_set_id: self.id,
            bk_biz_set_name: self.name.clone(),
            bk_biz_ids: self.businesses.iter().map(|business| business.0).collect(),
        };
        let answer = self.connection.client()?.post("/api/v1/business_sets", &wanted)?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => show_sets(around, &[answer.read()?])?,
        }
        Ok(VerbExit::Done)
    }
}

impl BusinessList {
    fn run(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let answer = self.connection.client()?.get("/api/v1/businesses", &[])?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => show(around, &answer.read::<Vec<BusinessRow>>()?)?,
        }
        Ok(VerbExit::Done)
    }

    fn run_sets(&self, around: &mut Surroundings<'_>) -> Result<VerbExit, Error> {
        let answer = self.connection.client()?.get("/api/v1/business_sets", &[])?;
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => show_sets(around, &answer.read::<Vec<BusinessSetRow>>()?)?,
        }
        Ok(VerbExit::Done)
    }
}

fn show(around: &mut Surroundings<'_>, rows: &[BusinessRow]) -> Result<(), Error> {
    let cells = |row: &BusinessRow| [row.bk_biz_id.to_string(), row.bk_biz_name.clone()];
    around.table(["BUSINESS", "NAME"], rows.iter().map(cells).collect(), "no businesses")
}

fn show_sets(around: &mut Surroundings<'_>, rows: &[BusinessSetRow]) -> Result<(), Error> {
    let cells = |row: &BusinessSetRow| {
        let members: Vec<String> = row.bk_biz_ids.iter().map(u32::to_string).collect();
        [row.bk_biz_set_id.to_string(), row.bk_biz_set_name.clone(), members.join(", ")]
    };
    around.table(["SET", "NAME", "BUSINESSES"], rows.iter().map(cells).collect(), "no business sets")
}
