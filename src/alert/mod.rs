//! Carries messages to people: mail by SMTP, and webhooks. Blocks for as long as a server takes, up to its time-outs: to be called on a
//! thread that has nothing else to do. What is told to whom is not decided here (`notice`).

mod smtp;
mod webhook;

pub use self::smtp::{Mailer, address};
pub use self::webhook::Webhook;

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum NotSent {
    /// The server does not work: no other message would go through either.
    #[error("{0}")]
    Server(String),
    /// The server works, and did not take this one.
    #[error("{0}")]
    Message(String),
}

impl NotSent {
    /// Whether other messages would fail by the same.
    pub fn is_of_server(&self) -> bool {
        matches!(self, NotSent::Server(_))
    }
}
