//! The flags that every administrative verb has, and the one way to show an answer.

use crate::client::ReplyData;
use crate::output::{Format, OutputFlag};
use crate::{ConnectionFlags, Console, Error, VerbExit};
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

    /// For a call without parameters.
    pub(super) fn post_empty(&self, path: &str) -> Result<ReplyData, Error> {
        self.post(path, &json!({}))
    }

    /// Prints the answer as JSON, or with `text`.
    pub(super) fn show(
        &self,
        console: &mut Console<'_>,
        answer: &ReplyData,
        text: impl FnOnce(&mut Console<'_>, &ReplyData) -> Result<(), Error>,
    ) -> Result<VerbExit, Error> {
        match self.output.format() {
            Format::Json => console.json(&answer.data)?,
            Format::Text => text(console, answer)?,
        }
        Ok(VerbExit::Done)
    }
}
