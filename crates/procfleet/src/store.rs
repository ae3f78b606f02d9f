//! `procfleet store`: backups of the server's store.

use anyhow::Result;
use procfleet_program::print;
use procfleet_server::{STORE, ServerError};
use std::path::PathBuf;

#[derive(clap::Subcommand)]
pub(crate) enum StoreVerb {
    /// Copy the server's store to a new file; the server may be running
    Backup(Args),
    /// Restore a backup of the server's store; the server must not be running
    ///
    /// The backup is checked first. The present store is moved aside, with its write-ahead log.
    /// docs/operator/backup.md describes the effects on agents, events and tasks that are newer than the
    /// backup.
    Restore(Args),
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of the backup
    file: PathBuf,
    /// Data folder of the server
    #[arg(long, env = "PROCFLEET_DATA", default_value = "./procfleet-data")]
    data: PathBuf,
}

pub(crate) fn run(verb: StoreVerb) -> Result<()> {
    match verb {
        StoreVerb::Backup(Args { file, data }) => {
            let bytes = procfleet_store::backup(&data.join(STORE), &file).map_err(ServerError::Store)?;
            print(format!("{} holds the store of {}: {bytes} bytes\n", file.display(), data.display()))?;
            print("keep it together with ca.* and admin.json of the same folder\n")?;
        }
        StoreVerb::Restore(Args { file, data }) => {
            let aside = procfleet_store::restore(&data.join(STORE), &file).map_err(ServerError::Store)?;
            print(format!("{} has the store of {} now\n", data.display(), file.display()))?;
            if let Some(aside) = aside {
                print(format!("the store that was there is {}\n", aside.display()))?;
            }
        }
    }
    Ok(())
}
