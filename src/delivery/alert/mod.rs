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
    /// The server works, but did not accept this message now. It may accept the message later.
    #[error("{0}")]
    Message(String),
    /// The server works, and refuses this message: the message may be too long, or one of its alerts may be the reason.
    #[error("{0}")]
    Refused(String),
}

impl AlertSendError {
    /// Returns whether the server refuses the message itself, so that other messages may succeed.
    pub fn is_refusal(&self) -> bool {
        matches!(self, AlertSendError::Refused(_))
    }

    /// Returns whether other messages would fail for the same reason.
    pub fn is_of_server(&self) -> bool {
        matches!(self, AlertSendError::Server(_))
    }
}
