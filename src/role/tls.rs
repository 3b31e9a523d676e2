//! The TLS of the ports. A generation keeps its certificate. On HUP, the master reads the certificate files again, and
//! begins a new generation with them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use model::settings::Certificate;

/// How long a client may take for the TLS handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Returns the TLS settings of a port. The master has already checked the certificate. `section` is the section of this
/// port in the configuration, such as `http`.
pub fn server_config(certificate: &Certificate, section: &str) -> Result<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(certificate.chain.as_bytes()).collect::<Result<_, _>>();
    let key = PrivateKeyDer::from_pem_slice(certificate.key.as_bytes());
    let key = key.ok().with_context(|| format!("cannot read {section}.tls.key"))?;
    ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain.with_context(|| format!("cannot read {section}.tls.cert"))?, key)
        .with_context(|| format!("cannot use {section}.tls"))
}
