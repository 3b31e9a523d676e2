//! Clients' connections go from the dq-server that drains to the one that takes its place: the open socket, the framing, what
//! was read and not yet understood, what was answered and not yet written. A client notices nothing.
//!
//! A connection is one process's at any moment: the one that drains does nothing with it from when it offers it, the other one
//! nothing before it has said that it takes it. Whichever of them dies, at most what was that one's dies with it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::connection::Connection;
use crate::process::{PASSED_MAX, PassListener, Passage};
use crate::protocol::dq::Framing;
use crate::token::Pass;

/// The most that a connection may have in hand to be passed on.
const IN_HAND_MAX: usize = 20 << 20;

/// What each message begins with: a connection, with its socket, and as many of its bytes as fit; or more of them.
const BEGIN: u8 = b'B';
const MORE: u8 = b'M';

/// Where the newest dq-server receives connections.
fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("server.succession")
}

/// How a connection and what goes with it is told. One more with every change that the release before would misread: what it
/// does not know it does not take, and the connection stays where it was.
const VERSION: u32 = 2;

/// The version of one that has not been let in by a token: all releases read it.
const WITHOUT_TOKEN: u32 = 1;

/// What is told of a connection; its bytes follow behind a line's end.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    version: u32,
    peer: SocketAddr,
    binary: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pass: Option<Pass>,
    inbox: usize,
    outbox: usize,
}

/// What a connection is, apart from its socket.
#[derive(Debug)]
pub(super) struct Estate {
    pub peer: SocketAddr,
    pub framing: Option<Framing>,
    /// By what it was let in: the successor looks whether that still is a token.
    pub pass: Option<Pass>,
    pub inbox: Vec<u8>,
    pub outbox: Vec<u8>,
}

impl Estate {
    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let head = Head {
            version: if self.pass.is_some() { VERSION } else { WITHOUT_TOKEN },
            peer: self.peer,
            binary: self.framing.map(|f| f == Framing::Binary),
            pass: self.pass.clone(),
            inbox: self.inbox.len(),
            outbox: self.outbox.len(),
        };
        let mut bytes = serde_json::to_vec(&head)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(&self.inbox);
        bytes.extend_from_slice(&self.outbox);
        Ok(bytes)
    }

    /// What is not all there yet is an error of the kind `WouldBlock`.
    fn from_bytes(bytes: &[u8]) -> io::Result<Estate> {
        let wrong = |why: &str| io::Error::new(ErrorKind::InvalidData, format!("what is told of it {why}"));
        let end = bytes.iter().position(|b| *b == b'\n').ok_or_else(|| wrong("has no end"))?;
        let head: Head = serde_json::from_slice(&bytes[..end])?;
        if !(WITHOUT_TOKEN..=VERSION).contains(&head.version) {
            return Err(wrong(&format!(
                "has version {}, and this release understands {WITHOUT_TOKEN} to {VERSION}",
                head.version
            )));
        }
        let rest = &bytes[end + 1..];
        match head.inbox.checked_add(head.outbox) {
            Some(length) if length == rest.len() => {}
            Some(length) if length > rest.len() => return Err(ErrorKind::WouldBlock.into()),
            _ => return Err(wrong("has another length than it says")),
        }
        let (inbox, outbox) = rest.split_at(head.inbox);
        let framing = head.binary.map(|binary| if binary { Framing::Binary } else { Framing::Digits });
        let (peer, pass) = (head.peer, head.pass);
        Ok(Estate { peer, framing, pass, inbox: inbox.to_vec(), outbox: outbox.to_vec() })
    }
}

/// The answer to a connection that was passed on: from then on it is the successor's.
const TAKEN: u8 = 1;

/// The answer to one that the successor does not take.
const REFUSED: u8 = 0;

/// The side of the one that drains. What it has passed on is still its own until the successor says that it has taken it; in
/// between it does nothing with it.
#[derive(Debug)]
pub(super) struct Testator {
    passage: Passage,
    /// Passed on and not answered, in this order: place and serial number.
    offered: VecDeque<(usize, u64)>,
}

/// What became of a connection that was offered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is the successor's.
    Taken(usize, u64),
    /// It stays.
    Stays(usize, u64),
}

impl Testator {
    /// Finds the successor.
    pub(super) fn find(run_dir: &Path) -> io::Result<Testator> {
        let passage = Passage::connect(&path(run_dir))?;
        if passage.listener_pid()? == std::process::id() {
            return Err(io::Error::other("no other dq-server listens for them"));
        }
        Ok(Testator { passage, offered: VecDeque::new() })
    }

    /// Offers a connection. One that has too much in hand stays, with an error of the kind `InvalidInput`.
    pub(super) fn offer(&mut self, place: usize, connection: &Connection) -> io::Result<()> {
        let estate = connection.estate();
        if estate.inbox.len() + estate.outbox.len() > IN_HAND_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "more is in hand than can be passed on"));
        }
        let mut kind = BEGIN;
        for part in estate.to_bytes()?.chunks(PASSED_MAX - 1) {
            let fd = (kind == BEGIN).then(|| connection.socket.stream.as_fd());
            self.passage.send(&[&[kind][..], part].concat(), fd)?;
            kind = MORE;
        }
        self.offered.push_back((place, connection.serial));
        Ok(())
    }

    /// What the successor has said, and whether it says more. One that is gone has taken none of what it has not answered:
    /// it answers before it touches a connection.
    pub(super) fn fates(&mut self) -> (Vec<Fate>, bool) {
        let mut fates = Vec::new();
        loop {
            match self.passage.replies() {
                Ok(Some(verdicts)) => {
                    for (verdict, (place, serial)) in
                        verdicts.iter().zip(self.offered.drain(..verdicts.len().min(self.offered.len())))
                    {
                        fates.push(match *verdict {
                            TAKEN => Fate::Taken(place, serial),
                            _ => Fate::Stays(place, serial),
                        });
                    }
                }
                Ok(None) => return (fates, true),
                Err(e) => {
                    if e.kind() != ErrorKind::UnexpectedEof {
                        log::warn!("cannot hear the successor: {e}");
                    }
                    fates.extend(self.offered.drain(..).map(|(place, serial)| Fate::Stays(place, serial)));
                    return (fates, false);
                }
            }
        }
    }
}

impl AsFd for Testator {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.passage.as_fd()
    }
}

/// One who passes connections on, and those of its that wait for their answer to be told.
#[derive(Debug)]
struct Legacy {
    passage: Passage,
    /// Bytes and socket of the one that is arriving.
    arriving: Option<(Vec<u8>, OwnedFd)>,
    verdicts: Vec<u8>,
    taken: Vec<(Estate, OwnedFd)>,
}

impl Legacy {
    /// Takes what has come. Tells a connection that is complete, or why one is not taken.
    fn take(&mut self, message: &[u8], fd: Option<OwnedFd>) -> Option<io::Result<(Estate, OwnedFd)>> {
        let (kind, part) = message.split_first()?;
        match (*kind, fd, self.arriving.take()) {
            (BEGIN, Some(fd), _) => self.arriving = Some((part.to_vec(), fd)),
            // Its further parts go by.
            (BEGIN, None, _) => {
                return Some(Err(io::Error::other("its socket has not come: out of descriptors")));
            }
            (_, _, Some((mut bytes, fd))) => {
                bytes.extend_from_slice(part);
                self.arriving = Some((bytes, fd));
            }
            (_, _, None) => return None,
        }
        let (bytes, fd) = self.arriving.take()?;
        match Estate::from_bytes(&bytes) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.arriving = Some((bytes, fd));
                None
            }
            other => Some(other.map(|estate| (estate, fd))),
        }
    }
}

/// The side of the newest one.
#[derive(Debug)]
pub(super) struct Heir {
    listener: PassListener,
    legacies: Vec<Legacy>,
}

impl Heir {
    pub(super) fn new(run_dir: &Path) -> io::Result<Heir> {
        Ok(Heir { listener: PassListener::bind(&path(run_dir))?, legacies: Vec::new() })
    }

    /// The descriptor on which those who pass connections on arrive.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Takes a passage that was opened, to be watched by the caller, both ways.
    pub(super) fn accept(&mut self) -> io::Result<Option<BorrowedFd<'_>>> {
        let Some(passage) = self.listener.accept()? else { return Ok(None) };
        self.legacies.push(Legacy { passage, arriving: None, verdicts: Vec::new(), taken: Vec::new() });
        Ok(self.legacies.last().map(|legacy| legacy.passage.as_fd()))
    }

    /// The connections that have arrived, that `admit` lets in, and whose answers are told: they are this process's alone.
    pub(super) fn receive(
        &mut self,
        mut admit: impl FnMut(&Estate, usize) -> Result<(), String>,
    ) -> Vec<(Estate, OwnedFd)> {
        let mut arrived = Vec::new();
        self.legacies.retain_mut(|legacy| {
            let open = loop {
                let arrival = match legacy.passage.receive() {
                    Ok(Some((message, fd))) => legacy.take(&message, fd),
                    Ok(None) => break true,
                    Err(e) if e.kind() == ErrorKind::UnexpectedEof => break false,
                    Err(e) => {
                        log::error!("cannot take over connections: {e}");
                        break false;
                    }
                };
                let admitted = match arrival {
                    None => continue,
                    Some(Err(e)) => Err(e.to_string()),
                    Some(Ok((estate, fd))) => {
                        admit(&estate, arrived.len() + legacy.taken.len()).map(|()| (estate, fd))
                    }
                };
                match admitted {
                    Ok(taken) => {
                        legacy.taken.push(taken);
                        legacy.verdicts.push(TAKEN);
                    }
                    Err(why) => {
                        log::warn!("a connection is not taken over: {why}");
                        legacy.verdicts.push(REFUSED);
                    }
                }
            };
            let told = legacy.verdicts.is_empty() || {
                match legacy.passage.reply(&legacy.verdicts) {
                    // The other side is to read first, and the passage tells when it has.
                    Err(e) if e.kind() == ErrorKind::WouldBlock && open => false,
                    // One that is gone does nothing with them any more.
                    Ok(()) | Err(_) => true,
                }
            };
            if told {
                legacy.verdicts.clear();
                arrived.append(&mut legacy.taken);
            }
            open
        });
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::{Proof, Secret, Token, TokenName};

    #[test]
    fn what_is_told_of_a_connection_is_understood_and_another_version_is_not() {
        let estate = || Estate {
            peer: "127.0.0.1:9".parse().unwrap(),
            framing: Some(Framing::Digits),
            pass: None,
            inbox: b"00".to_vec(),
            outbox: b"answer".to_vec(),
        };
        let bytes = estate().to_bytes().unwrap();
        let again = Estate::from_bytes(&bytes).unwrap();
        assert_eq!((again.peer, again.framing), (estate().peer, estate().framing));
        assert_eq!((again.inbox, again.outbox), (estate().inbox, estate().outbox));
        let newer = String::from_utf8(bytes.clone()).unwrap().replace("\"version\":1", "\"version\":3");
        for (bytes, why) in [
            (newer.as_bytes(), "has version 3, and this release understands 1 to 2"),
            (&[&bytes[..], b"x"].concat()[..], "another length"),
            (b"{}", "no end"),
        ] {
            let e = Estate::from_bytes(bytes).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidData);
            assert!(e.to_string().contains(why), "{e}");
        }
        // What the release before wrote is read; what it must not take for a connection that anybody may use, it refuses.
        assert!(bytes.starts_with(b"{\"version\":1,") && !bytes.windows(6).any(|w| w == b"\"pass\""));
        let token = Token {
            name: TokenName::new("ops").unwrap(),
            proof: Proof::Secret(Secret::of([1; 32]).digest()),
            scopes: vec![],
            created_ms: 0,
            expires_ms: None,
            creator: String::new(),
        };
        let let_in = Estate { pass: Some(Pass::from(&token)), ..estate() };
        let passed = let_in.to_bytes().unwrap();
        assert!(passed.starts_with(b"{\"version\":2,"));
        assert_eq!(Estate::from_bytes(&passed).unwrap().pass, let_in.pass);
        let part = Estate::from_bytes(&bytes[..bytes.len() - 1]).unwrap_err();
        assert_eq!(part.kind(), ErrorKind::WouldBlock);
    }
}
