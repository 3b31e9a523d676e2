//! Passes the connections of clients from the draining dq-http-server to the next one (`takeover`): the open socket,
//! the state of the connection, and the locks of the owners of its leases. A client notices nothing.
//!
//! A connection belongs to exactly one process at any moment. After the draining process has offered a connection, it
//! does nothing with the connection until it has the answer. The draining process continues to serve the connection
//! only if the next process cannot have taken the connection. The next process first answers that it takes the
//! connection, and uses the connection only after this answer. docs/internals/BEANSTALK.md says what a crash between
//! two steps does.
//!
//! The pauses of tubes are passed first, because only the draining process knows them.
//!
//! The socket is `run_dir/beanstalk.succession`. Messages: `P` has the pauses. `O` has the tag of an owner, and its
//! lock. `B` has the socket of a connection, and as much of its state as fits into one message. `M` has a further part
//! of this state. The next process answers each complete state with one byte. `P` and `O` get no answer.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use super::passed_state::BeanstalkHandoffState;
use super::port::BeanstalkPort;
use host::{Owner, PASSED_MAX, PassListener, PassSocket, wait_readable};
use protocol::beanstalk::TubeName;

pub(super) const PAUSES: u8 = b'P';
pub(super) const OWNER: u8 = b'O';
pub(super) const BEGIN: u8 = b'B';
const MORE: u8 = b'M';

pub(super) const TAKEN: u8 = 1;
pub(super) const REFUSED: u8 = 0;

/// How long the next process may take to answer. If the next process hangs, only the connection that is offered at that
/// moment is lost. The other connections stay with this process, where their clients can end their jobs.
const ANSWER: Duration = Duration::from_secs(2);

fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("beanstalk.succession")
}

/// Listens for connections of a draining process. Call it before this process says that it is ready.
pub(in super::super) fn listen(run_dir: &Path) -> io::Result<PassListener> {
    PassListener::bind(&path(run_dir))
}

/// A paused tube, in the form in which it is passed on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PassedPause {
    pub tube: String,
    /// The whole length of the pause that the client has set.
    pub span_ms: u64,
    pub left_ms: u64,
}

/// A request to the thread that offers connections.
enum HandoffCommand {
    Offer(Offer),
    /// Asks for an answer when the pauses have been passed.
    Begin(oneshot::Sender<()>),
}

/// A connection that is offered to the next process.
struct Offer {
    socket: std::net::TcpStream,
    state: Vec<u8>,
    /// The owners of the connection's leases.
    owners: Vec<Arc<Owner>>,
    result: oneshot::Sender<OfferResult>,
}

/// What happened to an offered connection.
enum OfferResult {
    /// The next process has taken the connection, or may have taken it. This process must not use the connection.
    Gone,
    /// The connection stays with this process.
    Stays(std::net::TcpStream),
}

/// Offers connections to the next process, on a thread of its own.
#[derive(Clone, Default)]
pub(super) struct HandoffSender(Arc<OnceLock<Option<Sender<HandoffCommand>>>>);

impl HandoffSender {
    fn requests(&self, port: &BeanstalkPort) -> Option<&Sender<HandoffCommand>> {
        self.0.get_or_init(|| start(port.api.settings.run_dir.clone(), pauses_message(port))).as_ref()
    }

    /// Passes the pauses of tubes. Call it when this process drains.
    pub(super) async fn begin(&self, port: &BeanstalkPort) {
        let (passed, done) = oneshot::channel();
        let begin = HandoffCommand::Begin(passed);
        if self.requests(port).is_some_and(|requests| requests.send(begin).is_ok()) {
            let _ = done.await;
        }
    }

    /// Offers a connection. Returns the socket if the connection stays with this process.
    pub(super) async fn pass_on(
        &self,
        port: &BeanstalkPort,
        stream: TcpStream,
        state: &BeanstalkHandoffState,
    ) -> io::Result<Option<TcpStream>> {
        let requests = self.requests(port);
        let state_bytes = match state.to_bytes(Instant::now()) {
            Ok(bytes) => bytes,
            Err(e) => {
                log::warn!("{}: cannot be passed on: {e}", state.peer);
                return Ok(Some(stream));
            }
        };
        let Some(requests) = requests else { return Ok(Some(stream)) };
        let owners = state.held.iter().filter_map(|(_, job)| job.owner.clone()).collect();
        let (result, answered) = oneshot::channel();
        let offer = Offer { socket: stream.into_std()?, state: state_bytes, owners, result };
        if let Err(SendError(HandoffCommand::Offer(unsent))) = requests.send(HandoffCommand::Offer(offer)) {
            return TcpStream::from_std(unsent.socket).map(Some);
        }
        match answered.await {
            Ok(OfferResult::Stays(socket)) => TcpStream::from_std(socket).map(Some),
            Ok(OfferResult::Gone) | Err(_) => Ok(None),
        }
    }
}

fn pauses_message(port: &BeanstalkPort) -> Vec<u8> {
    let now = Instant::now();
    let pause = |(tube, span, until): (TubeName, Duration, Instant)| PassedPause {
        tube: tube.to_string(),
        span_ms: span.as_millis() as u64,
        left_ms: until.saturating_duration_since(now).as_millis() as u64,
    };
    let pauses: Vec<PassedPause> = port.pauses(now).into_iter().map(pause).collect();
    serde_json::to_vec(&pauses).expect("they are plain values")
}

fn start(run_dir: PathBuf, pauses: Vec<u8>) -> Option<Sender<HandoffCommand>> {
    let (requests, received) = channel();
    let run = move || offer_all(&run_dir, &pauses, &received);
    match std::thread::Builder::new().name("beanstalk-handoff".to_owned()).spawn(run) {
        Ok(_) => Some(requests),
        Err(e) => {
            log::warn!("beanstalk: no connection is passed on: cannot start a thread: {e}");
            None
        }
    }
}

/// Offers one connection after the other, until all senders are gone.
fn offer_all(run_dir: &Path, pauses: &[u8], requests: &Receiver<HandoffCommand>) {
    let mut passage = match HandoffSocket::open(run_dir, pauses) {
        Ok(passage) => Some(passage),
        Err(e) => {
            log::debug!("beanstalk: no process takes the connections over: {e}");
            None
        }
    };
    for request in requests {
        let Offer { socket, state, owners, result } = match request {
            HandoffCommand::Offer(offer) => offer,
            HandoffCommand::Begin(passed) => {
                let _ = passed.send(());
                continue;
            }
        };
        let offered = passage.as_mut().map(|passage| passage.offer(&socket, &state, &owners));
        let done = match offered {
            Some(Ok(true)) => OfferResult::Gone,
            Some(Ok(false)) | None => OfferResult::Stays(socket),
            Some(Err(e)) => {
                log::warn!("beanstalk: the next process takes no more connections: {}", e.error);
                passage = None;
                if e.may_be_taken { OfferResult::Gone } else { OfferResult::Stays(socket) }
            }
        };
        let _ = result.send(done);
    }
}

/// Why an offered connection got no answer.
struct OfferError {
    error: io::Error,
    /// Whether the next process may have taken the connection, or may still take it.
    may_be_taken: bool,
}

/// The open socket to the next process, and what was sent on it.
struct HandoffSocket {
    socket: PassSocket,
    /// The tags of the owners whose locks the next process has received.
    owners: HashSet<String>,
}

impl HandoffSocket {
    fn open(run_dir: &Path, pauses: &[u8]) -> io::Result<HandoffSocket> {
        let socket = PassSocket::connect(&path(run_dir))?;
        if socket.listener_pid()? == std::process::id() {
            return Err(io::Error::other("there is no other one"));
        }
        if pauses.len() < PASSED_MAX {
            socket.send(&[&[PAUSES], pauses].concat(), None)?;
        } else {
            log::warn!("beanstalk: there are too many paused tubes, so their pauses end now");
        }
        Ok(HandoffSocket { socket, owners: HashSet::new() })
    }

    /// Offers a connection. Returns whether the next process has taken it.
    fn offer(
        &mut self,
        socket: &std::net::TcpStream,
        state: &[u8],
        owners: &[Arc<Owner>],
    ) -> Result<bool, OfferError> {
        // If sending fails, the next process does not have the whole state, and does not take the connection.
        self.send(socket, state, owners).map_err(|error| OfferError { error, may_be_taken: false })?;
        let unknown = |error| OfferError { error, may_be_taken: true };
        let until = Instant::now() + ANSWER;
        loop {
            match self.socket.replies() {
                Ok(Some(answers)) => return Ok(answers.first() == Some(&TAKEN)),
                Ok(None) if Instant::now() >= until => {
                    return Err(unknown(io::Error::new(ErrorKind::TimedOut, "it does not answer")));
                }
                Ok(None) => {
                    wait_readable(&[self.socket.as_fd()], Some(until)).map(drop).map_err(unknown)?;
                }
                // The next process answers before it uses a connection. Here, it has ended without an answer, so it
                // never uses this connection.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(OfferError { error, may_be_taken: false });
                }
                Err(error) => return Err(unknown(error)),
            }
        }
    }

    /// Sends the locks of the owners before the connection. With these locks, the leases of a passed connection do not
    /// end when this process ends.
    fn send(&mut self, socket: &std::net::TcpStream, state: &[u8], owners: &[Arc<Owner>]) -> io::Result<()> {
        for owner in owners {
            if self.owners.insert(owner.tag().to_owned()) {
                self.socket.send(&[&[OWNER], owner.tag().as_bytes()].concat(), Some(owner.lock()))?;
            }
        }
        let mut kind = BEGIN;
        for part in state.chunks(PASSED_MAX - 1) {
            let fd = (kind == BEGIN).then(|| socket.as_fd());
            self.socket.send(&[&[kind], part].concat(), fd)?;
            kind = MORE;
        }
        Ok(())
    }
}
