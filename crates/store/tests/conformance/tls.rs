//! TLS to the database: `sslmode` and `sslrootcert` mean what they mean to libpq.

use super::*;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// A CA that may sign the certificate of a database.
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
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| error.to_string()).collect::<Vec<_>>().join(": ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_certificate_of_the_database_is_verified_as_the_url_says() {
    let folder = tempfile::tempdir().expect("a temp folder");
    let authorities = [("right", Authority::new("right")), ("wrong", Authority::new("wrong"))];
    for (name, authority) in &authorities {
        std::fs::write(folder.path().join(name), &authority.pem).expect("our own folder");
    }
    std::fs::write(folder.path().join("empty"), "").expect("our own folder");
    let (certificate, key) = authorities[0].1.sign("db.test");
    let direct = tokio::task::spawn_blocking(|| Cluster::shared().database()).await.expect("a database");
    let database = direct.rsplit('/').next().expect("a name").to_owned();
    // The name of a host is that of its certificate; the address is always this machine.
    let url = |host: &str, mode: &str, roots: Option<&str>| {
        let port = Cluster::shared().port();
        let mut url =
            format!("postgres://procfleet@{host}:{port}/{database}?hostaddr=127.0.0.1&sslmode={mode}");
        if let Some(roots) = roots {
            url.push_str(&format!("&sslrootcert={}", folder.path().join(roots).display()));
        }
        url
    };
    let refusal = async |url: &str| match url.parse::<StoreUrl>() {
        Ok(url) => Store::connect(&url).await.err().map(|error| chain(&error)),
        Err(fault) => Some(fault.to_string()),
    };
    let without = refusal(&url("db.test", "verify-full", Some("right"))).await;
    assert!(without.as_ref().is_some_and(|text| text.contains("server does not support TLS")), "{without:?}");

    let accept = move || Cluster::shared().accept_tls(&certificate, &key);
    tokio::task::spawn_blocking(accept).await.expect("it has TLS");
    for (host, mode, roots, expected) in [
        ("db.test", "verify-full", Some("wrong"), "invalid peer certificate: UnknownIssuer"),
        ("other.test", "verify-full", Some("right"), "certificate not valid for name \"other.test\""),
        ("db.test", "verify-full", Some("empty"), "it has no certificate in PEM form"),
        ("db.test", "verify-full", Some("nowhere"), "No such file"),
        ("db.test", "verify-full", None, "sslmode=verify-full needs sslrootcert=FILE"),
        ("other.test", "verify-ca", Some("wrong"), "invalid peer certificate: UnknownIssuer"),
        ("db.test", "require", None, "sslmode=require: use disable, verify-ca or verify-full"),
        ("db.test", "prefer", Some("right"), "sslmode=prefer: use disable, verify-ca or verify-full"),
    ] {
        let url = url(host, mode, roots);
        let refused = refusal(&url).await.unwrap_or_else(|| panic!("{url} was accepted"));
        assert!(refused.contains(expected), "{url}: {refused}");
    }
    for (host, mode, is_encrypted) in [
        ("db.test", "verify-full", "t"),
        ("other.test", "verify-ca", "t"),
        ("other.test", "require", "t"),
        ("db.test", "disable", "f"),
    ] {
        let url = url(host, mode, (mode != "disable").then_some("right"));
        // A name of its own: connections of the store before may still be ending.
        let url = format!("{url}&application_name={mode}");
        let store = Store::connect(&url.parse().expect("a url")).await.unwrap_or_else(|error| {
            panic!("{url}: {}", chain(&error));
        });
        // All connections: those of the pool, and that of the heartbeat.
        store.businesses().await.expect("readable");
        let sql = format!(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = '{mode}'"
        );
        let seen = tokio::task::spawn_blocking(move || Cluster::shared().psql("postgres", &sql));
        assert_eq!(seen.await.expect("it ends").as_deref(), Ok(is_encrypted), "{url}");
        store.close().await.expect("closed");
    }
}
