//! TLS on the HTTP port.

use std::sync::Arc;

use anyhow::Result;
use tokio_rustls::TlsAcceptor;

use model::settings::Certificate;

/// Builds the TLS acceptor.
pub(super) fn acceptor(certificate: &Certificate) -> Result<TlsAcceptor> {
    let mut config = role::tls::server_config(certificate, "http")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
