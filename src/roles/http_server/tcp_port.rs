//! A TCP port that does not use HTTP. This file accepts the connections of the port until this process drains, and
//! reads and writes their bytes.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::places::{ConnectionGuard, ConnectionLimiter};
use role::TroubleLog;

/// How many bytes a connection reads at a time.
pub(super) const READ: usize = 16 << 10;

/// If the responses have more bytes than this, they are written before the next request is carried out.
pub(super) const WRITE: usize = 64 << 10;

/// Serves the port until this process drains and its connections are closed. The listening socket stays open in the
/// master, so the next dq-http-server accepts the connections that wait.
pub(super) async fn run<F>(
    listener: TcpListener,
    mut places: ConnectionLimiter,
    mut closing: watch::Receiver<bool>,
    serve: impl Fn(TcpStream, IpAddr, ConnectionGuard) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (mut open, mut accepting) = (JoinSet::new(), TroubleLog::default());
    loop {
        tokio::select! {
            () = closed(&mut closing) => break,
            Some(_) = open.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    accepting.end();
                    let ip = peer.ip().to_canonical();
                    if let Some(place) = places.admit(ip) {
                        if let Err(e) = stream.set_nodelay(true).and_then(|()| host::find_lost_clients(&stream)) {
                            log::debug!("{}: cannot set the options of a connection: {e}", places.name());
                        }
                        open.spawn(serve(stream, ip, place));
                    }
                }
                Err(e) => {
                    let pause = accepting.pause_after(&format_args!("{}: cannot accept: {e}", places.name()));
                    tokio::time::sleep(pause).await;
                }
            },
        }
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// Waits until this process drains.
pub(super) async fn closed(closing: &mut watch::Receiver<bool>) {
    // If the sender is gone, the process is ending.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Waits until bytes have arrived, and reads them. 0: the client has closed the connection.
pub(super) async fn read(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// Writes the responses, and empties `out`. Fails if the client reads nothing for longer than `timeout`.
pub(super) async fn write(stream: &TcpStream, out: &mut Vec<u8>, timeout: Duration) -> anyhow::Result<()> {
    let mut rest = &out[..];
    while !rest.is_empty() {
        match stream.try_write(rest) {
            Ok(count) => rest = &rest[count..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                tokio::time::timeout(timeout, stream.writable()).await??;
            }
            Err(e) => return Err(e.into()),
        }
    }
    // The memory of a long response is freed now, and not at the end of the connection.
    out.clear();
    out.shrink_to(WRITE);
    Ok(())
}
