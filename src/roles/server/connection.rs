//! One client's connection: its buffers, its framing, and its answers in the order of its requests.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpStream;

use super::answer::{Json, Tcp, Ticket, refused};
use super::request::{Client, Front, Taken};
use super::socket::{Came, Socket, consume};
use super::succession::Estate;
use crate::protocol::dq::{Framing, Refusal};
use crate::submit::Submits;
use crate::token::Pass;

/// How much is read of one connection before the others have their turn.
pub(super) const TURN: usize = 64 << 10;

/// A client that leaves so many bytes of answers unread is not read from until it takes some.
const UNREAD_MAX: usize = 1 << 20;

/// A client with so many requests that are not answered yet is not read from until some are.
const OWED_MAX: usize = 1024;

/// What the answer to a `get` that the store has is counted as, in bytes, until it is known.
const ANSWER_GUESS: usize = 16 << 10;

/// A client whose framing is lost has so long to take its last answer and to end.
const FAREWELL: Duration = Duration::from_secs(2);

/// What is left to do with a connection after its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits: for the client, or for the store's answers to its own requests.
    Waits,
    /// Its socket may hold more, of which nothing tells again.
    MoreToRead,
    /// It waits until the store has answered others.
    Stalled,
    /// It may be passed on.
    Passes,
    /// It is over.
    Ended,
}

/// What is done with what the client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    /// It is read.
    Open,
    /// The daemon drains: it is read as far as it has arrived.
    Last,
    /// Another process takes the connection over, once nothing is owed by the store: it is not read from here.
    Passing,
    /// It is offered to that process: nothing at all is done with it here.
    Offered,
    /// The client has said all. What is owed is still answered.
    Shut,
    /// The framing is lost: what is owed is answered, and what comes is thrown away until the client ends; once it has
    /// its last answer, at most until then. (To close a socket with unread bytes would take that answer from it.)
    Lost(Option<Instant>),
}

/// An answer that is owed.
#[derive(Debug)]
enum Reply {
    /// The store has the request, since then; its answer is counted as so many bytes.
    Pending { since: Instant, guess: usize },
    /// The answer.
    Done(Json),
}

impl Reply {
    fn bytes(&self) -> usize {
        match self {
            Reply::Pending { guess, .. } => *guess,
            Reply::Done(json) => json.len(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub socket: Socket,
    pub peer: SocketAddr,
    pub serial: u64,
    framing: Option<Framing>,
    /// By what it has been let in.
    pass: Option<Pass>,
    input: Input,
    /// Read and not yet understood.
    inbox: Vec<u8>,
    /// Answered and not yet written.
    outbox: Vec<u8>,
    /// The answers that are owed, in the order of the requests.
    replies: VecDeque<Reply>,
    /// The number of the first of `replies`.
    first: u64,
    /// The bytes of the answers in `replies`, as far as they are known.
    owed: usize,
    /// Frames have arrived in full that wait for the client to take answers, or for the store.
    held: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, peer: SocketAddr, serial: u64) -> Connection {
        Connection {
            socket: Socket::new(stream),
            peer,
            serial,
            framing: None,
            pass: None,
            input: Input::Open,
            inbox: Vec::new(),
            outbox: Vec::new(),
            replies: VecDeque::new(),
            first: 0,
            owed: 0,
            held: false,
        }
    }

    /// Reads, understands, hands in, and writes, as far as it goes without waiting.
    /// `buffer` is what is read into, of any contents.
    pub(super) fn turn(
        &mut self,
        place: usize,
        front: &Front,
        submit: &mut Submits<Tcp>,
        buffer: &mut [u8],
    ) -> Progress {
        if self.input == Input::Offered {
            return Progress::Waits;
        }
        let progress = self.exchange(place, front, submit, buffer).unwrap_or_else(|e| {
            log::debug!("{}: {e}", self.peer);
            Progress::Ended
        });
        let owes_nothing = self.replies.is_empty() && self.outbox.is_empty();
        match self.input {
            Input::Shut if owes_nothing && !self.held => Progress::Ended,
            Input::Lost(None) if owes_nothing => {
                // The client learns that nothing more will come; its own end is waited for.
                let _ = self.socket.stream.shutdown(Shutdown::Write);
                self.input = Input::Lost(Some(Instant::now() + FAREWELL));
                progress
            }
            _ => progress,
        }
    }

    fn exchange(
        &mut self,
        place: usize,
        front: &Front,
        submit: &mut Submits<Tcp>,
        buffer: &mut [u8],
    ) -> std::io::Result<Progress> {
        let mut taken = 0;
        loop {
            if self.input != Input::Passing {
                self.understand(place, front, submit);
            }
            self.line_up();
            self.socket.write(&mut self.outbox)?;
            if self.input == Input::Passing {
                return Ok(if self.replies.is_empty() { Progress::Passes } else { Progress::Waits });
            }
            if self.held {
                // Nothing is read while what was read waits; and nothing tells of it again.
                match (self.is_ahead(), submit.is_full()) {
                    (true, _) => return Ok(Progress::Waits),
                    (false, true) => return Ok(Progress::Stalled),
                    (false, false) => continue,
                }
            }
            let progress = match self.input {
                Input::Shut | Input::Passing | Input::Offered => Some(Progress::Waits),
                Input::Lost(_) if taken >= TURN => Some(Progress::MoreToRead),
                Input::Lost(_) => None,
                Input::Open | Input::Last if self.is_ahead() => Some(Progress::Waits),
                Input::Open | Input::Last if submit.is_full() => Some(Progress::Stalled),
                Input::Open | Input::Last => (taken >= TURN).then_some(Progress::MoreToRead),
            };
            if let Some(progress) = progress {
                return Ok(progress);
            }
            match self.socket.read(buffer)? {
                Came::Some(n) => {
                    if !matches!(self.input, Input::Lost(_)) {
                        self.inbox.extend_from_slice(&buffer[..n]);
                    }
                    taken += n;
                }
                Came::Nothing if self.input != Input::Last => return Ok(Progress::Waits),
                Came::Nothing | Came::End => {
                    self.input = Input::Shut;
                    return Ok(Progress::Waits);
                }
            }
        }
    }

    /// Whether the client has asked for more than it takes.
    fn is_ahead(&self) -> bool {
        self.outbox.len() + self.owed >= UNREAD_MAX || self.replies.len() >= OWED_MAX
    }

    /// Takes the frames that have arrived out of the inbox.
    fn understand(&mut self, place: usize, front: &Front, submit: &mut Submits<Tcp>) {
        let mut done = 0;
        self.held = false;
        while done < self.inbox.len() {
            let Some(framing) = self.framing.or_else(|| Framing::of(self.inbox[done])) else {
                // There is no framing to answer in.
                log::debug!("{} begins with {:#04x}, which is neither framing", self.peer, self.inbox[done]);
                self.input = Input::Lost(None);
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
                    let ticket =
                        Ticket { place, serial: self.serial, number: self.first + self.replies.len() as u64 };
                    let client = Client { peer: self.peer, pass: &mut self.pass };
                    let reply = match front.take(json, framing, client, ticket, submit) {
                        Taken::Answered(json) => Reply::Done(json),
                        Taken::Asked { is_get } => Reply::Pending {
                            since: Instant::now(),
                            guess: if is_get { ANSWER_GUESS } else { 0 },
                        },
                    };
                    self.owed += reply.bytes();
                    self.replies.push_back(reply);
                    done += range.end;
                }
                Err(e) => {
                    let client = Client { peer: self.peer, pass: &mut self.pass };
                    let reply = Reply::Done(front.refuse_frame(&client, &e));
                    self.owed += reply.bytes();
                    self.replies.push_back(reply);
                    self.input = Input::Lost(None);
                    break;
                }
            }
        }
        if matches!(self.input, Input::Lost(_)) {
            done = self.inbox.len();
        }
        consume(&mut self.inbox, done);
    }

    /// Moves the answers whose turn has come to the outbox.
    fn line_up(&mut self) {
        while let (Some(Reply::Done(_)), Some(framing)) = (self.replies.front(), self.framing) {
            let Some(Reply::Done(json)) = self.replies.pop_front() else { break };
            self.first += 1;
            self.owed -= json.len();
            if !framing.append(&json, &mut self.outbox) {
                let problem =
                    format!("the answer has {} bytes, more than 4 digits of length can say", json.len());
                let short =
                    framing.append(&refused(&Refusal::new("answer_too_long", problem)), &mut self.outbox);
                debug_assert!(short, "a refusal fits into any framing");
            }
        }
    }

    /// Takes the store's answer to a request; one that was given up on has been answered.
    pub(super) fn answer(&mut self, number: u64, json: Json) {
        let index = number.checked_sub(self.first).and_then(|i| usize::try_from(i).ok());
        if let Some(reply @ Reply::Pending { .. }) = index.and_then(|i| self.replies.get_mut(i)) {
            self.owed = self.owed - reply.bytes() + json.len();
            *reply = Reply::Done(json);
        }
    }

    /// When it is closed, if nothing moves until then.
    pub(super) fn silent_at(&self, idle: Duration) -> Instant {
        match (self.input, self.replies.front()) {
            (Input::Lost(Some(until)), _) => until,
            // It is the store that is silent, and that is looked at for itself.
            (_, Some(Reply::Pending { since, .. })) => {
                (*since).max(self.socket.moved_at) + idle.max(Duration::from_secs(60))
            }
            _ => self.socket.moved_at + idle,
        }
    }

    /// When the store is overdue with an answer that it owes.
    pub(super) fn overdue_at(&self, timeout: Duration) -> Option<Instant> {
        // They were handed in in this order.
        self.replies.iter().find_map(|r| match r {
            Reply::Pending { since, .. } => Some(*since + timeout),
            Reply::Done(_) => None,
        })
    }

    /// Answers what the store has had for too long.
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

    /// Takes what has arrived already, and nothing after that.
    pub(super) fn drain(&mut self) {
        if matches!(self.input, Input::Open | Input::Passing) {
            self.take_the_last();
        }
    }

    fn take_the_last(&mut self) {
        self.input = Input::Last;
        self.socket.read_to_the_end();
    }

    /// Takes nothing more: another process will.
    pub(super) fn prepare_to_pass(&mut self) {
        if self.input == Input::Open {
            self.input = Input::Passing;
            self.held = false;
        }
    }

    /// It is offered to another process.
    pub(super) fn offered(&mut self) {
        self.input = Input::Offered;
    }

    /// It was not taken: what has arrived is answered, and that is all.
    pub(super) fn not_taken(&mut self) {
        debug_assert_eq!(self.input, Input::Offered);
        self.take_the_last();
    }

    /// What is passed on with the socket.
    pub(super) fn estate(&self) -> Estate {
        debug_assert!(self.replies.is_empty());
        Estate {
            peer: self.peer,
            framing: self.framing,
            pass: self.pass.clone(),
            inbox: self.inbox.clone(),
            outbox: self.outbox.clone(),
        }
    }

    /// A connection that another process had.
    pub(super) fn taken_over(stream: TcpStream, serial: u64, estate: Estate) -> Connection {
        let Estate { peer, framing, pass, inbox, outbox } = estate;
        Connection { framing, pass, inbox, outbox, ..Connection::new(stream, peer, serial) }
    }
}
