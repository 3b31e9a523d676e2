//! Mail by SMTP. Each mail has its own connection, because alerts are few.

use lettre::Transport;
use lettre::address::Address;
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message as Mail};
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{Certificate, CertificateStore, Tls, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use lettre::transport::smtp::{Error, SmtpTransport};

use super::AlertSendError;
use model::excerpt::Excerpt;
use model::notice::Message;
use model::settings::{SmtpSettings, SmtpTls};

/// Sends mail through one server.
pub struct Mailer {
    transport: SmtpTransport,
    from: Mailbox,
}

impl Mailer {
    /// Makes a mailer for the server in these settings. An error says why the settings cannot be used.
    pub fn new(smtp: &SmtpSettings) -> Result<Mailer, AlertSendError> {
        let server = |e: &dyn std::fmt::Display| AlertSendError::Server(e.to_string());
        let tls = match smtp.tls {
            SmtpTls::None => Tls::None,
            SmtpTls::Tls => Tls::Wrapper(parameters(smtp).map_err(|e| server(&e))?),
            SmtpTls::Starttls => Tls::Required(parameters(smtp).map_err(|e| server(&e))?),
            SmtpTls::Opportunistic => Tls::Opportunistic(parameters(smtp).map_err(|e| server(&e))?),
        };
        let mut builder = SmtpTransport::builder_dangerous(&smtp.host)
            .port(smtp.port)
            .timeout(Some(smtp.timeout))
            .tls(tls)
            // The default name in the greeting (EHLO) is an IP address. Some servers check a host name and refuse it,
            // but no server checks an address.
            .hello_name(ClientId::default());
        if let Some((user, password)) = &smtp.login {
            builder = builder
                .credentials(Credentials::new(user.clone(), password.clone()))
                .authentication(vec![Mechanism::Plain, Mechanism::Login]);
        }
        let from = mailbox(&smtp.from).map_err(AlertSendError::Server)?;
        Ok(Mailer { transport: builder.build(), from })
    }

    /// Sends a message to one address.
    pub fn send(&self, to: &str, message: &Message) -> Result<(), AlertSendError> {
        let mail = Mail::builder()
            .from(self.from.clone())
            .to(mailbox(to).map_err(AlertSendError::Message)?)
            .subject(&message.subject)
            .message_id(None)
            .header(ContentType::TEXT_PLAIN)
            .body(format!("{}\n", message.text))
            .map_err(|e| AlertSendError::Message(e.to_string()))?;
        self.transport.send(&mail).map(drop).map_err(|e| not_sent(&e))
    }
}

fn parameters(smtp: &SmtpSettings) -> Result<TlsParameters, Error> {
    let mut builder = TlsParameters::builder(smtp.host.clone());
    if let Some(ca) = &smtp.ca {
        let certificate = Certificate::from_pem(ca.as_bytes())?;
        builder = builder.certificate_store(CertificateStore::None).add_root_certificate(certificate);
    }
    builder.build_rustls()
}

fn mailbox(text: &str) -> Result<Mailbox, String> {
    let text = text.trim();
    let parsed = text.parse::<Mailbox>().or_else(|_| text.parse::<Address>().map(|a| Mailbox::new(None, a)));
    parsed.map_err(|e| format!("{text:?} is not an address: {e}"))
}

/// Returns what is wrong with an address. None: mail can be sent to this address.
pub fn address(text: &str) -> Option<String> {
    mailbox(text).err()
}

/// Returns an error that names all causes. The variant of the returned error says whether the message or the server is
/// the reason.
fn not_sent(error: &Error) -> AlertSendError {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(e) = source {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = e.source();
    }
    // The text may contain the answer of a server, and so have any length.
    let text = Excerpt(text).to_string();
    match error.status() {
        Some(_) if error.is_permanent() => AlertSendError::Refused(text),
        Some(_) => AlertSendError::Message(text),
        None => AlertSendError::Server(text),
    }
}
