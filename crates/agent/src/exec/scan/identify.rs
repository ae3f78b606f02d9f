//! Decides whether a process is ours.
//!
//! The mark in its environment decides, then its cgroup (`origin`). Without either (it was started by hand)
//! it is ours if it is in the session of a run, or if it runs the program that the spec names. A pid file may
//! be years old and its pid reused, so in doubt the process is a stranger: a stranger mistaken for ours would
//! be signalled. The complete rule is the table in docs/process/identity.md.

use crate::exec::procfs::{self, Stat};
use crate::exec::shell::{POWERSHELL_FLAGS, SHELL};
use crate::path_walk::{self, PathTrust};
use procfleet_core::spec::Identity;
use std::path::{Component, Path, PathBuf};

/// Extensions that a script may have beside its plain name.
const EXTENSIONS: [&str; 6] = [".sh", ".py", ".pl", ".rb", ".js", ".jar"];

/// Programs whose argument is the real program. Version numbers are cut off before comparing.
const INTERPRETERS: [&str; 24] = [
    "sh", "dash", "bash", "ash", "zsh", "ksh", "busybox", "env", "nice", "nohup", "setsid", "stdbuf",
    "python", "pypy", "perl", "ruby", "node", "nodejs", "java", "php", "lua", "mono", "dotnet", "tclsh",
];

/// Interpreters of start scripts.
const SHELLS: [&str; 8] = ["sh", "dash", "bash", "ash", "zsh", "ksh", "busybox", "pwsh"];

/// Folders of common programs: a program there is not evidence for a proc.
const COMMON_FOLDERS: [&str; 10] = [
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/sbin",
    "/usr/local/lib",
    "/bin",
];

/// Number of arguments that are searched for an interpreter's script, and of candidates.
const ARGUMENTS_READ: usize = 32;
const SCRIPTS: usize = 3;

/// The meaning of the mark in a process's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::exec) enum EnvMark {
    Ours,
    AnotherProcs,
    /// There is none, or it may not be read, or it is that of another agent for the same proc.
    Missing,
}

impl EnvMark {
    /// The meaning of this value in an environment. Every user of the host can set it;
    /// [`ProcMark`](super::proc_mark::ProcMark) verifies it.
    pub(in crate::exec) fn of_value(value: Option<&[u8]>, mark: &str) -> EnvMark {
        let Some(value) = value else { return EnvMark::Missing };
        // INSTANCE/KEY. The same key under another instance is a proc of the same name, started by an agent
        // that lost its folder or runs beside us.
        fn key(mark: &[u8]) -> Option<&[u8]> {
            mark.iter().position(|byte| *byte == b'/').map(|slash| &mark[slash..])
        }
        match value {
            value if value == mark.as_bytes() => EnvMark::Ours,
            value if key(value) == key(mark.as_bytes()) => EnvMark::Missing,
            _ => EnvMark::AnotherProcs,
        }
    }
}

/// The owner of a process with this mark, if it is not the proc of `ours`. A probe has none: its key begins
/// with a colon.
pub(in crate::exec) fn owner(mark: &[u8], ours: &str) -> Option<String> {
    let key = |mark: &str| Some(mark.split_once('/')?.1.to_owned());
    let theirs = key(&String::from_utf8_lossy(mark))?;
    (Some(&theirs) != key(ours).as_ref() && !theirs.starts_with(':'))
        .then(|| theirs.replace("%3A", ":").replace("%25", "%"))
}

/// The agent's instance and the proc in a mark.
pub(in crate::exec) fn instance_and_proc(mark: &[u8]) -> Option<(String, String)> {
    let mark = String::from_utf8_lossy(mark);
    let (instance, proc) = mark.split_once('/')?;
    Some((instance.to_owned(), proc.replace("%3A", ":").replace("%25", "%")))
}

/// `setup_path`, as written and as the kernel writes it.
#[derive(Debug)]
pub(in crate::exec) struct SetupPath {
    given: PathBuf,
    real: PathBuf,
}

impl SetupPath {
    /// `None` for a path that cannot be a folder of programs, and where a link of a third account would make
    /// another folder's programs match.
    pub(in crate::exec) fn of(identity: &Identity) -> Option<SetupPath> {
        let given = PathBuf::from(&identity.setup_path);
        if !given.is_absolute() {
            return None;
        }
        let real = match path_walk::walk(&given) {
            Ok(way) if way.doubted_links(&PathTrust::spec(&identity.user)).is_some() => return None,
            Ok(way) => way.real().to_owned(),
            Err(_) => given.clone(),
        };
        Some(SetupPath { given, real })
    }

    fn holds(&self, path: &Path) -> bool {
        [&self.given, &self.real].iter().any(|folder| path.starts_with(folder) && path != folder.as_path())
    }

    fn is(&self, path: &Path) -> bool {
        path == self.given || path == self.real
    }

    /// Whether a program or script of this name is in it, or in its `bin`.
    fn has_program(&self, name: &str) -> bool {
        let name = name.rsplit('/').next().unwrap_or_default();
        let names = [""].iter().chain(&EXTENSIONS).map(|extension| format!("{name}{extension}"));
        names.into_iter().any(|name| ["", "bin"].iter().any(|sub| self.real.join(sub).join(&name).is_file()))
    }

    /// Whether the folder is specific to the proc, so that a program in it is evidence.
    fn is_specific(&self) -> bool {
        [&self.given, &self.real].iter().all(|folder| {
            let depth = folder.components().filter(|part| matches!(part, Component::Normal(_))).count();
            depth >= 2 && !COMMON_FOLDERS.iter().any(|common| folder.as_path() == Path::new(common))
        })
    }
}

/// The program that a process runs.
#[derive(Debug)]
pub(in crate::exec) struct RunningProgram {
    pid: u32,
    comm: String,
    exe: Option<PathBuf>,
    argv: Vec<String>,
}

impl RunningProgram {
    pub(in crate::exec) fn of(stat: &Stat) -> RunningProgram {
        let pid = stat.id.pid;
        RunningProgram { pid, comm: stat.comm.clone(), exe: procfs::exe(pid), argv: procfs::argv(pid) }
    }

    /// Whether this is the program that the spec names. A shell that merely mentions the name in its command
    /// is not.
    pub(in crate::exec) fn is_named(&self, proc_name: &str) -> bool {
        // Some callers write the path of the program.
        let proc_name = proc_name.rsplit('/').next().unwrap_or_default();
        if proc_name.is_empty() {
            return false;
        }
        let is_it = |name: &str| {
            name.strip_prefix(proc_name).is_some_and(|rest| rest.is_empty() || EXTENSIONS.contains(&rest))
        };
        let file_is_it = |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_it);
        is_it(&self.comm)
            || self.comm_is_cut_from(proc_name)
            || self.exe.as_deref().is_some_and(file_is_it)
            || self.argv.first().is_some_and(|first| file_is_it(Path::new(login_name(first))))
            || self.scripts().any(|script| file_is_it(Path::new(script)))
    }

    /// Whether it is the program that the spec names, and no interpreter that runs a script of that name.
    pub(in crate::exec) fn is_executable_of(&self, proc_name: &str) -> bool {
        self.is_named(proc_name) && !self.is_interpreter()
    }

    /// The kernel truncates names to 15 bytes. That suffices only without better evidence: `order-service-a`
    /// and `order-service-b1` differ only later.
    fn comm_is_cut_from(&self, proc_name: &str) -> bool {
        let nothing_better = self.exe.is_none() && self.argv.is_empty();
        nothing_better && self.comm.len() == 15 && proc_name.as_bytes().starts_with(self.comm.as_bytes())
    }

    /// Whether its file is in the folder, and the folder is specific to the proc.
    fn lies_in(&self, folder: &SetupPath) -> bool {
        folder.is_specific() && self.paths().iter().any(|path| folder.holds(path))
    }

    /// Whether an interpreter runs a script of the folder, and the folder is specific to the proc.
    fn runs_script_of(&self, folder: &SetupPath) -> bool {
        folder.is_specific() && self.files(self.scripts()).iter().any(|path| folder.holds(path))
    }

    /// Whether it was started from the folder: its file is there, or it works there.
    pub(in crate::exec) fn runs_from(&self, folder: &SetupPath) -> bool {
        self.paths().iter().any(|path| folder.holds(path))
            || procfs::cwd(self.pid).is_some_and(|cwd| folder.is(&cwd))
    }

    /// A process that is ending, or in the middle of an `execve`, has no arguments and no environment:
    /// neither its mark nor its program can be known.
    fn is_readable(&self) -> bool {
        !self.argv.is_empty()
    }

    /// Whether it was started from the folder, by name only. The folder must be specific to the proc: anybody
    /// may run a program of that name in a common one. An interpreter whose working directory is the folder
    /// may be an administrator's shell: it must run a file of the folder.
    pub(in crate::exec) fn belongs_to(&self, folder: &SetupPath) -> bool {
        if !self.is_readable() || !folder.is_specific() {
            return false;
        }
        match self.is_interpreter() {
            true => self.paths().iter().any(|path| folder.holds(path)),
            false => self.runs_from(folder),
        }
    }

    /// Whether this is still `/bin/sh -c COMMAND`, or the equivalent that `spawn` uses.
    pub(in crate::exec) fn is_wrapper_of(&self, command: &str) -> bool {
        let Some((text, before)) = self.argv.split_last() else { return false };
        let shell = match before {
            [shell, flag] => shell == SHELL && flag == "-c",
            [_, flags @ ..] => flags == POWERSHELL_FLAGS,
            [] => false,
        };
        // Of a very long command only the beginning was read.
        let read = text.len() >= 32 << 10 && command.starts_with(text.as_str());
        shell && (text == command || read)
    }

    /// A short name for messages.
    pub(in crate::exec) fn label(&self) -> String {
        let exe =
            self.exe.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        exe.unwrap_or_else(|| self.comm.clone())
    }

    /// Every file that may be the program: its executable, its `argv[0]`, and an interpreter's script.
    fn paths(&self) -> Vec<PathBuf> {
        let called = self.argv.first().map(|first| login_name(first)).filter(|first| first.contains('/'));
        let mut paths = self.files(called.into_iter().chain(self.scripts()));
        paths.extend(self.exe.clone());
        paths
    }

    /// Arguments as absolute paths.
    fn files<'a>(&self, arguments: impl Iterator<Item = &'a str>) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let mut cwd = None;
        for path in arguments {
            if path.starts_with('/') {
                paths.push(PathBuf::from(path));
            } else if let Some(cwd) = cwd.get_or_insert_with(|| procfs::cwd(self.pid)) {
                let path = path.strip_prefix("./").unwrap_or(path);
                // A path that climbs out of its folder would seem to lie in it.
                if !Path::new(path).components().any(|part| part == Component::ParentDir) {
                    paths.push(cwd.join(path));
                }
            }
        }
        paths
    }

    /// The arguments that may be an interpreter's script. Program text given on the command line is none.
    fn scripts(&self) -> impl Iterator<Item = &str> {
        let arguments = if self.is_interpreter() { self.argv.get(1..).unwrap_or_default() } else { &[] };
        let is_text =
            |flag: &str| matches!(flag.as_bytes(), [b'-', .., b'c' | b'e' | b'r'] if flag.len() <= 3);
        arguments
            .iter()
            .take(ARGUMENTS_READ)
            .map(String::as_str)
            .take_while(move |argument| !is_text(argument))
            .filter(|argument| !argument.starts_with('-') && !argument.is_empty())
            .take(SCRIPTS)
    }

    fn is_interpreter(&self) -> bool {
        self.is_one_of(&INTERPRETERS)
    }

    fn is_one_of(&self, names: &[&str]) -> bool {
        let exe = self.exe.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        let called = self.argv.first().and_then(|first| Path::new(login_name(first)).file_name()?.to_str());
        exe.into_iter().chain(called).any(|name| {
            names.contains(
                &name.trim_end_matches(|cut: char| cut.is_ascii_digit() || cut == '.' || cut == '-'),
            )
        })
    }

    /// Whether a command that is at work may be there only to start the process that the spec names: it runs
    /// a shell, or a script beside a program of that name, and has another name itself.
    pub(in crate::exec) fn may_be_start_script(&self, identity: &Identity) -> bool {
        let name = identity.proc_name.as_str();
        let is_beside_program =
            || SetupPath::of(identity).is_some_and(|dir| self.runs_script_of(&dir) && dir.has_program(name));
        !name.is_empty() && !self.is_named(name) && (self.is_one_of(&SHELLS) || is_beside_program())
    }
}

/// Whether a live process of unknown origin matches the spec.
///
/// Many programs may be in one `setup_path`, so with a `proc_name` the folder alone is not enough. The
/// exception is a script, which an interpreter may run under other names. If the folder has a program of the
/// spec's name, another script is its sibling.
pub(in crate::exec) fn is_described(program: &RunningProgram, identity: &Identity) -> bool {
    let folder = SetupPath::of(identity);
    match identity.proc_name.as_str() {
        "" => folder.is_some_and(|folder| program.lies_in(&folder)),
        name => {
            program.is_named(name)
                || folder.is_some_and(|folder| program.runs_script_of(&folder) && !folder.has_program(name))
        }
    }
}

/// A login shell's name begins with a dash.
fn login_name(name: &str) -> &str {
    name.strip_prefix('-').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(comm: &str, exe: &str, argv: &[&str]) -> RunningProgram {
        let exe = (!exe.is_empty()).then(|| PathBuf::from(exe));
        RunningProgram {
            pid: u32::MAX,
            comm: comm.to_owned(),
            exe,
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        }
    }

    #[test]
    fn a_program_goes_by_its_names() {
        let rows: &[(&str, &str, &[&str], &str, bool)] = &[
            ("nginx", "/usr/sbin/nginx", &["nginx: master process nginx"], "nginx", true),
            ("nginx", "/usr/sbin/nginx", &["nginx"], "ngin", false),
            ("java", "/jvm/bin/java", &["java", "-Xmx1g", "-jar", "/opt/shop/shop.jar"], "shop", true),
            ("java", "/jvm/bin/java", &["java", "-jar", "/opt/shop/shop.jar"], "shop.jar", true),
            ("python3", "/usr/bin/python3.11", &["python3", "-u", "./shop.py"], "shop", true),
            ("python3", "/usr/bin/python3.11", &["python3", "-c", "shop"], "shop", false),
            ("shop.sh", "/usr/bin/dash", &["/bin/sh", "./shop.sh", "start"], "shop", true),
            ("sh", "/usr/bin/dash", &["/bin/sh", "-c", "cat /opt/shop"], "shop", false),
            ("sh", "/usr/bin/dash", &["/bin/sh", "-ec", "/opt/shop"], "shop", false),
            ("vi", "/usr/bin/vi", &["vi", "/opt/shop/shop"], "shop", false),
            ("order-service-a", "/opt/o/order-service-a1", &["./order-service-a1"], "order-service-a1", true),
            (
                "order-service-a",
                "/opt/o/order-service-a1",
                &["./order-service-a1"],
                "order-service-a2",
                false,
            ),
            ("order-service-a", "", &[], "order-service-a2", true),
            ("bash", "/usr/bin/bash", &["-bash"], "bash", true),
            ("x", "", &[], "", false),
            // A title, a name that was changed by prctl, and a spec that writes the whole path.
            ("nginx", "/opt/nginx/sbin/nginx", &["nginx: worker process"], "nginx", true),
            ("worker-7", "/opt/shop/shopd", &["worker-7"], "shopd", true),
            ("shopd", "/opt/shop/shopd", &["./shopd"], "/opt/shop/shopd", true),
            ("shopd", "/opt/shop/shopd", &["./shopd"], "/opt/shop/", false),
            ("processbeat", "/plugins/bin/processbeat", &["./processbeat"], "basereport", false),
        ];
        for (comm, exe, argv, name, expected) in rows {
            assert_eq!(program(comm, exe, argv).is_named(name), *expected, "{argv:?} as {name:?}");
        }
    }

    #[test]
    fn a_program_is_identified_by_a_specific_setup_path_only() {
        let rows: &[(&str, &[&str], &str, bool)] = &[
            ("/opt/shop/bin/web", &["./web"], "/opt/shop", true),
            ("/opt/shop2/bin/web", &["./web"], "/opt/shop", false),
            ("/opt/shop", &["/opt/shop"], "/opt/shop", false),
            ("/opt/shop/bin/web", &["./web"], "/opt", false),
            ("/opt/shop/bin/web", &["./web"], "/", false),
            ("/usr/bin/tail", &["tail", "-f", "/opt/shop/x.log"], "/opt/shop", false),
            ("/usr/bin/dash", &["sh", "/opt/shop/x.sh"], "/opt/shop", true),
            ("/usr/bin/tail", &["tail"], "/usr/bin", false),
            ("/usr/bin/tail", &["tail"], "relative", false),
        ];
        for (exe, argv, setup_path, expected) in rows {
            let identity = Identity { setup_path: (*setup_path).to_owned(), ..Identity::default() };
            assert_eq!(is_described(&program("x", exe, argv), &identity), *expected, "{exe} in {setup_path}");
        }
    }

    /// Siblings are in one folder. The name distinguishes them, and a script under another name matches only
    /// if no file in the folder has the name.
    #[test]
    fn with_a_proc_name_the_folder_counts_only_for_scripts() {
        let folder = tempfile::tempdir().expect("a temp dir");
        let bin = folder.path().join("plugins");
        std::fs::create_dir(&bin).expect("our folder");
        let path = |file: &str| bin.join(file).to_str().expect("a plain path").to_owned();
        let native = program("processbeat", &path("processbeat"), &["./processbeat"]);
        let python = program("python3", "/usr/bin/python3.11", &["python3", &path("app.py")]);
        let java = program("java", "/jvm/bin/java", &["java", "-jar", &path("app.jar")]);
        let linked = program("web", "/usr/bin/sleep", &[&path("web"), "1000"]);
        let elsewhere = program("python3", "/usr/bin/python3.11", &["python3", "/srv/app.py"]);
        let check = |program: &RunningProgram, name: &str, expected: bool| {
            let identity = Identity {
                proc_name: name.to_owned(),
                setup_path: bin.to_str().expect("a plain path").to_owned(),
                ..Identity::default()
            };
            assert_eq!(is_described(program, &identity), expected, "{program:?} as {name:?}");
        };
        for (program, name, expected) in [
            (&native, "processbeat", true),
            (&native, "basereport", false),
            (&native, "", true),
            (&linked, "web", true),
            (&linked, "basereport", false),
            (&python, "app", true),
            (&python, "basereport", true),
            (&java, "basereport", true),
            (&elsewhere, "basereport", false),
            (&elsewhere, "", false),
        ] {
            check(program, name, expected);
        }
        for file in ["basereport", "basereport.py", "bin/basereport.sh"] {
            std::fs::create_dir_all(bin.join("bin")).expect("our folder");
            std::fs::write(bin.join(file), "").expect("our folder");
            check(&python, "basereport", false);
            check(&java, "basereport", false);
            check(&python, "app", true);
            std::fs::remove_file(bin.join(file)).expect("our file");
        }
        check(&python, "basereport", true);
    }

    #[test]
    fn a_process_that_is_ending_belongs_to_no_folder() {
        let folder = std::env::current_dir().expect("a folder");
        let identity =
            Identity { setup_path: folder.to_str().expect("a plain path").to_owned(), ..Identity::default() };
        let setup_path = SetupPath::of(&identity).expect("a path");
        let here = |program: RunningProgram| RunningProgram { pid: std::process::id(), ..program };
        assert!(here(program("web", "/usr/bin/web", &["web"])).belongs_to(&setup_path));
        assert!(!here(program("web", "", &[])).belongs_to(&setup_path));
        assert!(!here(program("sh", "", &[])).belongs_to(&setup_path));
    }

    #[test]
    fn a_common_folder_makes_no_namesake_ours() {
        for (setup_path, expected) in [
            ("/opt/shop", true),
            ("/opt/shop/bin", true),
            ("/opt", false),
            ("/root", false),
            ("/", false),
            ("/usr/bin", false),
        ] {
            let identity = Identity { setup_path: setup_path.to_owned(), ..Identity::default() };
            let folder = SetupPath::of(&identity).expect("an absolute path");
            let file = format!("{}/web", setup_path.trim_end_matches('/'));
            let native = program("web", &file, &[&file]);
            let script = program("python3", "/bin/python3", &["python3", &file]);
            for program in [&native, &script] {
                assert_eq!(program.belongs_to(&folder), expected, "{program:?} in {setup_path}");
            }
        }
    }

    #[test]
    fn the_wrapper_is_known_by_its_whole_command() {
        let wrapper = program("sh", "/usr/bin/dash", &["/bin/sh", "-c", "./web start"]);
        assert!(wrapper.is_wrapper_of("./web start"));
        assert!(!wrapper.is_wrapper_of("./web"));
        assert!(!program("web", "/opt/web", &["./web", "start"]).is_wrapper_of("./web start"));
        let powershell = ["/usr/bin/pwsh", "-NoProfile", "-NonInteractive", "-Command", "./web.ps1"];
        assert!(program("pwsh", "/opt/pwsh", &powershell).is_wrapper_of("./web.ps1"));
        assert!(!program("pwsh", "/opt/pwsh", &powershell[..4]).is_wrapper_of("-Command"));
        assert!(!program("x", "", &[]).is_wrapper_of(""));
    }
}
