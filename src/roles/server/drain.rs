//! The drain of a dq-server, and the takeover by the next dq-server. A draining server stops accepting, and passes its
//! connections on to the next dq-server. If there is no next dq-server, the draining server answers the requests and
//! closes the connections.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use mio::Interest;
use mio::net::TcpStream;
use mio::unix::SourceFd;

use super::connection::Connection;
use super::handoff::{HandoffResult, HandoffSender, HandoffState};
use super::{HANDOFF_SENDER, PASSAGE, Server};

impl Server {
    /// Accepts draining servers that want to pass connections on.
    pub(super) fn accept_passages(&mut self) {
        loop {
            let watched = match self.handoff_receiver.accept() {
                Ok(None) => break,
                Ok(Some(fd)) => {
                    let both = Interest::READABLE | Interest::WRITABLE;
                    self.poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), PASSAGE, both)
                }
                Err(e) => Err(e),
            };
            if let Err(e) = watched {
                log::error!("cannot take over connections: {e}");
                break;
            }
        }
        self.take_over();
    }

    /// Takes the connections that were passed on.
    pub(super) fn take_over(&mut self) {
        let (front, open) = (&self.front, &self.open);
        let arrived =
            self.handoff_receiver.receive(|handoff_state, more| front.admit(handoff_state.peer, open, more));
        if !arrived.is_empty() {
            self.sweep_by(Instant::now() + self.front.settings.server.idle_timeout);
        }
        for (handoff_state, fd) in arrived {
            self.adopt(handoff_state, TcpStream::from_std(fd.into()));
        }
    }

    fn adopt(&mut self, handoff_state: HandoffState, stream: TcpStream) {
        let peer = handoff_state.peer;
        let taken_over = |stream, serial| Connection::taken_over(stream, serial, handoff_state);
        let Some(place) = self.keep(stream, peer, taken_over) else { return };
        if self.listener.is_none() {
            // This server drains as well.
            self.drain_one(place);
        }
        // The inbox of the connection may contain requests that no event of its socket will report.
        self.serve(place);
    }

    pub(super) fn pass_on_to(&mut self, handoff_sender: HandoffSender) {
        let fd = handoff_sender.as_fd().as_raw_fd();
        match self.poll.registry().register(&mut SourceFd(&fd), HANDOFF_SENDER, Interest::READABLE) {
            Ok(()) => (self.handoff_sender, self.passing) = (Some(handoff_sender), true),
            Err(e) => log::warn!("cannot watch the answers of the new process: {e}"),
        }
    }

    /// Prepares one connection for the drain.
    pub(super) fn drain_one(&mut self, place: usize) {
        // While another connection was served, this connection may have been closed to free memory.
        let Some(connection) = self.connections.get_mut(place) else { return };
        match self.passing {
            true => connection.prepare_to_pass(),
            false => connection.drain(),
        }
    }

    /// Stops passing connections on. The connections are drained here, except the connections that are already offered.
    pub(super) fn keep_all(&mut self) {
        self.passing = false;
        let places: Vec<usize> = self.connections.iter().map(|(place, _)| place).collect();
        for place in places {
            self.connections[place].drain();
            self.unfinished.push(place);
        }
    }

    /// Offers a connection to the next dq-server. If that is not possible, the connection ends after its last answer.
    pub(super) fn pass_on(&mut self, place: usize) {
        let connection = &mut self.connections[place];
        let offered = self.handoff_sender.as_mut().filter(|_| self.passing).map(|sender| {
            let socket = connection.socket.stream.as_fd();
            sender.offer((place, connection.serial), socket, &connection.handoff_state())
        });
        match offered {
            Some(Ok(())) => {
                connection.offered();
                // The answers of the next dq-server are read from time to time, so that the next dq-server never waits
                // for this process.
                if place.is_multiple_of(64) {
                    self.read_handoff_results();
                }
                return;
            }
            Some(Err(e)) => {
                log::warn!("{}: cannot be passed on: {e}", connection.peer);
                if e.kind() != ErrorKind::InvalidInput {
                    // The next dq-server would refuse the other connections too, so these connections must not wait for
                    // it.
                    self.keep_all();
                }
            }
            None => {}
        }
        self.connections[place].drain();
        self.serve(place);
    }

    /// Closes the connections that the next dq-server has taken, and continues with the connections that it has
    /// refused.
    pub(super) fn read_handoff_results(&mut self) {
        let Some(handoff_sender) = &mut self.handoff_sender else { return };
        let (results, more) = handoff_sender.results();
        if !more {
            log::warn!("the new process takes over no more connections");
            let _ = self.poll.registry().deregister(&mut SourceFd(&handoff_sender.as_fd().as_raw_fd()));
            self.handoff_sender = None;
            self.keep_all();
        }
        for result in results {
            let (HandoffResult::Taken(place, serial) | HandoffResult::Stays(place, serial)) = result;
            match self.connections.get_mut(place).filter(|c| c.serial == serial) {
                Some(_) if matches!(result, HandoffResult::Taken(..)) => self.close(place),
                Some(connection) => {
                    connection.not_taken();
                    self.unfinished.push(place);
                }
                None => {}
            }
        }
    }

    /// Stops accepting and passes the connections on to the next dq-server. If there is no next dq-server, reads what
    /// has already arrived, and ends each connection after its last answer.
    pub(super) fn begin_drain(&mut self, replaced: bool) {
        if replaced {
            match HandoffSender::find(&self.front.settings.run_dir) {
                Ok(handoff_sender) => self.pass_on_to(handoff_sender),
                Err(e) => log::warn!("no new process takes over connections: {e}"),
            }
        }
        // Connections that already wait in the backlog are served, and not reset. A connection with TLS cannot be passed
        // on, so the next process accepts it.
        if !replaced || self.tls.is_none() {
            self.accept();
        }
        if let Some(mut listener) = self.listener.take() {
            let _ = self.poll.registry().deregister(&mut listener);
        }
        self.accept_at = None;
        self.front.reserves.drain();
        let places: Vec<usize> = self.connections.iter().map(|(place, _)| place).collect();
        for place in places {
            self.drain_one(place);
            self.serve(place);
        }
    }
}
