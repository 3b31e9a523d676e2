//! Certificates for tests, made by openssl.

use std::path::Path;
use std::process::Command;

use super::redis::own_host;

/// Makes ca.pem; server.pem (for loopback and this process's own address) and client.pem, both signed by it, with their
/// keys; and other.pem, a CA that has signed neither.
pub fn certificates(dir: &Path) {
    let openssl = |arguments: &str| {
        let made = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let new = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for name in ["ca", "other"] {
        openssl(&format!("{new} -x509 -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"));
    }
    let server = format!("subjectAltName=IP:127.0.0.1,IP:{}", own_host());
    for (name, extension) in [("server", server.as_str()), ("client", "extendedKeyUsage=clientAuth")] {
        openssl(&format!("{new} -subj /CN={name} -keyout {name}.key -out {name}.csr"));
        std::fs::write(dir.join("extension"), extension).unwrap();
        openssl(&format!(
            "x509 -req -days 2 -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile extension -out {name}.pem"
        ));
    }
}
