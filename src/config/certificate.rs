//! Reads and checks dq's own certificates, for the TCP port, for the HTTP port and for receivers of callbacks.

use std::path::Path;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::ConfigError;
use model::settings::Certificate;

/// A key of the configuration, and the file that it names.
#[derive(Clone, Copy)]
pub(super) struct ConfiguredFile<'a> {
    pub key: &'static str,
    pub file: &'a str,
}

/// Reads a certificate and its key. None: the configuration names no files. Relative paths resolve against `base`.
pub(super) fn certificate(
    cert: ConfiguredFile<'_>,
    key: ConfiguredFile<'_>,
    base: &Path,
) -> Result<Option<Certificate>, ConfigError> {
    let wrong = |name: &str, problem: String| {
        ConfigError::key(if name == "cert" { cert.key } else { key.key }, problem)
    };
    match (cert.file, key.file) {
        ("", "") => return Ok(None),
        ("", _) => return Err(wrong("cert", format!("is missing: {} needs it", key.key))),
        (_, "") => return Err(wrong("key", format!("is missing: {} needs it", cert.key))),
        _ => {}
    }
    let (cert_path, key_path) = (base.join(cert.file), base.join(key.file));
    let read = |key: &str, path: &Path| {
        std::fs::read_to_string(path).map_err(|e| ConfigError::unreadable(key, path, &e))
    };
    let (chain, key) = (read(cert.key, &cert_path)?, read(key.key, &key_path)?);
    let no_cert = |why: &dyn std::fmt::Display| {
        wrong("cert", format!("{cert_path:?} holds no certificate that can be used: {why}"))
    };
    let certs: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(chain.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|e| no_cert(&e))?;
    if certs.is_empty() {
        return Err(no_cert(&"certificates begin with \"-----BEGIN CERTIFICATE-----\""));
    }
    // The parser's error is not shown, because it may quote bytes of the key.
    let der = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|_| {
        let problem =
            "holds no key that can be used; keys begin with \"-----BEGIN PRIVATE KEY-----\", without a password";
        wrong("key", format!("{key_path:?} {problem}"))
    })?;
    let provider = default_provider();
    let signer = provider
        .key_provider
        .load_private_key(der)
        .map_err(|e| wrong("key", format!("{key_path:?}: {e}")))?;
    match CertifiedKey::new(certs, signer).keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
        Err(rustls::Error::InconsistentKeys(_)) => {
            return Err(wrong(
                "key",
                format!("{key_path:?} is not the key of the certificate in {cert_path:?}"),
            ));
        }
        Err(e) => return Err(no_cert(&e)),
    }
    Ok(Some(Certificate { chain, key }))
}
