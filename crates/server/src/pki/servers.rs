//! Certificates of servers, for connections between the servers of one store.
//!
//! Every server has the CA's key, so each one signs a certificate for itself. It names the server's run,
//! which is what the other side checks: servers are found by URLs from the store, and several may stand
//! behind one host name. The key exists in memory only, and the certificate is replaced every day.
//!
//! The certificate is different from the one that the link shows to agents: another name, valid for both ends
//! of a connection, and for days instead of years. Validity is checked by the store's time, so the wall
//! clocks of the servers do not matter.

use super::{Ca, PkiError, SERVER_NAME};
use crate::clock::Clock;
use procfleet_proto::peer::PEER_NAME;
use procfleet_store::ServerId;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose, SanType};
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring as ring_provider};
use tokio_rustls::rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error as TlsError,
    RootCertStore, ServerConfig, SignatureScheme,
};
use x509_parser::extensions::GeneralName;

/// How long before now a certificate begins, and after now it ends: the store's time may be corrected.
const SLACK: Duration = Duration::from_secs(86_400);
const LIFE: Duration = Duration::from_secs(7 * 86_400);

/// The certificate and key of one run of this server.
pub struct RunCertificate {
    run: ServerId,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    trust: TrustedServers,
}

/// What is needed to check the certificate of another server.
#[derive(Clone)]
struct TrustedServers {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
    clock: Clock,
}

/// Which server a client wants to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedServer {
    Run(ServerId),
    /// Any server of the fleet: a run may have ended since its address was known.
    Any,
}

impl std::fmt::Debug for RunCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RunCertificate").field(&self.run).finish()
    }
}

impl Ca {
    /// A certificate for this run of this server, with a new key. Signed by the CA that every server trusts,
    /// also one that has not heard of a successor yet.
    pub fn sign_run(&self, run: ServerId, clock: Clock) -> Result<RunCertificate, PkiError> {
        self.sign_run_at(run, clock, since_1970(clock))
    }

    fn sign_run_at(&self, run: ServerId, clock: Clock, now: Duration) -> Result<RunCertificate, PkiError> {
        let key = KeyPair::generate()?;
        let name = run_name(run);
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, name.as_str());
        params.subject_alt_names =
            vec![SanType::DnsName(PEER_NAME.try_into()?), SanType::URI(name.as_str().try_into()?)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let epoch = rcgen::date_time_ymd(1970, 1, 1);
        params.not_before = epoch + now.saturating_sub(SLACK);
        params.not_after = epoch + now + LIFE;
        let leaf = params.signed_by(&key, &self.present().shown.issuer)?.der().clone();
        let mut roots = RootCertStore::empty();
        for ca in self.certificates() {
            roots.add(ca).map_err(tls)?;
        }
        let provider = Arc::new(ring_provider::default_provider());
        Ok(RunCertificate {
            run,
            chain: vec![leaf],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            trust: TrustedServers { roots: Arc::new(roots), provider, clock },
        })
    }
}

impl RunCertificate {
    pub fn run(&self) -> ServerId {
        self.run
    }

    /// For connections from other servers. Only servers get through the handshake.
    pub fn server_tls(&self) -> Result<Arc<ServerConfig>, PkiError> {
        let TrustedServers { roots, provider, clock } = self.trust.clone();
        let strict = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| PkiError::Tls(Box::new(error)))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls)?
            .with_client_cert_verifier(Arc::new(PeerClientVerifier { strict, clock }))
            .with_single_cert(self.chain.clone(), self.key.clone_key())
            .map_err(tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    /// For connections to another server, by the name [`PEER_NAME`].
    pub fn client_tls(&self, expected: ExpectedServer) -> Result<Arc<ClientConfig>, PkiError> {
        let TrustedServers { roots, provider, clock } = self.trust.clone();
        let strict = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
            .build()
            .map_err(|error| PkiError::Tls(Box::new(error)))?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(tls)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(PeerServerVerifier { strict, clock, expected }))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(tls)?;
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

/// The server that a certificate of ours names. `None`: it is no server's, but an agent's for example.
pub fn server_of(certificate: &CertificateDer<'_>) -> Option<ServerId> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let mut runs = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) => {
            let run = ServerId(uri.strip_prefix(SERVER_NAME)?.strip_prefix(':')?.parse().ok()?);
            (run_name(run) == **uri).then_some(run)
        }
        _ => None,
    });
    match (runs.next(), runs.next()) {
        (Some(run), None) => Some(run),
        (_, _) => None,
    }
}

fn run_name(run: ServerId) -> String {
    format!("{SERVER_NAME}:{}", run.0)
}

fn tls(error: TlsError) -> PkiError {
    PkiError::Tls(Box::new(error))
}

fn since_1970(clock: Clock) -> Duration {
    Duration::from_millis(u64::try_from(clock.wall()).unwrap_or_default())
}

/// Accepts a client that is a server of this fleet.
#[derive(Debug)]
struct PeerClientVerifier {
    strict: Arc<dyn ClientCertVerifier>,
    clock: Clock,
}

impl ClientCertVerifier for PeerClientVerifier {
    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        let now = UnixTime::since_unix_epoch(since_1970(self.clock));
        let verified = self.strict.verify_client_cert(end_entity, intermediates, now)?;
        match server_of(end_entity) {
            Some(_) => Ok(verified),
            None => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.strict.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.strict.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.strict.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

/// Accepts the server that was meant, by its run and not by its host name.
#[derive(Debug)]
struct PeerServerVerifier {
    strict: Arc<WebPkiServerVerifier>,
    clock: Clock,
    expected: ExpectedServer,
}

impl ServerCertVerifier for PeerServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let now = UnixTime::since_unix_epoch(since_1970(self.clock));
        let verified =
            self.strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)?;
        match (self.expected, server_of(end_entity)) {
            (ExpectedServer::Run(expected), Some(found)) if expected == found => Ok(verified),
            (ExpectedServer::Any, Some(_)) => Ok(verified),
            (ExpectedServer::Run(_) | ExpectedServer::Any, _) => {
                Err(CertificateError::NotValidForName.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.strict.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.strict.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.strict.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{CaStart, agent_of};
    use procfleet_core::id::AgentId;
    use procfleet_store::clock::BootNumber;
    use std::io;
    use tempfile::TempDir;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    const DAY: Duration = Duration::from_secs(86_400);

    fn ca() -> (Ca, TempDir) {
        let folder = tempfile::tempdir().expect("a temp dir");
        let ca = Ca::open(folder.path(), DAY, CaStart::AfterHosts(0), None).expect("a CA");
        (ca, folder)
    }

    fn clock() -> Clock {
        Clock::start(BootNumber(1))
    }

    fn run(ca: &Ca, run: i64) -> RunCertificate {
        ca.sign_run(ServerId(run), clock()).expect("a certificate")
    }

    /// TLS with a certificate and key of an agent.
    fn agent_tls(ca: &Ca) -> (CertificateDer<'static>, Arc<ClientConfig>) {
        let key = KeyPair::generate().expect("a key");
        let request =
            CertificateParams::new(Vec::new()).expect("no names").serialize_request(&key).expect("a request");
        let agent: AgentId = "procfleet-server:7".parse().expect("an id that reads as a server's");
        let signed = ca.sign_agent(request.der(), &agent, clock().wall()).expect("signed").certificate;
        let mut roots = RootCertStore::empty();
        roots.add(ca.certificate()).expect("a CA");
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ClientConfig::builder_with_provider(Arc::new(ring_provider::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![signed.clone()], key)
            .expect("a key that fits");
        (signed, Arc::new(config))
    }

    /// A handshake, and a byte in each direction: a client whose certificate is refused learns it only then.
    async fn handshake(
        server: Arc<ServerConfig>,
        client: Arc<ClientConfig>,
    ) -> (io::Result<()>, io::Result<()>) {
        let (here, there) = tokio::io::duplex(64 * 1024);
        let serving = async {
            let mut stream = TlsAcceptor::from(server).accept(here).await?;
            stream.read_u8().await?;
            stream.write_u8(1).await?;
            stream.flush().await
        };
        let asking = async {
            let name = ServerName::try_from(PEER_NAME).expect("a name");
            let mut stream = TlsConnector::from(client).connect(name, there).await?;
            stream.write_u8(1).await?;
            stream.flush().await?;
            stream.read_u8().await.map(|_| ())
        };
        tokio::join!(serving, asking)
    }

    #[test]
    fn a_certificate_is_a_servers_or_an_agents() {
        let (ca, _folder) = ca();
        let (agent, _) = agent_tls(&ca);
        assert_eq!(server_of(&agent), None, "whatever the agent is called");
        assert!(agent_of(&agent).is_some());
        let own = run(&ca, 7);
        assert_eq!(server_of(&own.chain[0]), Some(ServerId(7)));
        assert_eq!(agent_of(&own.chain[0]), None);
        let (api, _) = ca.sign_api(&[SERVER_NAME.to_owned()]).expect("a certificate");
        assert_eq!(server_of(&api[0]), None);
        assert_eq!(server_of(&ca.certificate()), None);
        assert_eq!(server_of(&CertificateDer::from(vec![0, 1, 2])), None);
    }

    #[tokio::test]
    async fn a_client_reaches_the_run_that_it_means_and_no_other() {
        let (ca, _folder) = ca();
        let server = run(&ca, 7).server_tls().expect("TLS");
        for (expected, reached) in [
            (ExpectedServer::Run(ServerId(7)), true),
            (ExpectedServer::Any, true),
            (ExpectedServer::Run(ServerId(8)), false),
            (ExpectedServer::Run(ServerId(70)), false),
        ] {
            let client = run(&ca, 9).client_tls(expected).expect("TLS");
            let (served, asked) = handshake(server.clone(), client).await;
            assert_eq!((served.is_ok(), asked.is_ok()), (reached, reached), "{expected:?}");
        }
        // The certificate that agents see does not name a run.
        let client = run(&ca, 9).client_tls(ExpectedServer::Any).expect("TLS");
        assert!(handshake(ca.link_tls(), client).await.1.is_err());
    }

    #[tokio::test]
    async fn only_a_valid_certificate_of_a_server_of_the_same_ca_gets_in() {
        let ((ca, _folder), (other_ca, _other_folder)) = (ca(), ca());
        let server = run(&ca, 7).server_tls().expect("TLS");
        let now = since_1970(clock());
        let at = |now: Duration| {
            let own = ca.sign_run_at(ServerId(9), clock(), now).expect("a certificate");
            own.client_tls(ExpectedServer::Any).expect("TLS")
        };
        let (_, agent) = agent_tls(&ca);
        let stranger = RunCertificate { trust: run(&ca, 9).trust, ..run(&other_ca, 9) };
        let anonymous = ClientConfig::builder_with_provider(Arc::new(ring_provider::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(RootCertStore::clone(&run(&ca, 9).trust.roots))
            .with_no_client_auth();
        for (who, client, gets_in) in [
            ("a server", at(now), true),
            ("one whose clock is an hour ahead", at(now + Duration::from_secs(3_600)), true),
            ("one whose certificate is six days old", at(now - 6 * DAY), true),
            ("one whose certificate has expired", at(now - 8 * DAY), false),
            ("one whose certificate begins in the future", at(now + 3 * DAY), false),
            ("an agent", agent, false),
            ("a server of another CA", stranger.client_tls(ExpectedServer::Any).expect("TLS"), false),
            ("nobody", Arc::new(anonymous), false),
        ] {
            let (served, asked) = handshake(server.clone(), client).await;
            assert_eq!((served.is_ok(), asked.is_ok()), (gets_in, gets_in), "{who}: {served:?} {asked:?}");
        }
    }

    #[tokio::test]
    async fn servers_reach_each_other_while_a_ca_has_a_successor() {
        let (ca, folder) = ca();
        let before = run(&ca, 7);
        let prepared = ca.prepare_successor().expect("no error").expect("a successor");
        ca.adopt(prepared).expect("adopted");
        let after = run(&ca, 9);
        for (server, client) in [(&before, &after), (&after, &before)] {
            let expected = ExpectedServer::Run(server.run());
            let (server, client) =
                (server.server_tls().expect("TLS"), client.client_tls(expected).expect("TLS"));
            let (served, asked) = handshake(server, client).await;
            assert!(served.is_ok() && asked.is_ok(), "{expected:?}: {served:?} {asked:?}");
        }
        drop(folder);
    }
}
