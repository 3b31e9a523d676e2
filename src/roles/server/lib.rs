//! dq-server: the TCP port.
//!
//! One event loop serves all connections. It never waits for the store, which has threads of its own (`role::submit`),
//! and it never waits for a client. On a rolling restart the connections move to the new process (`handoff`).
//!
//! Begin with [`run`], then `connection` (one client) and `request` (one command).

mod answer;
mod buffer_memory;
mod connection;
mod drain;
mod handoff;
mod reply;
mod request;
mod reserves;
mod socket;
mod stages;
mod sweep;

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rustls::{ServerConfig, ServerConnection};
use slab::Slab;

use self::answer::TcpFrontend;
use self::buffer_memory::BufferMemory;
use self::connection::{Connection, TURN};
use self::handoff::{HandoffReceiver, HandoffSender};
use self::request::RequestRouter;
use self::reserves::{AnsweredReserve, Reserves};
use self::socket::Socket;
use self::stages::AfterTurn;
use model::failure_limiter::ClientSource;
use model::open_connections::OpenConnections;
use model::settings::ServerSettings;
use role::submit::{STORE_TIMEOUT, Submitter};
use role::{Context, TroubleLog};

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
const LINK: Token = Token(usize::MAX - 2);
const SIGNALS: Token = Token(usize::MAX - 3);
const HANDOFF_RECEIVER: Token = Token(usize::MAX - 4);
const PASSAGE: Token = Token(usize::MAX - 5);
const HANDOFF_SENDER: Token = Token(usize::MAX - 6);
const TOPICS: Token = Token(usize::MAX - 7);

/// After the last answers of the store, a drain waits up to this time for the clients to read these answers.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// The bytes that the buffers of all connections may take together. If four times the longest frame is more than this,
/// the limit is four times the longest frame.
const BUFFERS_MAX: usize = 32 << 20;

/// Runs the role.
pub fn run(mut context: Context) -> Result<()> {
    let mut server = Server::start(&mut context)?;
    context.ready()?;
    let ended = server.run(&mut context);
    server.front.refusals.get_mut().log_rest();
    ended
}

struct Server {
    poll: Poll,
    listener: Option<TcpListener>,
    /// When the server accepts again after it ran out of file descriptors.
    accept_at: Option<Instant>,
    connections: Slab<Connection>,
    open: OpenConnections,
    memory: BufferMemory,
    /// Distinguishes a connection from an earlier one in the same place.
    next_serial: u64,
    /// Connections that must be served again: their sockets may hold more bytes, and no further event reports those
    /// bytes.
    unfinished: Vec<usize>,
    /// Connections from which nothing is read until the store has answered some requests.
    stalled: Vec<usize>,
    /// The place of the connection that is served first after the next answers of the store.
    next_turn: usize,
    /// The buffer into which the bytes of clients are read.
    buffer: Box<[u8]>,
    submit: Submitter<TcpFrontend>,
    front: RequestRouter,
    /// None: connections are not encrypted.
    tls: Option<Arc<ServerConfig>>,
    /// Receives the connections that a draining server passes on.
    handoff_receiver: HandoffReceiver,
    /// Passes this server's connections on while it drains. `passing`: whether it still passes connections on.
    handoff_sender: Option<HandoffSender>,
    passing: bool,
    /// When connections are checked next: at the latest when the next connection has been silent for too long, or when
    /// an answer of the store is overdue.
    sweep_at: Option<Instant>,
    turned_away: u64,
    accepting: TroubleLog,
}

impl Server {
    fn start(context: &mut Context) -> Result<Server> {
        let poll = Poll::new().context("cannot poll")?;
        let settings = Arc::clone(&context.settings);
        let zone = context.zone()?;
        let (topics, counters) = (context.topics()?, context.counters.clone());
        let (failures, refusals) = (RefCell::default(), RefCell::default());
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).context("cannot make a waker")?);
        let (opener, most) = (context.opener()?, settings.http.max_reserves);
        let reserves = Reserves::start(opener, topics.now().clone(), Arc::clone(&waker), most)
            .context("cannot start the thread for clients that reserve")?;
        let front = RequestRouter { settings, topics, zone, failures, refusals, counters, reserves };
        let lanes = context.lanes()?;
        let submit = Submitter::start(lanes, TcpFrontend { waker }, || context.store())?;
        let mut listener = TcpListener::from_std(StdListener::from(context.socket("server")?));
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        for (fd, token) in context.fds().into_iter().zip([LINK, SIGNALS]) {
            poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        }
        if let Some(fd) = front.topics.fd() {
            poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), TOPICS, Interest::READABLE)?;
        }
        let handoff_receiver = HandoffReceiver::new(&context.settings.run_dir)
            .context("cannot listen for connections that are passed on")?;
        poll.registry().register(
            &mut SourceFd(&handoff_receiver.listener().as_raw_fd()),
            HANDOFF_RECEIVER,
            Interest::READABLE,
        )?;
        let ServerSettings { max_connections, max_connections_per_source, max_frame, .. } =
            context.settings.server;
        let tls = context.settings.server.tls.as_ref();
        let tls = tls.map(|certificate| role::tls::server_config(certificate, "server")).transpose()?;
        Ok(Server {
            tls: tls.map(Arc::new),
            poll,
            handoff_receiver,
            handoff_sender: None,
            passing: false,
            listener: Some(listener),
            accept_at: None,
            connections: Slab::new(),
            open: OpenConnections::new(max_connections, max_connections_per_source),
            memory: BufferMemory::new(BUFFERS_MAX.max(4 * max_frame)),
            next_serial: 0,
            unfinished: Vec::new(),
            stalled: Vec::new(),
            next_turn: 0,
            buffer: vec![0; TURN].into(),
            submit,
            front,
            sweep_at: None,
            turned_away: 0,
            accepting: TroubleLog::default(),
        })
    }

    fn run(&mut self, context: &mut Context) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        let (mut end_by, mut gone_by): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            if let (None, Some(drain)) = (end_by, context.drain()) {
                let last = Instant::now() + STORE_TIMEOUT + LAST_ANSWERS;
                end_by = Some(drain.until.map_or(last, |until| until.min(last)));
                self.begin_drain(drain.replaced);
            }
            if let (Some(by), Some(drain)) = (end_by, context.drain()) {
                // During a drain, the master may set an earlier deadline, or say that no process takes over any more.
                end_by = Some(drain.until.map_or(by, |until| until.min(by)));
                if !drain.replaced && self.passing {
                    self.keep_all();
                }
            }
            let now = Instant::now();
            if (self.submit.is_gone() || self.front.reserves.is_gone())
                && now >= *gone_by.get_or_insert(now + role::LAST_WORDS)
            {
                bail!("the store's file was replaced: the next process opens the new file");
            }
            self.submit.flush();
            context.workers_by(self.submit.due_by());
            let timeout = self.timeout(end_by.into_iter().chain(gone_by).min());
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                other => other.context("cannot poll")?,
            }
            let now = Instant::now();
            let mut has_answers = false;
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => has_answers = true,
                    HANDOFF_RECEIVER => self.accept_passages(),
                    PASSAGE => self.take_over(),
                    HANDOFF_SENDER => self.read_handoff_results(),
                    TOPICS => self.follow_topics(),
                    LINK | SIGNALS => drop(context.check_drain()?),
                    Token(place) => {
                        if let Some(connection) = self.connections.get_mut(place) {
                            connection.socket.note_event(event);
                        }
                        self.serve(place);
                    }
                }
            }
            // Clients that have gone away are known by now, so none of them gets a job.
            if has_answers {
                self.complete();
            }
            let mut unfinished = std::mem::take(&mut self.unfinished);
            unfinished.sort_unstable();
            unfinished.dedup();
            for place in unfinished {
                self.serve(place);
            }
            if self.accept_at.take_if(|at| *at <= now).is_some() {
                self.accept();
            }
            if self.sweep_at.take_if(|at| *at <= now).is_some() {
                self.sweep(now);
            }
            if self.front.refusals.get_mut().due().is_some_and(|at| at <= now) {
                self.front.refusals.get_mut().log_due(now);
            }
            if end_by.is_some() && self.connections.is_empty() {
                // Other servers may have passed connections on to this server in the meantime.
                self.accept_passages();
            }
            if let Some(end_by) = end_by
                && (self.connections.is_empty() || end_by <= now)
            {
                log::info!("the drain ends: {} connections are still open", self.connections.len());
                return Ok(());
            }
        }
    }

    fn timeout(&self, end_by: Option<Instant>) -> Option<Duration> {
        if !self.unfinished.is_empty() || end_by.is_some() && self.connections.is_empty() {
            return Some(Duration::ZERO);
        }
        let refusals = self.front.refusals.borrow().due();
        let next = [self.accept_at, self.sweep_at, refusals, end_by].into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn accept(&mut self) {
        while let Some(listener) = &self.listener {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(e) => {
                    let pause = self.accepting.pause_after(&format_args!("cannot accept: {e}"));
                    self.accept_at = Some(Instant::now() + pause);
                    return;
                }
            };
            self.accepting.end();
            if let Err(why) = self.front.admit(peer, &self.open, 0) {
                self.turned_away += 1;
                // Many refused connections must not fill the log.
                if self.turned_away.is_power_of_two() {
                    log::warn!("{peer} is turned away: {why} ({} so far)", self.turned_away);
                }
                continue;
            }
            if let Err(e) = stream.set_nodelay(true).and_then(|()| host::find_lost_clients(&stream)) {
                log::warn!("{peer}: cannot set the options of the connection: {e}");
                continue;
            }
            let tls = self.tls.clone().map(ServerConnection::new).transpose();
            let tls = match tls {
                Ok(tls) => tls,
                Err(e) => {
                    log::warn!("{peer}: cannot begin TLS: {e}");
                    continue;
                }
            };
            let connection = |stream, serial| Connection::new(Socket::new(stream, tls), peer, serial);
            if self.keep(stream, peer, connection).is_some() {
                let idle = self.front.settings.server.idle_timeout;
                let patience = self.front.proof_patience().map_or(idle, |patience| patience.min(idle));
                self.sweep_by(Instant::now() + patience);
            }
        }
    }

    /// Watches a connection from now on. Returns its place.
    fn keep(
        &mut self,
        mut stream: TcpStream,
        peer: SocketAddr,
        connection: impl FnOnce(TcpStream, u64) -> Connection,
    ) -> Option<usize> {
        let entry = self.connections.vacant_entry();
        let place = entry.key();
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(e) = self.poll.registry().register(&mut stream, Token(place), both) {
            log::warn!("{peer}: cannot watch the connection: {e}");
            return None;
        }
        self.next_serial += 1;
        let connection = entry.insert(connection(stream, self.next_serial));
        connection.count_memory(&mut self.memory);
        self.open.opened(ClientSource::address(peer.ip()));
        Some(place)
    }

    /// Serves a connection: reads, parses, hands requests to the store, and writes.
    fn serve(&mut self, place: usize) {
        let Some(connection) = self.connections.get_mut(place) else { return };
        let after = connection.turn(place, &self.front, &mut self.submit, &mut self.buffer);
        connection.count_memory(&mut self.memory);
        match after {
            AfterTurn::Waits => {}
            AfterTurn::MoreToRead => self.unfinished.push(place),
            AfterTurn::Stalled => {
                self.stalled.push(place);
                self.sweep_by(Instant::now() + STORE_TIMEOUT);
            }
            AfterTurn::Passes => return self.pass_on(place),
            AfterTurn::Ended => return self.close(place),
        }
        let connection = &self.connections[place];
        let closes =
            connection.closes_at(self.front.settings.server.idle_timeout, self.front.proof_patience());
        self.sweep_by(connection.overdue_at(STORE_TIMEOUT).map_or(closes, |overdue| overdue.min(closes)));
        self.limit_memory();
    }

    /// Reads the topics and tokens again if they have changed. A client whose token was revoked does not wait for jobs
    /// any more.
    fn follow_topics(&mut self) {
        self.front.follow_topics();
        let ends = |connection: &mut Connection| connection.end_revoked_wait(&self.front);
        let ended =
            self.connections.iter_mut().filter_map(|(place, connection)| ends(connection).then_some(place));
        for place in ended.collect::<Vec<_>>() {
            self.serve(place);
        }
    }

    /// Brings the store's answers to their connections.
    fn complete(&mut self) {
        let mut touched = Vec::new();
        for AnsweredReserve { reply_to, json, jobs } in self.front.reserves.answers() {
            let connection = self.connections.get_mut(reply_to.place).filter(|c| c.serial == reply_to.serial);
            match connection.is_some_and(|connection| connection.answer_reserve(reply_to.number, json)) {
                true => touched.push(reply_to.place),
                false => self.front.reserves.hand_back(jobs),
            }
        }
        for (reply_to, json) in self.submit.completions() {
            if let Some(connection) = self.connections.get_mut(reply_to.place)
                && connection.serial == reply_to.serial
            {
                connection.answer(reply_to.number, json);
                touched.push(reply_to.place);
            }
        }
        if !self.submit.is_full() {
            touched.append(&mut self.stalled);
        }
        touched.sort_unstable();
        touched.dedup();
        // If there is no room for the requests of all connections, the connections take turns.
        let first = touched.partition_point(|place| *place < self.next_turn);
        touched.rotate_left(first);
        for place in touched {
            self.serve(place);
        }
        if let Some(place) = self.stalled.first() {
            self.next_turn = *place;
        }
    }

    fn close(&mut self, place: usize) {
        if let Some(mut connection) = self.connections.try_remove(place) {
            connection.free_memory(&mut self.memory);
            self.open.closed(ClientSource::address(connection.peer.ip()));
            // If this fails, the socket leaves the poll when it is closed.
            let _ = self.poll.registry().deregister(&mut connection.socket.stream);
        }
    }
}
