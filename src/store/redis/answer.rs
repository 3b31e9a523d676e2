//! Translates the answers of scripts to dq's own types, and dq's types to the arguments of scripts. The comment at the
//! head of each script describes its arguments and its answer.

use std::time::Duration;

use redis::Value;

use crate::{Outcome, Reserver, StoreError, StoredJob};
use model::headers::{self, Headers};
use model::job::{Attempt, Body, Due, JobId, JobKey, NewJob, OnConflict, Priority, State, TopicName};
use model::job_priority::JobPriority;
use model::quota::{OverQuota, Quota, QuotaLimit};

/// Returns the error for an answer that does not have the expected form.
pub(super) fn unexpected(what: &str) -> StoreError {
    StoreError::Damaged(format!("{what} cannot be understood"))
}

/// Returns the elements of an array.
pub(super) fn array(value: Value) -> Result<Vec<Value>, StoreError> {
    match value {
        Value::Array(values) => Ok(values),
        _ => Err(unexpected("an answer")),
    }
}

pub(super) fn bytes(value: Value) -> Result<Vec<u8>, StoreError> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        _ => Err(unexpected("a text")),
    }
}

pub(super) fn text(value: Value) -> Result<String, StoreError> {
    String::from_utf8(bytes(value)?).map_err(|_| unexpected("a text"))
}

/// Returns a text, or an empty text if the value is missing.
pub(super) fn optional_text(value: Value) -> Result<String, StoreError> {
    if value == Value::Nil { Ok(String::new()) } else { text(value) }
}

pub(super) fn number(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(n) => Ok(*n),
        Value::BulkString(b) => {
            std::str::from_utf8(b).ok().and_then(|t| t.parse().ok()).ok_or_else(|| unexpected("a number"))
        }
        _ => Err(unexpected("a number")),
    }
}

pub(super) fn count(value: &Value) -> Result<usize, StoreError> {
    usize::try_from(number(value)?).map_err(|_| unexpected("a count"))
}

pub(super) fn topic(value: Value) -> Result<TopicName, StoreError> {
    TopicName::new(&text(value)?).map_err(|e| StoreError::Damaged(e.to_string()))
}

pub(super) fn id(value: Value) -> Result<JobId, StoreError> {
    JobId::new(text(value)?).map_err(|e| StoreError::Damaged(e.to_string()))
}

/// Makes a key from a topic and an id, as they are written in the names of Redis keys and members.
pub(super) fn key(topic: &[u8], id: &[u8]) -> Result<JobKey, StoreError> {
    let part = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
    Ok(JobKey { topic: self::topic(part(topic))?, id: self::id(part(id))? })
}

/// Returns one shard's share of the limits of adds, in the format that `part/quota.lua` reads. Without limits: an empty
/// text.
pub(super) fn limits(quota: Option<&Quota>, shards: u32) -> String {
    let Some(quota) = quota.map(|quota| quota.share(shards)) else { return String::new() };
    let word = |limit: Option<u64>| limit.map_or("-".to_owned(), |n| n.to_string());
    let mut words = vec![word(quota.max_pending.map(u64::from)), word(quota.max_bytes)];
    for rate in &quota.rates {
        let steps = rate.steps(shards);
        let number = QuotaLimit::ALL.iter().position(|limit| *limit == rate.limit).unwrap_or(0) + 1;
        words.extend([
            number.to_string(),
            rate.name.clone(),
            steps.step_us.to_string(),
            steps.burst.to_string(),
        ]);
    }
    words.join(" ")
}

/// Reads which limit does not allow an add (1 byte), and in how many ms to try again (6 bytes).
pub(super) fn over_quota(bytes: [u8; 7]) -> Result<OverQuota, StoreError> {
    let [number, wait @ ..] = bytes;
    let wait_ms = wait.iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte));
    let limit =
        QuotaLimit::ALL.get(usize::from(number).wrapping_sub(1)).ok_or_else(|| unexpected("a limit"))?;
    Ok(OverQuota { limit: *limit, wait: Duration::from_millis(wait_ms) })
}

/// What is stored of a job. Its parts, in order: the rank (1 byte; its value is higher by 4 if the job has its own
/// limit of attempts), the stamp (7 bytes), this limit (4 bytes, if there is one), the body.
pub(super) struct LiveJobRecord {
    /// The level of the job. If its priority is a number, the number is in the notes of the job: see [`priority`].
    pub level: Priority,
    pub stamp_us: i64,
    pub max_attempts: Option<u32>,
    pub body: Body,
}

impl LiveJobRecord {
    pub(super) fn parse(packed: &[u8]) -> Result<LiveJobRecord, StoreError> {
        let parse = || {
            let (bits, rest) = packed.split_first()?;
            let (stamp, rest) = rest.split_at_checked(7)?;
            let stamp_us = stamp.iter().fold(0, |n, b| n << 8 | i64::from(*b));
            let (limit, body) = rest.split_at_checked(if *bits >= 4 { 4 } else { 0 })?;
            let max_attempts = limit.try_into().ok().map(u32::from_be_bytes);
            // If the priority of a job is a number, its record has the rank of `normal`. The record has the rank 0 only
            // if the previous release has changed the body of the job.
            let level = match bits % 4 {
                0 => Priority::Normal,
                rank => Priority::from_number(i64::from(rank))?,
            };
            let body = Body::trusted(std::str::from_utf8(body).ok()?);
            Some(LiveJobRecord { level, stamp_us, max_attempts, body })
        };
        parse().ok_or_else(|| unexpected("a job's record"))
    }
}

/// Reads the jobs that `part/views.lua` describes, eight values each.
pub(super) fn views(topic: &TopicName, values: Vec<Value>) -> Result<Vec<StoredJob>, StoreError> {
    let mut views = Vec::with_capacity(values.len() / 8);
    let mut values = values.into_iter();
    while let Some(first) = values.next() {
        let mut next = || values.next().ok_or_else(|| unexpected("a job"));
        let key = JobKey { topic: topic.clone(), id: id(first)? };
        let state = State::from_number(number(&next()?)?).ok_or_else(|| unexpected("a state"))?;
        let due_ms = number(&next()?)?;
        let until_ms = Some(number(&next()?)?).filter(|at| *at >= 0);
        let attempts = u32::try_from(number(&next()?)?).map_err(|_| unexpected("a count"))?;
        let log = bytes(next()?)?;
        let LiveJobRecord { level, stamp_us, max_attempts, body } = LiveJobRecord::parse(&bytes(next()?)?)?;
        // If the name of the reserver cannot be read, the job is still returned.
        let reserver = String::from_utf8(bytes(next()?)?).ok().and_then(|text| Reserver::parse(&text));
        views.push(StoredJob {
            is_spooled: false,
            key,
            state,
            body,
            due_ms,
            until_ms,
            stamp_us,
            priority: priority(level, headers_line(&log)),
            attempts,
            max_attempts,
            attempts_log: attempts_of(&log),
            headers: headers_of(&log),
            reserver,
        });
    }
    Ok(views)
}

/// Returns the attempts that are kept, one from each line. A line that cannot be read is left out, so that it does not
/// block a delivery.
pub(super) fn attempts_of(log: &[u8]) -> Vec<Attempt> {
    log.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// The letter that begins the first line of a job's log if this line holds the job's own headers. (The previous release
/// regards this line as an attempt that it cannot read.)
const HEADERS: u8 = b'h';

/// Returns the text of the headers in a log. Empty: there are none.
fn headers_line(log: &[u8]) -> &[u8] {
    let line = log.split(|b| *b == b'\n').next().and_then(|line| line.strip_prefix(&[HEADERS]));
    line.unwrap_or_default()
}

pub(super) fn headers_of(log: &[u8]) -> Headers {
    headers(headers_line(log))
}

/// Returns the priority of a job from its level and its headers. If the priority is a number, the first member of the
/// headers has this number and the order of arrival: see `part/numbered.lua`.
pub(super) fn priority(level: Priority, headers: &[u8]) -> JobPriority {
    let number = || {
        let member =
            std::str::from_utf8(headers).ok()?.strip_prefix("{\"")?.strip_prefix(headers::PRIORITY)?;
        let (number, _) = member.strip_prefix("\":\"")?.split_once('.')?;
        number.parse().ok()
    };
    number().map_or_else(|| level.into(), JobPriority::from_number)
}

/// Returns a priority in the form that `change.lua` expects: a rank, or `p` and a number.
pub(super) fn priority_word(priority: JobPriority) -> String {
    match priority.level() {
        Some(level) => (level as u8).to_string(),
        None => format!("p{}", priority.number()),
    }
}

/// Reads headers as they are stored.
pub(super) fn headers(text: &[u8]) -> Headers {
    std::str::from_utf8(text).map_or_else(|_| Headers::default(), Headers::trusted)
}

/// Returns headers in the form that scripts expect. An empty text means that there are none.
pub(super) fn headers_word(headers: &Headers) -> String {
    if headers.is_empty() { String::new() } else { char::from(HEADERS).to_string() + &headers.to_text() }
}

/// Returns an attempt as a line of the log.
pub(super) fn line(attempt: Option<&Attempt>) -> String {
    // JSON from serde_json has no raw newline inside.
    attempt.and_then(|a| serde_json::to_string(a).ok()).unwrap_or_default()
}

/// Returns an attempt as a line of the log of a job with this outcome. The attempt of an `Ack` is kept only in the
/// record of the ended job. So this attempt is written in the shorter form, as a JSON array (see `Attempt::to_array`).
pub(super) fn attempt_line(outcome: &Outcome, attempt: Option<&Attempt>) -> String {
    match (outcome, attempt) {
        (Outcome::Ack, Some(attempt)) => attempt.to_array(),
        _ => line(attempt),
    }
}

/// Returns a due time in the form that scripts expect: a span from the present time of the shard, or a moment.
pub(super) fn due(due: Due) -> String {
    match due {
        Due::At(at_ms) => at_ms.max(0).to_string(),
        Due::In(span) => format!("+{}", span.as_nanos().div_ceil(1_000_000).min(u64::MAX.into())),
    }
}

/// Returns the flags of a job in the form that `add.lua` expects: rank, what happens when the id is taken, the job's
/// own limit, attempts that were made before, the number of its priority if the priority is not a level, and headers.
pub(super) fn flags(job: &NewJob) -> String {
    let rule = match job.on_conflict {
        OnConflict::Replace => 'r',
        OnConflict::Reject => 'x',
        OnConflict::Keep => 'k',
    };
    let limit = job.max_attempts.map(|n| n.to_string()).unwrap_or_default();
    let attempts = if job.attempts > 0 { format!("+{}", job.attempts) } else { String::new() };
    let (rank, number) = match job.priority.level() {
        Some(level) => (level as u8, String::new()),
        None => (0, priority_word(job.priority)),
    };
    format!("{rank}{rule}{limit}{attempts}{number}{}", headers_word(&job.headers))
}

/// Returns the outcome of a lease in the form that `settle.lua` expects.
pub(super) fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ack => "a".to_owned(),
        Outcome::Retry(at) => format!("r{}", due(*at)),
        Outcome::RetryAs(at, priority) => format!("R{} {}", priority_word(*priority), due(*at)),
        Outcome::DeadLetter => "b".to_owned(),
        Outcome::DeadLetterAs(priority) => format!("B{}", priority_word(*priority)),
        Outcome::Extend(span) => format!("e{}", span.as_millis()),
        Outcome::Later(span) => format!("l{}", span.as_millis()),
        Outcome::Name(reserver) => format!("n{}", reserver.to_text()),
        Outcome::HandBack => "h".to_owned(),
        Outcome::Postpone(at) => format!("p{}", due(*at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_scripts_write_it() {
        let stamp = [0x06, 0x40, 0, 0, 0, 0, 0x07];
        let with = [&[6][..], &stamp, &[0, 0, 0, 9], b"{}"].concat();
        let record = LiveJobRecord::parse(&with).unwrap();
        assert_eq!((record.level, record.max_attempts), (Priority::Normal, Some(9)));
        assert_eq!((record.stamp_us, record.body.as_str()), (0x0006_4000_0000_0007, "{}"));
        let without = [&[1][..], &stamp, b"1"].concat();
        let record = LiveJobRecord::parse(&without).unwrap();
        assert_eq!((record.level, record.max_attempts, record.body.as_str()), (Priority::High, None, "1"));
        let zero = [&[0][..], &stamp, b"1"].concat();
        assert_eq!(LiveJobRecord::parse(&zero).unwrap().level, Priority::Normal);
        for bad in [&with[..0], &with[..5], &with[..9], &[2, 0, 0, 0, 0, 0, 0, 0, 255]] {
            assert!(LiveJobRecord::parse(bad).is_err());
        }
    }

    #[test]
    fn the_number_of_a_job_is_the_first_of_its_headers() {
        let read = |text: &str| priority(Priority::Normal, text.as_bytes());
        let own = r#"{":priority":"5.1767225600000000.3",":path":"/a","b":"1"}"#;
        assert_eq!(read(own), JobPriority::from_number(5));
        assert_eq!(read(r#"{":priority":"4294967295.1.0"}"#), JobPriority::from_number(u32::MAX));
        let others = headers(own.as_bytes());
        assert_eq!(others.to_text(), r#"{":path":"/a","b":"1"}"#);
        for none in ["", "{}", r#"{"a":":priority"}"#, r#"{":priority":"x.1.0"}"#] {
            assert_eq!(read(none), JobPriority::default(), "{none}");
        }
    }

    #[test]
    fn words_are_what_scripts_expect() {
        assert_eq!(due(Due::In(Duration::from_micros(1500))), "+2");
        assert_eq!(due(Due::At(-5)), "0");
        let mut job = NewJob {
            key: JobKey { topic: TopicName::new("t").unwrap(), id: JobId::new("i").unwrap() },
            body: Body::trusted("1"),
            due: Due::At(1),
            priority: Priority::Low.into(),
            on_conflict: OnConflict::Keep,
            max_attempts: Some(7),
            attempts: 0,
            headers: Headers::default(),
            quota: None,
        };
        assert_eq!(flags(&job), "3k7");
        (job.max_attempts, job.attempts) = (None, 2);
        assert_eq!(flags(&job), "3k+2");
        job.headers = Headers::parse(r#"{"a": "7"}"#).unwrap();
        assert_eq!(flags(&job), r#"3k+2h{"a":"7"}"#);
        assert_eq!(headers_of(b"h{\"a\":\"7\"}\n{}\n"), job.headers);
        assert_eq!(attempts_of(b"h{\"a\":\"7\"}\n"), []);
        job.priority = JobPriority::from_number(5);
        assert_eq!(flags(&job), r#"0k+2p5h{"a":"7"}"#);
        job.headers = Headers::default();
        assert_eq!((flags(&job), priority_word(job.priority)), ("0k+2p5".to_owned(), "p5".to_owned()));
        assert_eq!(priority_word(Priority::Low.into()), "3");
        assert_eq!(outcome(&Outcome::Retry(Due::At(9))), "r9");
        assert_eq!(outcome(&Outcome::RetryAs(Due::At(9), JobPriority::from_number(7))), "Rp7 9");
        assert_eq!(outcome(&Outcome::DeadLetterAs(Priority::High.into())), "B1");
        assert_eq!(outcome(&Outcome::Extend(Duration::from_secs(1))), "e1000");
    }
}
