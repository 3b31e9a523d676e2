//! Checks the settings of callbacks: which addresses may be called, and the certificates for TLS.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::certificate::{ConfiguredFile, certificate};
use super::{ConfigError, ports, raw};
use model::settings::{CallbackSettings, TlsSettings};

pub(super) fn callback(raw: &raw::Callback, base: &Path) -> Result<CallbackSettings, ConfigError> {
    let named = |key, file| ConfiguredFile { key, file };
    let own = certificate(
        named("callback.cert_file", &raw.cert_file),
        named("callback.key_file", &raw.key_file),
        base,
    )?;
    Ok(CallbackSettings {
        guard: raw.guard,
        allow: ports::networks("callback.allow", &raw.allow)?,
        tls: TlsSettings { ca: ca(&raw.ca_file, base)?, own: own.map(|own| (own.chain, own.key)) },
    })
}

/// Reads the certificates of the authorities that sign the receivers' certificates.
fn ca(file: &str, base: &Path) -> Result<Option<String>, ConfigError> {
    if file.is_empty() {
        return Ok(None);
    }
    let path = base.join(file);
    let wrong = |problem: String| ConfigError::key("callback.ca_file", problem);
    let text = std::fs::read_to_string(&path).map_err(|e| wrong(format!("cannot read {path:?}: {e}")))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(text.as_bytes()) {
        let added =
            certificate.map_err(|e| e.to_string()).and_then(|c| roots.add(c).map_err(|e| e.to_string()));
        added.map_err(|e| wrong(format!("{path:?} holds something that is not a certificate: {e}")))?;
    }
    if roots.is_empty() {
        return Err(wrong(format!(
            "{path:?} holds no certificate; certificates begin with \"-----BEGIN CERTIFICATE-----\""
        )));
    }
    Ok(Some(text))
}
