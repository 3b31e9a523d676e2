//! Passes the connections of clients from the draining dq-server to the next one: the open socket, the framing, the
//! bytes that were read and not yet parsed, and the answers that are not yet written. A client notices nothing.
//!
//! A connection belongs to exactly one process at any moment. After the draining server has offered a connection, it
//! does nothing with the connection. The next dq-server uses the connection only after it has answered that it takes
//! the connection. If one of the two processes dies, only the connections that belong to it are lost.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use host::{PASSED_MAX, PassListener, PassSocket};
use model::token::VerifiedToken;
use protocol::dq::Framing;

/// A connection with more bytes than this (not yet parsed, or not yet written) is not passed on.
const IN_HAND_MAX: usize = 20 << 20;

/// The first byte of each message. `BEGIN`: the socket of a connection, and the bytes of its state that fit. `MORE`:
/// further bytes of this state.
const BEGIN: u8 = b'B';
const MORE: u8 = b'M';

/// The socket on which the newest dq-server receives connections.
fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("server.succession")
}

/// The version of the format of a passed connection. It is increased with every change that the previous release would
/// misread. A server refuses a version that it does not know, and the connection stays where it is.
const VERSION: u32 = 2;

/// The version for a connection without a token. All releases can read it.
const WITHOUT_TOKEN: u32 = 1;

/// The header of a passed connection. A newline follows, and then the bytes of the inbox and the outbox.
#[derive(Debug, Serialize, Deserialize)]
struct HandoffHeader {
    version: u32,
    peer: SocketAddr,
    binary: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pass: Option<VerifiedToken>,
    inbox: usize,
    outbox: usize,
}

/// The state of a connection, apart from its socket.
#[derive(Debug)]
pub(super) struct HandoffState {
    pub peer: SocketAddr,
    pub framing: Option<Framing>,
    /// The token that the client has shown. The next dq-server checks whether it is still valid.
    pub pass: Option<VerifiedToken>,
    pub inbox: Vec<u8>,
    pub outbox: Vec<u8>,
}

impl HandoffState {
    fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let head = HandoffHeader {
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

    /// Returns an error of the kind `WouldBlock` if bytes are still missing.
    fn from_bytes(bytes: &[u8]) -> io::Result<HandoffState> {
        let wrong = |why: &str| io::Error::new(ErrorKind::InvalidData, format!("its state {why}"));
        let end = bytes.iter().position(|b| *b == b'\n').ok_or_else(|| wrong("has no end"))?;
        let head: HandoffHeader = serde_json::from_slice(&bytes[..end])?;
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
            _ => return Err(wrong("does not have the length in its header")),
        }
        let (inbox, outbox) = rest.split_at(head.inbox);
        let framing = head.binary.map(|binary| if binary { Framing::Binary } else { Framing::Digits });
        let (peer, pass) = (head.peer, head.pass);
        Ok(HandoffState { peer, framing, pass, inbox: inbox.to_vec(), outbox: outbox.to_vec() })
    }
}

/// The answer for a connection that the next dq-server takes. From then on, the connection belongs to the next
/// dq-server.
const TAKEN: u8 = 1;

/// The answer for a connection that the next dq-server does not take.
const REFUSED: u8 = 0;

/// The side of the draining server. An offered connection belongs to the draining server until the next dq-server
/// answers that it takes the connection. Until then, the connection is not used.
#[derive(Debug)]
pub(super) struct HandoffSender {
    passage: PassSocket,
    /// The offered connections without an answer, in the order of the offers: place and serial number of each.
    offered: VecDeque<(usize, u64)>,
}

/// What happened to an offered connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HandoffResult {
    /// The next dq-server has taken the connection.
    Taken(usize, u64),
    /// The connection stays with this process.
    Stays(usize, u64),
}

impl HandoffSender {
    /// Connects to the next dq-server.
    pub(super) fn find(run_dir: &Path) -> io::Result<HandoffSender> {
        let passage = PassSocket::connect(&path(run_dir))?;
        if passage.listener_pid()? == std::process::id() {
            return Err(io::Error::other("no other dq-server listens for them"));
        }
        Ok(HandoffSender { passage, offered: VecDeque::new() })
    }

    /// Offers a connection, which is known here by its place and its serial number. A connection with too many bytes is
    /// not offered and stays here. The error is then of the kind `InvalidInput`.
    pub(super) fn offer(
        &mut self,
        (place, serial): (usize, u64),
        socket: BorrowedFd<'_>,
        handoff_state: &HandoffState,
    ) -> io::Result<()> {
        if handoff_state.inbox.len() + handoff_state.outbox.len() > IN_HAND_MAX {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "its unparsed and unwritten bytes are more than can be passed on",
            ));
        }
        let mut kind = BEGIN;
        for part in handoff_state.to_bytes()?.chunks(PASSED_MAX - 1) {
            let fd = (kind == BEGIN).then_some(socket);
            self.passage.send(&[&[kind][..], part].concat(), fd)?;
            kind = MORE;
        }
        self.offered.push_back((place, serial));
        Ok(())
    }

    /// Returns the answers of the next dq-server, and whether further answers may arrive. The next dq-server answers
    /// before it uses a connection. So if the next dq-server is gone, it has not taken the connections that have no
    /// answer.
    pub(super) fn results(&mut self) -> (Vec<HandoffResult>, bool) {
        let mut results = Vec::new();
        loop {
            match self.passage.replies() {
                Ok(Some(verdicts)) => {
                    for (verdict, (place, serial)) in
                        verdicts.iter().zip(self.offered.drain(..verdicts.len().min(self.offered.len())))
                    {
                        results.push(match *verdict {
                            TAKEN => HandoffResult::Taken(place, serial),
                            _ => HandoffResult::Stays(place, serial),
                        });
                    }
                }
                Ok(None) => return (results, true),
                Err(e) => {
                    if e.kind() != ErrorKind::UnexpectedEof {
                        log::warn!("cannot read the answers of the new process: {e}");
                    }
                    results.extend(
                        self.offered.drain(..).map(|(place, serial)| HandoffResult::Stays(place, serial)),
                    );
                    return (results, false);
                }
            }
        }
    }
}

impl AsFd for HandoffSender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.passage.as_fd()
    }
}

/// A draining server that passes connections on. `taken` has its connections that this process wants to take. They
/// belong to this process when the answers in `verdicts` are sent.
#[derive(Debug)]
struct DrainingPeer {
    passage: PassSocket,
    /// The bytes and the socket of the connection that is arriving.
    arriving: Option<(Vec<u8>, OwnedFd)>,
    verdicts: Vec<u8>,
    taken: Vec<(HandoffState, OwnedFd)>,
}

impl DrainingPeer {
    /// Takes a message. Returns a connection when it is complete, or the reason why it is not taken. None: the
    /// connection is not complete.
    fn take(&mut self, message: &[u8], fd: Option<OwnedFd>) -> Option<io::Result<(HandoffState, OwnedFd)>> {
        let (kind, part) = message.split_first()?;
        match (*kind, fd, self.arriving.take()) {
            (BEGIN, Some(fd), _) => self.arriving = Some((part.to_vec(), fd)),
            // Without its socket the connection cannot be taken, so its later `MORE` messages are ignored.
            (BEGIN, None, _) => {
                return Some(Err(io::Error::other("its socket did not arrive: out of file descriptors")));
            }
            (_, _, Some((mut bytes, fd))) => {
                bytes.extend_from_slice(part);
                self.arriving = Some((bytes, fd));
            }
            (_, _, None) => return None,
        }
        let (bytes, fd) = self.arriving.take()?;
        match HandoffState::from_bytes(&bytes) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.arriving = Some((bytes, fd));
                None
            }
            other => Some(other.map(|handoff_state| (handoff_state, fd))),
        }
    }
}

/// The side of the newest server.
#[derive(Debug)]
pub(super) struct HandoffReceiver {
    listener: PassListener,
    draining: Vec<DrainingPeer>,
}

impl HandoffReceiver {
    pub(super) fn new(run_dir: &Path) -> io::Result<HandoffReceiver> {
        Ok(HandoffReceiver { listener: PassListener::bind(&path(run_dir))?, draining: Vec::new() })
    }

    /// Returns the descriptor on which draining servers connect.
    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Accepts a draining server. The caller must watch the returned descriptor in both directions.
    pub(super) fn accept(&mut self) -> io::Result<Option<BorrowedFd<'_>>> {
        let Some(passage) = self.listener.accept()? else { return Ok(None) };
        self.draining.push(DrainingPeer { passage, arriving: None, verdicts: Vec::new(), taken: Vec::new() });
        Ok(self.draining.last().map(|draining_server| draining_server.passage.as_fd()))
    }

    /// Returns the arrived connections that `admit` allows and for which the answer is sent. From then on, they belong
    /// to this process alone.
    pub(super) fn receive(
        &mut self,
        mut admit: impl FnMut(&HandoffState, usize) -> Result<(), String>,
    ) -> Vec<(HandoffState, OwnedFd)> {
        let mut arrived = Vec::new();
        self.draining.retain_mut(|draining_server| {
            let open = loop {
                let arrival = match draining_server.passage.receive() {
                    Ok(Some((message, fd))) => draining_server.take(&message, fd),
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
                    Some(Ok((handoff_state, fd))) => {
                        admit(&handoff_state, arrived.len() + draining_server.taken.len())
                            .map(|()| (handoff_state, fd))
                    }
                };
                match admitted {
                    Ok(taken) => {
                        draining_server.taken.push(taken);
                        draining_server.verdicts.push(TAKEN);
                    }
                    Err(why) => {
                        log::warn!("a connection is not taken over: {why}");
                        draining_server.verdicts.push(REFUSED);
                    }
                }
            };
            let is_answered = draining_server.verdicts.is_empty() || {
                match draining_server.passage.reply(&draining_server.verdicts) {
                    // The draining server must read earlier answers first. An event reports when there is room again.
                    Err(e) if e.kind() == ErrorKind::WouldBlock && open => false,
                    // A draining server that is gone no longer uses its connections.
                    Ok(()) | Err(_) => true,
                }
            };
            if is_answered {
                draining_server.verdicts.clear();
                arrived.append(&mut draining_server.taken);
            }
            open
        });
        arrived
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::token::{Token, TokenCredential, TokenName, TokenSecret};

    #[test]
    fn a_connection_handoff_is_read_and_a_newer_version_is_refused() {
        let handoff_state = || HandoffState {
            peer: "127.0.0.1:9".parse().unwrap(),
            framing: Some(Framing::Digits),
            pass: None,
            inbox: b"00".to_vec(),
            outbox: b"answer".to_vec(),
        };
        let bytes = handoff_state().to_bytes().unwrap();
        let again = HandoffState::from_bytes(&bytes).unwrap();
        assert_eq!((again.peer, again.framing), (handoff_state().peer, handoff_state().framing));
        assert_eq!((again.inbox, again.outbox), (handoff_state().inbox, handoff_state().outbox));
        let newer = String::from_utf8(bytes.clone()).unwrap().replace("\"version\":1", "\"version\":3");
        for (bytes, why) in [
            (newer.as_bytes(), "has version 3, and this release understands 1 to 2"),
            (&[&bytes[..], b"x"].concat()[..], "does not have the length"),
            (b"{}", "no end"),
        ] {
            let e = HandoffState::from_bytes(bytes).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidData);
            assert!(e.to_string().contains(why), "{e}");
        }
        // A connection without a token keeps the format that the previous release reads. A connection with a token gets
        // version 2, which the previous release refuses. Otherwise the previous release would treat it as a connection
        // without a token.
        assert!(bytes.starts_with(b"{\"version\":1,") && !bytes.windows(6).any(|w| w == b"\"pass\""));
        let token = Token {
            name: TokenName::new("ops").unwrap(),
            proof: TokenCredential::Secret(TokenSecret::new([1; 32]).digest()),
            scopes: vec![],
            created_ms: 0,
            expires_ms: None,
            creator: String::new(),
            add_rate: None,
        };
        let let_in = HandoffState { pass: Some(VerifiedToken::from(&token)), ..handoff_state() };
        let passed = let_in.to_bytes().unwrap();
        assert!(passed.starts_with(b"{\"version\":2,"));
        assert_eq!(HandoffState::from_bytes(&passed).unwrap().pass, let_in.pass);
        let part = HandoffState::from_bytes(&bytes[..bytes.len() - 1]).unwrap_err();
        assert_eq!(part.kind(), ErrorKind::WouldBlock);
    }
}
