//! How a job of beanstalkd is stored. Pure.
//!
//! The body is a JSON string: the text, if the bytes are text. If the bytes are not text, the string is base64, and the
//! header `beanstalk-body` is `base64`. Delay and TTR are headers. A release or a bury may set a new priority or delay.
//! These values are also written in the attempt that ends. One settlement stores the values and the attempt.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use model::headers::Headers;
use model::job::{Attempt, Body, State};
use model::topic::LEASES;
use protocol::beanstalk::Put;
use store::StoredJob;

const DELAY: &str = "beanstalk-delay";
const TTR: &str = "beanstalk-ttr";
const ENCODING: &str = "beanstalk-body";
const BASE64: &str = "base64";

/// The error that the store records for an attempt if its lease ended at the deadline.
const RAN_OUT: &str = "the lease ran out";

/// The limit of attempts for a job that a client adds with the protocol of beanstalkd. beanstalkd itself has no such
/// limit.
pub(super) const ATTEMPTS: u32 = 1_000_000_000;

/// Returns the body and the headers of a job that a client puts.
pub(super) fn stored(put: &Put) -> (Body, Headers) {
    let text = std::str::from_utf8(&put.body).ok().filter(|text| {
        // In JSON, control characters have long escapes. Control characters also show that the body is not text.
        text.chars().all(|c| !c.is_control() || matches!(c, '\t' | '\n' | '\r'))
    });
    let mut pairs = vec![(TTR.to_owned(), put.ttr_s.to_string())];
    if put.delay_s > 0 {
        pairs.push((DELAY.to_owned(), put.delay_s.to_string()));
    }
    let json = match text {
        Some(text) => serde_json::Value::from(text),
        None => {
            pairs.push((ENCODING.to_owned(), BASE64.to_owned()));
            serde_json::Value::from(STANDARD.encode(&put.body))
        }
    };
    let headers = Headers::new(pairs).expect("names and numbers are allowed");
    // A lease lasts at most a day, so the TTR of the job is cut to a day. The header `beanstalk-ttr` keeps the TTR that
    // the client has sent.
    let headers = headers.with_ttr(Some(Duration::from_secs(put.ttr_s.max(1).into()).min(LEASES.1)));
    (Body::trusted(json.to_string()), headers)
}

/// Returns the body as a client gets it. If the job was added in another way and its body is not a string, the client
/// gets the JSON text.
pub(super) fn body_bytes(body: &Body, headers: &Headers) -> Vec<u8> {
    let Ok(text) = serde_json::from_str::<String>(body.as_str()) else {
        return body.as_str().as_bytes().to_vec();
    };
    let is_encoded = headers.by_name().get(ENCODING).is_some_and(|encoding| encoding == BASE64);
    let decoded = is_encoded.then(|| STANDARD.decode(&text).ok()).flatten();
    decoded.unwrap_or_else(|| text.into_bytes())
}

fn number(headers: &Headers, name: &str) -> Option<u32> {
    headers.by_name().get(name)?.parse().ok()
}

/// Returns the job's own TTR: the TTR that the client has sent, or the job's `ttr` if this was changed later.
pub(super) fn ttr(headers: &Headers) -> Option<Duration> {
    let put = number(headers, TTR).map(|seconds| Duration::from_secs(seconds.max(1).into()));
    match headers.ttr() {
        Some(own) if put.is_none_or(|put| put.min(LEASES.1) != own) => Some(own),
        _ => put,
    }
}

/// The recorded reason why a client ended an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BeanstalkNackReason {
    Released { priority: u32, delay_s: u32 },
    Buried { priority: u32 },
}

impl fmt::Display for BeanstalkNackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BeanstalkNackReason::Released { priority, delay_s } => {
                write!(f, "released with priority {priority} and delay {delay_s}s")
            }
            BeanstalkNackReason::Buried { priority } => write!(f, "buried with priority {priority}"),
        }
    }
}

impl BeanstalkNackReason {
    fn of(attempt: &Attempt) -> Option<BeanstalkNackReason> {
        if let Some(rest) = attempt.error.strip_prefix("released with priority ") {
            let (priority, delay) = rest.split_once(" and delay ")?;
            let (priority, delay_s) = (priority.parse().ok()?, delay.strip_suffix('s')?.parse().ok()?);
            return Some(BeanstalkNackReason::Released { priority, delay_s });
        }
        let priority = attempt.error.strip_prefix("buried with priority ")?.parse().ok()?;
        Some(BeanstalkNackReason::Buried { priority })
    }
}

/// What beanstalkd reports about a job beside its state. The counts cover only the attempts that dq keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BeanstalkJobStats {
    pub priority: u32,
    pub delay_s: u64,
    pub ttr_s: u64,
    pub timeouts: u64,
    pub releases: u64,
    pub buries: u64,
    pub kicks: u64,
}

impl BeanstalkJobStats {
    /// `ttr` is the TTR of the topic, for jobs that have no TTR of their own.
    pub(super) fn new(view: &StoredJob, ttr: Duration) -> BeanstalkJobStats {
        let own_ttr = self::ttr(&view.headers).unwrap_or(ttr);
        let mut facts = BeanstalkJobStats {
            priority: view.priority.number(),
            delay_s: number(&view.headers, DELAY).unwrap_or(0).into(),
            ttr_s: own_ttr.as_secs(),
            timeouts: 0,
            releases: 0,
            buries: 0,
            kicks: 0,
        };
        for attempt in &view.attempts_log {
            match BeanstalkNackReason::of(attempt) {
                Some(BeanstalkNackReason::Released { delay_s, .. }) => {
                    facts.delay_s = delay_s.into();
                    facts.releases += 1;
                }
                Some(BeanstalkNackReason::Buried { .. }) => facts.buries += 1,
                None if attempt.error == RAN_OUT => facts.timeouts += 1,
                None => {}
            }
        }
        // Each earlier bury was ended by a kick. If the job is not buried now, a kick has also ended the last bury.
        facts.kicks = facts.buries.saturating_sub(u64::from(view.state == State::Dead));
        facts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(body: &[u8]) -> Put {
        Put { priority: 7, delay_s: 0, ttr_s: 60, body: body.to_vec() }
    }

    #[test]
    fn any_body_comes_out_as_it_went_in() {
        let all: Vec<u8> = (0..=255).collect();
        let texts: [&[u8]; 7] =
            [b"", b"text", b"\"quoted\"", b"{\"a\": 1}", "é中\u{2028}".as_bytes(), b"a\r\n\tb\\", b"null"];
        let others: [&[u8]; 4] = [&all, b"\0", b"\x1b[0m", b"\xff"];
        for (bodies, encoding) in [(&texts[..], None), (&others[..], Some("base64"))] {
            for body in bodies {
                let (json, headers) = stored(&put(body));
                assert_eq!(headers.by_name().get(ENCODING).map(String::as_str), encoding, "{body:?}");
                assert!(Body::parse(json.as_str()).is_ok());
                assert!(json.as_str().len() <= 2 * body.len() + 8);
                assert_eq!(&body_bytes(&json, &headers), body);
            }
        }
        for json in ["{\"a\": [1]}", "1", "null"] {
            assert_eq!(body_bytes(&Body::trusted(json), &Headers::default()), json.as_bytes());
        }
    }

    #[test]
    fn a_note_is_read_as_it_is_written() {
        for note in [
            BeanstalkNackReason::Released { priority: u32::MAX, delay_s: 5 },
            BeanstalkNackReason::Released { priority: 0, delay_s: 0 },
            BeanstalkNackReason::Buried { priority: 1024 },
        ] {
            let attempt = Attempt {
                number: 1,
                at_ms: 0,
                took_ms: 0,
                status: None,
                answer: String::new(),
                error: note.to_string(),
                late: None,
            };
            assert_eq!(BeanstalkNackReason::of(&attempt), Some(note));
            assert_eq!(BeanstalkNackReason::of(&Attempt { error: "released".to_owned(), ..attempt }), None);
        }
    }
}
