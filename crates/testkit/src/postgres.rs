//! PostgreSQL clusters in temp folders, run by an unprivileged account; and a connection pooler in front of
//! them.
//!
//! All tests of a program share one cluster. A test that stops, kills or fails over its database has a
//! cluster of its own, which ends with the test.
//!
//! PostgreSQL refuses to run as root, so tests that run as root start it as the account `nobody`. The kernel
//! ends it with the test program (PR_SET_PDEATHSIG). Statics are not dropped, so a shell removes the folder
//! (about 1 GiB) after the end of both.

use crate::invariants::{OPEN_OPS, broken_invariants};
use crate::process::{self, kill};
use crate::wait::{EVERY, PATIENCE, ask_again, wait_for, wait_until};
use rustix::process::Signal;
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

/// A running cluster. Dropping it ends PostgreSQL.
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
    /// The cluster of all tests of this program, started by the first call. Each test has databases of its
    /// own in it.
    pub fn shared() -> &'static Cluster {
        static SHARED: OnceLock<Cluster> = OnceLock::new();
        SHARED.get_or_init(|| Cluster::own(&[]))
    }

    /// A cluster of the test's own, which may stop and kill it. Settings are `name=value`; the last one of a
    /// name counts.
    pub fn own(settings: &[&str]) -> Cluster {
        Cluster::own_with(settings, &[])
    }

    /// As [`Cluster::own`], with more in the environment of PostgreSQL.
    pub fn own_with(settings: &[&str], environment: &[(String, String)]) -> Cluster {
        let cluster = Cluster::prepare();
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
            .arg(cluster.data())
            .stdout(Stdio::null())
            .status()
            .expect("initdb runs");
        assert!(made.success(), "initdb: {made}");
        cluster.start(settings, environment);
        cluster
    }

    /// A standby of this cluster, which follows it by streaming replication. To be started before the
    /// cluster waits for a synchronous standby.
    pub fn standby(&self, settings: &[&str]) -> Cluster {
        let standby = Cluster::prepare();
        let copied = Cluster::as_nobody(&standby.programs.join("pg_basebackup"))
            .args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream"])
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string(), "--username", SUPERUSER])
            .arg("--pgdata")
            .arg(standby.data())
            .stdout(Stdio::null())
            .status()
            .expect("pg_basebackup runs");
        assert!(copied.success(), "pg_basebackup: {copied}");
        standby.start(settings, &[]);
        wait_until(PATIENCE, "the standby receives changes", || {
            let streams = "SELECT count(*) FROM pg_stat_wal_receiver WHERE status = 'streaming'";
            standby.psql("postgres", streams).as_deref() == Ok("1")
        });
        standby
    }

    /// Waits until the standby has all changes of now.
    pub fn wait_for_standby(&self, standby: &Cluster) {
        let now = self.psql("postgres", "SELECT pg_current_wal_lsn()").expect("it is a primary");
        let sql = format!("SELECT pg_last_wal_replay_lsn() >= '{now}'");
        wait_until(PATIENCE, "the standby has all changes", || {
            standby.psql("postgres", &sql).as_deref() == Ok("t")
        });
    }

    /// Stops the processes that send changes to standbys (SIGSTOP). A failover loses what is committed from
    /// now on.
    pub fn stop_sending(&self) {
        let pids = self.psql("postgres", "SELECT pid FROM pg_stat_replication").expect("it is a primary");
        let pids: Vec<u32> = pids.lines().map(|pid| pid.parse().expect("a pid")).collect();
        assert!(!pids.is_empty(), "there is a standby");
        pids.iter().for_each(|pid| kill(*pid, Signal::STOP));
        wait_until(PATIENCE, "nothing is sent", || pids.iter().all(|pid| process::is_stopped(*pid)));
    }

    /// Makes a standby a primary.
    pub fn promote(&self) {
        self.psql("postgres", "SELECT pg_promote()").expect("it is a standby");
        wait_until(PATIENCE, "the standby is a primary", || {
            self.psql("postgres", "SELECT pg_is_in_recovery()").as_deref() == Ok("f")
        });
    }

    /// Stops all its processes (SIGSTOP): the kernel accepts connections, and nobody answers.
    pub fn stop(&self) {
        let postmaster = self.postmaster();
        kill(postmaster, Signal::STOP);
        // A postmaster that is stopped starts no more processes.
        wait_until(PATIENCE, "the postmaster is stopped", || process::is_stopped(postmaster));
        let children = process::children(postmaster);
        children.iter().for_each(|pid| kill(*pid, Signal::STOP));
        wait_until(PATIENCE, "its processes are stopped", || {
            children.iter().all(|pid| process::is_stopped(*pid) || !process::is_running(*pid))
        });
    }

    /// Continues all its processes after [`Cluster::stop`].
    pub fn go_on(&self) {
        let postmaster = self.postmaster();
        process::children(postmaster).into_iter().for_each(|pid| kill(pid, Signal::CONT));
        kill(postmaster, Signal::CONT);
    }

    /// `kill -9` of one connection to the database: PostgreSQL ends all others, too, and recovers from its
    /// log.
    pub fn kill_backend(&self, database: &str) {
        let sql = format!(
            "SELECT pid FROM pg_stat_activity WHERE datname = '{database}' AND pid <> pg_backend_pid() \
             AND backend_type = 'client backend' LIMIT 1"
        );
        let pid = wait_for(PATIENCE, "somebody is connected to the database", || {
            self.psql("postgres", &sql).ok()?.parse().ok()
        });
        kill(pid, Signal::KILL);
    }

    /// `kill -9` of all its processes at once, as by a power cut.
    pub fn kill_all(&self) {
        let postmaster = self.postmaster();
        let children = process::children(postmaster);
        kill(postmaster, Signal::KILL);
        children.iter().for_each(|pid| kill(*pid, Signal::KILL));
        wait_until(PATIENCE, "PostgreSQL is dead", || {
            !process::is_running(postmaster) && !children.iter().any(|pid| process::is_running(*pid))
        });
    }

    /// The warnings and errors of PostgreSQL.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn prepare() -> Cluster {
        let programs = programs().expect(
            "PostgreSQL's server programs are in /usr/lib/postgresql/*/bin (Debian: postgresql); scripts/test installs them",
        );
        let folder = tempfile::Builder::new().prefix("procfleet-pg-").tempdir().expect("a temp folder");
        open_to_all(folder.path());
        let alive = remove_after_the_end(folder.path());
        Cluster { folder, _alive: alive, programs, port: free_port(), databases: AtomicU32::new(0) }
    }

    fn start(&self, settings: &[&str], environment: &[(String, String)]) {
        let mut postgres = Cluster::as_nobody(&self.programs.join("postgres"));
        postgres.arg("-D").arg(self.data());
        postgres.envs(environment.iter().map(|(name, value)| (name, value)));
        let fixed = [
            format!("port={}", self.port),
            "listen_addresses=127.0.0.1".to_owned(),
            format!("unix_socket_directories={}", self.folder.path().display()),
            "max_connections=400".to_owned(),
            "fsync=off".to_owned(),
            "full_page_writes=off".to_owned(),
            "logging_collector=off".to_owned(),
            "log_min_messages=warning".to_owned(),
        ];
        for setting in fixed.iter().map(String::as_str).chain(settings.iter().copied()) {
            postgres.arg("-c").arg(setting);
        }
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a log");
        postgres.stdout(log.try_clone().expect("a second handle")).stderr(log).stdin(Stdio::null());
        run_to_the_end("postgres", postgres);
        wait_until(PATIENCE, "PostgreSQL accepts connections", || self.psql("postgres", "SELECT 1").is_ok());
    }

    fn postmaster(&self) -> u32 {
        self.running_postmaster().expect("PostgreSQL runs")
    }

    fn running_postmaster(&self) -> Option<u32> {
        let text = std::fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let pid = text.lines().next()?.parse().ok()?;
        // The pid of a postmaster that was killed may be that of another process now.
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        (folder == self.data() && process::is_running(pid)).then_some(pid)
    }

    /// A new database. Returns its URL.
    pub fn database(&self) -> String {
        let number = self.databases.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleet{number}");
        self.psql("postgres", &format!("CREATE DATABASE {name}")).expect("a database");
        self.url(&name)
    }

    /// As [`Cluster::database`], with a clock that [`Cluster::set_clock`] sets. Connections that are opened
    /// from now on find this `clock_timestamp()` before the one of PostgreSQL.
    pub fn database_with_clock(&self) -> String {
        let url = self.database();
        let name = url.rsplit('/').next().expect("a name");
        let sql = format!(
            "CREATE TABLE test_clock (ahead interval NOT NULL); INSERT INTO test_clock VALUES ('0 s'); \
             CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS \
             'SELECT pg_catalog.clock_timestamp() + ahead FROM public.test_clock'; \
             ALTER DATABASE {name} SET search_path = public, pg_catalog"
        );
        self.psql(name, &sql).expect("a clock");
        url
    }

    /// `ahead` is an interval of SQL: `1 hour`.
    pub fn set_clock(&self, database: &str, ahead: &str) {
        self.psql(database, &format!("UPDATE test_clock SET ahead = '{ahead}'")).expect("a clock");
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

    /// Waits until every op of the database of this URL has ended, and checks what must hold then.
    #[track_caller]
    pub fn assert_invariants(&self, url: &str) {
        let name = url.rsplit('/').next().and_then(|name| name.split('?').next()).expect("a name");
        let count = |sql: &str| -> i64 {
            let number = self.psql(name, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
            number.parse().unwrap_or_else(|error| panic!("{sql}: {error}"))
        };
        wait_until(PATIENCE, "every op has its outcome", || count(OPEN_OPS) == 0);
        let broken = broken_invariants(count);
        assert!(broken.is_empty(), "{broken:?}");
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

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(postmaster) = self.running_postmaster() else { return };
        self.go_on();
        // Without a checkpoint: nobody reads the data again.
        kill(postmaster, Signal::QUIT);
        ask_again(EVERY, PATIENCE, || (!process::is_running(postmaster)).then_some(()));
    }
}

/// Starts a shell that removes the folder when the returned end of a pipe is closed and PostgreSQL has ended.
/// A test program that was killed may have left PostgreSQL stopped, so the shell continues it. Own session: a
/// Ctrl-C of the tests does not end the shell before its work is done.
#[expect(clippy::disallowed_methods, reason = "a program of the test's own, not a managed one")]
fn remove_after_the_end(folder: &Path) -> PipeWriter {
    const SCRIPT: &str = "read -r _; p=$(head -n 1 \"$0/data/postmaster.pid\" 2>&-) && kill -CONT $p $(pgrep -P $p); for _ in $(seq 300); do test -e \"$0/data/postmaster.pid\" || break; sleep 0.2; done; rm -rf \"$0\"";
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
