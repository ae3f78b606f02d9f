//! `procfleet store`: backups of the server's store, and its copy to PostgreSQL.

use crate::store_argument::StoreArgument;
use anyhow::{Context, Result};
use procfleet_program::print;
use procfleet_server::{STORE, ServerError};
use procfleet_store::{CopyOrigin, CopySource, TableComparison};
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
    /// Copy the server's store to a PostgreSQL database that no server has used yet
    ///
    /// Every row is read back and compared before the copy is committed, in one transaction: a copy that is
    /// interrupted changes nothing, and a repeated copy replaces the one before. The server may be running;
    /// what it stores afterwards is not in the copy, so stop it and copy again before the switch.
    /// docs/operator/postgres.md has the steps.
    Copy(CopyArgs),
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of the backup
    file: PathBuf,
    /// Data folder of the server
    #[arg(long, env = "PROCFLEET_DATA", default_value = "./procfleet-data")]
    data: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct CopyArgs {
    /// Data folder of the server, or the file of a backup
    #[arg(long, env = "PROCFLEET_DATA", default_value = "./procfleet-data", value_name = "FOLDER")]
    from: PathBuf,
    /// PostgreSQL database: postgres://USER@HOST[,HOST…]/DATABASE[?sslmode=…]. Every user of the machine can
    /// see arguments while a program starts, so put a URL with a password into PROCFLEET_STORE
    #[arg(long, env = crate::store_argument::VARIABLE, value_name = "URL", hide_env_values = true)]
    to: StoreArgument,
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
        StoreVerb::Copy(args) => copy(args)?,
    }
    Ok(())
}

fn copy(CopyArgs { from, to }: CopyArgs) -> Result<()> {
    to.hide("--to").context("executing the program again, without the URL among its arguments")?;
    let url = to.url("--to")?;
    let source = match from.is_dir() {
        true => CopySource::Store(from.join(STORE)),
        false => CopySource::Backup(from.clone()),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("starting the runtime")?;
    let mut output = Ok(());
    let compared = |table: TableComparison| {
        let TableComparison { table, rows, sha256 } = table;
        let sha256: String = sha256.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{table:<20} {rows:>9} rows, the same in both stores (sha256 {sha256}…)\n");
        if output.is_ok() {
            output = print(line);
        }
    };
    let report =
        runtime.block_on(procfleet_store::copy(source, &url, compared)).map_err(ServerError::Store)?;
    output?;
    let (from, to) = (from.display(), url.name());
    print(format!("{to} has the store of {from} now: {} tables, {} rows\n", report.tables, report.rows))?;
    if report.replaced_texts > 0 {
        let texts = report.replaced_texts;
        print(format!(
            "{texts} texts had NUL bytes, which PostgreSQL cannot store; the copy has U+FFFD instead\n"
        ))?;
    }
    Ok(print(match report.origin {
        CopyOrigin::Stopped => format!(
            "start a server with --store on this copy, and with ca.* and admin.json of {from} in its data folder\n"
        ),
        CopyOrigin::Running => format!(
            "a server is using {from}, and what it stores from now on is not in the copy: before the switch, stop it and run this command again\n"
        ),
        CopyOrigin::Backup => format!(
            "{from} is a backup: a server that starts on this copy treats it as a restored one (docs/operator/backup.md)\n"
        ),
    })?)
}
