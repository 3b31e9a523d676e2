//! A client's socket: whether a read is worth its call, and when a byte last moved.

use std::io::{ErrorKind, Read, Result, Write};
use std::time::Instant;

use mio::event::Event;
use mio::net::TcpStream;

/// Its buffers are let go when they are empty and larger than that.
const KEPT: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Socket {
    pub stream: TcpStream,
    /// It may hold something. A read that brings less than there was room for has emptied it, and an event tells of what comes
    /// after that (epoll(7)), so that nobody need ask once more to hear that there is nothing.
    readable: bool,
    /// It is read until it says that there is nothing: no event tells of what it holds now.
    to_the_end: bool,
    /// When a byte last moved, either way.
    pub moved_at: Instant,
}

/// What a read came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// So many bytes.
    Some(usize),
    /// Nothing for now.
    Nothing,
    /// The client has said all.
    End,
}

impl Socket {
    /// One that may hold something already.
    pub(super) fn new(stream: TcpStream) -> Socket {
        Socket { stream, readable: true, to_the_end: false, moved_at: Instant::now() }
    }

    /// Takes note of what an event tells. The end, or an error, is told together with the last bytes, and not again.
    pub(super) fn told(&mut self, event: &Event) {
        let is_over = event.is_read_closed() || event.is_error();
        self.readable |= is_over || event.is_readable();
        self.to_the_end |= is_over;
    }

    /// Has all read that has arrived by now, whether an event has told of it or not.
    pub(super) fn read_to_the_end(&mut self) {
        (self.readable, self.to_the_end) = (true, true);
    }

    /// Reads once.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<Came> {
        while self.readable {
            match self.stream.read(buffer) {
                Ok(0) => return Ok(Came::End),
                Ok(n) => {
                    self.readable = n == buffer.len() || self.to_the_end;
                    self.moved_at = Instant::now();
                    return Ok(Came::Some(n));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Came::Nothing)
    }

    /// Writes as much as the client takes, and takes it out of `outbox`.
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

/// Takes the first bytes out of a buffer.
pub(super) fn consume(buffer: &mut Vec<u8>, done: usize) {
    buffer.drain(..done);
    if buffer.is_empty() && buffer.capacity() > KEPT {
        *buffer = Vec::new();
    }
}
