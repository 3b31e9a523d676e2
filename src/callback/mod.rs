//! One delivery: the request, who may be called, and how the answer is judged. docs/CALLBACKS.md tells it to those who receive.

mod connect;
mod failure;
mod guarded;
mod judge;
mod request;
mod resolve;
mod sign;
mod tls;

use std::io::Read;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::{Agent, AsSendBody, Body as ResponseBody};

pub use guarded::guarded_agent;
pub use judge::{RETRY_AFTER_MAX, Verdict};
pub use sign::signatures;

pub use crate::guard::Rules;

use self::connect::Dial;
use self::failure::{failure, is_stale};
use self::judge::{Answer, End, Expressions, judge};
use self::request::Parts;
use self::resolve::{Cached, NoAddress};
use self::tls::Tls;
use crate::guard::refusal;
use crate::job::{Attempt, Body, JobKey};
use crate::settings::Callback;
use crate::topic::Topic;

/// How many bytes of an answer are read.
const ANSWER_MAX: u64 = 64 * 1024;

/// How many characters of an answer are kept with the job.
const ANSWER_KEPT: usize = 200;

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
    /// The job's own headers, which win over the topic's; `traceparent` is one of them.
    pub headers: Vec<(String, String)>,
    /// Where the receiver may tell later what came of it; none: it may not.
    pub ack_url: Option<String>,
}

/// Makes deliveries. One per process, shared by its workers.
#[derive(Debug)]
pub struct Caller {
    agent: Agent,
    resolver: Cached,
    expressions: Expressions,
    zone: TimeZone,
}

impl Caller {
    /// A caller that keeps up to `concurrency` idle connections to a host, and writes times in `zone`.
    pub fn new(concurrency: u32, settings: &Callback, zone: TimeZone) -> Caller {
        let idle = concurrency as usize;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirect is an answer like any other, and no success.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(idle * 4)
            .max_idle_connections_per_host(idle)
            .user_agent(concat!("dq/", env!("CARGO_PKG_VERSION")))
            // A proxy from the environment would get round the guard.
            .proxy(None)
            .build();
        let resolver = Cached::new(Rules::new(settings));
        let dial = Dial { tls: Tls::new(settings.tls.clone()) };
        let agent = Agent::with_parts(config, dial, resolver.clone());
        Caller { agent, resolver, expressions: Expressions::default(), zone }
    }

    /// Makes one delivery. Takes no longer than the topic's timeout, by and large.
    pub fn call(&self, topic: &Topic, delivery: &Delivery) -> (Verdict, Attempt) {
        self.make(topic, delivery, false)
    }

    /// Calls as if for a delivery, and lets the receiver know that it is a test: `dq-test: 1`.
    pub fn test(&self, topic: &Topic, delivery: &Delivery) -> (Verdict, Attempt) {
        self.make(topic, delivery, true)
    }

    /// Why a URL would not be called: its host has addresses, and the guard denies all of them. A host of which nothing can be
    /// found out within that time is no reason; it is looked up again when it is called.
    pub fn denies(&self, url: &str, within: Duration) -> Option<String> {
        let uri: Uri = url.parse().ok()?;
        match self.resolver.allowed(uri.host()?, Some(within)) {
            Err(NoAddress::Denied { address, why }) => Some(refusal(url, address, why)),
            _ => None,
        }
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
            Ok(answer) => {
                attempt.status = Some(answer.status);
                attempt.answer = String::from_utf8_lossy(&answer.body).chars().take(ANSWER_KEPT).collect();
                judge(topic, &self.expressions, answer)
            }
            Err(e) => {
                let (kind, reason) = failure(e, topic);
                Verdict::failed(topic, kind, reason, None)
            }
        };
        attempt.error = verdict.reason().unwrap_or_default().to_owned();
        (verdict, attempt)
    }

    fn request(&self, topic: &Topic, delivery: &Delivery, is_test: bool) -> Result<Answer, ureq::Error> {
        let until = Instant::now() + topic.timeout;
        let parts = Parts::of(topic, delivery, is_test, &self.zone, now_ms() / 1000)
            .map_err(|e| ureq::Error::BadUri(e.to_string()))?;
        let mut response = match self.send(topic, &parts, until, false) {
            // The other side closed a connection that it had kept, as it may at any time, when the request was on its way.
            Err(e) if is_stale(&e) => self.send(topic, &parts, until, true)?,
            other => other?,
        };
        let mut body = Vec::new();
        let read = response.body_mut().as_reader().take(ANSWER_MAX + 1).read_to_end(&mut body);
        let end = match read {
            Err(e) => {
                let (kind, why) = failure(&ureq::Error::from(e), topic);
                End::Broken(kind, why)
            }
            Ok(_) if body.len() as u64 > ANSWER_MAX => End::Cut,
            Ok(_) => End::Whole,
        };
        body.truncate(ANSWER_MAX as usize);
        let says = |name: &str, word: &str| {
            response
                .headers()
                .get_all(name)
                .iter()
                .any(|v| v.as_bytes().eq_ignore_ascii_case(word.as_bytes()))
        };
        Ok(Answer {
            status: response.status().as_u16(),
            end,
            retry_after: retry_after(response.headers(), now_ms()),
            refuses: says("dq-retry", "no"),
            later: delivery.ack_url.is_some() && says("dq-ack", "later"),
            body,
        })
    }

    fn send(
        &self,
        topic: &Topic,
        parts: &Parts,
        until: Instant,
        anew: bool,
    ) -> Result<Response<ResponseBody>, ureq::Error> {
        match parts.body() {
            Some(body) => self.run(topic, parts.request(body), until, anew),
            None => self.run(topic, parts.request(()), until, anew),
        }
    }

    /// Runs a request; `anew`: over a connection of its own making.
    fn run<B: AsSendBody>(
        &self,
        topic: &Topic,
        request: ureq::http::Request<B>,
        until: Instant,
        anew: bool,
    ) -> Result<Response<ResponseBody>, ureq::Error> {
        let mut config = self
            .agent
            .configure_request(request)
            .timeout_global(Some(until.saturating_duration_since(Instant::now())))
            .timeout_connect(Some(topic.connect_timeout));
        if anew {
            // Those that are kept are as old as the one that was closed.
            config = config.max_idle_age(Duration::ZERO);
        }
        self.agent.run(config.build())
    }
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

/// `Retry-After`: seconds, or a date (RFC 9110, 10.2.3).
fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at: Timestamp = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let left_ms = at.as_millisecond().saturating_sub(now_ms);
    Some(Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", text.parse().unwrap());
            retry_after(&headers, 784_111_777_000).map(|span| span.as_secs())
        };
        assert_eq!(of("120"), Some(120));
        assert_eq!(of("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60));
        assert_eq!(of("Sun, 06 Nov 1994 08:40:37 GMT"), Some(0));
        assert_eq!(of("99999999999999999999"), Some(u64::MAX));
        for text in ["", "soon", "-5", "1.5"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
