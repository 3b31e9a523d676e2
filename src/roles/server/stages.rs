//! The stages of a connection: what happens to the bytes of its client, and what is left to do after a turn.

use std::time::Instant;

/// What is left to do with a connection after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AfterTurn {
    /// The connection waits for the client, or for the store's answers to its own requests.
    Waits,
    /// The socket of the connection may hold more bytes, and no further event will report them.
    MoreToRead,
    /// The connection waits until the store has answered requests of other connections.
    Stalled,
    /// The connection may be passed on to another process.
    Passes,
    /// The connection has ended.
    Ended,
}

/// What happens to the bytes that the client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputState {
    /// The bytes are read.
    Open,
    /// The daemon drains: only bytes that have already arrived are read.
    Last,
    /// Another process takes the connection over when the store has answered all of its requests. This process no
    /// longer reads from the connection.
    Passing,
    /// The connection is offered to the other process. This process does nothing with the connection.
    Offered,
    /// The client has closed its side. The answers to its requests are still sent.
    Shut,
    /// The end of a frame cannot be found. The answers to earlier requests are still sent. Further bytes are discarded
    /// until the client closes the connection. After the last answer is written, the client must close the connection
    /// before the given moment. (If dq closed a socket with unread bytes, the connection would be reset, and the client
    /// could lose that answer.)
    Lost(Option<Instant>),
}
