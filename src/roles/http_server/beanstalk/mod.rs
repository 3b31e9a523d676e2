//! The port for clients of beanstalkd (docs/BEANSTALK.md). Its tubes are pull topics.
//!
//! `commands` carries out the commands of a connection, `puts` stores jobs, `reserving` waits for them, and `kicks` shows
//! and kicks them. `port` is what the connections share. `number`, `tube_topic`, `stored_job` and `held` are pure: the
//! numbers of jobs, the names of tubes, the form of a stored job, and the leases of a connection. This file has the
//! connections.
//!
//! The commands of a connection are carried out one after the other. Puts that arrive together are stored together.
//!
//! docs/internals/BEANSTALK.md says what happens to jobs when a client, a process or a node fails at any moment.

mod commands;
mod held;
mod kicks;
mod number;
mod port;
mod puts;
mod reserving;
mod statistics;
mod stored_job;
mod tube_topic;
mod unregistered;

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use self::commands::Session;
use self::port::Port;
use super::access::Peer;
use super::api::Api;
use super::places::{Place, Places};
use super::pool::{Holder, PoolPart};
use super::tcp_port::{self, READ, WRITE, closed, read};
use model::excerpt::Excerpt;
use protocol::beanstalk::{Command, CommandError, Decoder, Put, Response};

/// The most puts that are stored together, and their most bytes.
const PUTS: (usize, usize) = (256, 1 << 20);

/// Serves the port until this process drains and its connections are closed.
pub(super) async fn run(api: Api, listener: TcpListener) {
    let settings = &api.settings.beanstalk;
    let places = Places::new(
        "beanstalk",
        &settings.allow,
        settings.max_connections,
        settings.max_connections_per_source,
    );
    let port = Port::new(api.clone());
    let closing = api.closing.subscribe();
    let serve = |stream, ip, place| serve(port.clone(), stream, ip, place);
    tcp_port::run(listener, places, closing, serve).await;
}

/// Serves a connection to its end, and gives back the jobs that its client has reserved.
async fn serve(port: Port, stream: TcpStream, ip: IpAddr, place: Place) {
    let _place = place;
    let idle_timeout = port.api.settings.beanstalk.idle_timeout;
    let holder = Holder::Source(Peer::Address(ip).source());
    let mut session = Session::new(port, holder.clone());
    let mut connection = Connection {
        stream,
        idle_timeout,
        holder,
        input: VecDeque::new(),
        out: Vec::new(),
        is_half_closed: false,
    };
    if let Err(e) = connection.serve(&mut session).await {
        log::debug!("beanstalk: the connection of {ip} is closed: {}", Excerpt(e));
    }
    // The client sees the end before its jobs are given back, however long that takes.
    drop(connection);
    session.end().await;
}

/// An open connection.
struct Connection {
    stream: TcpStream,
    /// How long the connection may be idle, and how long a response may wait while its client reads none of it.
    idle_timeout: Duration,
    holder: Holder,
    /// What has arrived, and is not decoded yet: at most [`READ`] bytes.
    input: VecDeque<u8>,
    /// The responses that are not written yet.
    out: Vec<u8>,
    /// Whether the client has closed its side.
    is_half_closed: bool,
}

impl Connection {
    async fn serve(&mut self, session: &mut Session) -> anyhow::Result<()> {
        let api = session.port().api.clone();
        let mut decoder = Decoder::new(api.settings.beanstalk.max_job_size);
        let mut closing = api.closing.subscribe();
        let mut memory = api.bodies.take_beyond(Some(self.holder.clone()), 0);
        let mut buffer = vec![0; READ];
        loop {
            if self.input.is_empty() {
                if self.is_half_closed {
                    return Ok(());
                }
                let may_end = !session.has_jobs();
                tokio::select! {
                    // A command that has not arrived completely has had no effect.
                    () = closed(&mut closing), if may_end => return Ok(()),
                    () = tokio::time::sleep(self.idle_timeout), if may_end => anyhow::bail!("it was idle"),
                    read = read(&self.stream, &mut buffer) => match read? {
                        0 => return Ok(()),
                        count => self.input.extend(&buffer[..count]),
                    },
                }
            }
            if !memory.grow(self.input.len()) {
                anyhow::bail!("the memory for requests is used up");
            }
            if !self.carry_out(session, &mut decoder).await? {
                return self.write().await;
            }
            if decoder.is_empty() {
                memory = api.bodies.take_beyond(Some(self.holder.clone()), 0);
            }
            self.write().await?;
        }
    }

    /// Carries out the commands that have arrived. Returns whether the connection goes on.
    async fn carry_out(&mut self, session: &mut Session, decoder: &mut Decoder) -> anyhow::Result<bool> {
        let mut puts: Vec<Put> = Vec::new();
        let mut bytes = 0;
        loop {
            let decoded = self.decode(decoder);
            let is_full = puts.len() >= PUTS.0 || bytes >= PUTS.1;
            if !puts.is_empty() && (is_full || !matches!(decoded, Some(Ok(Command::Put(_))))) {
                for response in session.put(std::mem::take(&mut puts)).await {
                    response.append(&mut self.out);
                }
                bytes = 0;
            }
            match decoded {
                None => return Ok(true),
                Some(Ok(Command::Put(put))) => {
                    bytes += put.body.len();
                    puts.push(put);
                }
                Some(Ok(Command::Quit)) => return Ok(false),
                Some(Ok(Command::Reserve)) => {
                    session.note_reserve(false);
                    if !self.reserve(session, None).await? {
                        return Ok(false);
                    }
                }
                Some(Ok(Command::ReserveWithTimeout(timeout))) => {
                    let timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
                    session.note_reserve(true);
                    if !self.reserve(session, timeout).await? {
                        return Ok(false);
                    }
                }
                Some(Ok(command)) => session.carry_out(command).await.append(&mut self.out),
                Some(Err(error)) => {
                    session.note_error(error);
                    self.refuse(error);
                }
            }
            if self.out.len() > WRITE {
                self.write().await?;
            }
        }
    }

    fn refuse(&mut self, error: CommandError) {
        Response::from(error).append(&mut self.out);
    }

    /// Decodes the next command of what has arrived.
    fn decode(&mut self, decoder: &mut Decoder) -> Option<Result<Command, CommandError>> {
        let all = self.input.make_contiguous();
        let mut rest: &[u8] = all;
        let decoded = decoder.decode(&mut rest);
        let used = all.len() - rest.len();
        self.input.drain(..used);
        decoded
    }

    /// Reserves a job. None: the client waits without limit. Returns whether the connection goes on.
    async fn reserve(&mut self, session: &mut Session, timeout: Option<Duration>) -> anyhow::Result<bool> {
        // The client gets the responses to its earlier commands before the reserve begins to wait.
        self.write().await?;
        let mut reserved = None;
        if !self.is_half_closed {
            let (stream, input) = (&self.stream, &mut self.input);
            tokio::select! {
                biased;
                done = session.reserve(timeout) => reserved = Some(done),
                ended = wait_for_end(stream, input) => ended?,
            }
        }
        let reserved = match reserved {
            Some(reserved) => reserved,
            // The client sends nothing more, and is perhaps gone. As with beanstalkd, it does not wait any more, and its
            // commands that have arrived are still carried out.
            None => {
                self.is_half_closed = true;
                session.reserve(Some(Duration::ZERO)).await
            }
        };
        let Some((response, place)) = reserved else { return Ok(false) };
        response.append(&mut self.out);
        self.write().await?;
        // The place was kept until now, so that it limits how many responses wait for clients that do not read.
        drop::<Option<PoolPart>>(place);
        Ok(true)
    }

    async fn write(&mut self) -> anyhow::Result<()> {
        tcp_port::write(&self.stream, &mut self.out, self.idle_timeout).await
    }
}

/// Waits until the client has closed the connection. Meanwhile keeps what arrives, up to [`READ`] bytes.
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
