//! TLS for callbacks: the authorities that sign receivers' certificates, dq's own certificate, and the handshake. All
//! connections share one configuration. It is made for the first connection, so that the system's certificates are read
//! once.

use std::fmt;
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::failure::CallFailure;
use model::settings;

/// Makes TLS connections.
pub(super) struct Tls {
    settings: settings::TlsSettings,
    config: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    pub(super) fn new(settings: settings::TlsSettings) -> Tls {
        Tls { settings, config: OnceLock::new() }
    }

    /// Returns the configuration. The system's certificates are read on another thread, because the thread of the calls
    /// must not wait for files.
    async fn config(&self) -> Result<Arc<ClientConfig>, String> {
        if let Some(made) = self.config.get() {
            return made.clone();
        }
        let settings = self.settings.clone();
        let made = tokio::task::spawn_blocking(move || configure(&settings).map(Arc::new)).await;
        let made = made.unwrap_or_else(|e| Err(format!("the certificates cannot be read: {e}")));
        self.config.get_or_init(|| made).clone()
    }

    /// Does the handshake.
    pub(super) async fn wrap(&self, tcp: TcpStream, host: &str) -> Result<TlsStream<TcpStream>, CallFailure> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            CallFailure::no_connection(format!("{host:?} is not a name that a certificate can have"))
        })?;
        let connector = TlsConnector::from(self.config().await.map_err(CallFailure::no_connection)?);
        connector.connect(name, tcp).await.map_err(|e| CallFailure::of_connection(&e))
    }
}

fn configure(settings: &settings::TlsSettings) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if let Some(ca) = &settings.ca {
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            let certificate = certificate.map_err(|e| format!("callback.ca_file: {e}"))?;
            roots.add(certificate).map_err(|e| format!("callback.ca_file: {e}"))?;
        }
    }
    if roots.is_empty() {
        return Err(
            "this host trusts no certificate: install ca-certificates, or set callback.ca_file".into()
        );
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(roots);
    let Some((chain, key)) = &settings.own else { return Ok(builder.with_no_client_auth()) };
    let chain: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| format!("callback.cert_file: {e}"))?;
    // The parser's error is not shown, because it may quote bytes of the key.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| "callback.key_file holds no key".to_owned())?;
    builder.with_client_auth_cert(chain, key).map_err(|e| format!("callback.cert_file: {e}"))
}
