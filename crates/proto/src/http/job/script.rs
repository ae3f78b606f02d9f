//! The commands of `operate_proc`: scripts in the folder of the process, with its name as argument.
//!
//! JOB's own server lets a script of `sh` run in the background (`&`), because it would wait for it
//! otherwise. Here a script may stay in the foreground, and its outcome is reported, so it runs unchanged.

use procfleet_core::spec::{Control, Shell};

/// `start.sh NAME`, and so on for each operation with a script. There is no script to kill: the agent ends
/// the whole tree. The name is quoted as one argument; an error says why this is impossible.
pub(super) fn commands(shell: Shell, proc_name: &str) -> Result<Control, String> {
    let name = argument(shell, proc_name)?;
    let script = |verb: &str| match shell {
        Shell::Sh => format!("./{verb}.sh {name}"),
        Shell::Bat => format!("{verb}.bat {name}"),
        // PowerShell runs nothing of the present folder without a path, and knows this one on every system.
        Shell::Ps1 => format!("./{verb}.ps1 {name}"),
    };
    Ok(Control {
        start_cmd: script("start"),
        stop_cmd: script("stop"),
        restart_cmd: script("restart"),
        reload_cmd: script("reload"),
        shell,
        ..Control::default()
    })
}

fn argument(shell: Shell, text: &str) -> Result<String, String> {
    // A plain word needs no quotes in any of the shells.
    let begins = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    if begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) {
        return Ok(text.to_owned());
    }
    match shell {
        Shell::Sh => Ok(format!("'{}'", text.replace('\'', r"'\''"))),
        Shell::Ps1 => Ok(format!("'{}'", doubled(text))),
        Shell::Bat => match text.chars().find(|c| "\"%!^".contains(*c)) {
            // cmd.exe interprets these inside quotes, too, and there is no reliable way to escape them.
            Some(odd) => Err(format!("contains {odd:?}, which a bat script cannot be given as it is")),
            None => Ok(format!("\"{text}\"")),
        },
    }
}

/// PowerShell takes the typographic single quotes for the plain one.
fn doubled(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        quoted.push(c);
        if "'\u{2018}\u{2019}\u{201a}\u{201b}".contains(c) {
            quoted.push(c);
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_is_written_plainly() {
        let start = |shell| commands(shell, "bk_gse-unify.Tlogc2").map(|control| control.start_cmd);
        assert_eq!(start(Shell::Sh).as_deref(), Ok("./start.sh bk_gse-unify.Tlogc2"));
        assert_eq!(start(Shell::Bat).as_deref(), Ok("start.bat bk_gse-unify.Tlogc2"));
        assert_eq!(start(Shell::Ps1).as_deref(), Ok("./start.ps1 bk_gse-unify.Tlogc2"));
        let all = commands(Shell::Sh, "web").expect("a name");
        let expected = ("./stop.sh web", "./restart.sh web", "./reload.sh web", "");
        assert_eq!((&*all.stop_cmd, &*all.restart_cmd, &*all.reload_cmd, &*all.kill_cmd), expected);
    }

    #[test]
    fn any_other_name_is_one_argument() {
        for (shell, name, expected) in [
            (Shell::Sh, "a b", "'a b'"),
            (Shell::Sh, "it's", r"'it'\''s'"),
            (Shell::Sh, "-rf", "'-rf'"),
            (Shell::Sh, "$(id)", "'$(id)'"),
            (Shell::Ps1, "it's", "'it''s'"),
            (Shell::Ps1, "a\u{2019}; rm x", "'a\u{2019}\u{2019}; rm x'"),
            (Shell::Ps1, "007", "'007'"),
            (Shell::Bat, "a & b", "\"a & b\""),
        ] {
            assert_eq!(argument(shell, name).as_deref(), Ok(expected), "{shell:?} {name}");
        }
        for name in ["a\"b", "%PATH%", "a!b", "a^b"] {
            assert!(argument(Shell::Bat, name).is_err(), "{name}");
        }
    }
}
