//! Shell completions and man pages, generated from the command line's definition.

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use procfleet_program::print;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// The shell that reads it
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct Man {
    /// The directory for one page per verb, such as /usr/local/share/man/man1; without it, the first page is
    /// printed
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &Completions, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "procfleet", &mut script);
    print(&script).context("writing the script")
}

pub(crate) fn man(args: &Man, mut command: Command) -> Result<()> {
    command.build();
    match &args.dir {
        None => print(&page(&command)?).context("writing the page"),
        Some(dir) => {
            std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
            write_pages(&command, "procfleet", dir)
        }
    }
}

/// `procfleet.1`, `procfleet-task.1`, `procfleet-task-list.1` and so on.
fn write_pages(command: &Command, name: &str, dir: &Path) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    let page = page(&command.clone().display_name(name.to_owned()))?;
    std::fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set() && verb.get_name() != "help");
    for verb in verbs {
        write_pages(verb, &format!("{name}-{}", verb.get_name()), dir)?;
    }
    Ok(())
}

fn page(command: &Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).context("making a page")?;
    Ok(page)
}
