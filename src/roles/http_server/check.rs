//! The route that checks a topic before it is registered: what is wrong with each of its fields, and when a job of it would be tried.
//! Nothing is changed, and nobody is called.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, Sent};
use super::problem::Problem;
use super::schema;
use super::told::Told;
use super::topic_fields::Parts;
use super::topic_shown::Given;
use crate::job::TopicName;
use crate::topic::Topic;

/// So many attempts are told; the last one is told as well.
const TOLD: u32 = 50;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(check_topic))
}

/// A field that is not what it should be.
#[derive(Serialize, ToSchema)]
struct WrongField {
    /// Null: it is the topic as a whole.
    #[schema(required = true)]
    field: Option<String>,
    detail: String,
}

/// When an attempt comes at the earliest, if all before it fail at once.
#[derive(Serialize, ToSchema)]
struct AttemptAt {
    attempt: u32,
    /// After the first.
    after_ms: u64,
}

/// What a topic would be.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckedTopic)]
struct Checked {
    /// What is wrong; empty: it can be registered.
    problems: Vec<WrongField>,
    /// Up to 50 attempts, and the last.
    timetable: Vec<AttemptAt>,
    /// When a job becomes a dead letter, after the first attempt; null: what is wrong leaves that open.
    #[schema(required = true)]
    gives_up_after_ms: Option<u64>,
}

/// The topic that a body gives, if nothing is wrong with it.
fn topic(json: &[u8]) -> Result<Topic, Problem> {
    let parts = Parts::of(json)?;
    parts.topic(Topic::new(parts.name(None)?, ""))
}

fn wrong(problem: Problem) -> WrongField {
    WrongField { field: problem.named_field().map(str::to_owned), detail: problem.detail }
}

/// What is wrong with a topic, field by field: one that is wrong hides no other.
fn problems(given: &Map<String, Value>, json: &[u8]) -> (Vec<WrongField>, Option<Topic>) {
    let alone = |(field, value): (&String, &Value)| {
        let mut one = Map::from_iter([
            ("name".to_owned(), json!("topic")),
            ("callback".to_owned(), json!("http://localhost/")),
        ]);
        one.insert(field.clone(), value.clone());
        let problem = topic(Value::Object(one).to_string().as_bytes()).err()?;
        (problem.named_field() == Some(field)).then(|| wrong(problem))
    };
    let mut problems: Vec<WrongField> = given.iter().filter_map(alone).collect();
    match topic(json) {
        Ok(topic) => (problems, Some(topic)),
        Err(problem) => {
            let one = wrong(problem);
            if problems.iter().all(|known| known.field != one.field) {
                problems.push(one);
            }
            (problems, None)
        }
    }
}

/// When the attempts of a topic's job come that all fail, and when it is given up.
fn timetable(topic: &Topic) -> (Vec<AttemptAt>, u64) {
    let (mut after_ms, mut told) = (0_u64, Vec::new());
    for attempt in 1..=topic.max_attempts {
        if attempt > 1 {
            let delay = topic.retry.delay_after(attempt - 1, 0.0);
            after_ms = after_ms.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        }
        if attempt <= TOLD || attempt == topic.max_attempts {
            told.push(AttemptAt { attempt, after_ms });
        }
    }
    (told, after_ms)
}

/// Checks a topic as it would be registered, and tells when its jobs would be tried.
#[utoipa::path(post, path = "/v1/check/topic", tag = "topics", operation_id = "check_topic",
    request_body = Given,
    responses((status = 200, body = Checked, description = "What is wrong with it, and its timetable"), schema::ChangeProblems))]
async fn check_topic(State(api): State<Api>, Sent(json): Sent) -> Result<Told, Problem> {
    let given: Map<String, Value> = serde_json::from_slice(&json).map_err(Problem::bad_json)?;
    let (mut problems, topic) = problems(&given, &json);
    let is_of_file = |name: &TopicName| api.settings.topics.iter().any(|topic| topic.name == *name);
    if let Some(topic) = topic.as_ref().filter(|topic| is_of_file(&topic.name)) {
        let detail = format!("topic {} is as the configuration file has it: change it there", topic.name);
        problems.push(WrongField { field: Some("name".to_owned()), detail });
    }
    let (timetable, gives_up) = topic.as_ref().map(timetable).unzip();
    let checked = Checked { problems, timetable: timetable.unwrap_or_default(), gives_up_after_ms: gives_up };
    Ok(Told::new(StatusCode::OK, &checked))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: Value) -> (Vec<String>, Option<Topic>) {
        let text = json.to_string();
        let (problems, topic) = problems(json.as_object().unwrap(), text.as_bytes());
        (problems.into_iter().map(|p| p.field.unwrap_or_default()).collect(), topic)
    }

    #[test]
    fn each_field_that_is_wrong_is_told() {
        let (wrong, topic) =
            of(json!({"name": "a b", "callback": "ftp://h", "delay": "soon", "title": "ok", "rate": "9/x"}));
        assert_eq!((wrong, topic), (["callback", "delay", "name", "rate"].map(str::to_owned).to_vec(), None));
        let (wrong, _) = of(json!({"callback": "http://h/"}));
        assert_eq!(wrong, ["name"]);
        let (wrong, topic) = of(json!({"name": "a", "callback": "http://h/"}));
        assert!(wrong.is_empty() && topic.is_some());
        let (wrong, _) = of(json!({"name": "a", "callback": "http://h/", "method": "GET"}));
        assert_eq!(wrong.len(), 1, "fields that do not go together: {wrong:?}");
        assert_eq!(of(json!({"name": "a", "callback": "http://h/", "colour": 1})).0, ["colour"]);
    }

    #[test]
    fn the_default_timetable_is_that_of_the_php_daemon_and_gives_up_after_81_minutes() {
        let (_, topic) = of(json!({"name": "a", "callback": "http://h/"}));
        let (told, gives_up_ms) = timetable(&topic.unwrap());
        let minutes: Vec<u64> = told.iter().map(|at| at.after_ms / 60_000).collect();
        assert_eq!(minutes, [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]);
        assert_eq!(gives_up_ms, 81 * 60_000);
        let (_, topic) = of(json!({"name": "a", "callback": "http://h/", "max_attempts": 1000}));
        assert_eq!(timetable(&topic.unwrap()).0.len(), 51);
    }
}
