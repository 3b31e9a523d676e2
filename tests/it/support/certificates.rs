//! Certificates for tests, made by openssl.

use std::path::Path;
use std::process::Command;

use super::redis::own_host;

/// Makes a CA (ca.pem), and two certificates that this CA has signed, with their keys: server.pem (for loopback and
/// this process's own address) and client.pem. Also makes other.pem, a CA that has signed neither of the two
/// certificates.
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

/// Makes three self-signed certificates of receivers, with their keys: self.pem for 127.0.0.1, elsewhere.pem for
/// another name, and expired.pem for 127.0.0.1, which was valid in 2020. openssl marks self-signed certificates as
/// certificates of a CA.
pub fn self_signed(dir: &Path) {
    let openssl = |arguments: &str| {
        let made = Command::new("openssl").args(arguments.split(' ')).current_dir(dir).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let new = "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for (name, alternative) in [("self", "IP:127.0.0.1"), ("elsewhere", "DNS:elsewhere.example")] {
        openssl(&format!(
            "{new} -x509 -days 2 -subj /CN={name} -addext subjectAltName={alternative} -keyout {name}.key -out {name}.pem"
        ));
    }
    let config = "[ca]\ndefault_ca=d\n[d]\ndatabase=index.txt\nnew_certs_dir=.\nserial=serial\npolicy=p\n\
                  x509_extensions=e\ndefault_md=sha256\n[p]\ncommonName=supplied\n[e]\nbasicConstraints=CA:TRUE\n\
                  subjectAltName=IP:127.0.0.1\n";
    for (file, text) in [("ca.cnf", config), ("index.txt", ""), ("serial", "01\n")] {
        std::fs::write(dir.join(file), text).unwrap();
    }
    openssl(&format!("{new} -subj /CN=expired -keyout expired.key -out expired.csr"));
    openssl(
        "ca -batch -selfsign -config ca.cnf -in expired.csr -keyfile expired.key -notext -startdate 20200101000000Z \
         -enddate 20200102000000Z -out expired.pem",
    );
}
