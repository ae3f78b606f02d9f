//! The flags that every administrative verb has, and the one way to show an answer.

use crate::client::ReplyData;
use crate::output::{Format, OutputFlag};
use crate::{ConnectionFlags, Error, Surroundings, VerbExit};
use serde::Serialize;
use serde_json::json;

#[derive(Clone, Debug, clap::Args)]
pub struct CommonFlags {
    #[command(flatten)]
    pub output: OutputFlag,
    #[command(flatten)]
    pub connection: ConnectionFlags,
}

impl CommonFlags {
    pub(super) fn get(&self, path: &str) -> Result<ReplyData, Error> {
        self.connection.client()?.get(path, &[])
    }

    pub(super) fn post(&self, path: &str, body: &impl Serialize) -> Result<ReplyData, Error> {
        self.connection.client()?.post(path, body)
    }

    /// For a call that needs no more than its path.
    pub(super) fn post_empty(&self, path: &str) -> Result<ReplyData, Error> {
        self.post(path, &json!({}))
    }

    /// Prints the answer as JSON, or as `text` does it.
    pub(super) fn show(
        &self,
        around: &mut Surroundings<'_>,
        answer: &ReplyData,
        text: impl FnOnce(&mut Surroundings<'_>, &ReplyData) -> Result<(), Error>,
    ) -> Result<VerbExit, Error> {
        match self.output.format() {
            Format::Json => around.json(&answer.data)?,
            Format::Text => text(around, answer)?,
        }
        Ok(VerbExit::Done)
    }
}
