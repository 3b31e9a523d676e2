//! A call, from the request to the verdict.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::http::{HeaderMap, HeaderName, HeaderValue, Request};
use jiff::tz::TimeZone;
use tokio::sync::Notify;

use super::connect::MonitoredStream;
use super::connection::{ConnectionPool, PooledConnection, ReceivedBody, late};
use super::failure::CallFailure;
use super::judge::{Answer, Expressions, judge};
use super::request::{AddressedRequest, Receiver};
use super::resolve::{CachedResolver, NoAddress};
use super::tls::{Tls, TlsParameters};
use super::{CallTranscript, CompletedCall, Delivery, Verdict};
use model::job::Attempt;
use model::settings::CallbackSettings;
use model::topic::{Failure, Topic};

/// How many bytes of an answer are read.
const ANSWER_MAX: usize = 64 * 1024;

/// How many characters of an answer are kept with the job.
const ANSWER_KEPT: usize = 200;

/// What all calls share.
pub(super) struct CallContext {
    idle: ConnectionPool,
    resolver: CachedResolver,
    tls: Tls,
    expressions: Expressions,
    zone: TimeZone,
    flying: AtomicUsize,
    ended: Notify,
}

/// Counts a call as under way until this value is dropped.
pub(super) struct InFlightGuard<'a>(&'a CallContext);

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.flying.fetch_sub(1, Ordering::Relaxed);
        self.0.ended.notify_one();
    }
}

impl CallContext {
    pub(super) fn new(
        idle: usize,
        settings: &CallbackSettings,
        zone: TimeZone,
        resolver: CachedResolver,
    ) -> CallContext {
        let (idle, tls) = (ConnectionPool::new(idle), Tls::new(settings.tls.clone()));
        let (expressions, flying, ended) = (Expressions::default(), AtomicUsize::new(0), Notify::new());
        CallContext { idle, resolver, tls, expressions, zone, flying, ended }
    }

    /// Counts a call as under way, until the returned value is dropped.
    pub(super) fn begin(&self) -> InFlightGuard<'_> {
        self.flying.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self)
    }

    /// Waits until a call ends. If a call has ended since the last wait, returns at once.
    pub(super) async fn wait_for_ended(&self) {
        self.ended.notified().await;
    }

    /// Closes connections that have been idle for too long. Returns whether other connections are idle, or may soon be
    /// idle.
    pub(super) fn close_idle(&self) -> bool {
        self.idle.purge() || self.flying.load(Ordering::Relaxed) > 0
    }

    /// Makes one delivery. The timeout of the topic counts from `started`.
    pub(super) async fn make(
        &self,
        topic: &Topic,
        delivery: &Delivery,
        is_test: bool,
        started: Instant,
    ) -> CompletedCall {
        let began_us = now_us();
        let mut seen = is_test.then(Box::<CallTranscript>::default);
        let answer = self.request(topic, delivery, &mut seen, started, began_us).await;
        let took = started.elapsed();
        let mut attempt = Attempt {
            number: delivery.attempt,
            at_ms: began_us / 1000,
            took_ms: took.as_millis() as u64,
            status: None,
            answer: String::new(),
            error: String::new(),
            late: None,
        };
        let verdict = match answer {
            Ok(answer) => {
                attempt.status = Some(answer.status);
                attempt.answer = String::from_utf8_lossy(&answer.body).chars().take(ANSWER_KEPT).collect();
                judge(topic, &self.expressions, &answer)
            }
            Err(CallFailure { kind, why, .. }) => Verdict::failed(topic, kind, why, None),
        };
        attempt.error = verdict.reason().unwrap_or_default().to_owned();
        CompletedCall { verdict, attempt, began_us, took, seen }
    }

    async fn request(
        &self,
        topic: &Topic,
        delivery: &Delivery,
        seen: &mut Option<Box<CallTranscript>>,
        started: Instant,
        began_us: i64,
    ) -> Result<Answer, CallFailure> {
        let is_test = seen.is_some();
        let until = (started + topic.timeout).into();
        let parts = || {
            let parts = AddressedRequest::new(topic, delivery, is_test, &self.zone, began_us / 1_000_000);
            parts.map_err(CallFailure::no_connection)
        };
        let late = || late(topic.timeout);
        let AddressedRequest { receiver, mut request } = parts()?;
        let mut kept = self.idle.take(&receiver.origin).await;
        let mut may_have_come = false;
        let (mut line, head, body) = loop {
            let mut line = match kept.take() {
                Some(line) => line,
                // (The future is boxed, because it is large, and most calls do not need it.)
                None => Box::pin(self.connect(&receiver, topic, started)).await.map_err(|failed| {
                    // The request may already have been sent once, on a kept connection. The kind `connect` says that
                    // nothing was sent. So the kind of this failure is `broken`.
                    if may_have_come { CallFailure::new(Failure::Broken, failed.why) } else { failed }
                })?,
            };
            if let Some(seen) = seen {
                seen.take_request(&request).await;
            }
            // The process may have been stopped meanwhile, and the lease of the job may have ended. So no request is
            // sent after the timeout.
            if started.elapsed() >= topic.timeout {
                return Err(late());
            }
            match line.send(request, until, late).await {
                Ok((head, body)) => break (line, head, body),
                // The receiver closed a kept connection while the request was under way. A receiver may close a kept
                // connection at any time. The request is sent again, on a new connection. (The other kept connections
                // may be closed too, so none of them is tried. A new connection has served no request, so it is never
                // stale.)
                Err(failed) if failed.is_stale => {
                    (request, may_have_come) = (parts()?.request, true);
                }
                Err(failed) => return Err(failed),
            }
        };
        if let Some(seen) = seen {
            seen.answer_headers = header_pairs(&head.headers);
        }
        let ReceivedBody { bytes, end } = line.read(body, ANSWER_MAX, until, late).await;
        let says = |name: &str, word: &str| {
            head.headers.get_all(name).iter().any(|v| v.as_bytes().eq_ignore_ascii_case(word.as_bytes()))
        };
        let answer = Answer {
            status: head.status.as_u16(),
            end,
            retry_after: retry_after(&head.headers, began_us / 1000),
            refuses: says("dq-retry", "no"),
            later: delivery.ack_url.is_some() && says("dq-ack", "later"),
            body: bytes,
        };
        if answer.is_whole() && line.runs() {
            self.idle.put(&receiver.origin, line);
        }
        Ok(answer)
    }

    /// Makes a connection. The time limit is `connect_timeout`, or the time that the call has left if this is shorter.
    async fn connect(
        &self,
        receiver: &Receiver,
        topic: &Topic,
        started: Instant,
    ) -> Result<Box<PooledConnection>, CallFailure> {
        let left = || topic.timeout.saturating_sub(started.elapsed());
        let found = self.resolver.allowed_soon(&receiver.host, left()).await;
        let addresses = found.map_err(|e: NoAddress| CallFailure::no_connection(e.to_string()))?;
        let (within, said) = match left() {
            left if left < topic.connect_timeout => (left, topic.timeout),
            _ => (topic.connect_timeout, topic.connect_timeout),
        };
        let host = receiver.host.trim_start_matches('[').trim_end_matches(']');
        let verifies = topic.tls_verify;
        let secure = receiver.is_secure.then_some(TlsParameters { tls: &self.tls, host, verifies });
        PooledConnection::over(
            MonitoredStream::connect(&addresses, receiver.port, secure, (within, said)).await?,
        )
        .await
    }
}

impl CallTranscript {
    async fn take_request(&mut self, request: &Request<Full<Bytes>>) {
        self.request = format!("{} {}", request.method(), request.uri());
        self.headers = header_pairs(request.headers());
        let Ok(body) = request.body().clone().collect().await;
        self.body = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    }
}

/// Returns the headers as people may see them. Signatures and credentials are hidden: with them, somebody else could
/// pretend to be this daemon.
fn header_pairs(headers: &HeaderMap) -> Vec<(String, String)> {
    let value = |name: &HeaderName, value: &HeaderValue| match name.as_str() {
        "authorization" | "proxy-authorization" | "webhook-signature" => "…".to_owned(),
        _ => String::from_utf8_lossy(value.as_bytes()).into_owned(),
    };
    headers.iter().map(|(name, text)| (name.to_string(), value(name, text))).collect()
}

pub(super) fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64)
}

/// Reads `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(at.saturating_sub(Duration::from_millis(u64::try_from(now_ms).unwrap_or(0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_in_all_forms() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", text.parse().unwrap());
            retry_after(&headers, 784_111_777_000).map(|span| span.as_secs())
        };
        assert_eq!(of("120"), Some(120));
        // The three forms of RFC 9110, 5.6.7.
        for date in
            ["Sun, 06 Nov 1994 08:50:37 GMT", "Sunday, 06-Nov-94 08:50:37 GMT", "Sun Nov  6 08:50:37 1994"]
        {
            assert_eq!(of(date), Some(60), "{date}");
        }
        assert!(of("Fri, 31 Dec 9999 23:59:59 GMT") > Some(3600 * 24 * 365 * 8000));
        assert_eq!(of("Sun, 06 Nov 1994 08:40:37 GMT"), Some(0));
        assert_eq!(of("99999999999999999999"), Some(u64::MAX));
        for text in ["", "soon", "-5", "1.5"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
