//! One delivery: the request, who may be called, and how the answer is judged.

mod guard;
mod judge;
mod resolve;

use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, AsSendBody};

pub use guard::Rules;
pub use judge::Verdict;

use crate::fields::{Fields, Marks};
use crate::job::{Attempt, Body, JobKey};
use crate::topic::{Method, Payload, Topic};

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How many bytes of an answer are read; what comes after is not needed to judge it.
const ANSWER_MAX: u64 = 64 * 1024;

/// How many characters of an answer are kept with the job.
const ANSWER_KEPT: usize = 200;

/// What came back of a request.
struct Answer {
    status: u16,
    /// Its first bytes. (One that is read to its end lets its connection be used again.)
    body: Vec<u8>,
    /// Why no more of it came.
    broken: Option<String>,
    /// It says that the receiver answers later.
    later: bool,
}

/// A job to deliver.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Topic and id.
    pub key: JobKey,
    /// The body.
    pub body: Body,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// When it was due, Unix milliseconds.
    pub due_ms: i64,
    /// When the job was added, Unix microseconds: with topic and id it names the job over all its attempts.
    pub stamp_us: i64,
    /// The job's own headers.
    pub headers: Vec<(String, String)>,
    /// Where a receiver that answers later says what came of it; none: it may not.
    pub ack_url: Option<String>,
}

/// Makes deliveries. One per process, shared by its workers.
#[derive(Debug)]
pub struct Caller {
    agent: Agent,
    zone: TimeZone,
}

impl Caller {
    /// A caller that keeps up to `concurrency` idle connections to a host, and writes times in `zone`.
    pub fn new(concurrency: u32, rules: Rules, zone: TimeZone) -> Caller {
        let idle = concurrency as usize;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect is an answer like any other, and no success.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .max_idle_connections(idle * 4)
            .max_idle_connections_per_host(idle)
            .user_agent(concat!("dq/", env!("CARGO_PKG_VERSION")))
            // A proxy from the environment would get round the guard.
            .proxy(None)
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .build();
        let agent = Agent::with_parts(config, DefaultConnector::default(), resolve::Cached::new(rules));
        Caller { agent, zone }
    }

    /// Makes one delivery. Takes no longer than the topic's timeout, by and large.
    pub fn call(&self, topic: &Topic, delivery: &Delivery) -> (Verdict, Attempt) {
        self.make(topic, delivery, false)
    }

    /// Calls as if for a delivery, and lets the receiver know that it is a test: `dq-test: 1`.
    pub fn test(&self, topic: &Topic, delivery: &Delivery) -> (Verdict, Attempt) {
        self.make(topic, delivery, true)
    }

    fn make(&self, topic: &Topic, delivery: &Delivery, is_test: bool) -> (Verdict, Attempt) {
        let (started, at_ms) = (Instant::now(), now_ms());
        let answer = self.request(topic, delivery, is_test);
        let mut attempt = Attempt {
            number: delivery.attempt,
            at_ms,
            took_ms: started.elapsed().as_millis() as u64,
            status: None,
            answer: String::new(),
            error: String::new(),
        };
        let verdict = match &answer {
            Ok(Answer { status, body, broken, later }) => {
                attempt.status = Some(*status);
                attempt.answer = String::from_utf8_lossy(body).chars().take(ANSWER_KEPT).collect();
                match (judge::judge(&topic.success, *status, body), broken) {
                    // Whoever was not told where, cannot.
                    _ if *later && delivery.ack_url.is_some() => Verdict::Later,
                    (Verdict::Failed(why), Some(broken)) => Verdict::Failed(format!("{why}; then {broken}")),
                    (verdict, _) => verdict,
                }
            }
            Err(e) => Verdict::Failed(reason(e)),
        };
        match &verdict {
            Verdict::Failed(reason) => attempt.error.clone_from(reason),
            Verdict::Refused => attempt.error = "410: the receiver is gone".to_owned(),
            Verdict::Accepted | Verdict::Later => {}
        }
        (verdict, attempt)
    }

    fn request(&self, topic: &Topic, delivery: &Delivery, is_test: bool) -> Result<Answer, ureq::Error> {
        let form = || {
            let marks = Marks {
                due_ms: delivery.due_ms,
                added_ms: delivery.stamp_us / 1000,
                failures: delivery.attempt.saturating_sub(1),
            };
            Fields::of(&delivery.body).with(marks, &self.zone).url_encoded()
        };
        let (uri, payload, content_type) = match (topic.method, topic.payload) {
            (Method::Get, _) => (with_query(&topic.callback, &form()), None, None),
            (Method::Post, Payload::Form) => {
                (topic.callback.clone(), Some(form()), Some("application/x-www-form-urlencoded"))
            }
            (Method::Post, Payload::Json) => {
                (topic.callback.clone(), Some(delivery.body.as_str().to_owned()), Some("application/json"))
            }
        };
        let uri: Uri =
            uri.parse().map_err(|e: ureq::http::uri::InvalidUri| ureq::Error::BadUri(e.to_string()))?;
        let mut request = ureq::http::Request::builder()
            .method(if payload.is_some() { ureq::http::Method::POST } else { ureq::http::Method::GET })
            .uri(uri)
            .header("webhook-id", webhook_id(delivery))
            .header("webhook-timestamp", (now_ms() / 1000).to_string())
            .header("dq-topic", delivery.key.topic.as_str())
            .header("dq-job-id", header_text(delivery.key.id.as_str()))
            .header("dq-attempt", delivery.attempt.to_string())
            .header("dq-due-at", delivery.due_ms.to_string());
        for (name, value) in &delivery.headers {
            request = request.header(name, value);
        }
        if let Some(url) = &delivery.ack_url {
            request = request.header("dq-ack-url", url);
        }
        if is_test {
            request = request.header("dq-test", "1");
        }
        if let Some(content_type) = content_type {
            request = request.header("content-type", content_type);
        }
        let mut response = match payload {
            Some(payload) => self.run(topic.timeout, request.body(payload)?)?,
            None => self.run(topic.timeout, request.body(())?)?,
        };
        let status = response.status().as_u16();
        let says_later =
            response.headers().get("dq-ack").is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"later"));
        let later = status == 202 && says_later;
        // An answer that breaks off after its head is judged by what came of it.
        let mut body = Vec::new();
        let read = response.body_mut().as_reader().take(ANSWER_MAX).read_to_end(&mut body);
        Ok(Answer { status, body, broken: read.err().map(|e| e.to_string()), later })
    }

    fn run<B: AsSendBody>(
        &self,
        timeout: Duration,
        request: ureq::http::Request<B>,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = self.agent.configure_request(request).timeout_global(Some(timeout)).build();
        self.agent.run(request)
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// The receiver's idempotency key: the same for all attempts of a job, another when the job is replaced.
fn webhook_id(delivery: &Delivery) -> String {
    format!("{}.{}.{:x}", delivery.key.topic, header_text(delivery.key.id.as_str()), delivery.stamp_us)
}

/// Text as a header value: what is not visible ASCII, and `%`, is percent-encoded.
fn header_text(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        match b {
            b'!'..=b'~' if b != b'%' => out.push(char::from(b)),
            _ => write!(out, "%{b:02X}").expect("a string takes everything"),
        }
    }
    out
}

fn with_query(url: &str, query: &str) -> String {
    let url = url.split('#').next().unwrap_or(url);
    match (query, url.contains('?')) {
        ("", _) => url.to_owned(),
        (_, true) => format!("{url}&{query}"),
        (_, false) => format!("{url}?{query}"),
    }
}

/// What went wrong, in the words that stand with the job.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect) => format!("no connection within {CONNECT_TIMEOUT:?}"),
        ureq::Error::Timeout(_) => "no answer in time".to_owned(),
        ureq::Error::Io(e) => e.to_string(),
        ureq::Error::Other(e) => e.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_put_behind_the_url() {
        assert_eq!(with_query("http://h/p", "a=1"), "http://h/p?a=1");
        assert_eq!(with_query("http://h/p?x=2#f", "a=1"), "http://h/p?x=2&a=1");
        assert_eq!(with_query("http://h/p", ""), "http://h/p");
    }

    #[test]
    fn any_id_makes_a_header() {
        assert_eq!(header_text("a b%中\n"), "a%20b%25%E4%B8%AD%0A");
    }
}
