//! Connections: made by TCP, wrapped in TLS for https, and watched for what an exchange alone does not tell: whether anything of
//! an answer came, and that one may have come although not all of the request could be sent.

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

use super::failure::{Failed, HEAD_MAX, is_closed};
use super::tls::Tls;

/// So many bytes may come before the head of an answer is through, early hints (1xx) and all: who sends those without end would
/// keep the thread of all calls busy.
const BEFORE_BODY_MAX: usize = 4 * HEAD_MAX;

/// What a connection has heard; shared with whoever waits for an answer on it.
#[derive(Debug, Default)]
pub(super) struct Ear {
    bytes: AtomicUsize,
    in_body: AtomicBool,
}

impl Ear {
    /// Forgets what came before.
    pub(super) fn listen(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.in_body.store(false, Ordering::Relaxed);
    }

    /// The head is through: who reads the body knows how much of it is wanted.
    pub(super) fn hear_body(&self) {
        self.in_body.store(true, Ordering::Relaxed);
    }

    /// Whether anything has come since.
    pub(super) fn has_heard(&self) -> bool {
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

/// A connection. When the other side takes no more, it may have answered before: that is read, and counts.
#[derive(Debug)]
pub(super) struct Socket {
    stream: Stream,
    ear: Arc<Ear>,
    takes_no_more: bool,
    /// Something has been sent. Until then nothing is read: an answer that comes before its request is one all the same.
    has_spoken: bool,
    /// Who wanted to read before.
    reader: Option<Waker>,
}

impl Socket {
    /// Connects to the first of these addresses that takes it, within that time in all; the handshake of TLS counts as well.
    /// Each address has its part of the time. `within`: the time that is left, and the one that is told of.
    pub(super) async fn connect(
        addresses: &[IpAddr],
        port: u16,
        secure: Option<(&Tls, &str)>,
        (within, said): (Duration, Duration),
    ) -> Result<Socket, Failed> {
        let begun = Instant::now();
        let left = || within.saturating_sub(begun.elapsed());
        let late =
            || Failed::no_connection(format!("no connection within {}", humantime::format_duration(said)));
        let mut failed = late();
        for (n, address) in addresses.iter().enumerate() {
            let part = left() / (addresses.len() - n) as u32;
            match timeout(part, TcpStream::connect(SocketAddr::new(*address, port))).await {
                Ok(Ok(tcp)) => return Socket::secured(tcp, secure, left(), late).await,
                Ok(Err(e)) => failed = Failed::of_connection(&e),
                Err(_) => failed = late(),
            }
        }
        Err(failed)
    }

    async fn secured(
        tcp: TcpStream,
        secure: Option<(&Tls, &str)>,
        within: Duration,
        late: impl Fn() -> Failed,
    ) -> Result<Socket, Failed> {
        // A request is written as a whole.
        tcp.set_nodelay(true).map_err(|e| Failed::of_connection(&e))?;
        let stream = match secure {
            None => Stream::Plain(tcp),
            Some((tls, host)) => match timeout(within, tls.wrap(tcp, host)).await {
                Ok(wrapped) => Stream::Secure(Box::new(wrapped?)),
                Err(_) => return Err(late()),
            },
        };
        Ok(Socket { stream, ear: Arc::default(), takes_no_more: false, has_spoken: false, reader: None })
    }

    pub(super) fn ear(&self) -> Arc<Ear> {
        Arc::clone(&self.ear)
    }

    /// Something is sent: from now on it is read.
    fn speak(&mut self) {
        self.has_spoken = true;
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Writes; as if it were done, to one that takes no more.
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

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_spoken {
            self.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        if self.ear.is_flooded() {
            let why = format!("more than {BEFORE_BODY_MAX} bytes came before the head of an answer");
            return Poll::Ready(Err(io::Error::other(why)));
        }
        let before = into.filled().len();
        let read = match &mut self.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, into),
            Stream::Secure(tls) => Pin::new(tls).poll_read(cx, into),
        };
        self.ear.bytes.fetch_add(into.filled().len() - before, Ordering::Relaxed);
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.speak();
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
        self.speak();
        self.write(parts.iter().map(|part| part.len()).sum(), |stream| match stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, parts),
            Stream::Secure(tls) => Pin::new(tls).poll_write_vectored(cx, parts),
        })
    }

    /// So that a large body is not copied behind the head, into a buffer that stays with the connection.
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
