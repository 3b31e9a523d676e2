//! Clients' connections go from the dq-server that drains to the one that takes its place: the open socket, the framing, what
//! was read and not yet understood, what was answered and not yet written. A client notices nothing.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::connection::Connection;
use crate::process::{PASSED_MAX, PassListener, Passage};
use crate::protocol::dq::Framing;

/// Room for what is told of a connection beside its bytes.
const HEAD_MAX: usize = 512;

/// Where the newest dq-server receives connections.
fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("server.succession")
}

/// What is told of a connection; its bytes follow behind a line's end.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    peer: SocketAddr,
    binary: Option<bool>,
    inbox: usize,
    outbox: usize,
}

/// What a connection is, apart from its socket.
#[derive(Debug)]
pub(super) struct Estate {
    pub peer: SocketAddr,
    pub framing: Option<Framing>,
    pub inbox: Vec<u8>,
    pub outbox: Vec<u8>,
}

impl Estate {
    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let head = Head {
            peer: self.peer,
            binary: self.framing.map(|f| f == Framing::Binary),
            inbox: self.inbox.len(),
            outbox: self.outbox.len(),
        };
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.inbox);
        bytes.extend_from_slice(&self.outbox);
        Ok(bytes)
    }

    fn from_bytes(bytes: &[u8]) -> io::Result<Estate> {
        let wrong = || io::Error::other("a connection that was passed on cannot be understood");
        let end = bytes.iter().position(|b| *b == b'\n').ok_or_else(wrong)?;
        let head: Head = serde_json::from_slice(&bytes[..end])?;
        let rest = &bytes[end + 1..];
        if rest.len() != head.inbox + head.outbox {
            return Err(wrong());
        }
        let (inbox, outbox) = rest.split_at(head.inbox);
        let framing = head.binary.map(|binary| if binary { Framing::Binary } else { Framing::Digits });
        Ok(Estate { peer: head.peer, framing, inbox: inbox.to_vec(), outbox: outbox.to_vec() })
    }
}

/// The side of the one that drains.
#[derive(Debug)]
pub(super) struct Testator(Passage);

impl Testator {
    /// Finds the successor.
    pub(super) fn find(run_dir: &Path) -> io::Result<Testator> {
        let passage = Passage::connect(&path(run_dir))?;
        if passage.listener_pid()? == std::process::id() {
            return Err(io::Error::other("no other dq-server listens for them"));
        }
        Ok(Testator(passage))
    }

    /// Passes a connection on. One that has too much in hand, or that the successor does not take, stays.
    pub(super) fn pass(&self, connection: &Connection) -> io::Result<()> {
        let estate = connection.estate();
        if estate.inbox.len() + estate.outbox.len() + HEAD_MAX > PASSED_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "more is in hand than can be passed on"));
        }
        self.0.send(&estate.to_bytes()?, connection.stream.as_fd())
    }
}

/// The side of the newest one.
#[derive(Debug)]
pub(super) struct Heir {
    listener: PassListener,
    passages: Vec<Passage>,
}

impl Heir {
    pub(super) fn new(run_dir: &Path) -> io::Result<Heir> {
        Ok(Heir { listener: PassListener::bind(&path(run_dir))?, passages: Vec::new() })
    }

    /// The descriptor on which those who pass connections on arrive.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Takes a passage that was opened, to be watched by the caller.
    pub(super) fn accept(&mut self) -> io::Result<Option<BorrowedFd<'_>>> {
        let Some(passage) = self.listener.accept()? else { return Ok(None) };
        self.passages.push(passage);
        Ok(self.passages.last().map(AsFd::as_fd))
    }

    /// All connections that have arrived.
    pub(super) fn receive(&mut self) -> Vec<(Estate, OwnedFd)> {
        let mut arrived = Vec::new();
        self.passages.retain(|passage| {
            loop {
                match passage
                    .receive()
                    .and_then(|got| got.map(|(bytes, fd)| Ok((Estate::from_bytes(&bytes)?, fd))).transpose())
                {
                    Ok(Some(connection)) => arrived.push(connection),
                    Ok(None) => return true,
                    Err(e) if e.kind() == ErrorKind::UnexpectedEof => return false,
                    // One that cannot be understood, or came without its socket, is lost; those behind it are not.
                    Err(e) if matches!(e.kind(), ErrorKind::Other | ErrorKind::InvalidData) => {
                        log::error!("cannot take a connection over: {e}");
                    }
                    Err(e) => {
                        log::error!("cannot take over connections: {e}");
                        return false;
                    }
                }
            }
        });
        arrived
    }
}
