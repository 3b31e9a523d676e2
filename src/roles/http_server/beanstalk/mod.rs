//! The port for clients of beanstalkd (docs/BEANSTALK.md). The tubes of this port are pull topics.
//!
//! `session` is the state of a connection. `commands` carries out its commands, `puts` stores jobs, `reserving` waits
//! for jobs, and `kicks` shows and kicks jobs. `port` is what the connections share. `handoff` and `takeover` pass
//! connections to the next process. The other files are pure, except `statistics`: `number` (the numbers of jobs),
//! `tube_topic` (the names of tubes), `stored_job` (the form of a stored job), `held` (the leases of a connection),
//! `passed_state` (the state of a connection that is passed on) and `unregistered` (tubes without a topic). This file
//! has the connections.
//!
//! The commands of a connection are carried out one after the other. Puts that arrive together are stored together.
//!
//! docs/internals/BEANSTALK.md says what happens to jobs when a client, a process or a node fails at any moment.

mod commands;
mod handoff;
mod held;
mod kicks;
mod number;
mod passed_state;
mod port;
mod puts;
mod reserving;
mod session;
mod statistics;
mod stored_job;
mod takeover;
mod tube_topic;
mod unregistered;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};

pub(super) use self::handoff::listen;
use self::passed_state::{BeanstalkHandoffState, ReserveWait};
use self::port::BeanstalkPort;
use self::session::BeanstalkSession;
use super::access::Peer;
use super::api::Api;
use super::places::{ConnectionGuard, ConnectionLimiter};
use super::pool::{PoolAllocation, PoolHolder};
use super::tcp_port::{self, READ, WRITE, closed, read};
use host::PassListener;
use model::excerpt::Excerpt;
use protocol::beanstalk::{
    BeanstalkCommand, BeanstalkCommandError, BeanstalkDecoder, BeanstalkResponse, Put,
};

/// The limits for collected puts: a number of puts, and a number of bytes. At either limit, the collected puts are
/// stored together.
const PUTS: (usize, usize) = (256, 1 << 20);

/// Serves the port. Returns when this process drains, and each connection is closed or belongs to the next process.
/// `handoffs`: the socket on which draining processes pass connections to this process.
pub(super) async fn run(api: Api, listener: TcpListener, handoffs: PassListener) {
    let settings = &api.settings.beanstalk;
    let places = ConnectionLimiter::new(
        "beanstalk",
        &settings.allow,
        settings.max_connections,
        settings.max_connections_per_source,
    );
    let port = BeanstalkPort::new(api.clone());
    let closing = api.closing.subscribe();
    let serve = |stream, ip, place| serve(port.clone(), stream, ip, place, None);
    let mut drains = api.closing.subscribe();
    let begin = async {
        closed(&mut drains).await;
        port.handoff.begin(&port).await;
    };
    tokio::join!(
        tcp_port::run(listener, places.clone(), closing, serve),
        takeover::receive(port.clone(), handoffs, places),
        begin
    );
}

/// Serves a connection until it ends, and then gives back the jobs that its client has reserved. If this process
/// drains, the connection may be passed to the next process instead. `passed`: the state of the connection, if an
/// earlier process has passed it on.
async fn serve(
    port: BeanstalkPort,
    stream: TcpStream,
    ip: IpAddr,
    place: ConnectionGuard,
    passed: Option<BeanstalkHandoffState>,
) {
    let _place = place;
    let holder = PoolHolder::Source(Peer::Address(ip).source());
    let mut connection = BeanstalkConnection {
        stream,
        peer: ip,
        idle_timeout: port.api.settings.beanstalk.idle_timeout,
        holder: holder.clone(),
        input: VecDeque::new(),
        decoder: BeanstalkDecoder::new(port.api.settings.beanstalk.max_job_size),
        out: Vec::new(),
        is_half_closed: false,
        may_be_passed: true,
        waiting: None,
    };
    let mut session = match passed {
        None => BeanstalkSession::new(port, holder),
        Some(mut state) => {
            connection.input = std::mem::take(&mut state.input).into();
            connection.is_half_closed = state.is_half_closed;
            connection.waiting = state.waiting;
            BeanstalkSession::resume(port, holder, state)
        }
    };
    loop {
        match connection.serve(&mut session).await {
            Ok(ConnectionEnd::Draining) => match connection.pass_on(&session).await {
                Ok(None) => return session.forget(),
                Ok(Some(stays)) => connection = stays,
                Err(e) => {
                    log::warn!("beanstalk: the connection of {ip} is lost: {e}");
                    return session.end().await;
                }
            },
            Ok(ConnectionEnd::Closed) => break,
            Err(e) => {
                log::debug!("beanstalk: the connection of {ip} is closed: {}", Excerpt(e));
                break;
            }
        }
    }
    // The connection is closed first, because giving back its jobs may take long.
    drop(connection);
    session.end().await;
}

/// How the service of a connection ends.
enum ConnectionEnd {
    Closed,
    /// This process drains, and the next process may take the connection.
    Draining,
}

/// What the connection does after commands.
enum AfterCommands {
    Continues,
    Ends,
    /// This process drains. The next process carries out the remaining commands, if it takes the connection.
    Draining,
}

/// An open connection.
struct BeanstalkConnection {
    stream: TcpStream,
    peer: IpAddr,
    /// How long the connection may be idle. The same time limits how long a response waits while the client reads
    /// nothing.
    idle_timeout: Duration,
    holder: PoolHolder,
    /// Bytes that have arrived and are not decoded yet: up to [`READ`] bytes, or the bytes that the previous process
    /// has passed on.
    input: VecDeque<u8>,
    decoder: BeanstalkDecoder,
    /// The responses that are not written yet.
    out: Vec<u8>,
    /// Whether the client has closed its side.
    is_half_closed: bool,
    /// Whether the connection is passed on when this process drains.
    may_be_passed: bool,
    /// The reserve that waited when this process began to drain, or when an earlier process passed the connection on.
    waiting: Option<ReserveWait>,
}

impl BeanstalkConnection {
    async fn serve(&mut self, session: &mut BeanstalkSession) -> anyhow::Result<ConnectionEnd> {
        let api = session.port().api.clone();
        let (mut closing, mut cut) = (api.closing.subscribe(), api.cut.subscribe());
        let mut memory = api.bodies.take_beyond(Some(self.holder.clone()), 0);
        let mut buffer = vec![0; READ];
        if let Some(limit) = self.waiting.take() {
            // This process could not pass on the connection. So the connection is closed, and its waiting reserve ends.
            if !self.may_be_passed {
                return Ok(ConnectionEnd::Closed);
            }
            if let AfterCommands::Draining = self.reserve(session, limit).await? {
                return Ok(ConnectionEnd::Draining);
            }
        }
        loop {
            if self.input.is_empty() {
                if self.is_half_closed {
                    return Ok(ConnectionEnd::Closed);
                }
                let may_end = !session.has_jobs();
                let forgets_at = session.held().forgets_at().unwrap_or_else(Instant::now);
                tokio::select! {
                    // The connection can end or be passed on here, because a command that has not arrived completely
                    // has had no effect.
                    () = closed(&mut closing), if may_end || self.may_be_passed => return Ok(self.drained()),
                    () = tokio::time::sleep(self.idle_timeout), if may_end => anyhow::bail!("it was idle"),
                    // The next pass of the loop calls `has_jobs`, which forgets a lease that has ended. If no other
                    // lease is left, `idle_timeout` applies from then on.
                    () = tokio::time::sleep_until(forgets_at.into()), if !may_end => continue,
                    () = closed(&mut cut) => return Ok(ConnectionEnd::Closed),
                    read = read(&self.stream, &mut buffer) => match read? {
                        0 => return Ok(ConnectionEnd::Closed),
                        count => self.input.extend(&buffer[..count]),
                    },
                }
            }
            if !memory.grow(self.input.len()) {
                anyhow::bail!("the memory for requests is used up");
            }
            let after = self.carry_out(session).await?;
            memory.shrink_to(self.decoder.held());
            self.write().await?;
            match after {
                AfterCommands::Continues => {}
                AfterCommands::Ends => return Ok(ConnectionEnd::Closed),
                AfterCommands::Draining => return Ok(self.drained()),
            }
        }
    }

    fn drained(&self) -> ConnectionEnd {
        if self.may_be_passed { ConnectionEnd::Draining } else { ConnectionEnd::Closed }
    }

    /// Passes the connection to the next process. Returns the connection if it stays with this process.
    async fn pass_on(mut self, session: &BeanstalkSession) -> anyhow::Result<Option<BeanstalkConnection>> {
        self.may_be_passed = false;
        // While the decoder skips a part of the input, it keeps no bytes of this part. So the next process could not
        // continue to skip, and the connection stays with this process.
        let Some(mut input) = self.decoder.unread() else { return Ok(Some(self)) };
        input.extend(&self.input);
        let state = BeanstalkHandoffState {
            is_half_closed: self.is_half_closed,
            waiting: self.waiting,
            ..session.state(self.peer, input)
        };
        let port = session.port();
        let passed = port.handoff.pass_on(port, self.stream, &state).await?;
        Ok(passed.map(|stream| BeanstalkConnection { stream, ..self }))
    }

    /// Carries out the commands that have arrived.
    async fn carry_out(&mut self, session: &mut BeanstalkSession) -> anyhow::Result<AfterCommands> {
        let closing = session.port().api.closing.subscribe();
        let mut puts: Vec<Put> = Vec::new();
        let mut bytes = 0;
        loop {
            if puts.is_empty() && self.may_be_passed && *closing.borrow() {
                return Ok(AfterCommands::Draining);
            }
            let decoded = self.decode();
            let is_full = puts.len() >= PUTS.0 || bytes >= PUTS.1;
            if !puts.is_empty() && (is_full || !matches!(decoded, Some(Ok(BeanstalkCommand::Put(_))))) {
                for response in session.put(std::mem::take(&mut puts)).await {
                    response.append(&mut self.out);
                }
                bytes = 0;
            }
            match decoded {
                None => return Ok(AfterCommands::Continues),
                Some(Ok(BeanstalkCommand::Put(put))) => {
                    bytes += put.body.len();
                    puts.push(put);
                }
                Some(Ok(BeanstalkCommand::Quit)) => return Ok(AfterCommands::Ends),
                Some(Ok(command @ (BeanstalkCommand::Reserve | BeanstalkCommand::ReserveWithTimeout(_)))) => {
                    let limit = ReserveWait::new(&command, Instant::now());
                    session.note_reserve(command != BeanstalkCommand::Reserve);
                    match self.reserve(session, limit).await? {
                        AfterCommands::Continues => {}
                        end => return Ok(end),
                    }
                }
                Some(Ok(command)) => session.carry_out(command).await.append(&mut self.out),
                Some(Err(error)) => {
                    session.note_error(error);
                    self.refuse(error);
                }
            }
            // Nothing is written while collected puts are not stored yet. Otherwise, an `await` would come between the
            // check of `closing` and the storing of these puts.
            if self.out.len() > WRITE && puts.is_empty() {
                self.write().await?;
            }
        }
    }

    fn refuse(&mut self, error: BeanstalkCommandError) {
        BeanstalkResponse::from(error).append(&mut self.out);
    }

    /// Decodes the next command from the bytes that have arrived.
    fn decode(&mut self) -> Option<Result<BeanstalkCommand, BeanstalkCommandError>> {
        let all = self.input.make_contiguous();
        let mut rest: &[u8] = all;
        let decoded = self.decoder.decode(&mut rest);
        let used = all.len() - rest.len();
        self.input.drain(..used);
        decoded
    }

    /// Reserves a job.
    async fn reserve(
        &mut self,
        session: &mut BeanstalkSession,
        limit: ReserveWait,
    ) -> anyhow::Result<AfterCommands> {
        // The client gets the responses to its earlier commands before it waits.
        self.write().await?;
        let mut reserved = None;
        if !self.is_half_closed {
            let (stream, input) = (&self.stream, &mut self.input);
            tokio::select! {
                biased;
                done = session.reserve(limit.until()) => reserved = Some(done),
                ended = wait_for_end(stream, input) => ended?,
            }
        }
        let reserved = match reserved {
            Some(reserved) => reserved,
            // The client sends nothing more, and is perhaps gone. As in beanstalkd, its reserve does not wait any more.
            // Its commands that have already arrived are still carried out.
            None => {
                self.is_half_closed = true;
                session.reserve(Some(Instant::now())).await
            }
        };
        let Some((response, place)) = reserved else {
            self.waiting = Some(limit);
            return Ok(AfterCommands::Draining);
        };
        response.append(&mut self.out);
        self.write().await?;
        // The place is given back only now, when the response is written to the socket. So the places also limit the
        // number of responses that wait for clients that do not read.
        drop::<Option<PoolAllocation>>(place);
        Ok(AfterCommands::Continues)
    }

    async fn write(&mut self) -> anyhow::Result<()> {
        tcp_port::write(&self.stream, &mut self.out, self.idle_timeout).await
    }
}

/// Waits until the client has closed the connection. Until then, keeps the bytes that arrive in `input`. When `input`
/// has [`READ`] bytes, the function reads no more. Then the function does not notice the end of the connection, and
/// never returns.
async fn wait_for_end(stream: &TcpStream, input: &mut VecDeque<u8>) -> io::Result<()> {
    let mut buffer = [0; 512];
    while input.len() < READ {
        let most = buffer.len().min(READ - input.len());
        match read(stream, &mut buffer[..most]).await? {
            0 => return Ok(()),
            count => input.extend(&buffer[..count]),
        }
    }
    std::future::pending().await
}
