//! A small webhook receiver for `dq listen`, the demo, and the tests. A handler makes its answers.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// A request that has come in.
#[derive(Debug, Clone)]
pub struct ReceivedRequest {
    /// `GET` or `POST`.
    pub method: String,
    /// The path.
    pub path: String,
    /// The text after `?`.
    pub query: String,
    /// The headers, by lower-case name.
    pub headers: HashMap<String, String>,
    /// The body. Bytes that are not UTF-8 are replaced.
    pub body: String,
    /// The body as it came.
    pub bytes: Vec<u8>,
    /// When the whole request had come in, in Unix milliseconds.
    pub at_ms: i64,
}

impl ReceivedRequest {
    /// Returns the value of a header. Empty: there is no such header.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Returns how many milliseconds after the due time the callback arrived. `None`: the callback names no due time.
    pub fn late_ms(&self) -> Option<i64> {
        Some(self.at_ms - self.header("dq-due-at").parse::<i64>().ok()?)
    }
}

/// An answer to a request.
#[derive(Clone)]
pub struct HandlerAnswer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
    /// The headers, besides those that the server adds.
    pub headers: Vec<(&'static str, String)>,
    /// How long the receiver waits before it answers.
    pub after: Duration,
    /// Called when the delay `after` is over, if the client is still connected.
    pub then: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl HandlerAnswer {
    /// Returns an answer without delay.
    pub fn new(status: u16, body: &str) -> HandlerAnswer {
        HandlerAnswer {
            status,
            body: body.to_owned(),
            headers: Vec::new(),
            after: Duration::ZERO,
            then: None,
        }
    }

    /// Returns the answer with one more header.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> HandlerAnswer {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the answer with this delay.
    pub fn after(self, after: Duration) -> HandlerAnswer {
        HandlerAnswer { after, ..self }
    }
}

/// A running receiver; it ends with the process.
#[derive(Debug)]
pub struct CallbackReceiver {
    /// Where it listens.
    pub address: SocketAddr,
}

/// How a receiver answers a call.
pub type Handler = Arc<dyn Fn(ReceivedRequest) -> HandlerAnswer + Send + Sync>;

impl CallbackReceiver {
    /// Starts a receiver on its own thread. Port 0 means any free port.
    pub fn start(address: SocketAddr, handler: Handler) -> io::Result<CallbackReceiver> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("receiver".into()).spawn(move || {
            let served = runtime.block_on(async {
                let app =
                    Router::new().fallback(move |request: Request| answer(Arc::clone(&handler), request));
                axum::serve(tokio::net::TcpListener::from_std(listener)?, app).await
            });
            if let Err(e) = served {
                log::error!("the receiver has ended: {e}");
            }
        })?;
        Ok(CallbackReceiver { address })
    }
}

async fn answer(handler: Handler, request: Request) -> (StatusCode, HeaderMap, String) {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 << 20).await.unwrap_or_else(|_| Bytes::new());
    let text = |v: &axum::http::HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
    let call = ReceivedRequest {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers.iter().map(|(k, v)| (k.as_str().to_owned(), text(v))).collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
        bytes: body.to_vec(),
        at_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64),
    };
    let answer = handler(call);
    if !answer.after.is_zero() {
        tokio::time::sleep(answer.after).await;
    }
    if let Some(then) = answer.then {
        then();
    }
    let header = |(name, value): (&'static str, String)| {
        Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
    };
    let headers = answer.headers.into_iter().filter_map(header).collect();
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, headers, answer.body)
}
