//! Reads bodies and queries. Each field is read by itself, so that a problem can name it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::cursor;
use super::problem::Problem;
use model::headers::Headers;
use model::job::{Body, Due, JobId, JobKey, NewJob, OnConflict, Priority, State, TopicName};
use model::json_time;
use model::topic::{Topic, Topics};
use store::{Change, Lanes};

/// The longest Idempotency-Key of a batch, in bytes. The ids of its jobs are `~`, the key, `.` and the place in the
/// batch.
const BATCH_KEY_MAX: usize = 249;

/// The most jobs that one batch may hold.
pub(super) const BATCH_MAX: usize = 10_000;

/// How many jobs a listing shows by default, and at most.
pub(super) const LIMITS: [usize; 2] = [50, 1000];

/// The fields of a new job.
const JOB: &[&str] = &["id", "body", "delay", "run_at", "priority", "on_conflict", "max_attempts", "headers"];

/// The most fields that are kept of an object. No object has so many known fields.
const FIELDS_MAX: usize = 32;

/// The values of `priority`, as messages name them.
const PRIORITY: &str = "\"high\", \"normal\" or \"low\"";

/// The values of `max_attempts`, as messages name them.
const LIMIT: &str = "a whole number from 1 to 1000";

/// The fields of an object, as they were sent.
pub(super) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Fields<'a>, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Vec<(String, &'de RawValue)>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut fields: Self::Value = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if fields.iter().any(|(n, _)| *n == name) {
                        return Err(de::Error::custom(format!("the field {name:?} occurs twice")));
                    }
                    // Further fields are not kept. At least one of those kept is unknown then, so the object is
                    // refused.
                    if fields.len() <= FIELDS_MAX {
                        fields.push((name, value));
                    }
                }
                Ok(fields)
            }
        }
        from.deserialize_map(Visit).map(Fields)
    }
}

impl<'a> Fields<'a> {
    pub(super) fn of(json: &'a [u8], known: &[&str]) -> Result<Fields<'a>, Problem> {
        let fields: Fields<'a> = serde_json::from_slice(json).map_err(Problem::bad_json)?;
        match fields.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(Problem::unknown_field(&short(name), known)),
            None => Ok(fields),
        }
    }

    /// The names of the fields that were sent.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns a field as it was sent. A null is a value.
    pub(super) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    /// Returns a field. A null counts as missing.
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.raw(name).filter(|value| value.get() != "null")
    }

    /// Returns a field of a type, or the type's default if the field is missing. `wanted` names the valid values for
    /// the error.
    pub(super) fn plain<T: Default + Deserialize<'a>>(&self, name: &str, wanted: &str) -> Result<T, Problem> {
        let parse = |raw: &'a RawValue| serde_json::from_str(raw.get()).map_err(|_| wrong(name, raw, wanted));
        self.get(name).map_or_else(|| Ok(T::default()), parse)
    }

    /// Returns when a job is due, from `delay` or `run_at`.
    fn due(&self) -> Result<Option<Due>, Problem> {
        match (self.get("delay"), self.get("run_at")) {
            (None, None) => Ok(None),
            (Some(raw), None) => {
                let wait =
                    json_time::duration(raw).ok_or_else(|| wrong("delay", raw, json_time::DURATION))?;
                Ok(Some(Due::In(wait)))
            }
            (None, Some(raw)) => {
                let at = json_time::moment_ms(raw).ok_or_else(|| wrong("run_at", raw, json_time::MOMENT))?;
                Ok(Some(Due::At(at)))
            }
            (Some(_), Some(_)) => {
                Err(Problem::field("run_at", "delay and run_at exclude each other: give one of them"))
            }
        }
    }

    /// Returns a job's own headers.
    fn headers(&self) -> Result<Headers, Problem> {
        let parse = |raw: &RawValue| Headers::parse(raw.get());
        let headers = self.get("headers").map_or_else(|| Ok(Headers::default()), parse);
        headers.map_err(|e| Problem::field("headers", format!("headers: {e}")))
    }

    /// Returns a job's own limit of attempts.
    fn max_attempts(&self) -> Result<Option<u32>, Problem> {
        let max_attempts: Option<u32> = self.plain("max_attempts", LIMIT)?;
        match (max_attempts, self.get("max_attempts")) {
            (Some(n), Some(raw)) if !(1..=1000).contains(&n) => Err(wrong("max_attempts", raw, LIMIT)),
            _ => Ok(max_attempts),
        }
    }
}

pub(super) fn wrong(field: &str, raw: &RawValue, wanted: &str) -> Problem {
    Problem::field(field, format!("{field} is {}, and not {wanted}", short(raw.get())))
}

/// Cuts a text to the length that a message should repeat.
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

/// How many ids are made, at most, for a job without one, until the home of an id is not down. With half of the nodes
/// down, about one of a million such jobs finds none.
const ID_TRIES: usize = 20;

/// Makes an id for a job without one. Prefers an id whose home is not known to be down.
fn id_that_is_taken(topic: &TopicName, lanes: &Lanes) -> Result<JobId, Problem> {
    for _ in 1..ID_TRIES {
        let key = JobKey { topic: topic.clone(), id: made_id()? };
        if !lanes.is_home_down(&key) {
            return Ok(key.id);
        }
    }
    made_id()
}

/// Makes an id for a job without one: a UUID of version 7, so that such jobs are in the order in which they came.
fn made_id() -> Result<JobId, Problem> {
    JobId::new(Uuid::now_v7().to_string()).map_err(|e| Problem::invalid("id", &e))
}

/// Reads a new job of a topic. A job without an id gets one from `key`, the Idempotency-Key, if there is one: a
/// repeated add then finds its job, and keeps it.
pub(super) fn job(json: &[u8], topic: &Topic, key: Option<&str>, lanes: &Lanes) -> Result<NewJob, Problem> {
    let fields = Fields::of(json, JOB)?;
    let mut if_taken = OnConflict::default();
    let id = match (fields.get("id"), key) {
        (None, Some(key)) => {
            if_taken = OnConflict::Keep;
            // The `~` makes it unlikely that a client's own id is the same.
            id(format!("~{key}"))?
        }
        (None, None) => id_that_is_taken(&topic.name, lanes)?,
        (Some(raw), _) => {
            let id: String = serde_json::from_str(raw.get()).map_err(|_| wrong("id", raw, "a string"))?;
            JobId::new(id).map_err(|e| Problem::invalid("id", &e))?
        }
    };
    let body = fields.raw("body").ok_or_else(|| Problem::missing("body", "any JSON value, null as well"))?;
    let on_conflict: Option<OnConflict> =
        fields.plain("on_conflict", "\"replace\", \"reject\" or \"keep\"")?;
    Ok(NewJob {
        key: JobKey { topic: topic.name.clone(), id },
        body: Body::from(body),
        due: fields.due()?.unwrap_or(Due::In(topic.delay)),
        priority: fields.plain::<Priority>("priority", PRIORITY)?,
        on_conflict: on_conflict.unwrap_or(if_taken),
        max_attempts: fields.max_attempts()?,
        attempts: 0,
        headers: fields.headers()?,
    })
}

/// Refuses an add to a topic that takes no new jobs.
pub(super) fn takes_jobs(topics: &Topics, name: &TopicName) -> Result<(), Problem> {
    match topics.refusal(name.as_str()) {
        None => Ok(()),
        Some(why) => Err(Problem::conflict("topic_offline", why)),
    }
}

/// Checks that a body is empty or an object without fields.
pub(super) fn nothing(json: &[u8]) -> Result<(), Problem> {
    Fields::of(or_empty(json), &[]).map(drop)
}

/// Reads the jobs of a batch, each by itself.
///
/// Jobs without an id get one from the Idempotency-Key: a batch that was stored only in part may be sent again.
pub(super) fn batch(
    json: &[u8],
    topic: &Topic,
    key: Option<&str>,
    lanes: &Lanes,
) -> Result<Vec<Result<NewJob, Problem>>, Problem> {
    if key.is_some_and(|key| key.len() > BATCH_KEY_MAX) {
        let detail = format!(
            "Idempotency-Key is longer than {BATCH_KEY_MAX} bytes: the ids of the batch are made of it"
        );
        return Err(Problem::field("Idempotency-Key", detail));
    }
    let fields = Fields::of(json, &["jobs"])?;
    let raw = fields.get("jobs").ok_or_else(|| Problem::missing("jobs", "a list of jobs"))?;
    let jobs: Vec<&RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| wrong("jobs", raw, "a list of jobs"))?;
    if jobs.len() > BATCH_MAX {
        let problem = format!("jobs holds {} jobs, which is more than {BATCH_MAX}", jobs.len());
        return Err(Problem::field("jobs", problem));
    }
    let one = |(n, raw): (usize, &&RawValue)| {
        let key = key.map(|key| format!("{key}.{n}"));
        job(raw.get().as_bytes(), topic, key.as_deref(), lanes)
    };
    Ok(jobs.iter().enumerate().map(one).collect())
}

/// Reads a change of a job. For `max_attempts`, null means the topic's limit; for `headers`, null means no headers. A
/// body may be any value, also null.
pub(super) fn change(json: &[u8]) -> Result<Change, Problem> {
    let fields = Fields::of(json, &["delay", "run_at", "body", "priority", "max_attempts", "headers"])?;
    let change = Change {
        due: fields.due()?,
        body: fields.raw("body").map(Body::from),
        priority: fields.plain("priority", PRIORITY)?,
        max_attempts: fields.raw("max_attempts").map(|_| fields.max_attempts()).transpose()?,
        headers: fields.raw("headers").map(|_| fields.headers()).transpose()?,
    };
    if change == Change::default() {
        let others = "give it, or run_at, body, priority, max_attempts or headers";
        return Err(Problem::missing("delay", others));
    }
    Ok(change)
}

/// Which jobs a listing shows.
pub(super) struct Listing {
    pub state: State,
    pub cursor: Option<String>,
    pub limit: usize,
}

/// Reads from a query which jobs a listing shows.
pub(super) fn listing(query: &str) -> Result<Listing, Problem> {
    const STATES: &str = "delayed, ready, leased or dead";
    let mut state = None;
    let (cursor, limit) = page_with(query, &["state", "limit", "cursor"], LIMITS, |name, value| {
        let named = State::ALL.into_iter().find(|s| s.to_string() == value);
        let wrong = || Problem::field(name, format!("{name} is {:?}, and not {STATES}", short(value)));
        state = Some(named.ok_or_else(wrong)?);
        Ok(())
    })?;
    let state = state.ok_or_else(|| Problem::missing("state", STATES))?;
    Ok(Listing { state, cursor, limit })
}

/// Reads from a query where a page begins and how long it is. `limits` holds the default length and the longest. Every
/// other known parameter goes to `other`.
pub(super) fn page_with(
    query: &str,
    known: &[&str],
    limits: [usize; 2],
    mut other: impl FnMut(&str, &str) -> Result<(), Problem>,
) -> Result<(Option<String>, usize), Problem> {
    let (mut cursor, mut limit) = (None, limits[0]);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong =
            |wanted: &str| Problem::field(&name, format!("{name} is {:?}, and not {wanted}", short(&value)));
        match name.as_ref() {
            name if !known.contains(&name) => return Err(Problem::unknown_field(&short(name), known)),
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
    if json.is_empty() || json.trim_ascii() == b"null" { b"{}" } else { json }
}

/// Reads the name of a topic from a path.
pub(super) fn topic(name: &str) -> Result<TopicName, Problem> {
    TopicName::new(name).map_err(|e| Problem::invalid("topic", &e))
}

/// Returns the topic that a query names, if it names one. The query may name nothing else.
pub(super) fn only_topic(query: &str) -> Result<Option<TopicName>, Problem> {
    let mut only = None;
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "topic" => only = Some(topic(&value)?),
            _ => return Err(Problem::unknown_field(&short(&name), &["topic"])),
        }
    }
    Ok(only)
}

/// Reads the id of a job from a path.
pub(super) fn id(id: String) -> Result<JobId, Problem> {
    JobId::new(id).map_err(|e| Problem::invalid("id", &e))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

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
