//! TLS for the API: the server's certificates, and the client's trust in them.

use procfleet_testkit::{Fifo, Finished, PATIENCE, Program, Signal, Up, connect_from, kill, wait_until};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const PROGRAM: &str = env!("CARGO_BIN_EXE_procfleet");
const STATUS: &str = "/api/c/compapi/v2/gse/get_agent_status/";

/// A certificate authority other than the built-in one.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a certificate");
        let issuer = Issuer::from_ca_cert_der(certificate.der(), key).expect("a CA");
        Authority { pem: certificate.pem(), issuer }
    }

    /// A certificate and its key.
    fn sign(&self, name: &str, last_year: i32) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

/// A folder with the files of a certificate.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Files {
        Files { folder: tempfile::tempdir().expect("a temp dir") }
    }

    fn write(&self, name: &str, text: &str) -> String {
        // By rename, as tools that renew certificates do it.
        let (draft, path) = (self.folder.path().join("draft"), self.path(name));
        fs::write(&draft, text).expect("our own folder");
        fs::rename(&draft, &path).expect("our own folder");
        path.to_str().expect("a text").to_owned()
    }

    fn pair(&self, (certificate, key): &(String, String)) -> [String; 2] {
        [self.write("cert.pem", certificate), self.write("key.pem", key)]
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// `ps` by flags alone; the pin of admin.json does not count.
fn by_flags(up: &Up, more: &[&str]) -> Finished {
    ps(up, more).run()
}

fn ps(up: &Up, more: &[&str]) -> Program {
    let (code, secret) = (&up.client.app_code, &up.client.app_secret);
    let flags = ["ps", "--url", &up.client.url, "--app-code", code, "--app-secret", secret];
    Program::new(PROGRAM).args(flags).args(more)
}

#[track_caller]
fn assert_done(finished: &Finished) {
    assert_eq!(finished.code, Some(0), "{finished:?}");
}

#[track_caller]
fn assert_refused(finished: &Finished, words: &str) {
    assert_eq!(finished.code, Some(5), "{finished:?}");
    let said = &finished.stderr;
    assert!(said.contains("cannot reach https://") && said.contains(words), "{words:?}: {finished:?}");
}

#[test]
fn the_built_in_ca_makes_a_certificate_and_admin_json_pins_it() {
    let mut up = Up::start_with(PROGRAM, &["--tls", "--tls-name", "fleet.example"]);
    assert!(up.client.url.starts_with("https://127.0.0.1:"), "{}", up.client.url);
    up.wait_for_agent();
    assert_done(&up.cli(&["ps"]));
    // By its CA, in the form in which the server keeps it, and by a name that the certificate is for.
    let ca = up.data().join("ca.cert.der");
    let ca = ca.to_str().expect("a text");
    assert_done(&by_flags(&up, &["--ca", ca]));
    assert_refused(&by_flags(&up, &[]), "TLS failed");
    let files = Files::new();
    let other = files.write("other.pem", &Authority::new("other").pem);
    assert_refused(&by_flags(&up, &["--ca", &other]), "TLS failed");
    let garbage = files.write("garbage.pem", "garbage");
    let refused = by_flags(&up, &["--ca", &garbage]);
    assert!(refused.code == Some(2) && refused.stderr.contains("--ca "), "{refused:?}");

    // A server that is not the one of admin.json.
    let mut admin = up.admin();
    admin["tls_sha256"] = json!("00".repeat(32));
    let impostor = copy_of_admin(&files, &admin.to_string());
    let refused = Program::new(PROGRAM).args(["ps", "--data"]).args([&impostor]).run();
    assert_refused(&refused, "the server's certificate is not the one in admin.json");

    // The pin is that of the CA: it holds after a restart, with another certificate of the same CA.
    let kept = copy_of_admin(&files, &up.admin().to_string());
    up.end(Signal::TERM);
    up.again();
    let mut moved = up.admin();
    moved["tls_sha256"] = serde_json::from_slice::<serde_json::Value>(
        &fs::read(Path::new(&kept).join("admin.json")).expect("our own file"),
    )
    .expect("JSON")["tls_sha256"]
        .clone();
    let kept = copy_of_admin(&files, &moved.to_string());
    assert_done(&Program::new(PROGRAM).args(["ps", "--data"]).args([&kept]).run());

    // A client without TLS gets no answer.
    let mut plain = connect_from("127.0.0.1", up.client.address());
    let _ = plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "{answer:?}");
}

fn copy_of_admin(files: &Files, text: &str) -> String {
    let path = files.write("admin.json", text);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("our own file");
    files.folder.path().to_str().expect("a text").to_owned()
}

#[test]
fn certificate_files_are_loaded_again_and_a_pair_that_cannot_be_used_is_not() {
    let (first, second, files) = (Authority::new("first"), Authority::new("second"), Files::new());
    let [certificate, key] = files.pair(&first.sign("127.0.0.1", 2100));
    let (ca1, ca2) = (files.write("ca1.pem", &first.pem), files.write("ca2.pem", &second.pem));
    let up = Up::start_with(PROGRAM, &["--tls-cert", &certificate, "--tls-key", &key]);
    let pin = up.admin()["tls_sha256"].clone();
    // One connection that is kept all the time.
    let hosts = json!({"hosts": [{"ip": "127.0.0.1", "bk_cloud_id": 0}]});
    let still_works = || {
        up.client.post(STATUS, hosts.clone()).data();
        assert_done(&by_flags(&up, &["--ca", &ca1]));
        assert_done(&up.cli(&["ps"]));
        assert_eq!(up.admin()["tls_sha256"], pin);
    };
    still_works();
    let logged = |words: &str| up.stderr().lines().filter(|line| line.contains(words)).count();
    let kept = "the API's new certificate cannot be used; the one before stays in use";
    let refused = |reason: &str| {
        wait_until(PATIENCE, reason, || {
            up.stderr().lines().any(|line| line.contains(kept) && line.contains(reason))
        });
        still_works();
    };
    files.write("cert.pem", "garbage");
    refused("it holds no certificate in PEM");
    files.pair(&first.sign("127.0.0.1", 2021));
    refused("has expired");
    files.write("cert.pem", &first.sign("127.0.0.1", 2100).0);
    refused("it is not the key of");
    files.write("key.pem", "garbage");
    refused("it holds no private key in PEM");

    files.pair(&second.sign("127.0.0.1", 2100));
    wait_until(PATIENCE, "the new certificate is in use", || up.admin()["tls_sha256"] != pin);
    up.client.post(STATUS, hosts.clone()).data();
    assert_done(&by_flags(&up, &["--ca", &ca2]));
    assert_done(&up.cli(&["ps"]));
    assert_refused(&by_flags(&up, &["--ca", &ca1]), "TLS failed");

    let replaced = "the API's certificate was replaced";
    let before = logged(replaced);
    kill(up.pid(), Signal::HUP);
    wait_until(PATIENCE, "SIGHUP loads it again", || logged(replaced) > before);

    // A certificate for another name: of the right CA, but not for the host in the url.
    files.pair(&second.sign("other.example", 2100));
    wait_until(PATIENCE, "it is in use", || by_flags(&up, &["--ca", &ca2]).code != Some(0));
    assert_refused(&by_flags(&up, &["--ca", &ca2]), "TLS failed");
    assert_done(&up.cli(&["ps"]));
}

/// Without a pin and without `--ca`, the certificate must be of a CA that this system trusts.
#[test]
fn the_cas_of_the_system_are_those_of_ssl_cert_file() {
    let (authority, files) = (Authority::new("of the system"), Files::new());
    let [certificate, key] = files.pair(&authority.sign("127.0.0.1", 2100));
    let ca = files.write("ca.pem", &authority.pem);
    // A bundle, as systems have them.
    let bundle = files.write("bundle.pem", &format!("{}{}", Authority::new("first").pem, authority.pem));
    let other = files.write("other.pem", &Authority::new("other").pem);
    let garbage = files.write("garbage.pem", "garbage");
    let up = Up::start_with(PROGRAM, &["--tls-cert", &certificate, "--tls-key", &key]);
    let trusting = |file: &str, more: &[&str]| ps(&up, more).env("SSL_CERT_FILE", file).run();
    assert_done(&trusting(&ca, &[]));
    assert_done(&trusting(&bundle, &[]));
    assert_refused(&trusting(&other, &[]), "TLS failed");
    // Empty variables count as not set.
    assert_refused(&trusting("", &[]), "TLS failed");
    assert_done(&ps(&up, &[]).env("PROCFLEET_CA", "").env("SSL_CERT_FILE", &ca).run());
    for unusable in [garbage.as_str(), "/nowhere/ca.pem"] {
        let refused = trusting(unusable, &[]);
        assert!(refused.code == Some(2) && refused.stderr.contains("SSL_CERT_FILE "), "{refused:?}");
    }
    // --ca and the pin of admin.json are more special.
    assert_done(&trusting(&other, &["--ca", &ca]));
    assert_refused(&trusting(&ca, &["--ca", &other]), "TLS failed");
    let pinned = Program::new(PROGRAM).args(["ps", "--data"]).args([up.data()]).env("SSL_CERT_FILE", &other);
    assert_done(&pinned.run());
}

#[test]
fn a_hangup_before_the_server_listens_does_not_end_it() {
    let (authority, files) = (Authority::new("a CA"), Files::new());
    let (certificate, key) = authority.sign("127.0.0.1", 2100);
    let (path, key) = (files.path("cert.pem"), files.write("key.pem", &key));
    // The server reads its certificate before it listens for signals.
    let fifo = Fifo::make(&path);
    let mut server = Program::new(PROGRAM)
        .args(["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0", "--tls-key", &key, "--tls-cert"])
        .args([&path])
        .args([Path::new("--data"), &files.path("data")]);
    server.start();
    let held = fifo.wait_for_reader();
    kill(server.pid(), Signal::HUP);
    held.release(&certificate);
    wait_until(PATIENCE, "the server is ready, and has loaded the certificate again", || {
        assert!(server.is_running(), "the server has ended: {}", server.stderr());
        server.stdout().contains("procfleet server is ready")
            && server.stderr().contains("the API's certificate was replaced")
    });
    // Nothing waits for a thread that would take it.
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("it runs");
    assert!(status.contains("ShdPnd:\t0000000000000000"), "{status}");
    assert_eq!(server.end(Signal::TERM, PATIENCE).0.code(), Some(0), "{}", server.stderr());
}

#[test]
fn a_server_that_is_reached_without_tls_warns_at_each_start() {
    let files = Files::new();
    let words = "the API is served without TLS";
    for (listen, tls, warns) in [
        ("0.0.0.0:0", None, true),
        ("0.0.0.0:0", None, true),
        ("0.0.0.0:0", Some("--tls"), false),
        ("127.0.0.1:0", None, false),
    ] {
        let mut server = Program::new(PROGRAM)
            .args(["server", "--listen", listen, "--link", "127.0.0.1:0"])
            .args(tls)
            .args([Path::new("--data"), &files.path("data")]);
        server.start();
        wait_until(PATIENCE, "the server is ready", || server.stdout().contains("procfleet server is ready"));
        assert_eq!(server.stderr().contains(words), warns, "{listen} {tls:?}: {}", server.stderr());
        server.end(Signal::TERM, PATIENCE);
    }
}

#[test]
fn a_server_does_not_start_with_files_that_it_cannot_use() {
    let (authority, files) = (Authority::new("a CA"), Files::new());
    let (good, expired) = (authority.sign("127.0.0.1", 2100), authority.sign("127.0.0.1", 2021));
    let other = authority.sign("127.0.0.1", 2100);
    let start = |certificate: &str, key: &str| {
        let data = files.path("data");
        Program::new(PROGRAM)
            .args(["server", "--listen", "127.0.0.1:0", "--link", "127.0.0.1:0"])
            .args(["--tls-cert", certificate, "--tls-key", key, "--data"])
            .args([&data])
            .run()
    };
    for (certificate, key, words) in [
        (good.0.as_str(), other.1.as_str(), "is not the key of"),
        (&expired.0, &expired.1, "has expired"),
        ("", &good.1, "it holds no certificate in PEM"),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            &good.1,
            "its certificate cannot be read",
        ),
        (&good.0, "", "it holds no private key in PEM"),
    ] {
        let ended = start(&files.write("c.pem", certificate), &files.write("k.pem", key));
        assert!(ended.code == Some(1) && ended.stderr.contains(words), "{words}: {ended:?}");
    }
    let ended = start("/nowhere/cert.pem", &files.write("k.pem", &good.1));
    assert!(ended.code == Some(1) && ended.stderr.contains("/nowhere/cert.pem"), "{ended:?}");
    let both = Program::new(PROGRAM).args(["server", "--tls", "--tls-cert", "c", "--tls-key", "k"]).run();
    assert_eq!(both.code, Some(2), "{both:?}");
}

/// The right secret from the wrong place opens nothing; other apps may come from anywhere.
#[test]
fn the_administrators_app_may_log_in_from_admin_from_only() {
    let up = Up::start_with(PROGRAM, &["--admin-from", "127.0.0.1/32", "--admin-from", "10.0.0.0/8"]);
    let made = up.cli(&["app", "create", "plain"]);
    assert_done(&made);
    let plain = up.client.as_app("plain", made.stdout.trim());
    let from_elsewhere = |authorization: &str| {
        let stream = connect_from("127.0.0.2", up.client.address());
        let headers = [("X-Bkapi-Authorization", authorization)];
        up.client.send_by(stream, "GET", "/api/v1/tasks", &headers, b"").answer()
    };
    let words = "the administrator's app may not be used from this address";
    from_elsewhere(&up.client.authorization()).assert_refused(1306403, &[words]);
    let mut wrong = up.client.clone();
    wrong.app_secret = "wrong".to_owned();
    from_elsewhere(&wrong.authorization()).assert_refused(1306403, &[words]);
    from_elsewhere(&plain.authorization()).data();
    up.client.get("/api/v1/tasks").data();
    let audit = up.client.data("/api/v1/audit?app=procfleet-admin&action=tasks");
    assert_eq!((&audit[0]["from"], &audit[0]["times"]), (&json!("127.0.0.2"), &json!(2)), "{audit}");
}
