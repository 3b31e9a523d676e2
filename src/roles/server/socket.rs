//! A client's socket: whether a read is worth its call, and when a byte last moved.

use std::io::{ErrorKind, Read, Result, Write};
use std::time::Instant;

use mio::event::Event;
use mio::net::TcpStream;

/// An empty buffer larger than this many bytes is freed.
const KEPT: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Socket {
    pub stream: TcpStream,
    /// The socket may hold bytes. A read that returns less than the buffer's size has emptied the socket, and an event
    /// reports what comes after that (epoll(7)). So a further read, only to learn that there is nothing, is not needed.
    readable: bool,
    /// The socket is read until it has nothing left, because no event will report what it holds now.
    to_the_end: bool,
    /// When a byte last moved, in either direction.
    pub moved_at: Instant,
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// This many bytes were read.
    Some(usize),
    /// There is nothing for now.
    Nothing,
    /// The client has closed its side.
    End,
}

impl Socket {
    /// Wraps a stream that may already hold bytes.
    pub(super) fn new(stream: TcpStream) -> Socket {
        Socket { stream, readable: true, to_the_end: false, moved_at: Instant::now() }
    }

    /// Records what an event reports. The end of the stream, or an error, is reported together with the last bytes, and
    /// not again.
    pub(super) fn note_event(&mut self, event: &Event) {
        let is_over = event.is_read_closed() || event.is_error();
        self.readable |= is_over || event.is_readable();
        self.to_the_end |= is_over;
    }

    /// Lets the following reads take everything that has arrived by now, whether an event has reported it or not.
    pub(super) fn read_to_the_end(&mut self) {
        (self.readable, self.to_the_end) = (true, true);
    }

    /// Reads once.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<ReadOutcome> {
        while self.readable {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(ReadOutcome::End),
                Ok(n) => {
                    self.readable = n == buffer.len() || self.to_the_end;
                    self.moved_at = Instant::now();
                    return Ok(ReadOutcome::Some(n));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(ReadOutcome::Nothing)
    }

    /// Writes as much as the client takes, and removes it from `outbox`.
    pub(super) fn write(&mut self, outbox: &mut Vec<u8>) -> Result<()> {
        let mut done = 0;
        while done < outbox.len() {
            match self.stream.write(&outbox[done..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    done += n;
                    self.moved_at = Instant::now();
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        consume(outbox, done);
        Ok(())
    }
}

/// Removes the first `done` bytes of a buffer.
pub(super) fn consume(buffer: &mut Vec<u8>, done: usize) {
    buffer.drain(..done);
    if buffer.is_empty() && buffer.capacity() > KEPT {
        *buffer = Vec::new();
    }
}
