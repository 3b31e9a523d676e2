//! Takes the connections that a draining dq-http-server passes on (`handoff`), and continues to serve them.
//!
//! This process uses a connection only after it has answered that it takes the connection.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::super::followed::watched;
use super::super::places::ConnectionLimiter;
use super::super::tcp_port::closed;
use super::handoff::{BEGIN, OWNER, PAUSES, PassedPause, REFUSED, TAKEN};
use super::passed_state::BeanstalkHandoffState;
use super::port::BeanstalkPort;
use super::serve;
use host::{Owner, PassListener, PassSocket};
use protocol::beanstalk::TubeName;
use role::TroubleLog;

/// Takes connections of draining processes until this process drains. Serves each connection until it ends.
pub(super) async fn receive(port: BeanstalkPort, listener: PassListener, places: ConnectionLimiter) {
    let mut closing = port.api.closing.subscribe();
    let events = match listener.as_fd().try_clone_to_owned().and_then(watched) {
        Ok(events) => events,
        Err(e) => return log::error!("beanstalk: cannot take connections over: {e}"),
    };
    let (mut passages, mut accepting) = (JoinSet::new(), TroubleLog::default());
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
                let pause =
                    accepting.pause_after(&format_args!("beanstalk: cannot take connections over: {e}"));
                tokio::time::sleep(pause).await;
            }
        }
    }
    drop((listener, events));
    while passages.join_next().await.is_some() {}
}

/// Takes the connections of one draining process, and serves each connection until it ends.
async fn receive_from(port: BeanstalkPort, passage: PassSocket, places: ConnectionLimiter) {
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
    port: &BeanstalkPort,
    passage: PassSocket,
    mut places: ConnectionLimiter,
    open: &mut JoinSet<()>,
) -> io::Result<()> {
    let mut closing = port.api.closing.subscribe();
    let events = watched(passage.as_fd().try_clone_to_owned()?)?;
    let mut arriving = ArrivingConnections::new(&port.api.settings.run_dir);
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
                if message.first() == Some(&PAUSES) {
                    if let Err(e) = keep_pauses(port, &message[1..]) {
                        log::warn!("beanstalk: the pauses of tubes end now: {e}");
                    }
                    continue;
                }
                let answer = match arriving.take(&message, fd) {
                    None => continue,
                    Some(arrived) => arrived.and_then(|(state, socket)| {
                        let place = places.admit(state.peer).ok_or_else(|| io::Error::other("it has no place"))?;
                        Ok((state, TcpStream::from_std(socket.into())?, place))
                    }),
                };
                match answer {
                    Ok((state, stream, place)) => {
                        // This answer comes before this process uses the connection. Without the answer, the other side
                        // might use the connection, too.
                        reply(&passage, &events, TAKEN).await?;
                        let ip = state.peer;
                        open.spawn(serve(port.clone(), stream, ip, place, Some(state)));
                    }
                    Err(e) => {
                        log::warn!("beanstalk: a connection is not taken over: {e}");
                        reply(&passage, &events, REFUSED).await?;
                    }
                }
            }
            Some(_) = open.join_next() => {}
        }
    }
}

/// Continues the pauses of a draining process.
fn keep_pauses(port: &BeanstalkPort, message: &[u8]) -> io::Result<()> {
    let now = Instant::now();
    for pause in serde_json::from_slice::<Vec<PassedPause>>(message)? {
        if let Some(tube) = TubeName::new(pause.tube.as_bytes()) {
            let [span, left] = [pause.span_ms, pause.left_ms].map(Duration::from_millis);
            port.keep_pause(&tube, span, now + left);
        }
    }
    Ok(())
}

/// Answers whether this process takes a connection. If the other side is gone, it no longer uses its connections, so no
/// answer is needed.
async fn reply(passage: &PassSocket, events: &AsyncFd<OwnedFd>, answer: u8) -> io::Result<()> {
    loop {
        match passage.reply(&[answer]) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => events.writable().await?.clear_ready(),
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => return Ok(()),
            replied => return replied.map(drop),
        }
    }
}

/// The parts of connections that have arrived from a draining process.
struct ArrivingConnections {
    run_dir: PathBuf,
    owners: HashMap<String, Arc<Owner>>,
    /// The connection that has arrived in part: the bytes of its state so far, and its socket.
    begun: Option<(Vec<u8>, OwnedFd)>,
}

impl ArrivingConnections {
    fn new(run_dir: &Path) -> ArrivingConnections {
        ArrivingConnections { run_dir: run_dir.to_owned(), owners: HashMap::new(), begun: None }
    }

    /// Takes a message. Returns a connection when all of its state has arrived, or the reason why the connection is not
    /// taken.
    fn take(
        &mut self,
        message: &[u8],
        fd: Option<OwnedFd>,
    ) -> Option<io::Result<(BeanstalkHandoffState, OwnedFd)>> {
        let (kind, part) = message.split_first()?;
        match (*kind, fd, self.begun.take()) {
            (OWNER, Some(fd), begun) => {
                let tag = String::from_utf8_lossy(part).into_owned();
                self.owners.insert(tag.clone(), Arc::new(Owner::take_over(&self.run_dir, tag, fd)));
                self.begun = begun;
                return None;
            }
            // The lock of this owner did not arrive. So each connection that has a lease of this owner is refused.
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
        match BeanstalkHandoffState::from_bytes(&bytes, &self.owners, Instant::now()) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.begun = Some((bytes, fd));
                None
            }
            read => Some(read.map(|state| (state, fd))),
        }
    }
}
