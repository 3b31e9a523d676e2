//! Checks topics, with the same rules for those of the configuration file and those of the registry.

use std::collections::HashSet;
use std::time::Duration;

use http::Uri;

use super::header::refuse_header;
use super::secret::signing_key;
use super::{CatchUp, Method, Mode, Payload, Success, Topic};
use crate::expression::Expression;
use crate::retry::RetryPolicy;

const HOUR: Duration = Duration::from_secs(3600);

/// The longest span that a topic may have: ten years.
const LONGEST: Duration = HOUR.saturating_mul(24 * 366 * 10);

/// The greatest number of attempts.
const ATTEMPTS_MAX: u32 = 1000;

/// How many characters of an invalid method a message shows.
const METHOD_SHOWN: usize = 32;

/// What is wrong with a topic: the field, the value, and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidTopic {
    /// The field, as it is called in the configuration file.
    pub field: &'static str,
    /// The value, and what would be accepted.
    pub problem: String,
}

impl InvalidTopic {
    pub(super) fn new(field: &'static str, problem: impl Into<String>) -> InvalidTopic {
        InvalidTopic { field, problem: problem.into() }
    }
}

impl Topic {
    /// Checks all values and their combinations. A topic must pass this before it is saved.
    pub fn check(&self) -> Result<(), InvalidTopic> {
        self.check_values()?;
        let mut wrong = self.flaws().into_iter().chain(self.not_done_yet());
        wrong.next().map_or(Ok(()), Err)
    }

    /// Returns the mistakes with which a topic can still exist. Other programs than dq write such topics, for example
    /// the console of the PHP daemon. Because of some of these mistakes the topic is held (`Topic::held`). With the
    /// others it is served, without the wrong values.
    pub fn flaws(&self) -> Vec<InvalidTopic> {
        let mut flaws = Vec::new();
        if let Method::Other(text) = &self.method {
            let shown: String = text.chars().take(METHOD_SHOWN).collect();
            flaws.push(InvalidTopic::new("method", format!("{shown:?} is neither \"POST\" nor \"GET\"")));
        }
        if let Success::When(text) = &self.success
            && let Err(mistake) = Expression::parse(text)
        {
            let problem =
                format!("{text:?} is neither \"status\" nor \"non_empty\" nor an expression: {mistake}");
            flaws.push(InvalidTopic::new("success", problem));
        }
        if !self.re_notify_flag.is_empty()
            && let Err(mistake) = Expression::parse(&self.re_notify_flag)
        {
            let problem = format!("{:?} is no expression: {mistake}", self.re_notify_flag);
            flaws.push(InvalidTopic::new("re_notify_flag", problem));
        }
        let refused = self.headers.iter().filter_map(|(name, value)| refuse_header(name, value));
        flaws.extend(refused.map(|problem| InvalidTopic::new("headers", problem)));
        let mut seen = HashSet::new();
        let twice = self.headers.keys().filter(|name| !seen.insert(name.to_ascii_lowercase()));
        flaws.extend(twice.map(|name| InvalidTopic::new("headers", format!("{name:?} is given twice"))));
        let bad = self.alert.iter().filter(|text| text.trim().parse::<lettre::message::Mailbox>().is_err());
        flaws.extend(bad.map(|text| {
            InvalidTopic::new("alert", format!("{text:?} is not a mail address, such as \"ops@example.com\""))
        }));
        for (n, secret) in self.secrets.iter().enumerate() {
            if let Err(why) = signing_key(secret) {
                flaws.push(InvalidTopic::new("secrets", format!("number {} {why}", n + 1)));
            }
        }
        flaws
    }

    /// Checks the values without which a topic cannot exist.
    pub fn check_values(&self) -> Result<(), InvalidTopic> {
        if self.method == Method::Get && self.payload == Payload::Json {
            let problem = "GET carries no JSON body: set payload = \"form\", or method = \"POST\"";
            return Err(InvalidTopic::new("method", problem));
        }
        if self.mode == Mode::Push || !self.callback.is_empty() {
            check_url(&self.callback)?;
        }
        within("delay", self.delay, Duration::ZERO, LONGEST)?;
        within("timeout", self.timeout, Duration::from_millis(10), HOUR)?;
        within("connect_timeout", self.connect_timeout, Duration::from_millis(1), HOUR)?;
        check_retry(&self.retry)?;
        within("answer_later", self.answer_later, Duration::ZERO, LONGEST)?;
        within("breaker_pause", self.breaker_pause, Duration::from_millis(10), 24 * HOUR)?;
        within("keep_done", self.keep_done, Duration::ZERO, LONGEST)?;
        within("keep_dead", self.keep_dead, Duration::ZERO, LONGEST)?;
        if let CatchUp::Spread(span) | CatchUp::Skip(span) = self.catch_up {
            within("catch_up", span, Duration::from_secs(1), LONGEST)?;
        }
        count("max_attempts", self.max_attempts, ATTEMPTS_MAX)?;
        self.max_in_flight.map_or(Ok(()), |n| count("max_in_flight", n, 1_000_000))?;
        self.rate.map_or(Ok(()), |rate| count("rate", rate.jobs, 1_000_000))?;
        if self.breaker_failures == 0 {
            Ok(())
        } else {
            count("breaker_failures", self.breaker_failures, 1_000_000)
        }
    }
}

fn count(field: &'static str, value: u32, most: u32) -> Result<(), InvalidTopic> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(InvalidTopic::new(field, format!("{value} is not within 1 to {most}")))
}

fn within(field: &'static str, value: Duration, least: Duration, most: Duration) -> Result<(), InvalidTopic> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let [value, least, most] = [value, least, most].map(humantime::format_duration);
    Err(InvalidTopic::new(field, format!("{value} is not within {least} to {most}")))
}

fn check_url(url: &str) -> Result<(), InvalidTopic> {
    let uri: Option<Uri> = url.parse().ok();
    let good = uri.is_some_and(|u| {
        let authority = u.authority().map_or("", |a| a.as_str());
        let behind_host = authority.rsplit('@').next().unwrap_or("").rsplit(']').next().unwrap_or("");
        // An invalid port would be replaced by the default port of the scheme.
        let port = !behind_host.contains(':') || u.port_u16().is_some_and(|p| p > 0);
        matches!(u.scheme_str(), Some("http" | "https")) && u.host().is_some_and(|h| !h.is_empty()) && port
    });
    if good {
        return Ok(());
    }
    Err(InvalidTopic::new(
        "callback",
        format!("{url:?} is not a valid http or https URL, such as \"http://127.0.0.1:9000/hook\""),
    ))
}

fn check_retry(retry: &RetryPolicy) -> Result<(), InvalidTopic> {
    let span = |field, value| within(field, value, Duration::from_millis(1), 24 * 366 * HOUR);
    match retry {
        RetryPolicy::TwoNPlusOne { base } => span("retry_base", *base),
        RetryPolicy::Exponential { base, cap } => {
            span("retry_base", *base)?;
            span("retry_cap", *cap)
        }
        RetryPolicy::List(delays) if delays.is_empty() => {
            Err(InvalidTopic::new("retry", "the list is empty; an example is [\"1m\", \"5m\"]"))
        }
        RetryPolicy::List(delays) => delays.iter().try_for_each(|delay| span("retry", *delay)),
    }
}
