//! Parses jobs in bodies, and the parameters of queries and paths.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::callback_fields::{changed_destination, destination, headers, tags, then};
use super::cursor;
use super::id_source::IdempotentIdGenerator;
use super::problem::Problem;
use super::schema;
use super::typed_body::{self, BoundedNumber, JsonDuration, UnixMs, given, invalid, word};
use host::now_ms;
use model::job::{Body, Due, JobId, JobKey, NewJob, OnConflict, State, TopicName};
use model::job_priority::JobPriority;
use model::quota::Quota;
use model::topic::{LEASES, Topic, Topics};
use store::{Change, Lanes};

/// The maximum number of jobs in one batch.
pub(super) const BATCH_MAX: usize = 10_000;

/// The default and the maximum number of jobs that a listing shows.
pub(super) const LIMITS: [usize; 2] = [50, 1000];

/// Returns the problem of a field with a wrong value. `wanted` describes the valid values. The message never has a
/// password or secret.
pub(super) fn wrong(field: &str, raw: &RawValue, wanted: &str) -> Problem {
    let detail = match field {
        "password" | "secrets" => format!("{field}: the value is not {wanted}"),
        _ => format!("{field} is {}, and not {wanted}", short(raw.get())),
    };
    Problem::field(field, detail)
}

/// The name of a parameter in a query, and its value.
type QueryParameter<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Returns the parameters of a query. A parameter that is not `known`, or that is given twice, is refused.
pub(super) fn parameters<'a>(query: &'a str, known: &[&str]) -> Result<Vec<QueryParameter<'a>>, Problem> {
    let mut parameters: Vec<QueryParameter> = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if !known.contains(&&*name) {
            return Err(Problem::unknown_field(&short(&name), known));
        }
        if parameters.iter().any(|(other, _)| *other == name) {
            return Err(Problem::field(&name, format!("{name} is given twice: give it once")));
        }
        parameters.push((name, value));
    }
    Ok(parameters)
}

/// Returns the beginning of a text, so that a message that repeats it stays short.
pub(super) fn short(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(80) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// Returns random bytes of the system.
pub(super) fn random<const N: usize>() -> Result<[u8; N], Problem> {
    let mut random = [0; N];
    let failed = |e| Problem::unavailable("no_chance", format!("the system gives no random bytes: {e}"));
    getrandom::fill(&mut random).map_err(failed)?;
    Ok(random)
}

/// How many ids dq tries for a job without an id, to find an id whose home is not known to be down. If half of the
/// nodes are down, about one such job in a million still gets an id whose home is down.
const ID_TRIES: usize = 20;

/// Makes an id for a job without an id. Prefers an id whose home is not known to be down.
fn id_that_is_taken(topic: &TopicName, lanes: &Lanes) -> Result<JobId, Problem> {
    for _ in 1..ID_TRIES {
        let key = JobKey { topic: topic.clone(), id: made_id()? };
        if !lanes.is_home_down(&key) {
            return Ok(key.id);
        }
    }
    made_id()
}

/// Makes an id for a job without an id. It is a UUID of version 7, so such jobs sort in the order of their arrival.
fn made_id() -> Result<JobId, Problem> {
    JobId::new(Uuid::now_v7().to_string()).map_err(|e| Problem::invalid("id", &e))
}

/// A new job. At most one of `delay` and `run_at` may be given. Without both, the topic's delay applies.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJob, example = json!({"id": "42", "delay": "30m", "body": {"order": 42}}))]
pub(super) struct NewJobRequest<'a> {
    /// Unique in its topic, at most 256 bytes. A number counts as its text. If the id is missing, dq makes an id, from
    /// the Idempotency-Key if there is one.
    #[schema(schema_with = schema::id, required = false)]
    id: Option<JsonId>,
    /// Any JSON value.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = Value, required = true)]
    body: Option<&'a RawValue>,
    #[schema(schema_with = schema::span, required = false)]
    delay: Option<JsonDuration>,
    #[schema(schema_with = schema::moment, required = false)]
    run_at: Option<UnixMs>,
    /// Default: `normal`.
    #[schema(schema_with = schema::job_priority_or_null, required = false)]
    priority: Option<JobPriority>,
    /// Default: `replace`.
    #[serde(default, deserialize_with = "word")]
    #[schema(value_type = Option<schema::OnConflictWord>)]
    on_conflict: Option<OnConflict>,
    /// Default: the topic's limit.
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max_attempts: Option<MaxAttempts>,
    #[schema(schema_with = schema::headers, required = false)]
    headers: Option<&'a RawValue>,
    #[schema(schema_with = schema::job_path, required = false)]
    path: Option<String>,
    #[schema(schema_with = schema::job_url, required = false)]
    url: Option<String>,
    #[schema(schema_with = schema::tags, required = false)]
    tags: Option<Vec<String>>,
    #[schema(schema_with = schema::then, required = false)]
    then: Option<&'a RawValue>,
    #[schema(schema_with = schema::job_ttr, required = false)]
    ttr: Option<JsonDuration>,
    #[schema(schema_with = schema::job_expire_after, required = false)]
    expire_after: Option<JsonDuration>,
}

/// An id: a text, or a number as it was written. PHP sends a number if the application used one. A number with an
/// exponent is refused, because the application may have written the number without the exponent. The TCP port refuses
/// such a number, too.
struct JsonId(String);

impl<'de> Deserialize<'de> for JsonId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<JsonId, D::Error> {
        let raw = <&RawValue>::deserialize(from)?.get();
        let is_number = raw.starts_with(|c: char| c == '-' || c.is_ascii_digit());
        let text = match is_number {
            true => Some(raw.to_owned()).filter(|number| !number.contains(['e', 'E'])),
            false => serde_json::from_str(raw).ok(),
        };
        text.map(JsonId).ok_or_else(|| invalid("a text, or a number without an exponent"))
    }
}

/// A job's own limit of attempts.
type MaxAttempts = BoundedNumber<1, 1000>;

/// Returns when a job is due.
fn due(delay: Option<JsonDuration>, run_at: Option<UnixMs>) -> Result<Option<Due>, Problem> {
    match (delay, run_at) {
        (None, None) => Ok(None),
        (Some(JsonDuration(wait)), None) => Ok(Some(Due::In(wait))),
        (None, Some(UnixMs(at))) => Ok(Some(Due::At(at))),
        (Some(_), Some(_)) => {
            Err(Problem::field("run_at", "delay and run_at exclude each other: give one of them"))
        }
    }
}

/// Reads a new job of a topic. A job without an id gets an id from `ids`, if there is an Idempotency-Key. `place` is
/// the place of the job in a batch.
pub(super) fn job(
    json: &[u8],
    topic: &Topic,
    quota: Option<&Arc<Quota>>,
    (ids, place): (Option<&IdempotentIdGenerator>, Option<usize>),
    lanes: &Lanes,
) -> Result<NewJob, Problem> {
    let new: NewJobRequest<'_> = typed_body::read(json)?;
    let mut if_taken = OnConflict::default();
    let id = match (new.id, ids) {
        (None, Some(ids)) => {
            if_taken = OnConflict::Keep;
            ids.id(place)?
        }
        (None, None) => id_that_is_taken(&topic.name, lanes)?,
        (Some(JsonId(id)), _) => self::id(id)?,
    };
    let body = new.body.ok_or_else(|| Problem::missing("body", "any JSON value, null as well"))?;
    let due = due(new.delay, new.run_at)?.unwrap_or(Due::In(topic.delay));
    let own_expiry = new.expire_after.map(|JsonDuration(span)| span);
    Ok(NewJob {
        key: JobKey { topic: topic.name.clone(), id },
        body: Body::from(body),
        due,
        priority: new.priority.unwrap_or_default(),
        on_conflict: new.on_conflict.unwrap_or(if_taken),
        max_attempts: new.max_attempts.map(|BoundedNumber(n)| n),
        attempts: 0,
        headers: headers(new.headers, topic)?
            .with_destination(destination(new.path.as_deref(), new.url.as_deref(), topic)?)
            .with_tags(tags(new.tags)?)
            .with_then(then(new.then)?)
            .with_ttr(ttr(new.ttr)?)
            .with_expires_ms(topic.expires_ms(own_expiry, due, now_ms())),
        quota: quota.cloned(),
    })
}

/// Returns the `ttr` of a job, if it is within the limits.
fn ttr(given: Option<JsonDuration>) -> Result<Option<Duration>, Problem> {
    match given {
        Some(JsonDuration(ttr)) if !(LEASES.0..=LEASES.1).contains(&ttr) => {
            Err(Problem::field("ttr", "ttr is not within 100ms to 1day"))
        }
        given => Ok(given.map(|JsonDuration(ttr)| ttr)),
    }
}

/// Refuses an add to a topic that accepts no new jobs.
pub(super) fn takes_jobs(topics: &Topics, name: &TopicName) -> Result<(), Problem> {
    match topics.refusal(name.as_str()) {
        None => Ok(()),
        Some(why) => Err(Problem::conflict("topic_offline", why)),
    }
}

/// A body without fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyObject {}

/// Checks that a body is empty or an object without fields.
pub(super) fn nothing(json: &[u8]) -> Result<(), Problem> {
    typed_body::read_or_empty(json).map(|EmptyObject {}| ())
}

/// Jobs to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewJobs)]
pub(super) struct NewJobsRequest<'a> {
    // Each job is parsed separately, so that a wrong job does not prevent the other jobs.
    #[serde(borrow)]
    #[schema(value_type = Vec<NewJobRequest>, required = true, max_items = 10000)]
    jobs: Option<Vec<&'a RawValue>>,
}

/// Reads the jobs of a batch. Each job has its own result.
///
/// Jobs without an id get an id from the Idempotency-Key. So a client may send a batch again that was stored only in
/// part.
pub(super) fn batch(
    json: &[u8],
    topic: &Topic,
    quota: Option<&Arc<Quota>>,
    ids: Option<&IdempotentIdGenerator>,
    lanes: &Lanes,
) -> Result<Vec<Result<NewJob, Problem>>, Problem> {
    let NewJobsRequest { jobs } = typed_body::read(json)?;
    let jobs = jobs.ok_or_else(|| Problem::missing("jobs", "a list of jobs"))?;
    if jobs.len() > BATCH_MAX {
        let problem = format!("jobs holds {} jobs, which is more than {BATCH_MAX}", jobs.len());
        return Err(Problem::field("jobs", problem));
    }
    let one = |(n, raw): (usize, &&RawValue)| job(raw.get().as_bytes(), topic, quota, (ids, Some(n)), lanes);
    Ok(jobs.iter().enumerate().map(one).collect())
}

/// The changes of a delayed or ready job. A missing field is not changed. Give at most one of `delay` and `run_at`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobChange, example = json!({"delay": "2h"}))]
pub(super) struct JobChangeRequest<'a> {
    #[schema(schema_with = schema::span, required = false)]
    delay: Option<JsonDuration>,
    #[schema(schema_with = schema::moment, required = false)]
    run_at: Option<UnixMs>,
    /// Any JSON value, also null.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(value_type = Value, required = false)]
    body: Option<&'a RawValue>,
    #[schema(schema_with = schema::job_priority_or_null, required = false)]
    priority: Option<JobPriority>,
    /// Null means the topic's limit.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    max_attempts: Option<Option<MaxAttempts>>,
    /// Null removes all headers of the job.
    #[serde(borrow, default, deserialize_with = "given")]
    #[schema(schema_with = schema::headers, required = false)]
    headers: Option<Option<&'a RawValue>>,
    /// Null: the job goes to the callback of its topic.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schema::job_path, required = false)]
    path: Option<Option<String>>,
    /// Null: the job goes to the callback of its topic.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schema::job_url, required = false)]
    url: Option<Option<String>>,
    /// Replaces all tags of the job. Null removes them.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schema::tags, required = false)]
    tags: Option<Option<Vec<String>>>,
    /// Null: `ttr` of the topic applies.
    #[serde(default, deserialize_with = "given")]
    #[schema(schema_with = schema::job_ttr, required = false)]
    ttr: Option<Option<JsonDuration>>,
}

/// Reads a change of a job of a topic.
pub(super) fn change(json: &[u8], topic: &Topic) -> Result<Change, Problem> {
    let given: JobChangeRequest<'_> = typed_body::read(json)?;
    let change = Change {
        due: due(given.delay, given.run_at)?,
        body: given.body.map(Body::from),
        priority: given.priority,
        max_attempts: given.max_attempts.map(|limit| limit.map(|BoundedNumber(n)| n)),
        headers: given.headers.map(|raw| headers(raw, topic)).transpose()?,
        destination: changed_destination(given.path, given.url, topic)?,
        tags: given.tags.map(tags).transpose()?,
        ttr: given.ttr.map(ttr).transpose()?,
        max_bytes: None,
    };
    if change == Change::default() {
        let others = "give it, or run_at, body, priority, max_attempts, headers, path, url, tags or ttr";
        return Err(Problem::missing("delay", others));
    }
    Ok(Change { max_bytes: topic.max_bytes.map(|size| size.0), ..change })
}

/// Which jobs a listing shows.
pub(super) struct ParsedListQuery {
    pub state: State,
    pub cursor: Option<String>,
    pub limit: usize,
}

/// Reads from a query which jobs a listing shows.
pub(super) fn listing(query: &str) -> Result<ParsedListQuery, Problem> {
    const STATES: &str = "delayed, ready, leased or dead";
    let mut state = None;
    let (cursor, limit) = page_with(query, &["state", "limit", "cursor"], LIMITS, |name, value| {
        let named = State::ALL.into_iter().find(|s| s.to_string() == value);
        let wrong = || Problem::field(name, format!("{name} is {:?}, and not {STATES}", short(value)));
        state = Some(named.ok_or_else(wrong)?);
        Ok(())
    })?;
    let state = state.ok_or_else(|| Problem::missing("state", STATES))?;
    Ok(ParsedListQuery { state, cursor, limit })
}

/// Reads from a query where a page begins and how long it is. `limits` has the default length and the maximum length.
/// Every other known parameter is passed to `other`.
pub(super) fn page_with(
    query: &str,
    known: &[&str],
    limits: [usize; 2],
    mut other: impl FnMut(&str, &str) -> Result<(), Problem>,
) -> Result<(Option<String>, usize), Problem> {
    let (mut cursor, mut limit) = (None, limits[0]);
    for (name, value) in parameters(query, known)? {
        let wrong =
            |wanted: &str| Problem::field(&name, format!("{name} is {:?}, and not {wanted}", short(&value)));
        match name.as_ref() {
            "cursor" => {
                cursor = Some(cursor::read(&value).ok_or_else(|| wrong("the next of another page"))?);
            }
            name if name != "limit" => other(name, &value)?,
            _ => {
                let number = value.parse().ok().filter(|n| (1..=limits[1]).contains(n));
                limit = number.ok_or_else(|| wrong(&format!("a whole number from 1 to {}", limits[1])))?;
            }
        }
    }
    Ok((cursor, limit))
}

/// Returns the body, or an empty object if the body is missing.
pub(super) fn or_empty(json: &[u8]) -> &[u8] {
    if json.trim_ascii().is_empty() { b"{}" } else { json }
}

/// Reads the name of a topic from a path.
pub(super) fn topic(name: &str) -> Result<TopicName, Problem> {
    TopicName::new(name).map_err(|e| Problem::invalid("topic", &e))
}

/// Returns the topic that a query names, if there is one. The query may have no other parameter.
pub(super) fn only_topic(query: &str) -> Result<Option<TopicName>, Problem> {
    parameters(query, &["topic"])?.first().map(|(_, value)| topic(value)).transpose()
}

/// Reads the id of a job from a path.
pub(super) fn id(id: String) -> Result<JobId, Problem> {
    JobId::new(id).map_err(|e| Problem::invalid("id", &e))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::access::Caller;

    #[test]
    fn ids_of_a_key_are_the_same_for_one_caller_only() {
        let token = |name| Caller::Token(model::token::TokenName::new(name).unwrap());
        let id = |caller: Option<&Caller>, key| IdempotentIdGenerator::new(caller, key).id(None).unwrap();
        let (a, b) = (token("a"), token("b"));
        assert_eq!(id(Some(&a), "k"), id(Some(&a), "k"));
        let all = [id(Some(&a), "k"), id(Some(&b), "k"), id(Some(&a), "k2"), id(None, "k"), id(None, "a\nk")];
        let unequal: std::collections::BTreeSet<&str> = all.iter().map(JobId::as_str).collect();
        assert_eq!(unequal.len(), all.len(), "{all:?}");
        assert!(IdempotentIdGenerator::new(Some(&a), "k").id(Some(3)).unwrap().as_str().ends_with(".3"));
    }

    #[test]
    fn made_ids_are_uuids_in_the_order_in_which_they_were_made() {
        let ids: Vec<String> = (0..3)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(2));
                made_id().unwrap().to_string()
            })
            .collect();
        assert!(ids.is_sorted(), "{ids:?}");
        for id in &ids {
            assert_eq!((id.len(), id.as_bytes()[14]), (36, b'7'), "{id}");
            assert!(matches!(id.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{id}");
        }
    }
}
