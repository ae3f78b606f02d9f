//! The CA's private key in PostgreSQL, sealed: servers with other data folders, one after the other, need the
//! seal key and nothing else.

use procfleet_testkit::{Client, Cluster, Finished, Joined, PATIENCE, Program, Signal, wait_for, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use tempfile::TempDir;

const NEEDS_OPERATOR: i32 = 78;
const BINARY: &str = env!("CARGO_BIN_EXE_procfleet");
const IP: &str = "127.0.0.2";

/// A database, and the folders of the servers that use it.
struct Fleet {
    url: String,
    /// The address of the link, the same for all servers. A port is added by the first one.
    link: String,
    folder: TempDir,
}

/// `procfleet server`. Dropping it kills it.
struct Server {
    program: Program,
    data: PathBuf,
    client: Client,
}

impl Fleet {
    fn new() -> Fleet {
        static SERIAL: AtomicU8 = AtomicU8::new(0);
        let [.., high, low] = std::process::id().to_be_bytes();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        // No other program of this machine has it, so a port that was let go can be had again.
        let link = Ipv4Addr::new(127, 32 | (high & 0x1f), low, serial);
        let folder = tempfile::Builder::new().prefix("procfleet-").tempdir().expect("a temp dir");
        Fleet { url: Cluster::shared().database(), link: format!("{link}:0"), folder }
    }

    fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn psql(&self, sql: &str) -> String {
        let database = self.url.rsplit('/').next().expect("a name");
        Cluster::shared().psql(database, sql).expect("the statement is right")
    }

    fn begin(&self, data: &Path, flags: &[&str]) -> Program {
        let mut program = Program::new(BINARY)
            .args(["server", "--listen", "127.0.0.1:0", "--link", &self.link, "--store", &self.url])
            .args(flags)
            .args(["--data".as_ref(), data]);
        program.start();
        program
    }

    /// Starts a server that must not start.
    #[track_caller]
    fn refused(&self, data: &Path, flags: &[&str]) -> Finished {
        let ended = self.begin(data, flags).finish(PATIENCE);
        assert_eq!(ended.code, Some(NEEDS_OPERATOR), "{ended:?}");
        ended
    }

    #[track_caller]
    fn start(&mut self, data: &Path, flags: &[&str]) -> Server {
        let mut program = self.begin(data, flags);
        let (url, link) = wait_for(PATIENCE, "the server is ready", || {
            assert!(program.is_running(), "the server has ended: {}", program.stderr());
            let said = program.stdout();
            let line = said.lines().find_map(|line| line.strip_prefix("procfleet server is ready: "))?;
            let (url, link) = line.split_once(" (agents: https://")?;
            Some((url.to_owned(), link.trim_end_matches(')').to_owned()))
        });
        self.link = link;
        let admin: Value =
            serde_json::from_slice(&fs::read(data.join("admin.json")).expect("admin.json")).expect("JSON");
        let field = |name: &str| admin[name].as_str().expect("a text").to_owned();
        let client = Client::new(&url, &field("bk_app_code"), &field("bk_app_secret"));
        Server { program, data: data.to_owned(), client }
    }

    fn join(&self, name: &str, ip: &str, token: Option<&str>) -> Joined {
        let data = self.folder.path().join(name);
        Joined::start(BINARY.as_ref(), &format!("https://{}", self.link), &data, ip, token)
    }

    /// The sealed private keys in the database.
    fn sealed(&self) -> Vec<String> {
        let rows = self.psql("SELECT encode(sealed_key, 'hex') FROM ca_keys ORDER BY sha256");
        rows.lines().map(str::to_owned).collect()
    }
}

impl Server {
    #[track_caller]
    fn cli(&self, args: &[&str]) -> Value {
        let done = self.cli_raw(&[args, &["--json"]].concat());
        assert_eq!(done.code, Some(0), "{done:?}");
        serde_json::from_str(&done.stdout).expect("--json prints JSON")
    }

    fn cli_raw(&self, args: &[&str]) -> Finished {
        Program::new(BINARY).args(args).env("PROCFLEET_DATA", &self.data).current_dir(&self.data).run()
    }

    #[track_caller]
    fn token(&self) -> String {
        let made = self.cli_raw(&["token", "create", "--uses", "1"]);
        assert_eq!(made.code, Some(0), "{made:?}");
        made.stdout.trim().to_owned()
    }

    /// The id of the agent on this host, once it is connected.
    #[track_caller]
    fn connected(&self, ip: &str) -> String {
        wait_for(PATIENCE, "the agent is connected", || {
            let agents = self.client.data("/api/v1/agents");
            let mut agents = agents.as_array().expect("a list").iter();
            let agent = agents.find(|agent| agent["ip"] == ip && agent["connected"] == true)?;
            Some(agent["bk_agent_id"].as_str().expect("an id").to_owned())
        })
    }

    #[track_caller]
    fn stop(mut self) {
        let (status, _) = self.program.end(Signal::TERM, PATIENCE);
        assert_eq!(status.code(), Some(0), "{}", self.program.stderr());
    }

    /// `kill -9`.
    fn crash(mut self) {
        self.program.end(Signal::KILL, PATIENCE);
    }

    fn actions(&self, action: &str) -> usize {
        self.cli(&["audit", "--action", action]).as_array().expect("a list").len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- a server's log ----\n{}", self.program.stderr());
        }
    }
}

/// Copies what an operator copies to the data folder of another server.
fn copy_secrets(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("our own folder");
    for file in ["seal.key", "admin.json"] {
        fs::copy(from.join(file), to.join(file)).expect("our own folders");
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own file");
}

/// Makes a seal key, as `openssl rand -hex 32` does.
fn make_key(path: &Path, digit: &str) {
    fs::write(path, format!("{}\n", digit.repeat(64))).expect("our own folder");
    mode(path, 0o600);
}

/// The key id in an envelope, in hexadecimal digits.
fn key_id(sealed: &str) -> &str {
    assert_eq!(&sealed[..2], "01", "the version");
    &sealed[2..18]
}

#[test]
fn the_first_server_makes_the_seal_key_and_others_need_it() {
    let mut fleet = Fleet::new();
    let (first, second) = (fleet.data("first"), fleet.data("second"));
    let server = fleet.start(&first, &[]);
    let log = server.program.stderr();
    assert!(log.contains("made the seal key") && log.contains("Copy the file to every server"), "{log}");
    let key = first.join("seal.key");
    let made = fs::metadata(&key).expect("the key").permissions().mode();
    assert_eq!(made & 0o777, 0o600);
    for plain in ["ca.key.pem", "ca.next.key.pem"] {
        assert!(!first.join(plain).exists(), "{plain}");
    }
    let sealed = fleet.sealed();
    assert_eq!(sealed.len(), 1);
    let needed = key_id(&sealed[0]).to_owned();
    assert!(log.contains(&needed), "{log}");
    let ca = server.cli(&["ca", "show"]);
    assert_eq!((&ca["seal"]["key"], &ca["seal"]["under_other_keys"]), (&json!(needed), &json!(0)));
    let mut agent = fleet.join("agent", IP, Some(&server.token()));
    let id = server.connected(IP);
    server.stop();

    let check = |reasons: &[&str]| {
        let ended = fleet.refused(&second, &[]);
        for reason in reasons {
            assert!(ended.stderr.contains(reason), "{reason}: {ended:?}");
        }
    };
    let other = second.join("seal.key");
    check(&[&other.display().to_string(), "does not exist", &needed, "this server has: none", "--new-ca"]);
    assert!(!other.exists(), "it makes no key of its own");
    copy_secrets(&first, &second);
    for open in [0o644, 0o640, 0o602] {
        mode(&other, open);
        check(&["seal.key is not used as a seal key", "others may read or write it", "chmod 600"]);
    }
    make_key(&other, "5");
    // The beginning of the SHA-256 of 32 bytes 0x55.
    check(&[&needed, "this server has: 84126d0dd850199b", "Copy the file from another server"]);
    fs::write(&other, "no key\n").expect("our own file");
    check(&["does not contain 64 hexadecimal digits"]);
    copy_secrets(&first, &second);

    let server = fleet.start(&second, &[]);
    let again = server.cli(&["ca", "show"]);
    assert_eq!(again["sha256"], ca["sha256"]);
    let certificate = |data: &Path| fs::read(data.join("ca.cert.der")).expect("the certificate");
    assert_eq!(certificate(&first), certificate(&second));
    assert_eq!(server.connected(IP), id, "it has not joined again");
    assert!(agent.is_running());
    let mut newcomer = fleet.join("newcomer", "127.0.0.3", Some(&server.token()));
    server.connected("127.0.0.3");
    assert!(newcomer.is_running());
    assert_eq!(fleet.sealed(), sealed, "nothing was sealed again");
    server.stop();
}

#[test]
fn a_ca_is_rotated_and_retired_across_servers_that_are_killed() {
    let mut fleet = Fleet::new();
    let (first, second) = (fleet.data("first"), fleet.data("second"));
    let life = ["--agent-cert-secs", "20"];
    let server = fleet.start(&first, &life);
    copy_secrets(&first, &second);
    let mut agent = fleet.join("agent", IP, Some(&server.token()));
    let id = server.connected(IP);
    // It is away while the CA changes, so the old CA is needed until it is back.
    agent.end(Signal::TERM);
    let before = server.cli(&["ca", "show"])["sha256"].clone();
    let rotated = server.cli(&["ca", "rotate"]);
    let next = rotated["next_sha256"].clone();
    assert!(next.is_string() && rotated["sha256"] == before, "{rotated}");
    assert_eq!(fleet.sealed().len(), 2);
    server.crash();

    let server = fleet.start(&second, &life);
    let found = server.cli(&["ca", "show"]);
    assert_eq!((&found["sha256"], &found["next_sha256"]), (&before, &next));
    assert_eq!(server.cli(&["ca", "rotate"])["next_sha256"], next, "one successor at a time");
    let refused = server.cli_raw(&["ca", "retire"]);
    assert!(refused.stderr.contains("force: 1 agents have not renewed"), "{refused:?}");
    let mut agent = fleet.join("agent", IP, None);
    assert_eq!(server.connected(IP), id);
    wait_until(PATIENCE, "the agent has renewed, and the old CA is retired", || {
        server.cli(&["ca", "show"])["sha256"] == next
    });
    assert_eq!(fleet.sealed().len(), 1, "the key of the retired CA is deleted");
    server.crash();

    let server = fleet.start(&first, &life);
    let after = server.cli(&["ca", "show"]);
    assert_eq!((&after["sha256"], &after["next_sha256"]), (&next, &Value::Null));
    assert_eq!(server.connected(IP), id, "it trusts the new CA");
    assert!(agent.is_running());
    let mut newcomer = fleet.join("newcomer", "127.0.0.3", Some(&server.token()));
    server.connected("127.0.0.3");
    assert!(newcomer.is_running());
    assert_eq!((server.actions("ca_rotate"), server.actions("ca_retire")), (1, 1));
    server.stop();
}

#[test]
fn a_seal_key_is_replaced_by_ca_reseal() {
    let mut fleet = Fleet::new();
    let data = fleet.data("server");
    let server = fleet.start(&data, &[]);
    // The old CA is needed as long as this token can be used, so the store has two keys.
    server.token();
    let ca = server.cli(&["ca", "rotate"])["sha256"].clone();
    let old = key_id(&fleet.sealed()[0]).to_owned();
    server.stop();
    let (old_file, new_file) = (data.join("seal.key"), fleet.folder.path().join("new.key"));
    let (old_file, new_file) = (old_file.to_str().expect("UTF-8"), new_file.to_str().expect("UTF-8"));
    let both = format!("{new_file},{old_file}");
    let ended = fleet.refused(&data, &["--seal-key", &both]);
    assert!(ended.stderr.contains(&format!("{new_file} does not exist")), "{ended:?}");
    assert!(ended.stderr.contains(&format!("this server has: {old}")), "{ended:?}");
    make_key(Path::new(new_file), "a");

    let server = fleet.start(&data, &["--seal-key", new_file, "--seal-key", old_file]);
    let seal = server.cli(&["ca", "show"])["seal"].clone();
    assert_eq!((&seal["under_other_keys"], &seal["other_keys"]), (&json!(2), &json!([old])));
    let new = seal["key"].as_str().expect("an id").to_owned();
    // Another server that has the old key only.
    fleet.psql(&format!(
        "INSERT INTO server_seal_keys SELECT 's2:/data', ARRAY['{old}'], max(id) FROM servers WHERE state = 'up'"
    ));
    assert_eq!(server.cli(&["ca", "show"])["seal"]["servers_without_key"], json!(["s2:/data"]));
    let refused = server.cli_raw(&["ca", "reseal"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains(&new) && refused.stderr.contains("s2:/data"), "{refused:?}");
    assert!(fleet.sealed().iter().all(|sealed| key_id(sealed) == old));
    fleet.psql("DELETE FROM server_seal_keys WHERE server = 's2:/data'");
    let told = server.cli_raw(&["ca", "reseal"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    let line = format!("sealed under seal key {new}; no private key is sealed under another key");
    assert!(told.stdout.contains(&line), "{told:?}");
    assert!(fleet.sealed().iter().all(|sealed| key_id(sealed) == new));
    server.cli(&["ca", "reseal"]);
    assert_eq!(server.actions("ca_reseal"), 1, "the second one had nothing to do");
    server.crash();

    let ended = fleet.refused(&data, &["--seal-key", old_file]);
    assert!(ended.stderr.contains(&new) && ended.stderr.contains(&old), "{ended:?}");
    let server = fleet.start(&data, &["--seal-key", new_file]);
    assert_eq!(server.cli(&["ca", "show"])["sha256"], ca);
    server.stop();
}

#[test]
fn key_files_of_an_earlier_server_are_sealed_at_the_start() {
    let mut fleet = Fleet::new();
    let (data, other) = (fleet.data("server"), fleet.data("other"));
    let mut program = Program::new(BINARY)
        .args(["server", "--listen", "127.0.0.1:0", "--link", &fleet.link, "--data"])
        .args([&data]);
    program.start();
    wait_until(PATIENCE, "the embedded server has made its CA", || data.join("admin.json").exists());
    assert!(!data.join("seal.key").exists(), "the embedded store needs none");
    program.end(Signal::TERM, PATIENCE);
    let files = || ["ca.key.pem", "ca.cert.der"].map(|file| fs::read(data.join(file)).expect("a CA"));
    let plain = files();

    let server = fleet.start(&data, &[]);
    assert_eq!(files(), plain, "they stay, in case that the operator goes back");
    let log = server.program.stderr();
    assert!(log.contains("ca.key.pem") && log.contains("are not used"), "{log}");
    let ca = server.cli(&["ca", "show"])["sha256"].clone();
    assert_eq!(server.actions("ca_seal"), 1);
    assert_no_part_of_the_key_is_stored(&fleet, &plain[0]);
    let mut agent = fleet.join("agent", IP, Some(&server.token()));
    let id = server.connected(IP);
    server.crash();

    // As an earlier version leaves the database: the pins are there, and the keys are files.
    fleet.psql("DELETE FROM ca_keys");
    let lost = fleet.refused(&other, &[]);
    assert!(lost.stderr.contains("ca.cert.der is gone, and hosts have joined (now 1)"), "{lost:?}");
    assert!(!other.join("seal.key").exists(), "nothing is sealed under a key of its own");
    let server = fleet.start(&data, &[]);
    assert_eq!(server.connected(IP), id);
    assert_eq!((server.cli(&["ca", "show"])["sha256"].clone(), server.actions("ca_seal")), (ca.clone(), 2));
    server.stop();

    copy_secrets(&data, &other);
    let server = fleet.start(&other, &[]);
    assert_eq!(server.cli(&["ca", "show"])["sha256"], ca);
    assert_eq!(server.connected(IP), id);
    assert!(agent.is_running());
    server.stop();

    // Without --store by mistake: the folder has both.
    program.start();
    wait_until(PATIENCE, "the embedded server warns", || {
        program.stderr().contains("stop this server now, and start it with --store")
    });
    program.end(Signal::TERM, PATIENCE);
}

#[test]
fn a_data_folder_begins_no_new_fleet_on_an_empty_database() {
    let mut fleet = Fleet::new();
    let data = fleet.data("server");
    fleet.start(&data, &[]).stop();
    let certificate = || fs::read(data.join("ca.cert.der")).expect("the certificate");
    let (before, url) = (certificate(), fleet.url.clone());
    fleet.url = Cluster::shared().database();
    let refused = fleet.refused(&data, &[]);
    assert!(refused.stderr.contains("which this store does not know. Correct --store"), "{refused:?}");
    assert_eq!(certificate(), before);
    fleet.url = url;
    fleet.start(&data, &[]).stop();
}

/// `pem` is the private key.
#[track_caller]
fn assert_no_part_of_the_key_is_stored(fleet: &Fleet, pem: &[u8]) {
    let pem = String::from_utf8_lossy(pem);
    let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    let windows_in = |column: &str| {
        let sql = format!(
            "SELECT count(*) FROM (SELECT sealed_key, decode('{base64}', 'base64') AS der FROM ca_keys) AS keys, \
             generate_series(1, length(der) - 15) AS first WHERE position(substring(der FROM first FOR 16) IN {column}) > 0"
        );
        fleet.psql(&sql).parse::<u32>().expect("a number")
    };
    assert!(windows_in("der") > 100, "the query finds a key that is there");
    assert_eq!(windows_in("sealed_key"), 0);
}

#[test]
fn a_data_folder_of_another_fleet_is_left_as_it_is() {
    let mut fleet = Fleet::new();
    let (data, other) = (fleet.data("server"), fleet.data("other"));
    fleet.start(&data, &[]).stop();
    let url = std::mem::replace(&mut fleet.url, Cluster::shared().database());
    fleet.start(&other, &[]).stop();
    fleet.url = url;
    let certificate = || fs::read(other.join("ca.cert.der")).expect("the certificate");
    let before = certificate();
    fs::copy(data.join("seal.key"), other.join("seal.key")).expect("our own folders");
    let refused = fleet.refused(&other, &[]);
    assert!(refused.stderr.contains("admin.json is not that of app"), "{refused:?}");
    assert_eq!(certificate(), before);

    copy_secrets(&data, &other);
    fs::write(other.join("ca.key.pem"), "the key of that certificate").expect("our own folder");
    let server = fleet.start(&other, &[]);
    let log = server.program.stderr();
    assert!(log.contains("another CA than the store's") && !log.contains("is in the store, sealed"), "{log}");
    assert_eq!(certificate(), before);
    server.stop();
}

#[test]
fn a_change_of_the_ca_by_another_server_is_followed_without_a_restart() {
    let mut fleet = Fleet::new();
    let data = fleet.data("server");
    let life = ["--agent-cert-secs", "20"];
    let server = fleet.start(&data, &life);
    let mut agent = fleet.join("agent", IP, Some(&server.token()));
    server.connected(IP);
    agent.end(Signal::TERM);
    let next = server.cli(&["ca", "rotate"])["next_sha256"].clone();
    server.stop();
    // The successor is taken back, and comes again as the commit of another server.
    fleet.psql(
        "CREATE TABLE kept AS SELECT next, ca_keys.* FROM ca JOIN ca_keys ON sha256 = next; \
         DELETE FROM ca_keys WHERE sha256 = (SELECT next FROM ca); UPDATE ca SET next = NULL",
    );
    let server = fleet.start(&data, &life);
    assert_eq!(server.cli(&["ca", "show"])["next_sha256"], Value::Null);
    let agent = fleet.join("agent", IP, None);
    server.connected(IP);
    fleet.psql(
        "BEGIN; INSERT INTO ca_keys SELECT sha256, certificate, sealed_key FROM kept; \
         UPDATE ca SET next = (SELECT next FROM kept); COMMIT",
    );
    wait_until(PATIENCE, "the server follows", || {
        server.program.stderr().contains("another server has changed the CA")
    });
    agent.wait_until_log_says("certificate renewed");
    wait_until(PATIENCE, "the old CA is retired", || server.cli(&["ca", "show"])["sha256"] == next);
    assert_eq!(agent.stderr().matches("connected epoch=").count(), 1, "the session went on");
    server.stop();
}

#[test]
fn a_seal_key_is_for_a_database_only() {
    let folder = tempfile::tempdir().expect("a temp dir");
    let ended = Program::new(BINARY)
        .args(["server", "--seal-key", "seal.key", "--data"])
        .args([folder.path().join("data")])
        .run();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--store"), "{ended:?}");
}
