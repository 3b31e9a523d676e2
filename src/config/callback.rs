//! Checks the settings of callbacks: which addresses may be called, the certificates for TLS, and the limits of hosts.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::certificate::{ConfiguredFile, certificate};
use super::{ConfigError, ports, raw};
use model::settings::{CallbackSettings, HostLimit, TlsClientSettings};
use model::topic::HostPattern;

/// The greatest value of `max_in_flight`, and the greatest number of jobs in `rate`.
const MILLION: u32 = 1_000_000;

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
        tls: TlsClientSettings { ca: ca(&raw.ca_file, base)?, own: own.map(|own| (own.chain, own.key)) },
    })
}

/// Checks the limits of hosts.
pub(super) fn host_limits(raw: Vec<raw::CallbackHost>) -> Result<Vec<HostLimit>, ConfigError> {
    let mut limits: Vec<HostLimit> = Vec::new();
    for (n, raw::CallbackHost { name, max_in_flight, rate }) in raw.into_iter().enumerate() {
        let key = |field: &str| format!("callback.host[{n}].{field}");
        let wrong = |field, problem: String| Err(ConfigError::key(&*key(field), problem));
        let Some(host) = HostPattern::parse(&name).filter(|host| !host.is_wildcard()) else {
            let wanted = "a host such as \"shop.example\" or \"shop.example:8443\"";
            return wrong("name", format!("{name:?} is not {wanted}"));
        };
        if limits.iter().any(|other| other.host == host) {
            return wrong("name", format!("{name:?} is there twice"));
        }
        if max_in_flight.is_none() && rate.is_none() {
            return wrong("max_in_flight", "is missing: give it, or rate".to_owned());
        }
        if max_in_flight.is_some_and(|most| !(1..=MILLION).contains(&most)) {
            return wrong("max_in_flight", format!("is not within 1 to {MILLION}"));
        }
        if rate.is_some_and(|rate| !(1..=MILLION).contains(&rate.jobs)) {
            return wrong("rate", format!("is not within 1 to {MILLION}"));
        }
        limits.push(HostLimit { name: name.to_ascii_lowercase(), host, max_in_flight, rate });
    }
    Ok(limits)
}

/// Reads the certificates of the authorities that sign the receivers' certificates.
fn ca(file: &str, base: &Path) -> Result<Option<String>, ConfigError> {
    if file.is_empty() {
        return Ok(None);
    }
    let path = base.join(file);
    let key = "callback.ca_file";
    let wrong = |problem: String| ConfigError::key(key, problem);
    let text = std::fs::read_to_string(&path).map_err(|e| ConfigError::unreadable(key, &path, &e))?;
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
