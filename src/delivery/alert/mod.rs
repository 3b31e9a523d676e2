//! Sends messages to people: mail by SMTP, and webhooks. A call blocks until the server has answered or a timeout has
//! passed, so use a thread that has nothing else to do. `model::notice` decides who gets which message.

mod smtp;
mod webhook;

pub use self::smtp::{Mailer, address};
pub use self::webhook::Webhook;

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum AlertSendError {
    /// The server does not work, so other messages would fail too.
    #[error("{0}")]
    Server(String),
    /// The server works, but did not accept this message.
    #[error("{0}")]
    Message(String),
}

impl AlertSendError {
    /// Returns whether other messages would fail for the same reason.
    pub fn is_of_server(&self) -> bool {
        matches!(self, AlertSendError::Server(_))
    }
}
