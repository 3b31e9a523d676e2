//! What a connection to a server needs: user, password, database and certificates. These values can be used with any
//! address.

use redis::{ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};

use model::settings::TlsClientSettings;

/// How to connect to a server: the values from its URL, and the certificates from the settings.
#[derive(Clone)]
pub(super) struct ConnectionParameters(ConnectionInfo);

impl ConnectionParameters {
    /// Reads a URL and certificates.
    pub(super) fn new(url: &str, tls: &TlsClientSettings) -> Result<ConnectionParameters, RedisError> {
        if !url.starts_with("rediss:") || *tls == TlsClientSettings::default() {
            return Ok(ConnectionParameters(redis::Client::open(url)?.get_connection_info().clone()));
        }
        let own = tls.own.as_ref().map(|(cert, key)| redis::ClientTlsConfig {
            client_cert: cert.clone().into_bytes(),
            client_key: key.clone().into_bytes(),
        });
        let certificates =
            TlsCertificates { client_tls: own, root_cert: tls.ca.as_ref().map(|ca| ca.clone().into_bytes()) };
        Ok(ConnectionParameters(
            redis::Client::build_with_tls(url, certificates)?.get_connection_info().clone(),
        ))
    }

    /// Returns the same parameters with another address.
    pub(super) fn at(&self, host: &str, port: u16) -> ConnectionParameters {
        let host = host.to_owned();
        let there = match self.0.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        ConnectionParameters(self.0.clone().set_addr(there))
    }

    /// Returns the address, for display.
    pub(super) fn address(&self) -> String {
        self.0.addr().to_string()
    }

    /// Returns the host of the address, or none if the address is a Unix socket.
    pub(super) fn host(&self) -> Option<&str> {
        match self.0.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
            _ => None,
        }
    }

    pub(super) fn client(&self) -> Result<redis::Client, RedisError> {
        redis::Client::open(self.0.clone())
    }
}
