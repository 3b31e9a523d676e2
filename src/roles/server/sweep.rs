//! Closes connections on which no byte moves, and connections that take too much memory.

use std::time::{Duration, Instant};

use super::Server;
use super::answer::refused;
use super::connection::Connection;
use super::reply::Reply;
use super::stages::InputState;
use model::failure_limiter::ClientSource;
use protocol::dq::Refusal;
use role::submit::STORE_TIMEOUT;
use role::tls::HANDSHAKE;

impl Server {
    /// Closes connections while all buffers together take too much memory.
    pub(super) fn limit_memory(&mut self) {
        while let Some(client) = self.memory.client_over_limit() {
            let of_client = |c: &Connection| ClientSource::address(c.peer.ip()) == client && c.is_closable();
            let closable = self.connections.iter().filter(|(_, connection)| of_client(connection));
            let Some((place, largest)) = closable.max_by_key(|(_, connection)| connection.buffered_bytes())
            else {
                return;
            };
            self.turned_away += 1;
            if self.turned_away.is_power_of_two() {
                let (peer, bytes, all) = (largest.peer, largest.buffered_bytes(), self.memory.all());
                log::warn!(
                    "{peer} is closed: unfinished requests and unread answers take {bytes} bytes, and {all} bytes of all \
                     clients"
                );
            }
            self.close(place);
        }
    }

    pub(super) fn sweep_by(&mut self, at: Instant) {
        self.sweep_at = Some(self.sweep_at.map_or(at, |s| s.min(at)));
    }

    /// Closes connections on which nothing moves, and answers requests that the store does not answer in time.
    pub(super) fn sweep(&mut self, now: Instant) {
        let (idle, patience) = (self.front.settings.server.idle_timeout, self.front.proof_patience());
        let places: Vec<usize> = self.connections.iter().map(|(place, _)| place).collect();
        for place in places {
            // While another connection was served, this connection may have been closed to free memory.
            let Some(connection) = self.connections.get_mut(place) else { continue };
            if connection.closes_at(idle, patience) <= now {
                log::debug!(
                    "{} is closed: nothing moved for {idle:?}, or it showed no token",
                    connection.peer
                );
                self.close(place);
            } else if connection.overdue_at(STORE_TIMEOUT).is_some_and(|at| at <= now) {
                connection.give_up_on_store(now, STORE_TIMEOUT);
                self.serve(place);
            }
        }
        // A client must get an answer to a ping even if the store hangs.
        for place in std::mem::take(&mut self.stalled) {
            self.serve(place);
        }
        let next = |c: &Connection| {
            [Some(c.closes_at(idle, patience)), c.overdue_at(STORE_TIMEOUT)].into_iter().flatten().min()
        };
        self.sweep_at = self.connections.iter().filter_map(|(_, c)| next(c)).min();
        if !self.stalled.is_empty() {
            self.sweep_by(now + STORE_TIMEOUT);
        }
    }
}

impl Connection {
    /// Returns when the connection is closed if no byte moves until then, or if its client shows no token in time.
    /// `proof_patience` is how long the client may take to show a token. None: the client needs no token.
    pub(super) fn closes_at(&self, idle: Duration, proof_patience: Option<Duration>) -> Instant {
        let handshake = self.socket.is_handshaking().then_some(HANDSHAKE);
        let unproved_at = proof_patience.filter(|_| self.pass.is_none()).or(handshake);
        let unproved_at = unproved_at.map(|span| self.opened_at + span);
        let silent_at = self.silent_at(idle);
        unproved_at.map_or(silent_at, |at| at.min(silent_at))
    }

    fn silent_at(&self, idle: Duration) -> Instant {
        match (self.input, self.replies.front()) {
            (InputState::Lost(Some(until)), _) => until,
            // In this case dq waits for the store, not for the client. `overdue_at` covers this wait.
            (_, Some(Reply::Pending { since, .. })) => {
                (*since).max(self.socket.moved_at) + idle.max(Duration::from_secs(60))
            }
            // The client waits for the time that it has asked for.
            (_, Some(Reply::Waiting(waiting))) => {
                waiting.until.max(self.socket.moved_at) + idle.max(Duration::from_secs(60))
            }
            _ => self.socket.moved_at + idle,
        }
    }

    /// Returns when the oldest request without an answer of the store has waited for too long.
    pub(super) fn overdue_at(&self, timeout: Duration) -> Option<Instant> {
        // The requests went to the store in this order, so the first pending request is the oldest.
        self.replies.iter().find_map(|r| match r {
            Reply::Pending { since, .. } => Some(*since + timeout),
            Reply::Done(_) | Reply::Waiting(_) => None,
        })
    }

    /// Answers the requests that the store has had for too long.
    pub(super) fn give_up_on_store(&mut self, now: Instant, timeout: Duration) {
        let problem = "the store has not answered in time: the outcome is unknown";
        for reply in &mut self.replies {
            if matches!(reply, Reply::Pending { since, .. } if *since + timeout <= now) {
                self.owed -= reply.bytes();
                *reply = Reply::Done(refused(&Refusal::new("unknown", problem)));
                self.owed += reply.bytes();
            }
        }
    }
}
