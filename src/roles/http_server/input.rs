//! What a body or a query says: its fields, each taken apart by itself, so that a problem can name it.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::cursor;
use super::problem::Problem;
use crate::job::{Body, Due, JobId, JobKey, LATEST_MS, NewJob, OnConflict, Priority, State, TopicName};
use crate::topic::{Status, Topic};

/// The most jobs that one batch may hold.
pub(super) const BATCH_MAX: usize = 10_000;

/// How many jobs a listing shows, if it does not say; and at most.
const LIMITS: [usize; 2] = [50, 1000];

/// The fields of a new job.
const JOB: &[&str] = &["id", "body", "delay", "run_at", "priority", "on_conflict", "max_attempts"];

/// The fields of an object, as they were sent.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

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
                        return Err(de::Error::custom(format!("{name:?} stands in it twice")));
                    }
                    // Whoever sends thousands of fields is told of the first that is unknown.
                    if fields.len() <= JOB.len() {
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
    fn of(json: &'a [u8], known: &[&str]) -> Result<Fields<'a>, Problem> {
        let fields: Fields<'a> = serde_json::from_slice(json).map_err(Problem::bad_json)?;
        match fields.0.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            Some((name, _)) => Err(Problem::unknown_field(&short(name), known)),
            None => Ok(fields),
        }
    }

    /// A field as it was sent; a null is a value.
    fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| *value)
    }

    /// A field; a null is one that is not there.
    fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.raw(name).filter(|value| value.get() != "null")
    }

    /// A field of one of some kinds; where it is not there, what stands for it.
    fn plain<T: Default + Deserialize<'a>>(&self, name: &str, wanted: &str) -> Result<T, Problem> {
        let parse = |raw: &'a RawValue| serde_json::from_str(raw.get()).map_err(|_| wrong(name, raw, wanted));
        self.get(name).map_or_else(|| Ok(T::default()), parse)
    }

    /// When a job is due.
    fn due(&self) -> Result<Option<Due>, Problem> {
        match (self.get("delay"), self.get("run_at")) {
            (None, None) => Ok(None),
            (Some(raw), None) => {
                let wanted = "a duration such as \"90s\" or \"1h30m\", or a number of seconds";
                span(raw).map(|span| Some(Due::In(span))).ok_or_else(|| wrong("delay", raw, wanted))
            }
            (None, Some(raw)) => {
                let wanted = "a moment such as \"2026-12-01T23:50:50+08:00\", or Unix milliseconds";
                moment(raw).map(|at| Some(Due::At(at))).ok_or_else(|| wrong("run_at", raw, wanted))
            }
            (Some(_), Some(_)) => {
                Err(Problem::field("run_at", "delay and run_at both say when: give one of them"))
            }
        }
    }
}

fn wrong(field: &str, raw: &RawValue, wanted: &str) -> Problem {
    Problem::field(field, format!("{field} is {}, and not {wanted}", short(raw.get())))
}

/// As much of a text as a message should repeat.
fn short(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(80) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

fn span(raw: &RawValue) -> Option<Duration> {
    let text = raw.get();
    let span = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) if text.starts_with('"') => {
            humantime::parse_duration(&serde_json::from_str::<String>(text).ok()?).ok()?
        }
        Err(_) => Duration::try_from_secs_f64(text.parse().ok()?).ok()?,
    };
    (span <= Duration::from_millis(LATEST_MS as u64)).then_some(span)
}

fn moment(raw: &RawValue) -> Option<i64> {
    let text = raw.get();
    let at = match text.parse() {
        Ok(at) => at,
        Err(_) => {
            let at: jiff::Timestamp = serde_json::from_str::<String>(text).ok()?.parse().ok()?;
            // Part of a millisecond later rather than earlier.
            i64::try_from((at.as_nanosecond() + 999_999).div_euclid(1_000_000)).ok()?
        }
    };
    (0..=LATEST_MS).contains(&at).then_some(at)
}

/// An id for a job that was given none: a UUID of version 7, so that such jobs lie in the order in which they came.
fn made_id() -> Result<JobId, Problem> {
    let failed = |e: &dyn fmt::Display| Problem::unavailable("no_random", format!("cannot make an id: {e}"));
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|e| failed(&e))?;
    let ms = jiff::Timestamp::now().as_millisecond() as u128;
    let bits = (ms << 80) | (u128::from_be_bytes(random) >> 48);
    let bits = (bits & !(0xf << 76)) | (7 << 76);
    let bits = (bits & !(0b11 << 62)) | (0b10 << 62);
    let hex = format!("{bits:032x}");
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    JobId::new(parts.join("-")).map_err(|e| failed(&e))
}

/// A new job of a topic that takes some.
pub(super) fn job(json: &[u8], topic: &Topic) -> Result<NewJob, Problem> {
    let fields = Fields::of(json, JOB)?;
    let id = match fields.get("id") {
        None => made_id()?,
        Some(raw) => {
            let id: String = serde_json::from_str(raw.get()).map_err(|_| wrong("id", raw, "a string"))?;
            JobId::new(id).map_err(|e| Problem::invalid("id", &e))?
        }
    };
    let body = fields.raw("body").ok_or_else(|| Problem::missing("body", "any JSON value, null as well"))?;
    let max_attempts: Option<u32> = fields.plain("max_attempts", "a whole number from 1 to 1000")?;
    if let (Some(n), Some(raw)) = (max_attempts, fields.get("max_attempts"))
        && !(1..=1000).contains(&n)
    {
        return Err(wrong("max_attempts", raw, "a whole number from 1 to 1000"));
    }
    Ok(NewJob {
        key: JobKey { topic: topic.name.clone(), id },
        body: Body::from(body),
        due: fields.due()?.unwrap_or(Due::In(topic.delay)),
        priority: fields.plain::<Priority>("priority", "\"high\", \"normal\" or \"low\"")?,
        on_conflict: fields.plain::<OnConflict>("on_conflict", "\"replace\", \"reject\" or \"keep\"")?,
        max_attempts,
        attempts: 0,
    })
}

/// Whether a topic takes new jobs.
pub(super) fn takes_jobs(topic: &Topic) -> Result<(), Problem> {
    match topic.status {
        Status::Online => Ok(()),
        Status::Offline => {
            Err(Problem::conflict("topic_offline", format!("topic {} is offline", topic.name)))
        }
    }
}

/// The jobs of a batch, each by itself.
pub(super) fn batch(json: &[u8], topic: &Topic) -> Result<Vec<Result<NewJob, Problem>>, Problem> {
    let fields = Fields::of(json, &["jobs"])?;
    let raw = fields.get("jobs").ok_or_else(|| Problem::missing("jobs", "a list of jobs"))?;
    let jobs: Vec<&RawValue> =
        serde_json::from_str(raw.get()).map_err(|_| wrong("jobs", raw, "a list of jobs"))?;
    if jobs.len() > BATCH_MAX {
        let problem = format!("jobs holds {} of them, which is more than {BATCH_MAX}", jobs.len());
        return Err(Problem::field("jobs", problem));
    }
    Ok(jobs.iter().map(|raw| job(raw.get().as_bytes(), topic)).collect())
}

/// The due time that a job is given.
pub(super) fn new_due(json: &[u8]) -> Result<Due, Problem> {
    let fields = Fields::of(json, &["delay", "run_at"])?;
    fields.due()?.ok_or_else(|| Problem::missing("delay", "give it, or run_at"))
}

/// Which jobs a listing shows.
pub(super) struct Listing {
    pub state: State,
    pub cursor: Option<String>,
    pub limit: usize,
}

/// Which jobs a listing shows, as the query says it.
pub(super) fn listing(query: &str) -> Result<Listing, Problem> {
    const STATES: &str = "delayed, ready, leased or dead";
    let (mut state, mut cursor, mut limit) = (None, None, LIMITS[0]);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let wrong =
            |wanted: &str| Problem::field(&name, format!("{name} is {:?}, and not {wanted}", short(&value)));
        match name.as_ref() {
            "state" => {
                let named = State::ALL.into_iter().find(|s| s.to_string() == value);
                state = Some(named.ok_or_else(|| wrong(STATES))?);
            }
            "cursor" => {
                cursor = Some(cursor::read(&value).ok_or_else(|| wrong("what another page gave in next"))?);
            }
            "limit" => {
                let number = value.parse().ok().filter(|n| (1..=LIMITS[1]).contains(n));
                limit = number.ok_or_else(|| wrong(&format!("a whole number from 1 to {}", LIMITS[1])))?;
            }
            other => return Err(Problem::unknown_field(&short(other), &["state", "limit", "cursor"])),
        }
    }
    let state = state.ok_or_else(|| Problem::missing("state", STATES))?;
    Ok(Listing { state, cursor, limit })
}

/// A topic's name, as a path has it.
pub(super) fn topic(name: &str) -> Result<TopicName, Problem> {
    TopicName::new(name).map_err(|e| Problem::invalid("topic", &e))
}

/// A job's id, as a path has it.
pub(super) fn id(id: String) -> Result<JobId, Problem> {
    JobId::new(id).map_err(|e| Problem::invalid("id", &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).unwrap()
    }

    #[test]
    fn a_delay_is_a_duration_or_seconds_and_a_moment_is_rounded_up() {
        for (text, ms) in
            [("90", 90_000), ("1.5", 1500), ("\"90s\"", 90_000), ("\"1h30m\"", 5_400_000), ("0", 0)]
        {
            assert_eq!(span(&raw(text)), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["-1", "\"90\"", "\"\"", "true", "[]", "1e300", "\"-1s\"", "99999999999999"] {
            assert_eq!(span(&raw(text)), None, "{text}");
        }
        for (text, ms) in
            [("0", 0), ("\"1970-01-01T00:00:01.0001Z\"", 1001), ("\"1970-01-01T08:00:00+08:00\"", 0)]
        {
            assert_eq!(moment(&raw(text)), Some(ms), "{text}");
        }
        for text in
            ["-1", "1.5", "\"1\"", "\"2026-12-01\"", "null", "\"1969-12-31T00:00:00Z\"", "253402300800000"]
        {
            assert_eq!(moment(&raw(text)), None, "{text}");
        }
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
