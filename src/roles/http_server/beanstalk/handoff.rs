//! Passes the connections of clients from the draining dq-http-server to the next one: the open socket, the state of the
//! connection, and the locks of the owners of its leases. A client notices nothing.
//!
//! A connection belongs to exactly one process at any moment. After the draining process has offered a connection, it
//! does nothing with the connection. The next process does nothing with it until it has answered that it takes it.
//! docs/internals/BEANSTALK.md says what a crash between two steps does.
//!
//! The socket is `run_dir/beanstalk.succession`. Messages: `O`, a tag, and the lock of this owner; `B`, the socket of a
//! connection, and as much of its state as fits; `M`, more of its state. Each state gets one byte as the answer.

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::super::followed::watched;
use super::super::places::Places;
use super::super::tcp_port::closed;
use super::passed_state::ConnectionState;
use super::port::Port;
use super::serve;
use host::{Owner, PASSED_MAX, PassListener, PassSocket, wait_readable};

const OWNER: u8 = b'O';
const BEGIN: u8 = b'B';
const MORE: u8 = b'M';

const TAKEN: u8 = 1;
const REFUSED: u8 = 0;

fn path(run_dir: &Path) -> PathBuf {
    run_dir.join("beanstalk.succession")
}

/// Listens for connections of a draining process. Call it before this process says that it is ready.
pub(in super::super) fn listen(run_dir: &Path) -> io::Result<PassListener> {
    PassListener::bind(&path(run_dir))
}

/// A connection that is offered to the next process.
struct Offer {
    socket: std::net::TcpStream,
    state: Vec<u8>,
    /// The owners of its leases.
    owners: Vec<Arc<Owner>>,
    result: oneshot::Sender<OfferResult>,
}

/// What happened to an offered connection.
enum OfferResult {
    /// The next process has taken it, or nobody knows. This process must not use it.
    Gone,
    /// It stays with this process.
    Stays(std::net::TcpStream),
}

/// Offers connections to the next process, on a thread of its own.
#[derive(Clone, Default)]
pub(super) struct HandoffSender(Arc<OnceLock<Option<Sender<Offer>>>>);

impl HandoffSender {
    /// Offers a connection. Returns its socket if it stays with this process.
    pub(super) async fn pass_on(
        &self,
        run_dir: &Path,
        stream: TcpStream,
        state: &ConnectionState,
    ) -> io::Result<Option<TcpStream>> {
        let offers = self.0.get_or_init(|| start(run_dir.to_owned()));
        let state_bytes = match state.to_bytes(Instant::now()) {
            Ok(bytes) => bytes,
            Err(e) => {
                log::warn!("{}: cannot be passed on: {e}", state.peer);
                return Ok(Some(stream));
            }
        };
        let Some(offers) = offers else { return Ok(Some(stream)) };
        let owners = state.held.iter().filter_map(|(_, job)| job.owner.clone()).collect();
        let (result, answered) = oneshot::channel();
        let offer = Offer { socket: stream.into_std()?, state: state_bytes, owners, result };
        if let Err(unsent) = offers.send(offer) {
            return TcpStream::from_std(unsent.0.socket).map(Some);
        }
        match answered.await {
            Ok(OfferResult::Stays(socket)) => TcpStream::from_std(socket).map(Some),
            Ok(OfferResult::Gone) | Err(_) => Ok(None),
        }
    }
}

fn start(run_dir: PathBuf) -> Option<Sender<Offer>> {
    let (offers, received) = channel();
    let run = move || offer_all(&run_dir, &received);
    match std::thread::Builder::new().name("beanstalk-handoff".to_owned()).spawn(run) {
        Ok(_) => Some(offers),
        Err(e) => {
            log::warn!("beanstalk: no connection is passed on: cannot start a thread: {e}");
            None
        }
    }
}

/// Offers one connection after the other, until all senders are gone.
fn offer_all(run_dir: &Path, offers: &Receiver<Offer>) {
    let mut passage = match Passage::open(run_dir) {
        Ok(passage) => Some(passage),
        Err(e) => {
            log::info!("beanstalk: no process takes the connections over: {e}");
            None
        }
    };
    for Offer { socket, state, owners, result } in offers {
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

/// Why a connection got no answer.
struct OfferError {
    error: io::Error,
    /// Whether the next process may have taken the connection, or may still take it.
    may_be_taken: bool,
}

/// The way to the next process.
struct Passage {
    socket: PassSocket,
    /// The tags of the owners whose locks the next process has got.
    owners: HashSet<String>,
}

impl Passage {
    fn open(run_dir: &Path) -> io::Result<Passage> {
        let socket = PassSocket::connect(&path(run_dir))?;
        if socket.listener_pid()? == std::process::id() {
            return Err(io::Error::other("there is no other one"));
        }
        Ok(Passage { socket, owners: HashSet::new() })
    }

    /// Offers a connection. Returns whether the next process has taken it.
    fn offer(
        &mut self,
        socket: &std::net::TcpStream,
        state: &[u8],
        owners: &[Arc<Owner>],
    ) -> Result<bool, OfferError> {
        // Without its last message, the next process does not have the whole state, and takes nothing.
        self.send(socket, state, owners).map_err(|error| OfferError { error, may_be_taken: false })?;
        let unknown = |error| OfferError { error, may_be_taken: true };
        loop {
            match self.socket.replies() {
                Ok(Some(answers)) => return Ok(answers.first() == Some(&TAKEN)),
                Ok(None) => wait_readable(&[self.socket.as_fd()], None).map(drop).map_err(unknown)?,
                // It answers before it uses a connection. So it has not used this one, and never will.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(OfferError { error, may_be_taken: false });
                }
                Err(error) => return Err(unknown(error)),
            }
        }
    }

    /// Sends the locks first. So the next process never has a job whose lease could end with this process.
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

/// Takes connections of draining processes until this process drains, and serves them to their ends.
pub(super) async fn receive(port: Port, listener: PassListener, places: Places) {
    let mut closing = port.api.closing.subscribe();
    let events = match listener.as_fd().try_clone_to_owned().and_then(watched) {
        Ok(events) => events,
        Err(e) => return log::error!("beanstalk: cannot take connections over: {e}"),
    };
    let mut passages = JoinSet::new();
    loop {
        let mut ready = tokio::select! {
            () = closed(&mut closing) => break,
            Some(_) = passages.join_next() => continue,
            ready = events.readable() => match ready {
                Ok(ready) => ready,
                Err(e) => {
                    log::error!("beanstalk: cannot take connections over: {e}");
                    break;
                }
            },
        };
        match listener.accept() {
            Ok(Some(passage)) => {
                passages.spawn(receive_from(port.clone(), passage, places.clone()));
            }
            Ok(None) => ready.clear_ready(),
            Err(e) => {
                log::error!("beanstalk: cannot take connections over: {e}");
                break;
            }
        }
    }
    drop((listener, events));
    while passages.join_next().await.is_some() {}
}

/// Takes the connections of one draining process, and serves them to their ends.
async fn receive_from(port: Port, passage: PassSocket, places: Places) {
    let mut open = JoinSet::new();
    if let Err(e) = take_all(&port, passage, places, &mut open).await
        && e.kind() != ErrorKind::UnexpectedEof
    {
        log::error!("beanstalk: cannot take connections over: {e}");
    }
    while open.join_next().await.is_some() {}
}

/// Takes connections until the other side ends, or this process drains.
async fn take_all(
    port: &Port,
    passage: PassSocket,
    mut places: Places,
    open: &mut JoinSet<()>,
) -> io::Result<()> {
    let mut closing = port.api.closing.subscribe();
    let events = watched(passage.as_fd().try_clone_to_owned()?)?;
    let mut arriving = Arriving::new(&port.api.settings.run_dir);
    loop {
        tokio::select! {
            biased;
            () = closed(&mut closing) => return Ok(()),
            ready = events.readable() => {
                let mut ready = ready?;
                let Some((message, fd)) = passage.receive()? else {
                    ready.clear_ready();
                    continue;
                };
                let answer = match arriving.take(&message, fd) {
                    None => continue,
                    Some(arrived) => arrived.and_then(|(state, socket)| {
                        let place = places.admit(state.peer).ok_or_else(|| io::Error::other("it has no place"))?;
                        Ok((state, TcpStream::from_std(socket.into())?, place))
                    }),
                };
                match answer {
                    Ok((state, stream, place)) => {
                        reply(&passage, &events, TAKEN).await;
                        let ip = state.peer;
                        open.spawn(serve(port.clone(), stream, ip, place, Some(state)));
                    }
                    Err(e) => {
                        log::warn!("beanstalk: a connection is not taken over: {e}");
                        reply(&passage, &events, REFUSED).await;
                    }
                }
            }
            Some(_) = open.join_next() => {}
        }
    }
}

/// Answers for a connection. An error means that the other side is gone, and does nothing with its connections any more.
async fn reply(passage: &PassSocket, events: &AsyncFd<OwnedFd>, answer: u8) {
    loop {
        match passage.reply(&[answer]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => match events.writable().await {
                Ok(mut ready) => ready.clear_ready(),
                Err(_) => return,
            },
            _ => return,
        }
    }
}

/// What has arrived of the connections of a draining process.
struct Arriving {
    run_dir: PathBuf,
    owners: HashMap<String, Arc<Owner>>,
    /// The first bytes of a state, and the socket of the connection.
    begun: Option<(Vec<u8>, OwnedFd)>,
}

impl Arriving {
    fn new(run_dir: &Path) -> Arriving {
        Arriving { run_dir: run_dir.to_owned(), owners: HashMap::new(), begun: None }
    }

    /// Takes a message. Returns a connection when it is whole, or why it is not taken.
    fn take(
        &mut self,
        message: &[u8],
        fd: Option<OwnedFd>,
    ) -> Option<io::Result<(ConnectionState, OwnedFd)>> {
        let (kind, part) = message.split_first()?;
        match (*kind, fd, self.begun.take()) {
            (OWNER, Some(fd), begun) => {
                let tag = String::from_utf8_lossy(part).into_owned();
                self.owners.insert(tag.clone(), Arc::new(Owner::take_over(&self.run_dir, tag, fd)));
                self.begun = begun;
                return None;
            }
            // Its jobs cannot be taken over.
            (OWNER, None, begun) => {
                self.begun = begun;
                return None;
            }
            (BEGIN, Some(fd), _) => self.begun = Some((part.to_vec(), fd)),
            // Without its socket the connection cannot be taken, so its later messages are ignored.
            (BEGIN, None, _) => {
                return Some(Err(io::Error::other("its socket did not arrive: out of file descriptors")));
            }
            (_, _, Some((mut bytes, fd))) => {
                bytes.extend_from_slice(part);
                self.begun = Some((bytes, fd));
            }
            (_, _, None) => return None,
        }
        let (bytes, fd) = self.begun.take()?;
        match ConnectionState::from_bytes(&bytes, &self.owners, Instant::now()) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.begun = Some((bytes, fd));
                None
            }
            read => Some(read.map(|state| (state, fd))),
        }
    }
}
