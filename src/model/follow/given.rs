//! Reads the field `then` of a client's request. An error names the field that is wrong, such as `then[1].topic`. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::value::RawValue;

use super::{StoredFollower, Then};
use crate::destination::Destination;
use crate::headers::Headers;
use crate::job::{JobId, TopicName};
use crate::json_time;
use crate::tags::Tags;
use crate::topic::LEASES;

/// How many jobs may follow a job directly.
pub const LIST_MAX: usize = 8;

/// How many jobs may follow a job in all, including the followers of its followers.
pub const TREE_MAX: usize = 32;

/// How many jobs a chain may have after its first job.
pub const DEPTH_MAX: usize = 8;

/// How many bytes the JSON of all jobs that follow a job may have.
pub const TEXT_MAX: usize = 32 << 10;

/// A mistake in `then`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidThen {
    /// The field, such as `then[1].topic`.
    pub field: String,
    /// What is wrong, and what would be accepted.
    pub problem: String,
}

/// The fields of a job that follows.
const FIELDS: [&str; 11] =
    ["topic", "id", "body", "delay", "delay_ms", "ttr", "ttr_ms", "headers", "tags", "path", "then"];

type FollowerFields<'a> = BTreeMap<String, &'a RawValue>;

impl Then {
    /// Reads one job or a list of jobs, as a client sends them.
    pub fn parse(json: &str) -> Result<Then, InvalidThen> {
        if json.len() > TEXT_MAX {
            let problem = format!("it has {} bytes, which is more than {TEXT_MAX}", json.len());
            return Err(InvalidThen { field: "then".into(), problem });
        }
        let mut left = TREE_MAX;
        Ok(Then::new(&list(json, "then", DEPTH_MAX, &mut left)?))
    }
}

/// Reads one job or a list. `depth`: how many jobs a chain may still have. `left`: how many more jobs `then` may have
/// in all.
fn list<'a>(
    json: &'a str,
    path: &str,
    depth: usize,
    left: &mut usize,
) -> Result<Vec<StoredFollower<'a>>, InvalidThen> {
    let wrong = |problem: String| InvalidThen { field: path.to_owned(), problem };
    if depth == 0 {
        return Err(wrong(format!("a chain has at most {DEPTH_MAX} jobs after its first one")));
    }
    let is_list = json.trim_start().starts_with('[');
    let all: Vec<&RawValue> = if is_list {
        serde_json::from_str(json).map_err(|e| wrong(format!("it is not a list of jobs: {e}")))?
    } else {
        vec![serde_json::from_str(json).map_err(|e| wrong(format!("it is not JSON: {e}")))?]
    };
    if all.len() > LIST_MAX {
        return Err(wrong(format!("it has {} jobs, which is more than {LIST_MAX}", all.len())));
    }
    if all.len() > *left {
        return Err(wrong(format!("more than {TREE_MAX} jobs follow in all")));
    }
    *left -= all.len();
    let one = |(n, raw): (usize, &'a RawValue)| {
        let path = if is_list { format!("{path}[{n}]") } else { path.to_owned() };
        follower(raw, &path, depth, left)
    };
    all.into_iter().enumerate().map(one).collect()
}

fn follower<'a>(
    raw: &'a RawValue,
    path: &str,
    depth: usize,
    left: &mut usize,
) -> Result<StoredFollower<'a>, InvalidThen> {
    let given: FollowerFields<'a> = serde_json::from_str(raw.get()).map_err(|_| InvalidThen {
        field: path.to_owned(),
        problem: "it is not a job, such as {\"topic\": \"invoices\", \"body\": 1}".into(),
    })?;
    let wrong = |field: &str, problem: String| InvalidThen { field: format!("{path}.{field}"), problem };
    if let Some(name) = given.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        let name: String = name.chars().take(80).collect();
        return Err(wrong(
            &name,
            format!("there is no such field; a job that follows has {}", FIELDS.join(", ")),
        ));
    }
    // A field that is null counts as missing. The exception is the body, because null is a valid body.
    let get = |field: &str| given.get(field).copied().filter(|raw| raw.get() != "null" || field == "body");
    let needed = |field: &str| get(field).ok_or_else(|| wrong(field, "it is missing".into()));
    let text = |field: &str, raw: &RawValue| {
        serde_json::from_str::<String>(raw.get()).map_err(|_| wrong(field, "it is not a text".into()))
    };
    let topic = text("topic", needed("topic")?)?;
    let topic = TopicName::new(&topic).map_err(|e| wrong("topic", e.to_string()))?;
    let id = match get("id") {
        None => None,
        // A number counts as its text, as in an add.
        Some(raw) if raw.get().starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
            Some(raw.get().to_owned())
        }
        Some(raw) => Some(text("id", raw)?),
    };
    if let Some(id) = &id {
        JobId::new(id.as_str()).map_err(|e| wrong("id", e.to_string()))?;
    }
    // Reads a span from `field`, or a number of milliseconds from `field_ms`.
    let span_ms = |field: &str, field_ms: &str| match (get(field), get(field_ms)) {
        (None, None) => Ok(None),
        (Some(raw), None) => {
            let span = json_time::duration(raw);
            let span = span.ok_or_else(|| wrong(field, format!("it is not {}", json_time::DURATION)))?;
            Ok(Some(u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)))
        }
        (None, Some(raw)) => {
            let ms = json_time::whole(raw.get()).and_then(|ms| u64::try_from(ms).ok());
            ms.map(Some).ok_or_else(|| wrong(field_ms, "it is not a whole number of milliseconds".into()))
        }
        (Some(_), Some(_)) => {
            Err(wrong(field_ms, format!("{field} and {field_ms} exclude each other: give one of them")))
        }
    };
    let (delay_ms, ttr_ms) = (span_ms("delay", "delay_ms")?, span_ms("ttr", "ttr_ms")?);
    if ttr_ms.is_some_and(|ms| !(LEASES.0..=LEASES.1).contains(&Duration::from_millis(ms))) {
        return Err(wrong("ttr", "it is not within 100ms to 1day".into()));
    }
    let headers = match get("headers") {
        // PHP writes an empty array for an object without members.
        Some(raw) if raw.get() != "[]" => {
            Headers::parse(raw.get()).map_err(|e| wrong("headers", e.to_string()))?.by_name().clone()
        }
        _ => BTreeMap::new(),
    };
    let tags = match get("tags") {
        None => Vec::new(),
        Some(raw) => {
            let list: Vec<String> = serde_json::from_str(raw.get())
                .map_err(|_| wrong("tags", "it is not a list of texts, such as [\"shop:7\"]".into()))?;
            let tags = Tags::new(list).map_err(|e| wrong("tags", e.to_string()))?;
            tags.iter().map(|tag| tag.as_str().to_owned()).collect()
        }
    };
    let path_of_job = match get("path") {
        None => None,
        Some(raw) => {
            let path = text("path", raw)?;
            Destination::from_path(&path).map_err(|e| wrong("path", e.to_string()))?;
            Some(path)
        }
    };
    let then = match get("then") {
        None => Vec::new(),
        Some(raw) => list(raw.get(), &format!("{path}.then"), depth - 1, left)?,
    };
    Ok(StoredFollower {
        topic,
        id,
        delay_ms,
        topic_delay_ms: None,
        ttr_ms,
        path: path_of_job,
        tags,
        headers,
        body: needed("body")?,
        then,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_named_by_its_field() {
        let deep = (0..9).fold("1".to_owned(), |inner, n| match n {
            0 => r#"{"topic":"t","body":1}"#.to_owned(),
            _ => format!(r#"{{"topic":"t","body":1,"then":{inner}}}"#),
        });
        let many = format!("[{}]", [r#"{"topic":"t","body":1}"#; 9].join(","));
        let eight = [r#"{"topic":"t","body":1}"#; 8].join(",");
        let wide = vec![format!(r#"{{"topic":"t","body":1,"then":[{eight}]}}"#); 4].join(",");
        let long = format!(r#"{{"topic":"t","body":"{}"}}"#, "x".repeat(TEXT_MAX));
        for (json, field, word) in [
            ("7", "then", "not a job"),
            ("[", "then", "not a list"),
            (r#"{"body": 1}"#, "then.topic", "missing"),
            (r#"{"topic": "a"}"#, "then.body", "missing"),
            (r#"[{"topic": "a", "body": 1}, {"topic": "a b", "body": 1}]"#, "then[1].topic", "a b"),
            (r#"{"topic": "a", "body": 1, "delya": 1}"#, "then.delya", "no such field"),
            (r#"{"topic": "a", "body": 1, "id": ""}"#, "then.id", "256"),
            (r#"{"topic": "a", "body": 1, "delay": "soon"}"#, "then.delay", "not"),
            (r#"{"topic": "a", "body": 1, "delay": 1, "delay_ms": 1}"#, "then.delay_ms", "exclude"),
            (r#"{"topic": "a", "body": 1, "ttr": "25h"}"#, "then.ttr", "1day"),
            (r#"{"topic": "a", "body": 1, "headers": {"host": "x"}}"#, "then.headers", "host"),
            (r#"{"topic": "a", "body": 1, "tags": ["a b"]}"#, "then.tags", "white space"),
            (r#"{"topic": "a", "body": 1, "path": "x"}"#, "then.path", "x"),
            (r#"{"topic": "a", "body": 1, "then": [{"topic": 7, "body": 1}]}"#, "then.then[0].topic", "text"),
            (&deep, "then.then.then.then.then.then.then.then.then", "8"),
            (&many, "then", "more than 8"),
            (&format!("[{wide}]"), "then[3].then", "more than 32"),
            (&long, "then", "bytes"),
        ] {
            let bad = Then::parse(json).expect_err(json);
            assert_eq!(bad.field, field, "{json}: {bad}");
            assert!(bad.problem.contains(word), "{json}: {bad}");
        }
    }

    #[test]
    fn an_empty_list_is_nothing_and_the_bounds_are_reached() {
        assert!(Then::parse("[]").unwrap().is_empty());
        let deep = (0..8).fold(String::new(), |inner, n| match n {
            0 => r#"{"topic":"t","body":1}"#.to_owned(),
            _ => format!(r#"{{"topic":"t","body":1,"then":{inner}}}"#),
        });
        assert!(!Then::parse(&deep).unwrap().is_empty());
    }
}
