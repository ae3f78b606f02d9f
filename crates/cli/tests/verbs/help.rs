//! The command line, and the page that describes it.

use clap::{Command, Subcommand};
use procfleet_cli::Verb;

fn command() -> Command {
    Verb::augment_subcommands(Command::new("procfleet"))
}

/// Whether a verb has a flag, under its name or another one.
fn has(verb: &Command, flag: &str) -> bool {
    let names = verb.get_arguments().filter_map(clap::Arg::get_long_and_visible_aliases).flatten();
    names.map(|name| format!("--{name}")).any(|name| name == flag)
}

/// The cells of a line of a Markdown table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect()
}

#[test]
fn the_page_knows_which_lists_have_which_flags() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operator/client.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let lines = page.lines().skip_while(|line| !line.starts_with("| | `ps`"));
    let table: Vec<Vec<&str>> = lines.take_while(|line| line.starts_with('|')).map(cells).collect();
    let [verbs, _, rows @ ..] = table.as_slice() else { panic!("{table:?}") };
    assert!(rows.len() > 5, "{table:?}");
    let command = command();
    for row in rows {
        let [flag, cells @ ..] = row.as_slice() else { panic!("{row:?}") };
        assert_eq!(row.len(), verbs.len(), "{row:?}");
        for (verb, cell) in verbs[1..].iter().zip(cells) {
            let of_verb =
                verb.split(' ').fold(&command, |above, name| above.find_subcommand(name).expect("a verb"));
            assert_eq!(has(of_verb, flag), *cell == "yes", "{verb} {flag}");
            assert!(!cell.starts_with("--") || has(of_verb, cell), "{verb} {cell}");
        }
    }
}

#[test]
fn the_help_of_logs_says_why_there_is_no_since() {
    let mut command = command();
    let logs = command.find_subcommand_mut("logs").expect("a verb");
    assert!(!has(logs, "--since"));
    assert!(logs.render_help().to_string().contains("There is no --since"));
}
