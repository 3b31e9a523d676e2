//! The certificate of a port.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A certificate and its key, in the PEM format.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificate {
    /// The certificate, and the certificates that sign it.
    pub chain: String,
    /// The key of the certificate.
    pub key: String,
}

/// Hides the key.
impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate(..)")
    }
}
