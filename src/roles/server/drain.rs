//! How a dq-server ends, and begins where another one ends: its port is let go, its connections are passed on to the successor,
//! or answered and closed where there is none.

use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use mio::Interest;
use mio::net::TcpStream;
use mio::unix::SourceFd;

use super::connection::Connection;
use super::succession::{Estate, Fate, Testator};
use super::{PASSAGE, Server, TESTATOR};

impl Server {
    /// Takes whoever wants to pass connections on.
    pub(super) fn accept_passages(&mut self) {
        loop {
            let watched = match self.heir.accept() {
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
        let (front, open) = (&self.front, self.connections.len());
        let arrived = self.heir.receive(|estate, more| front.admit(estate.peer, open + more));
        if !arrived.is_empty() {
            self.sweep_by(Instant::now() + self.front.settings.server.idle_timeout);
        }
        for (estate, fd) in arrived {
            self.adopt(estate, TcpStream::from_std(fd.into()));
        }
    }

    fn adopt(&mut self, estate: Estate, stream: TcpStream) {
        let peer = estate.peer;
        let taken_over = |stream, serial| Connection::taken_over(stream, serial, estate);
        let Some(place) = self.keep(stream, peer, taken_over) else { return };
        if self.listener.is_none() {
            // This one drains as well.
            self.drain_one(place);
        }
        // It may have more in hand than its socket will tell of.
        self.serve(place);
    }

    pub(super) fn pass_on_to(&mut self, testator: Testator) {
        let fd = testator.as_fd().as_raw_fd();
        match self.poll.registry().register(&mut SourceFd(&fd), TESTATOR, Interest::READABLE) {
            Ok(()) => (self.testator, self.passing) = (Some(testator), true),
            Err(e) => log::warn!("cannot hear the successor: {e}"),
        }
    }

    /// Prepares a connection for its end here.
    pub(super) fn drain_one(&mut self, place: usize) {
        match self.passing {
            true => self.connections[place].prepare_to_pass(),
            false => self.connections[place].drain(),
        }
    }

    /// Gives up passing connections on: they are drained, but for those that are offered already.
    pub(super) fn keep_all(&mut self) {
        self.passing = false;
        let places: Vec<usize> = self.connections.iter().map(|(place, _)| place).collect();
        for place in places {
            self.connections[place].drain();
            self.unfinished.push(place);
        }
    }

    /// Gives a connection to the successor; or, where that is not to be, ends it after its last answer.
    pub(super) fn pass_on(&mut self, place: usize) {
        let connection = &mut self.connections[place];
        let offered = self.testator.as_mut().filter(|_| self.passing).map(|t| t.offer(place, connection));
        match offered {
            Some(Ok(())) => {
                connection.offered();
                // What it has said meanwhile is taken now and then, so that it never waits for that.
                if place.is_multiple_of(64) {
                    self.hear_successor();
                }
                return;
            }
            Some(Err(e)) => {
                log::warn!("{}: cannot be passed on: {e}", connection.peer);
                if e.kind() != ErrorKind::InvalidInput {
                    // The successor does not take it, and would not take the others: they must not wait for that.
                    self.keep_all();
                }
            }
            None => {}
        }
        self.connections[place].drain();
        self.serve(place);
    }

    /// Lets go of connections that the successor has taken, and goes on with those that it has not.
    pub(super) fn hear_successor(&mut self) {
        let Some(testator) = &mut self.testator else { return };
        let (fates, more) = testator.fates();
        if !more {
            log::warn!("the successor takes no more connections over");
            let _ = self.poll.registry().deregister(&mut SourceFd(&testator.as_fd().as_raw_fd()));
            self.testator = None;
            self.keep_all();
        }
        for fate in fates {
            let (Fate::Taken(place, serial) | Fate::Stays(place, serial)) = fate;
            match self.connections.get_mut(place).filter(|c| c.serial == serial) {
                Some(_) if matches!(fate, Fate::Taken(..)) => self.close(place),
                Some(connection) => {
                    connection.not_taken();
                    self.unfinished.push(place);
                }
                None => {}
            }
        }
    }

    /// Lets the port go. Passes the connections on to a successor; without one takes what has arrived, and ends each after
    /// its last answer.
    pub(super) fn begin_drain(&mut self, successor: bool) {
        if successor {
            match Testator::find(&self.front.settings.run_dir) {
                Ok(testator) => self.pass_on_to(testator),
                Err(e) => log::warn!("no successor takes connections over: {e}"),
            }
        }
        // Whoever has come in is served, and not reset.
        self.accept();
        if let Some(mut listener) = self.listener.take() {
            let _ = self.poll.registry().deregister(&mut listener);
        }
        self.accept_at = None;
        let places: Vec<usize> = self.connections.iter().map(|(place, _)| place).collect();
        for place in places {
            self.drain_one(place);
            self.serve(place);
        }
    }
}
