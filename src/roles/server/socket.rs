//! A client's socket: whether there may be bytes to read, and when a byte last moved. With TLS, it also encrypts.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::Shutdown;
use std::time::Instant;

use mio::event::Event;
use mio::net::TcpStream;
use rustls::ServerConnection;

/// An empty buffer larger than this many bytes is freed.
const KEPT: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Socket {
    pub stream: TcpStream,
    tls: Option<Box<ServerConnection>>,
    /// Whether the socket may hold bytes. A read that returns less than the buffer's size has emptied the socket, and
    /// an event reports bytes that come later (epoll(7)). So no further read is needed to learn that the socket is
    /// empty.
    readable: bool,
    /// Whether the socket is read until it has nothing left. It is set if no event will report the bytes that the
    /// socket has now.
    to_the_end: bool,
    /// Whether the client has closed its side, or the connection is broken.
    pub is_over: bool,
    /// When a byte last moved, in either direction.
    pub moved_at: Instant,
}

/// The outcome of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    /// This many bytes were read.
    Some(usize),
    /// There are no bytes for now.
    Nothing,
    /// The client has closed its side.
    End,
}

impl Socket {
    /// Wraps a stream that may already hold bytes.
    pub(super) fn new(stream: TcpStream, tls: Option<ServerConnection>) -> Socket {
        let tls = tls.map(Box::new);
        Socket { stream, tls, readable: true, to_the_end: false, is_over: false, moved_at: Instant::now() }
    }

    /// Whether the socket encrypts. The state of such a socket cannot be passed to another process.
    pub(super) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the TLS handshake is not over yet.
    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether there are encrypted bytes that the client has not taken yet.
    pub(super) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Records what an event reports. The end of the stream, or an error, is reported together with the last bytes, and
    /// not again.
    pub(super) fn note_event(&mut self, event: &Event) {
        let is_over = event.is_read_closed() || event.is_error();
        self.readable |= is_over || event.is_readable();
        self.to_the_end |= is_over;
        self.is_over |= is_over;
    }

    /// Makes the next reads take everything that has arrived by now, even if no event has reported it.
    pub(super) fn read_to_the_end(&mut self) {
        (self.readable, self.to_the_end) = (true, true);
    }

    /// Reads once.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<ReadOutcome> {
        if self.tls.is_some() {
            return self.read_encrypted(buffer);
        }
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

    fn read_encrypted(&mut self, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let Some(tls) = &mut self.tls else { return Ok(ReadOutcome::Nothing) };
        loop {
            // Bytes that are already decrypted come first, because no event reports them.
            match tls.reader().read(buffer) {
                Ok(0) => return Ok(ReadOutcome::End),
                Ok(n) => return Ok(ReadOutcome::Some(n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                // The client has closed the connection without the closing message of TLS. Some of its bytes may be
                // missing.
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(ReadOutcome::End),
                Err(e) => return Err(e),
            }
            if !self.readable {
                return Ok(ReadOutcome::Nothing);
            }
            match tls.read_tls(&mut self.stream) {
                Ok(_) => {
                    self.moved_at = Instant::now();
                    let understood = tls.process_new_packets();
                    // This sends an answer of the handshake, or an alert.
                    while tls.wants_write() && tls.write_tls(&mut self.stream).is_ok() {}
                    understood.map_err(Error::other)?;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Tells the client that nothing more will be sent.
    pub(super) fn end_writing(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            while tls.wants_write() && tls.write_tls(&mut self.stream).is_ok() {}
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Encrypts the part of `outbox` for which there is room, and writes what the client accepts.
    fn write_encrypted(&mut self, outbox: &mut Vec<u8>) -> Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        let mut done = 0;
        loop {
            // The writer accepts no more bytes while too many encrypted bytes wait.
            done += tls.writer().write(&outbox[done..])?;
            if !tls.wants_write() {
                break;
            }
            match tls.write_tls(&mut self.stream) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => self.moved_at = Instant::now(),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        consume(outbox, done);
        Ok(())
    }

    /// Writes what the client accepts, and removes these bytes from `outbox`.
    pub(super) fn write(&mut self, outbox: &mut Vec<u8>) -> Result<()> {
        if self.tls.is_some() {
            return self.write_encrypted(outbox);
        }
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
