//! TLS of callbacks: whom receivers are certified by, what dq shows of itself, and a connection wrapped in it. One configuration
//! for all connections, made when the first is wanted, so that the system's certificates are read once.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use ureq::Error;
use ureq::unversioned::transport::time::{Duration, Instant};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, LazyBuffers, NextTimeout, Transport, TransportAdapter,
};

use crate::settings;

/// Wraps connections.
pub(super) struct Tls {
    settings: settings::Tls,
    config: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}

impl Tls {
    pub(super) fn new(settings: settings::Tls) -> Tls {
        Tls { settings, config: OnceLock::new() }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        let made = self.config.get_or_init(|| configure(&self.settings).map(Arc::new));
        made.clone().map_err(|why| Error::Other(why.into()))
    }

    /// The handshake. It takes no longer than what is left of the time for a connection.
    pub(super) fn wrap(
        &self,
        tcp: Box<dyn Transport>,
        details: &ConnectionDetails<'_>,
    ) -> Result<Secured, Error> {
        let host = details.uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| Error::Other(format!("{host:?} is no name that a certificate could have").into()))?;
        let mut conn = ClientConnection::new(self.config()?, name).map_err(|e| Error::Other(Box::new(e)))?;
        let mut sock = TransportAdapter::new(tcp, details.current_time.clone());
        let mut timeout = details.timeout;
        if let (Duration::Exact(limit), Instant::Exact(now), Instant::Exact(begun)) =
            (timeout.after, (details.current_time)(), details.now)
        {
            timeout.after = Duration::Exact(limit.saturating_sub(now.saturating_duration_since(begun)));
        }
        sock.set_timeout(timeout);
        while conn.is_handshaking() {
            conn.complete_io(&mut sock)?;
        }
        let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
        Ok(Secured { buffers: LazyBuffers::new(input, output), stream: StreamOwned { conn, sock } })
    }
}

fn configure(settings: &settings::Tls) -> Result<ClientConfig, String> {
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
    // What is wrong with a key is not told: it may be told of by its bytes.
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
        .map_err(|_| "callback.key_file holds no key".to_owned())?;
    builder.with_client_auth_cert(chain, key).map_err(|e| format!("callback.cert_file: {e}"))
}

/// A connection within TLS.
pub(super) struct Secured {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Secured").field(&self.stream.sock.inner()).finish()
    }
}

impl Transport for Secured {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        let output = &self.buffers.output()[..amount];
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let input = self.buffers.input_append_buf();
        let amount = self.stream.read(input)?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
