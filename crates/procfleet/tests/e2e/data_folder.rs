//! `--data`: a folder that is used for anything else is left as it is.

use crate::up;
use procfleet_testkit::{Need, Program, account, has};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

const ANY_PORT: &str = "127.0.0.1:0";
/// EX_CONFIG: starting again would not help.
const NEEDS_OPERATOR: i32 = 78;

fn programs() -> [Vec<&'static str>; 3] {
    let server = ["--listen", ANY_PORT, "--link", ANY_PORT];
    [
        [&["server"], &server[..]].concat(),
        [&["up"], &server[..]].concat(),
        vec!["agent", "--server", "https://127.0.0.1:1"],
    ]
}

#[test]
fn a_folder_that_is_used_for_something_else_is_refused_and_left_as_it_is() {
    let up = up();
    let refused = |args: &[&str], folder: &Path, says: &str| {
        let before = fs::metadata(folder).expect("it is there");
        let names = || {
            let entries = fs::read_dir(folder).expect("it is there").flatten();
            let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
            names.sort();
            names
        };
        let named = names();
        let ended = Program::new(up.binary()).args(args).args([Path::new("--data"), folder]).run();
        assert_eq!(ended.code, Some(NEEDS_OPERATOR), "{args:?}: {ended:?}");
        let expected = format!("{} is not used as the data folder: ", folder.display());
        assert!(ended.stderr.contains(&expected) && ended.stderr.contains(says), "{args:?}: {ended:?}");
        let after = fs::metadata(folder).expect("it is there");
        assert_eq!((after.mode(), after.uid(), names()), (before.mode(), before.uid(), named), "{args:?}");
    };
    for args in programs() {
        let folder = |name: &str, mode: u32| {
            let folder = up.folder(&format!("{}-{name}", args[0]));
            fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).expect("our own folder");
            folder
        };
        let full = folder("full", 0o755);
        fs::write(full.join("notes.txt"), "mine").expect("our own folder");
        refused(&args, &full, "it holds \"notes.txt\"");
        refused(&args, &folder("shared", 0o1777), "it is shared by all accounts");
        if has(Need::Root, account() == "root") {
            let theirs = folder("theirs", 0o755);
            chown(&theirs, Some(65_534), None).expect("root may");
            refused(&args, &theirs, "it belongs to the account with uid 65534");
        }
    }
}

/// An agent in a server's folder, or a server in an agent's, would mix up two programs' files.
#[test]
fn an_agent_refuses_the_data_folder_of_a_server() {
    let up = up();
    for args in programs() {
        let folder = if args[0] == "agent" { up.data() } else { up.data().join("agent") };
        let ended = Program::new(up.binary()).args(&args).args([Path::new("--data"), &folder]).run();
        assert_eq!(ended.code, Some(NEEDS_OPERATOR), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains("and nothing of this program's"), "{args:?}: {ended:?}");
    }
}
