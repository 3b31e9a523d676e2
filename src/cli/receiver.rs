//! A small webhook receiver: for `dq listen`, the demo, and the tests. Answers as it is told.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// One request, as it came in.
#[derive(Debug, Clone)]
pub struct Call {
    /// `GET` or `POST`.
    pub method: String,
    /// The path.
    pub path: String,
    /// What stands behind `?`.
    pub query: String,
    /// The headers, by lower-case name.
    pub headers: HashMap<String, String>,
    /// The body.
    pub body: String,
    /// When it had come in, Unix milliseconds.
    pub at_ms: i64,
}

impl Call {
    /// A header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// How late it came, by the due time that it names.
    pub fn late_ms(&self) -> Option<i64> {
        Some(self.at_ms - self.header("dq-due-at").parse::<i64>().ok()?)
    }
}

/// What is answered.
#[derive(Clone)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: String,
    /// Its headers.
    pub headers: Vec<(&'static str, String)>,
    /// How long it takes.
    pub after: Duration,
    /// Called when that time is over and the caller is still there.
    pub then: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl Answer {
    /// An answer without delay.
    pub fn new(status: u16, body: &str) -> Answer {
        Answer { status, body: body.to_owned(), headers: Vec::new(), after: Duration::ZERO, then: None }
    }

    /// The same, with one more header.
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }

    /// The same, this much later.
    pub fn after(self, after: Duration) -> Answer {
        Answer { after, ..self }
    }
}

/// A running receiver; it ends with the process.
#[derive(Debug)]
pub struct Receiver {
    /// Where it listens.
    pub address: SocketAddr,
}

/// How a receiver answers a call.
pub type Handler = Arc<dyn Fn(Call) -> Answer + Send + Sync>;

impl Receiver {
    /// Starts one, on a thread of its own. Port 0: any that is free.
    pub fn start(address: SocketAddr, handler: Handler) -> io::Result<Receiver> {
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
        Ok(Receiver { address })
    }
}

async fn answer(handler: Handler, request: Request) -> (StatusCode, HeaderMap, String) {
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 64 << 20).await.unwrap_or_else(|_| Bytes::new());
    let text = |v: &axum::http::HeaderValue| String::from_utf8_lossy(v.as_bytes()).into_owned();
    let call = Call {
        method: head.method.to_string(),
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers.iter().map(|(k, v)| (k.as_str().to_owned(), text(v))).collect(),
        body: String::from_utf8_lossy(&body).into_owned(),
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
