//! TLS for callbacks: the authorities that sign receivers' certificates, dq's own certificate, and the handshake. There
//! are two configurations: one for topics with `tls_verify = false`, and one for all others. Each configuration is made
//! when the first connection needs it. So the system's certificates are read only if they are needed, and only once.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::CallFailure;
use super::verify::{AnyCertificate, KnownCertificateVerifier};
use model::settings;

/// A configuration, or why it cannot be made.
type ClientConfigResult = Result<Arc<ClientConfig>, String>;

/// Makes TLS connections.
pub(super) struct Tls {
    settings: settings::TlsClientSettings,
    verified: OnceLock<ClientConfigResult>,
    unverified: OnceLock<ClientConfigResult>,
}

/// How the connection to a receiver is secured.
#[derive(Debug, Clone, Copy)]
pub(super) struct TlsParameters<'a> {
    pub tls: &'a Tls,
    /// The host of the receiver: a name or an address, without brackets.
    pub host: &'a str,
    /// Whether the certificate of the receiver is checked.
    pub verifies: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    pub(super) fn new(settings: settings::TlsClientSettings) -> Tls {
        Tls { settings, verified: OnceLock::new(), unverified: OnceLock::new() }
    }

    /// Returns the configuration. The system's certificates are read on another thread, because the thread of the calls
    /// must not wait for files.
    async fn config(&self, verifies: bool) -> ClientConfigResult {
        let place = if verifies { &self.verified } else { &self.unverified };
        if let Some(made) = place.get() {
            return made.clone();
        }
        let settings = self.settings.clone();
        let made = tokio::task::spawn_blocking(move || configure(&settings, verifies).map(Arc::new)).await;
        let made = made.unwrap_or_else(|e| Err(format!("the certificates cannot be read: {e}")));
        place.get_or_init(|| made).clone()
    }
}

impl TlsParameters<'_> {
    /// Does the handshake.
    pub(super) async fn over(&self, tcp: TcpStream) -> Result<TlsStream<TcpStream>, CallFailure> {
        let TlsParameters { tls, host, verifies } = *self;
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            CallFailure::no_connection(format!("{host:?} is not a name that a certificate can have"))
        })?;
        let connector = TlsConnector::from(tls.config(verifies).await.map_err(CallFailure::no_connection)?);
        connector.connect(name, tcp).await.map_err(|e| CallFailure::of_connection(&e))
    }
}

/// Returns the verifier of receivers' certificates. It accepts certificates of the authorities that the host trusts,
/// and of the authorities in `ca`.
fn known_certificates(
    ca: Option<&str>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    let mut named = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(ca.unwrap_or_default().as_bytes()) {
        let certificate = certificate.map_err(|e| format!("callback.ca_file: {e}"))?;
        roots.add(certificate.clone()).map_err(|e| format!("callback.ca_file: {e}"))?;
        named.push(certificate);
    }
    if roots.is_empty() {
        return Err(
            "this host trusts no certificate: install ca-certificates, or set callback.ca_file".into()
        );
    }
    let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
        .build()
        .map_err(|e| e.to_string())?;
    Ok(Arc::new(KnownCertificateVerifier { authorities, named }))
}

fn configure(settings: &settings::TlsClientSettings, verifies: bool) -> Result<ClientConfig, String> {
    let provider = Arc::new(default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match verifies {
        true => known_certificates(settings.ca.as_deref(), &provider)?,
        false => Arc::new(AnyCertificate(Arc::clone(&provider))),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((chain, key)) = &settings.own else { return Ok(builder.with_no_client_auth()) };
    let chain: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| format!("callback.cert_file: {e}"))?;
    // The parser's error is not shown, because it may quote bytes of the key.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| "callback.key_file holds no key".to_owned())?;
    builder.with_client_auth_cert(chain, key).map_err(|e| format!("callback.cert_file: {e}"))
}
