//! TLS on the HTTP port: a certificate for as long as a generation lives. HUP begins another one, with the files as they are then.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::settings::Certificate;

/// How long a client may take to agree with the server.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);

/// What the master has checked is made use of.
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
