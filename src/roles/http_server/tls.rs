//! TLS on the HTTP port. A generation keeps its certificate. HUP begins a new generation, which reads the files again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use model::settings::Certificate;

/// How long a client may take for the TLS handshake.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// Builds the TLS acceptor. The master has already checked the certificate.
pub(super) fn acceptor(certificate: &Certificate) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes()).collect::<Result<_, _>>();
    let key =
        PrivateKeyDer::from_pem_slice(certificate.key.as_bytes()).ok().context("cannot read http.tls.key")?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain.context("cannot read http.tls.cert")?, key)
        .context("cannot use http.tls")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
