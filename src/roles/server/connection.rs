//! One client's connection: its buffers, its framing, and its answers in the order of its requests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::answer::{JsonBytes, ReplyAddress, SUCCESS, TcpFrontend, refused};
use super::buffer_memory::BufferMemory;
use super::handoff::HandoffState;
use super::reply::Reply;
use super::request::{Client, RequestOutcome, RequestRouter};
use super::socket::{ReadOutcome, Socket, consume};
use super::stages::{AfterTurn, InputState};
use model::failure_limiter::ClientSource;
use model::token::VerifiedToken;
use protocol::dq::{Framing, Refusal};
use role::submit::Submitter;

/// How many bytes are read from one connection before other connections are served.
pub(super) const TURN: usize = 64 << 10;

/// While a client has not read this number of bytes of its answers, nothing is read from the client.
const UNREAD_MAX: usize = 1 << 20;

/// While this number of requests of a client is unanswered, nothing is read from the client.
const OWED_MAX: usize = 1024;

/// While complete frames wait in the inbox, and the inbox has at least this number of bytes, a waiting reserve of the
/// client gets an empty answer. See `may_miss_the_end` for the reason.
const HELD_MAX: usize = 32 << 10;

/// The assumed size, in bytes, of the answer to a `get` until the store has answered it.
const ANSWER_GUESS: usize = 64 << 10;

/// How long a client has to read its last answer and to close the connection, if its framing is lost.
const FAREWELL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Connection {
    pub socket: Socket,
    pub peer: SocketAddr,
    pub serial: u64,
    pub(super) opened_at: Instant,
    framing: Option<Framing>,
    /// The token that the client has shown.
    pub(super) pass: Option<VerifiedToken>,
    pub(super) input: InputState,
    /// Bytes that were read and are not yet parsed.
    inbox: Vec<u8>,
    /// Answers that are not yet written.
    outbox: Vec<u8>,
    /// The answers that the client waits for, in the order of the requests.
    pub(super) replies: VecDeque<Reply>,
    /// The number of the request to which the first of `replies` belongs.
    first: u64,
    /// The bytes of the answers in `replies`. For a pending answer, its guessed size counts.
    pub(super) owed: usize,
    /// The bytes of the buffers when they were last counted.
    counted: usize,
    /// Whether complete frames are in the inbox. They wait until the client takes answers, or until the store has room.
    held: bool,
    /// Whether the first of these frames is a reserve. The reserve is taken when all earlier requests are answered.
    is_reserve_held: bool,
}

impl Connection {
    pub(super) fn new(socket: Socket, peer: SocketAddr, serial: u64) -> Connection {
        Connection {
            socket,
            peer,
            serial,
            opened_at: Instant::now(),
            framing: None,
            pass: None,
            input: InputState::Open,
            inbox: Vec::new(),
            outbox: Vec::new(),
            replies: VecDeque::new(),
            first: 0,
            owed: 0,
            counted: 0,
            held: false,
            is_reserve_held: false,
        }
    }

    /// Reads, parses, hands requests to the store, and writes. Never waits. `buffer` is scratch space for reading; its
    /// contents do not matter.
    pub(super) fn turn(
        &mut self,
        place: usize,
        front: &RequestRouter,
        submit: &mut Submitter<TcpFrontend>,
        buffer: &mut [u8],
    ) -> AfterTurn {
        if self.input == InputState::Offered {
            return AfterTurn::Waits;
        }
        let progress = self.exchange(place, front, submit, buffer).unwrap_or_else(|e| {
            log::debug!("{}: {e}", self.peer);
            AfterTurn::Ended
        });
        let owes_nothing = self.replies.is_empty() && self.outbox.is_empty() && !self.socket.has_unsent();
        match self.input {
            InputState::Shut if owes_nothing && !self.held => {
                if self.socket.is_encrypted() {
                    self.socket.end_writing();
                }
                AfterTurn::Ended
            }
            InputState::Lost(None) if owes_nothing => {
                // This tells the client that nothing more will come. The connection then waits for the client to close
                // it.
                self.socket.end_writing();
                self.input = InputState::Lost(Some(Instant::now() + FAREWELL));
                progress
            }
            _ => progress,
        }
    }

    fn exchange(
        &mut self,
        place: usize,
        front: &RequestRouter,
        submit: &mut Submitter<TcpFrontend>,
        buffer: &mut [u8],
    ) -> std::io::Result<AfterTurn> {
        let mut taken = 0;
        loop {
            if self.input != InputState::Passing {
                self.take_frames(place, front, submit);
            }
            if self.socket.is_over || self.may_miss_the_end() {
                self.end_wait();
            }
            self.move_ready_answers();
            self.socket.write(&mut self.outbox)?;
            if self.input == InputState::Passing {
                return Ok(if self.replies.is_empty() { AfterTurn::Passes } else { AfterTurn::Waits });
            }
            if self.held {
                // Nothing more is read while complete frames wait, and no event will report those frames again.
                match (self.is_ahead(), submit.is_full()) {
                    (true, _) => return Ok(AfterTurn::Waits),
                    (false, true) => return Ok(AfterTurn::Stalled),
                    (false, false) if self.is_reserve_held && !self.replies.is_empty() => {
                        return Ok(AfterTurn::Waits);
                    }
                    (false, false) => continue,
                }
            }
            let progress = match self.input {
                InputState::Shut | InputState::Passing | InputState::Offered => Some(AfterTurn::Waits),
                InputState::Lost(_) if taken >= TURN => Some(AfterTurn::MoreToRead),
                InputState::Lost(_) => None,
                InputState::Open | InputState::Last if self.is_ahead() => Some(AfterTurn::Waits),
                InputState::Open | InputState::Last if submit.is_full() => Some(AfterTurn::Stalled),
                InputState::Open | InputState::Last => (taken >= TURN).then_some(AfterTurn::MoreToRead),
            };
            if let Some(progress) = progress {
                return Ok(progress);
            }
            match self.socket.read(buffer)? {
                ReadOutcome::Some(n) => {
                    if !matches!(self.input, InputState::Lost(_)) {
                        self.inbox.extend_from_slice(&buffer[..n]);
                    }
                    taken += n;
                }
                ReadOutcome::Nothing if self.input != InputState::Last => return Ok(AfterTurn::Waits),
                ReadOutcome::Nothing | ReadOutcome::End => {
                    self.input = InputState::Shut;
                    return Ok(AfterTurn::Waits);
                }
            }
        }
    }

    /// Returns the memory of the buffers, in bytes: what was read and is not yet parsed, and the answers that are not
    /// yet written.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.inbox.capacity() + self.outbox.capacity() + self.owed
    }

    /// Notes how much memory the buffers take now.
    pub(super) fn count_memory(&mut self, memory: &mut BufferMemory) {
        let now = self.buffered_bytes();
        memory.changed(ClientSource::address(self.peer.ip()), self.counted, now);
        self.counted = now;
    }

    /// Notes that the buffers are gone.
    pub(super) fn free_memory(&mut self, memory: &mut BufferMemory) {
        memory.changed(ClientSource::address(self.peer.ip()), self.counted, 0);
        self.counted = 0;
    }

    /// Returns whether the connection may be closed to free its memory. A connection that is offered to another process
    /// may already belong to that process.
    pub(super) fn is_closable(&self) -> bool {
        self.input != InputState::Offered
    }

    /// Whether too many answers wait for the client: it sends requests faster than it reads answers.
    fn is_ahead(&self) -> bool {
        self.outbox.len() + self.owed >= UNREAD_MAX || self.replies.len() >= OWED_MAX
    }

    /// Whether dq reads nothing more for now although much has come. The client may have closed the connection after
    /// bytes that dq does not read now. So dq would not learn that the client is gone.
    fn may_miss_the_end(&self) -> bool {
        self.is_ahead() || (self.held && self.inbox.len() >= HELD_MAX)
    }

    /// Takes the complete frames out of the inbox.
    fn take_frames(&mut self, place: usize, front: &RequestRouter, submit: &mut Submitter<TcpFrontend>) {
        let mut done = 0;
        (self.held, self.is_reserve_held) = (false, false);
        while done < self.inbox.len() {
            let Some(framing) = self.framing.or_else(|| Framing::from_first_byte(self.inbox[done])) else {
                // Without a framing no answer is possible.
                log::debug!(
                    "{} begins with {:#04x}, which belongs to neither framing",
                    self.peer,
                    self.inbox[done]
                );
                self.input = InputState::Lost(None);
                break;
            };
            self.framing = Some(framing);
            match framing.frame(&self.inbox[done..], front.max_frame(self.pass.as_ref())) {
                Ok(None) => break,
                Ok(Some(_)) if self.is_ahead() || submit.is_full() => {
                    self.held = true;
                    break;
                }
                Ok(Some(range)) => {
                    let json = &self.inbox[done + range.start..done + range.end];
                    let reply_to = ReplyAddress {
                        place,
                        serial: self.serial,
                        number: self.first + self.replies.len() as u64,
                    };
                    let is_owed = !self.replies.is_empty();
                    let client = Client { peer: self.peer, pass: &mut self.pass, is_owed };
                    let reply = match front.take(json, framing, client, reply_to, submit) {
                        RequestOutcome::Later => {
                            (self.held, self.is_reserve_held) = (true, true);
                            break;
                        }
                        RequestOutcome::Waits(waiting) => Reply::Waiting(waiting),
                        RequestOutcome::Answered(json) => Reply::Done(json),
                        RequestOutcome::Asked { is_get } => Reply::Pending {
                            since: Instant::now(),
                            guess: if is_get { ANSWER_GUESS } else { 0 },
                        },
                    };
                    self.owed += reply.bytes();
                    self.replies.push_back(reply);
                    done += range.end;
                }
                Err(e) => {
                    let client = Client { peer: self.peer, pass: &mut self.pass, is_owed: true };
                    let reply = Reply::Done(front.refuse_frame(&client, &e));
                    self.owed += reply.bytes();
                    self.replies.push_back(reply);
                    self.input = InputState::Lost(None);
                    break;
                }
            }
        }
        if matches!(self.input, InputState::Lost(_)) {
            done = self.inbox.len();
        }
        consume(&mut self.inbox, done);
    }

    /// Moves answers that are ready into the outbox, in the order of their requests.
    fn move_ready_answers(&mut self) {
        while let (Some(Reply::Done(_)), Some(framing)) = (self.replies.front(), self.framing) {
            let Some(Reply::Done(json)) = self.replies.pop_front() else { break };
            self.first += 1;
            self.owed -= json.len();
            if !framing.append(&json, &mut self.outbox) {
                let problem =
                    format!("the answer has {} bytes, more than a length of 4 digits allows", json.len());
                let short =
                    framing.append(&refused(&Refusal::new("answer_too_long", problem)), &mut self.outbox);
                debug_assert!(short, "a refusal fits into any framing");
            }
        }
    }

    /// Keeps the store's answer to a request. A request that was given up already has an answer, so the new answer is
    /// dropped.
    pub(super) fn answer(&mut self, number: u64, json: JsonBytes) {
        let index = number.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
        if let Some(reply @ Reply::Pending { .. }) = index.and_then(|i| self.replies.get_mut(i)) {
            self.owed = self.owed - reply.bytes() + json.len();
            *reply = Reply::Done(json);
        }
    }

    /// Keeps the answer to a reserve. Returns false if the reserve does not wait any more.
    pub(super) fn answer_reserve(&mut self, number: u64, json: JsonBytes) -> bool {
        let is_its = number == self.first && matches!(self.replies.front(), Some(Reply::Waiting(_)));
        if is_its {
            self.owed += json.len();
            self.replies[0] = Reply::Done(json);
        }
        is_its
    }

    /// Ends the wait of a client. The client gets no job. If it still reads, it gets an empty answer.
    fn end_wait(&mut self) {
        if let Some(reply @ Reply::Waiting(_)) = self.replies.front_mut() {
            *reply = Reply::Done(SUCCESS.into());
            self.owed += SUCCESS.len();
        }
    }

    /// Ends the wait of a client whose token was revoked. Returns false if there is no such wait.
    pub(super) fn end_revoked_wait(&mut self, front: &RequestRouter) -> bool {
        let is_revoked = matches!(self.replies.front(), Some(Reply::Waiting(_)))
            && front.token(self.pass.as_ref()).is_err();
        if is_revoked {
            self.end_wait();
        }
        is_revoked
    }

    /// Reads what has already arrived, and nothing after that.
    pub(super) fn drain(&mut self) {
        if matches!(self.input, InputState::Open | InputState::Passing) {
            self.take_last_frame();
        }
    }

    fn take_last_frame(&mut self) {
        self.input = InputState::Last;
        self.socket.read_to_the_end();
    }

    /// Reads nothing more, because another process will take the connection over. A connection with TLS cannot be
    /// passed on, so it is drained.
    pub(super) fn prepare_to_pass(&mut self) {
        if self.socket.is_encrypted() {
            self.drain();
        } else if self.input == InputState::Open {
            self.input = InputState::Passing;
            (self.held, self.is_reserve_held) = (false, false);
        }
    }

    /// Marks the connection as offered to another process.
    pub(super) fn offered(&mut self) {
        self.input = InputState::Offered;
    }

    /// Takes the connection back after the other process refused it. The requests that have arrived are answered, and
    /// then the connection ends.
    pub(super) fn not_taken(&mut self) {
        debug_assert_eq!(self.input, InputState::Offered);
        self.take_last_frame();
    }

    /// Returns the state that is passed on with the socket.
    pub(super) fn handoff_state(&self) -> HandoffState {
        debug_assert!(self.replies.is_empty());
        HandoffState {
            peer: self.peer,
            framing: self.framing,
            pass: self.pass.clone(),
            inbox: self.inbox.clone(),
            outbox: self.outbox.clone(),
        }
    }

    /// Returns a connection that another process has passed on.
    pub(super) fn taken_over(stream: TcpStream, serial: u64, handoff_state: HandoffState) -> Connection {
        let HandoffState { peer, framing, pass, inbox, outbox } = handoff_state;
        Connection {
            framing,
            pass,
            inbox,
            outbox,
            ..Connection::new(Socket::new(stream, None), peer, serial)
        }
    }
}
