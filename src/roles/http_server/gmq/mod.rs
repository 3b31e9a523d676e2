//! The port for clients of gmq-redis (docs/GMQ.md). The clients push, pop and ack jobs of pull topics.
//!
//! `calls` carries out the calls. `last_reserves` knows which lease an ack means. This file has the connections. A
//! connection has no state. After it is closed, its client can do everything on another connection. When this process
//! drains, it closes each connection as soon as no call is in progress on it. Before that, it passes on the last leases
//! (`succession`).
//!
//! Pushes and acks of a connection are carried out in their order. Clients in Go use one connection for many calls at a
//! time. So a pop that waits does not delay other calls. Only if `POPS_MAX` pops wait, further calls wait, too.
//!
//! | a crash, or the end of the connection, | then |
//! |---|---|
//! | before a push is stored | the client has no answer, and pushes again |
//! | after a push is stored | the client has no answer; when it pushes again, the id is refused as a duplicate |
//! | after the lease, before the answer | the job is handed back, or comes back after its TTR |
//! | TTR 0: after the job is settled, before the answer | the job is gone, as with gmq-redis |
//! | after an ack is settled, before the answer | the job is done; a repeated ack is refused |

mod calls;
mod last_reserves;
mod succession;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::calls::{GmqPort, PoppedJobGuard, failed};
use self::succession::LeasesFile;
use super::access::Peer;
use super::api::Api;
use super::places::{ConnectionGuard, ConnectionLimiter};
use super::pool::PoolHolder;
use super::tcp_port::{self, READ, WRITE, closed, read};
use model::excerpt::Excerpt;
use protocol::gmq::{Call, GmqDecoder, GmqRequest, GmqResponse, RequestId};

/// How many pops of a connection may wait at the same time. At this number, nothing is read until one pop is answered.
const POPS_MAX: usize = 16;

/// Serves the port until this process drains and its connections are closed.
pub(super) async fn run(api: Api, listener: TcpListener) {
    let settings = api.settings.gmq.clone();
    let places = ConnectionLimiter::new(
        "gmq",
        &settings.allow,
        settings.max_connections,
        settings.max_connections_per_source,
    );
    let port = GmqPort {
        api: api.clone(),
        scopes: settings.scopes.into(),
        succession: LeasesFile::new(&api.settings.run_dir),
    };
    let closing = api.closing.subscribe();
    let serve = |stream, ip, place| serve(port.clone(), stream, ip, place, settings.idle_timeout);
    tcp_port::run(listener, places, closing, serve).await;
}

/// Serves a connection to its end.
async fn serve(port: GmqPort, stream: TcpStream, ip: IpAddr, place: ConnectionGuard, idle_timeout: Duration) {
    let _place = place;
    let holder = PoolHolder::Source(Peer::Address(ip).source());
    let connection =
        GmqConnection { stream, idle_timeout, port, holder, pops: JoinSet::new(), out: Vec::new() };
    if let Err(e) = connection.serve().await {
        log::debug!("gmq: the connection of {ip} is closed: {}", Excerpt(e));
    }
}

/// An open connection.
struct GmqConnection {
    stream: TcpStream,
    /// How long the connection may be idle. The same time limits how long an answer waits while the client reads
    /// nothing.
    idle_timeout: Duration,
    port: GmqPort,
    holder: PoolHolder,
    /// The pops that wait. When the connection ends, their jobs are handed back.
    pops: JoinSet<(RequestId, Result<Option<PoppedJobGuard>, String>)>,
    /// The answers that are not written yet.
    out: Vec<u8>,
}

impl GmqConnection {
    async fn serve(mut self) -> anyhow::Result<()> {
        let mut decoder = GmqDecoder::new(self.port.api.max_body);
        let mut closing = self.port.api.closing.subscribe();
        let mut buffer = vec![0; READ];
        let mut memory = self.port.api.bodies.take_beyond(Some(self.holder.clone()), 0);
        loop {
            let is_idle = self.pops.is_empty();
            tokio::select! {
                Some(popped) = self.pops.join_next() => {
                    let (id, popped) = popped?;
                    self.answer_pop(&id, popped).await?;
                }
                // The connection can end here, because a request that has not arrived completely has had no effect.
                () = closed(&mut closing), if is_idle => {
                    self.port.succession.pass_on().await;
                    return Ok(());
                }
                () = tokio::time::sleep(self.idle_timeout), if is_idle => anyhow::bail!("it was idle"),
                read = read(&self.stream, &mut buffer), if self.pops.len() < POPS_MAX => {
                    let count = read?;
                    if count == 0 {
                        return Ok(());
                    }
                    if !memory.grow(count) {
                        anyhow::bail!("the memory for requests is used up");
                    }
                    let mut input = &buffer[..count];
                    loop {
                        match decoder.decode(&mut input) {
                            Ok(Some(request)) => self.take(request).await?,
                            Ok(None) => break,
                            Err(e) => {
                                self.write().await?;
                                return Err(e.into());
                            }
                        }
                    }
                    memory.shrink_to(decoder.held());
                    self.write().await?;
                }
            }
        }
    }

    /// Carries out a call. For a pop, starts a task that waits for a job.
    async fn take(&mut self, GmqRequest { id, call }: GmqRequest) -> anyhow::Result<()> {
        let done = match call {
            Ok(Call::Push(push)) => self.port.push(push).await.map(|()| GmqResponse::Pushed).map_err(failed),
            Ok(Call::Ack(job)) => self.port.ack(job).await.map(|()| GmqResponse::Acked).map_err(failed),
            Ok(Call::Pop(topics)) => {
                if self.pops.len() >= POPS_MAX {
                    self.wait_for_pop().await?;
                }
                let (port, holder, now) = (self.port.clone(), self.holder.clone(), Instant::now());
                self.pops.spawn(async move { (id, port.pop(topics, holder, now).await.map_err(failed)) });
                return Ok(());
            }
            Err(e) => Err(e.to_string()),
        };
        match &done {
            Ok(response) => response.append(&id, &mut self.out),
            Err(why) => GmqResponse::Failed(why).append(&id, &mut self.out),
        }
        if self.out.len() > WRITE { self.write().await } else { Ok(()) }
    }

    /// Waits until one of the waiting pops ends, and answers this pop.
    async fn wait_for_pop(&mut self) -> anyhow::Result<()> {
        if let Some(popped) = self.pops.join_next().await {
            let (id, popped) = popped?;
            self.answer_pop(&id, popped).await?;
        }
        Ok(())
    }

    async fn answer_pop(
        &mut self,
        id: &RequestId,
        popped: Result<Option<PoppedJobGuard>, String>,
    ) -> anyhow::Result<()> {
        match &popped {
            Ok(Some(popped)) => GmqResponse::Popped(popped.job()).append(id, &mut self.out),
            Ok(None) => GmqResponse::Empty.append(id, &mut self.out),
            Err(why) => GmqResponse::Failed(why).append(id, &mut self.out),
        }
        self.write().await?;
        if let Ok(Some(popped)) = popped {
            popped.take_by_client();
        }
        Ok(())
    }

    async fn write(&mut self) -> anyhow::Result<()> {
        tcp_port::write(&self.stream, &mut self.out, self.idle_timeout).await
    }
}
