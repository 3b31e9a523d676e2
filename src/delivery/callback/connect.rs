//! Makes connections by TCP, and wraps them in TLS for https. A connection also notes two things that hyper does not
//! report: whether any byte of an answer has arrived, and whether the receiver stopped accepting the request. In the
//! second case, the answer may already be there.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::failure::{CallFailure, HEAD_MAX, is_closed};
use super::tls::TlsParameters;

/// The maximum number of bytes up to the end of an answer's head. Interim answers (1xx) count too. Without a limit, a
/// receiver that sends interim answers without end would keep the thread of all calls busy.
const BEFORE_BODY_MAX: usize = 4 * HEAD_MAX;

/// Counts the bytes that a receiver has sent. The connection and the code that waits for an answer share this count.
#[derive(Debug, Default)]
pub(super) struct ReadMonitor {
    bytes: AtomicUsize,
    in_body: AtomicBool,
}

impl ReadMonitor {
    /// Sets the count back to zero, before a request.
    pub(super) fn listen(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.in_body.store(false, Ordering::Relaxed);
    }

    /// Notes that the head is complete. The reader of the body has its own limit.
    pub(super) fn note_head_complete(&self) {
        self.in_body.store(true, Ordering::Relaxed);
    }

    /// Returns whether any byte has arrived since the count began.
    pub(super) fn has_received(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > 0
    }

    fn is_flooded(&self) -> bool {
        !self.in_body.load(Ordering::Relaxed) && self.bytes.load(Ordering::Relaxed) > BEFORE_BODY_MAX
    }
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

/// A connection. A receiver may answer before it has read the whole request, and then accept no more bytes. Such an
/// answer is read, and counts like any other answer.
#[derive(Debug)]
pub(super) struct MonitoredStream {
    stream: Stream,
    monitor: Arc<ReadMonitor>,
    takes_no_more: bool,
    /// Whether a part of a request was sent. Nothing is read from the connection before that. So if an answer arrives
    /// early, hyper reads it after the request was sent, and treats it as the answer to the request.
    has_spoken: bool,
    /// The task that wanted to read before something was sent.
    reader: Option<Waker>,
}

impl MonitoredStream {
    /// Connects to the first of these addresses that accepts the connection, and does the TLS handshake. The addresses
    /// share the time equally. The last argument has two parts: the time that is left for all connections and the
    /// handshake together, and the time limit that errors name.
    pub(super) async fn connect(
        addresses: &[IpAddr],
        port: u16,
        secure: Option<TlsParameters<'_>>,
        (within, said): (Duration, Duration),
    ) -> Result<MonitoredStream, CallFailure> {
        let begun = Instant::now();
        let left = || within.saturating_sub(begun.elapsed());
        let late = || {
            CallFailure::no_connection(format!("no connection within {}", humantime::format_duration(said)))
        };
        let mut failed = late();
        for (n, address) in addresses.iter().enumerate() {
            let part = left() / (addresses.len() - n) as u32;
            match timeout(part, TcpStream::connect(SocketAddr::new(*address, port))).await {
                Ok(Ok(tcp)) => return MonitoredStream::secured(tcp, secure, left(), late).await,
                Ok(Err(e)) => failed = CallFailure::of_connection(&e),
                Err(_) => failed = late(),
            }
        }
        Err(failed)
    }

    async fn secured(
        tcp: TcpStream,
        secure: Option<TlsParameters<'_>>,
        within: Duration,
        late: impl Fn() -> CallFailure,
    ) -> Result<MonitoredStream, CallFailure> {
        // A request is written as a whole, so the kernel does not have to wait for more data.
        tcp.set_nodelay(true).map_err(|e| CallFailure::of_connection(&e))?;
        let stream = match secure {
            None => Stream::Plain(tcp),
            Some(handshake) => match timeout(within, handshake.over(tcp)).await {
                Ok(wrapped) => Stream::Secure(Box::new(wrapped?)),
                Err(_) => return Err(late()),
            },
        };
        Ok(MonitoredStream {
            stream,
            monitor: Arc::default(),
            takes_no_more: false,
            has_spoken: false,
            reader: None,
        })
    }

    pub(super) fn monitor(&self) -> Arc<ReadMonitor> {
        Arc::clone(&self.monitor)
    }

    /// Notes that bytes of the request are sent. From now on, the connection is also read.
    fn note_sending(&mut self) {
        self.has_spoken = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Writes to the connection. If the receiver accepts no more bytes, this function reports all bytes as written.
    fn write<T>(
        &mut self,
        all: T,
        write: impl FnOnce(&mut Stream) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.takes_no_more {
            return Poll::Ready(Ok(all));
        }
        match write(&mut self.stream) {
            Poll::Ready(Err(e)) if is_closed(&e) => {
                self.takes_no_more = true;
                Poll::Ready(Ok(all))
            }
            other => other,
        }
    }
}

impl AsyncRead for MonitoredStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_spoken {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.monitor.is_flooded() {
            let why = format!("more than {BEFORE_BODY_MAX} bytes came before the end of the answer's head");
            return Poll::Ready(Err(io::Error::other(why)));
        }
        let before = into.filled().len();
        let read = match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, into),
            Stream::Secure(tls) => Pin::new(tls).poll_read(cx, into),
        };
        self.monitor.bytes.fetch_add(into.filled().len() - before, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for MonitoredStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.note_sending();
        self.write(bytes.len(), |stream| match stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Stream::Secure(tls) => Pin::new(tls).poll_write(cx, bytes),
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.note_sending();
        self.write(parts.iter().map(|part| part.len()).sum(), |stream| match stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, parts),
            Stream::Secure(tls) => Pin::new(tls).poll_write_vectored(cx, parts),
        })
    }

    /// With vectored writes, a large body is not copied into a buffer of the connection. The connection would keep such
    /// a buffer.
    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(tcp) => tcp.is_write_vectored(),
            Stream::Secure(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write((), |stream| match stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Stream::Secure(tls) => Pin::new(tls).poll_flush(cx),
        })
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write((), |stream| match stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Secure(tls) => Pin::new(tls).poll_shutdown(cx),
        })
    }
}
