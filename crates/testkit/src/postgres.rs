//! A PostgreSQL cluster of the test program's own, in a temp folder, run by an unprivileged account.
//!
//! PostgreSQL refuses to run as root, so tests that run as root start it as the account `nobody`. The kernel
//! ends it with the test program (PR_SET_PDEATHSIG).

use crate::wait::{PATIENCE, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

const SUPERUSER: &str = "procfleet";

/// A running cluster. All tests of one program share it, and each has databases of its own.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    programs: PathBuf,
    port: u16,
    databases: AtomicU32,
}

impl Cluster {
    /// The cluster of this program, started by the first call.
    pub fn shared() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(Cluster::start)
    }

    fn start() -> Cluster {
        let programs = programs().expect(
            "PostgreSQL's server programs are in /usr/lib/postgresql/*/bin (Debian: postgresql); scripts/test installs them",
        );
        let folder = tempfile::Builder::new().prefix("procfleet-pg-").tempdir().expect("a temp folder");
        open_to_all(folder.path());
        let port = free_port();
        let cluster = Cluster { folder, programs, port, databases: AtomicU32::new(0) };
        let data = cluster.data();
        let made = cluster
            .as_nobody("initdb")
            .args([
                "--username",
                SUPERUSER,
                "--auth",
                "trust",
                "--encoding",
                "UTF8",
                "--no-locale",
                "--no-sync",
            ])
            .arg("--pgdata")
            .arg(&data)
            .stdout(Stdio::null())
            .status()
            .expect("initdb runs");
        assert!(made.success(), "initdb: {made}");
        let mut postgres = cluster.as_nobody("postgres");
        postgres.arg("-D").arg(&data);
        for setting in [
            format!("port={port}"),
            "listen_addresses=127.0.0.1".to_owned(),
            format!("unix_socket_directories={}", cluster.folder.path().display()),
            "max_connections=400".to_owned(),
            "fsync=off".to_owned(),
            "full_page_writes=off".to_owned(),
            "logging_collector=off".to_owned(),
            "log_min_messages=warning".to_owned(),
        ] {
            postgres.arg("-c").arg(setting);
        }
        let log = std::fs::File::create(cluster.folder.path().join("log")).expect("a log");
        postgres.stdout(log.try_clone().expect("a second handle")).stderr(log).stdin(Stdio::null());
        // PDEATHSIG follows the thread that created the process, so that thread lives as long as the program.
        std::thread::Builder::new()
            .name("postgres".to_owned())
            .spawn(move || {
                let ended = postgres.spawn().and_then(|mut child| child.wait());
                eprintln!("postgres ended: {ended:?}");
            })
            .expect("a thread");
        wait_until(PATIENCE, "PostgreSQL accepts connections", || {
            cluster.psql("postgres", "SELECT 1").is_ok()
        });
        cluster
    }

    /// A new database. Returns its URL.
    pub fn database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleet{number}");
        self.psql("postgres", &format!("CREATE DATABASE {name}")).expect("a database");
        self.url(&name)
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs SQL and returns the rows as text.
    #[expect(clippy::disallowed_methods, reason = "a program of the test's own, not a managed one")]
    pub fn psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let output = Command::new(self.programs.join("psql"))
            .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
            .args(["--username", SUPERUSER, "--dbname", database, "--command", sql])
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string()])
            .output()
            .map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// A program of PostgreSQL, as `nobody` if the tests run as root, which ends with this thread.
    #[expect(clippy::disallowed_methods, reason = "a program of the test's own, not a managed one")]
    fn as_nobody(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "SIGINT"]);
        if rustix::process::geteuid().is_root() {
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        }
        command.arg("--").arg(self.programs.join(program)).current_dir("/").env("LC_ALL", "C");
        command
    }
}

/// The folder of the newest installed version.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            let programs = entry.path().join("bin");
            programs.join("initdb").exists().then_some((version, programs))
        })
        .collect();
    found.sort();
    found.pop().map(|(_, programs)| programs)
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// `nobody` must be able to create its files there.
fn open_to_all(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).expect("the mode");
}
