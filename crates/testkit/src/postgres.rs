//! A PostgreSQL cluster of the test program's own, in a temp folder, run by an unprivileged account; and a
//! connection pooler in front of it.
//!
//! PostgreSQL refuses to run as root, so tests that run as root start it as the account `nobody`. The kernel
//! ends it with the test program (PR_SET_PDEATHSIG). Statics are not dropped, so a shell removes the folder
//! (about 1 GiB) after the end of both.

use crate::wait::{PATIENCE, wait_until};
use std::io::{PipeWriter, pipe};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

const SUPERUSER: &str = "procfleet";
/// Debian's account `nobody` and its group.
const NOBODY: u32 = 65_534;

/// A running cluster. All tests of one program share it, and each has databases of its own.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    /// Closed by the kernel when the test program ends, however it ends.
    _alive: PipeWriter,
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
        let alive = remove_after_the_end(folder.path());
        let cluster = Cluster { folder, _alive: alive, programs, port, databases: AtomicU32::new(0) };
        let data = cluster.data();
        let made = Cluster::as_nobody(&cluster.programs.join("initdb"))
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
        let mut postgres = Cluster::as_nobody(&cluster.programs.join("postgres"));
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
        run_to_the_end("postgres", postgres);
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

    /// Accepts TLS from now on, with a certificate and its key (PEM). Connections without TLS stay possible.
    pub fn accept_tls(&self, certificate: &str, key: &str) {
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.data().join(name);
            std::fs::write(&path, text).expect("the cluster's folder");
            // PostgreSQL refuses a key that others can read.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("the mode");
            if rustix::process::geteuid().is_root() {
                std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).expect("the owner");
            }
        }
        for sql in ["ALTER SYSTEM SET ssl = on", "SELECT pg_reload_conf()"] {
            self.psql("postgres", sql).expect("a setting");
        }
        wait_until(PATIENCE, "PostgreSQL has read its certificate", || {
            self.psql("postgres", "SHOW ssl").as_deref() == Ok("on")
        });
    }

    pub fn port(&self) -> u16 {
        self.port
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

    /// A program, as `nobody` if the tests run as root, which ends with this thread.
    #[expect(clippy::disallowed_methods, reason = "a program of the test's own, not a managed one")]
    fn as_nobody(program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "SIGINT"]);
        if rustix::process::geteuid().is_root() {
            command.args([&format!("--reuid={NOBODY}"), &format!("--regid={NOBODY}"), "--clear-groups"]);
        }
        command.arg("--").arg(program).current_dir("/").env("LC_ALL", "C");
        command
    }
}

/// Starts a shell that removes the folder when the returned end of a pipe is closed and PostgreSQL has ended.
/// Own session: a Ctrl-C of the tests does not end the shell before its work is done.
#[expect(clippy::disallowed_methods, reason = "a program of the test's own, not a managed one")]
fn remove_after_the_end(folder: &Path) -> PipeWriter {
    const SCRIPT: &str = "read -r _; for _ in $(seq 300); do test -e \"$0/data/postmaster.pid\" || break; sleep 0.2; done; rm -rf \"$0\"";
    let (end, alive) = pipe().expect("a pipe");
    let started = Command::new("setsid")
        .args(["--fork", "sh", "-c", SCRIPT])
        .arg(folder)
        .current_dir("/")
        .stdin(end)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .expect("setsid is there");
    assert!(started.success(), "setsid: {started}");
    alive
}

/// How PgBouncer shares the connections to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// A client keeps its connection until it disconnects.
    Session,
    /// A client has a connection for one transaction: that which was used last.
    Transaction,
    /// As `Transaction`, each connection in turn.
    TransactionInTurn,
}

/// PgBouncer in front of the cluster. It ends with the test program.
#[derive(Debug)]
pub struct Pooler {
    port: u16,
    _folder: TempDir,
}

impl Pooler {
    pub fn start(cluster: &Cluster, mode: PoolMode) -> Pooler {
        let folder = tempfile::Builder::new().prefix("procfleet-pool-").tempdir().expect("a temp folder");
        open_to_all(folder.path());
        let (port, database) = (free_port(), cluster.port);
        let (mode, in_turn) = match mode {
            PoolMode::Session => ("session", 0),
            PoolMode::Transaction => ("transaction", 0),
            PoolMode::TransactionInTurn => ("transaction", 1),
        };
        let settings = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={database} user={SUPERUSER}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\nserver_round_robin = {in_turn}\n"
        );
        std::fs::write(&settings, text).expect("our own folder");
        let program = Path::new("/usr/sbin/pgbouncer");
        assert!(program.exists(), "{} (Debian: pgbouncer); scripts/test installs it", program.display());
        let mut pgbouncer = Cluster::as_nobody(program);
        let log = std::fs::File::create(folder.path().join("log")).expect("a log");
        pgbouncer.arg(&settings).stdout(Stdio::null()).stderr(log).stdin(Stdio::null());
        run_to_the_end("pgbouncer", pgbouncer);
        wait_until(PATIENCE, "PgBouncer accepts connections", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Pooler { port, _folder: folder }
    }

    /// A URL of the cluster, by way of the pooler.
    pub fn url(&self, direct: &str) -> String {
        let database = direct.rsplit('/').next().expect("a name");
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }
}

/// PDEATHSIG follows the thread that created the process, so that thread lives as long as the program.
fn run_to_the_end(name: &'static str, mut command: Command) {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let ended = command.spawn().and_then(|mut child| child.wait());
            eprintln!("{name} ended: {ended:?}");
        })
        .expect("a thread");
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
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).expect("the mode");
}
