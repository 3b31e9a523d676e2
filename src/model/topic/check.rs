//! Checks topics. The rules are the same for topics of the configuration file and topics of the registry.

use std::collections::HashSet;
use std::time::Duration;

use http::Uri;

use super::done_topic::{DONE_SUFFIX, done_topic};
use super::header::{is_guarded_header, is_same_header, refuse_header};
use super::host_pattern::HostPattern;
use super::secret::signing_key;
use super::{DeliveryMode, LONGEST_RETRY, Method, Payload, Success, Topic};
use crate::expression::Expression;
use crate::headers::Headers;
use crate::retry::Retry;

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
    /// Checks all values and their combinations. A topic must pass this check before it is saved.
    pub fn check(&self) -> Result<(), InvalidTopic> {
        self.check_values()?;
        if self.name.as_str().ends_with(DONE_SUFFIX) {
            let problem = format!("a name that ends with {DONE_SUFFIX} is for the events of another topic");
            return Err(InvalidTopic::new("name", problem));
        }
        self.flaws().into_iter().next().map_or(Ok(()), Err)
    }

    /// Returns the mistakes of a topic of a registry. The console of the PHP daemon and other programs also write
    /// topics into a registry, and they may write wrong values. This function does not look for mistakes that cannot
    /// occur in a registry. Because of some mistakes, the topic is held (`Topic::held`). With other mistakes, the topic
    /// is served without the wrong values.
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
            && let Err(mistake) = Expression::parse_flag(&self.re_notify_flag)
        {
            let problem = format!("{:?} is no expression: {mistake}", self.re_notify_flag);
            flaws.push(InvalidTopic::new("re_notify_flag", problem));
        }
        let refused = self.headers.iter().filter_map(|(name, value)| refuse_header(name, value));
        flaws.extend(refused.map(|problem| InvalidTopic::new("headers", problem)));
        let mut seen = HashSet::new();
        let twice = self.headers.keys().filter(|name| !seen.insert(name.to_ascii_lowercase()));
        flaws.extend(twice.map(|name| InvalidTopic::new("headers", format!("{name:?} is given twice"))));
        let unusable = self.job_headers.iter().filter_map(|name| refuse_header(name, ""));
        flaws.extend(unusable.map(|problem| InvalidTopic::new("job_headers", problem)));
        let unusable = self.job_hosts.iter().filter(|text| HostPattern::parse(text).is_none());
        flaws.extend(unusable.map(|text| {
            let wanted = "a host such as \"shop.example\" or \"shop.example:8443\", or \"*.example.com\"";
            InvalidTopic::new("job_hosts", format!("{text:?} is not {wanted}"))
        }));
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

    /// Returns why a job of the topic may not have these headers. None: the job may have these headers.
    pub fn refuse_job_headers(&self, headers: &Headers) -> Option<String> {
        let name = headers.by_name().keys().find(|name| !self.may_job_set(name))?;
        Some(format!(
            "{name:?} is guarded, and topic {} does not let its jobs set it: leave it out, or add it to job_headers of \
             the topic",
            self.name
        ))
    }

    /// Returns whether a job of the topic may set a header.
    pub fn may_job_set(&self, header: &str) -> bool {
        !is_guarded_header(header) || self.job_headers.iter().any(|name| is_same_header(name, header))
    }

    /// Returns whether jobs of the topic may go to the host of a URL.
    pub(crate) fn lists_host(&self, url: &Uri) -> bool {
        self.job_hosts.iter().filter_map(|text| HostPattern::parse(text)).any(|host| host.matches(url))
    }

    /// Checks the values that every topic needs.
    pub fn check_values(&self) -> Result<(), InvalidTopic> {
        if self.method == Method::Get && self.payload == Payload::Json {
            let problem = "GET carries no JSON body: set payload = \"form\", or method = \"POST\"";
            return Err(InvalidTopic::new("method", problem));
        }
        if self.mode == DeliveryMode::Push || !self.callback.is_empty() {
            check_url("callback", &self.callback)?;
        }
        if !self.on_done.is_empty() {
            check_url("on_done", &self.on_done)?;
            if done_topic(&self.name).is_none() {
                let problem = format!("needs a topic {}{DONE_SUFFIX}, and this name is too long", self.name);
                return Err(InvalidTopic::new("on_done", problem));
            }
        }
        Topic::SETTINGS.iter().try_for_each(|setting| setting.check_bounds(self))?;
        check_delays(&self.retry)
    }
}

fn check_url(field: &'static str, url: &str) -> Result<(), InvalidTopic> {
    let uri: Option<Uri> = url.parse().ok();
    let good = uri.is_some_and(|u| {
        let authority = u.authority().map_or("", |a| a.as_str());
        let behind_host = authority.rsplit('@').next().unwrap_or("").rsplit(']').next().unwrap_or("");
        // The port is checked, because the default port of the scheme would later silently replace an invalid port.
        let port = !behind_host.contains(':') || u.port_u16().is_some_and(|p| p > 0);
        matches!(u.scheme_str(), Some("http" | "https")) && u.host().is_some_and(|h| !h.is_empty()) && port
    });
    if good {
        return Ok(());
    }
    Err(InvalidTopic::new(
        field,
        format!("{url:?} is not a valid http or https URL, such as \"http://127.0.0.1:9000/hook\""),
    ))
}

fn check_delays(retry: &Retry) -> Result<(), InvalidTopic> {
    let Retry::List(delays) = retry else { return Ok(()) };
    if delays.is_empty() {
        return Err(InvalidTopic::new("retry", "the list is empty; an example is [\"1m\", \"5m\"]"));
    }
    let least = Duration::from_millis(1);
    match delays.iter().find(|delay| !(least..=LONGEST_RETRY).contains(delay)) {
        None => Ok(()),
        Some(delay) => {
            let [delay, least, most] = [*delay, least, LONGEST_RETRY].map(humantime::format_duration);
            Err(InvalidTopic::new("retry", format!("{delay} is not within {least} to {most}")))
        }
    }
}
