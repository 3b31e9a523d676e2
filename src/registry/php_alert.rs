//! The mail settings that a PHP daemon has left in the registry's database.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use model::settings::{SmtpSettings, SmtpTls};

/// How long the mail server of the PHP daemon may take to accept a connection, and to give each answer.
const MAIL_TIMEOUT: Duration = Duration::from_secs(10);

/// The mail settings of the PHP daemon: a row of `dq_alert`.
#[derive(Clone, PartialEq, Eq)]
pub struct PhpAlert {
    /// The mail server.
    pub host: String,
    /// Its port.
    pub port: i64,
    /// The name for the login, and the sender of the mails.
    pub user: String,
    /// The password.
    pub password: String,
    /// JSON such as `{"redis": "mail,mail"}`. It has the addresses that get an alert when a node is down.
    pub ext: String,
}

impl PhpAlert {
    /// Returns the mail server that the row names. None: the row names no mail server. Port 465 uses TLS from the
    /// start. All other ports need STARTTLS, but a server on this host may work without it.
    pub fn smtp(&self) -> Option<SmtpSettings> {
        let (host, port) = (self.host.trim(), u16::try_from(self.port).ok().filter(|port| *port > 0)?);
        if host.is_empty() {
            return None;
        }
        let login = (!self.password.is_empty()).then(|| (self.user.clone(), self.password.clone()));
        let from = if self.user.contains('@') { self.user.clone() } else { format!("{}@{host}", self.user) };
        let is_here =
            host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
        let tls = match port {
            465 => SmtpTls::Tls,
            _ if is_here => SmtpTls::Opportunistic,
            _ => SmtpTls::Starttls,
        };
        Some(SmtpSettings { host: host.to_owned(), port, tls, login, from, timeout: MAIL_TIMEOUT, ca: None })
    }
}

/// The password is not shown.
impl fmt::Debug for PhpAlert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhpAlert").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}
