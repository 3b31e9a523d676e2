//! The route that checks a topic before it is registered: what is wrong with its fields, and when the attempts of a job
//! would be made. The route changes nothing and calls no receiver.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::problem::Problem;
use super::schema;
use super::topic_fields::TopicFields;
use model::guard::GuardRules;
use model::job::TopicName;
use model::strict_json::UniqueFields;
use model::topic::Topic;

/// The maximum number of problems that a check finds in the fields. (A few problems of the whole topic may be added.) A
/// limit is needed, because each unknown field is a problem.
const PROBLEMS_MAX: usize = 32;

/// How many attempts the timetable shows. The last attempt is shown in any case.
const TOLD: u32 = 50;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(check_topic))
}

/// A field with a wrong value.
#[derive(Serialize, ToSchema)]
struct WrongField {
    /// The name of the field. Null if the problem is about the topic as a whole.
    #[schema(required = true)]
    field: Option<String>,
    detail: String,
}

/// The earliest time of an attempt, if all attempts before it fail at once.
#[derive(Serialize, ToSchema)]
struct PlannedAttempt {
    attempt: u32,
    /// The time after the first attempt.
    after_ms: u64,
}

/// The result of the check.
#[derive(Serialize, ToSchema)]
#[schema(as = CheckedTopic)]
struct TopicCheckResponse {
    /// The problems, at most about 32. Empty if the topic can be registered.
    problems: Vec<WrongField>,
    /// The first 50 attempts and the last one.
    timetable: Vec<PlannedAttempt>,
    /// How long after the first attempt a job becomes a dead letter. Null if this is not known because of a problem.
    #[schema(required = true)]
    gives_up_after_ms: Option<u64>,
}

/// Returns the topic that a body describes, if the topic has no problem.
fn topic(json: &[u8]) -> Result<Topic, Problem> {
    let parts = TopicFields::read(json)?;
    parts.new_topic(parts.name(None)?)
}

fn wrong(problem: Problem) -> WrongField {
    WrongField { field: problem.named_field().map(str::to_owned), detail: problem.detail }
}

/// The fields of a topic, as they were sent.
type GivenFields<'a> = BTreeMap<String, &'a RawValue>;

/// Returns the fields that decide whether a value of `field` has an effect.
fn deciding_fields(field: &str) -> &'static [&'static str] {
    match field {
        "retry_base" | "retry_cap" => &["retry"],
        "method" => &["payload"],
        _ => &[],
    }
}

/// Returns all problems of a topic. Each field is checked separately, so that one problem does not hide another.
fn problems(given: &GivenFields<'_>, json: &[u8]) -> (Vec<WrongField>, Option<Topic>) {
    let stand_in = |text| serde_json::from_str::<&RawValue>(text).expect("a JSON text");
    let alone = |(field, value): (&String, &&RawValue)| {
        let mut one: BTreeMap<&str, &RawValue> = BTreeMap::from([
            ("name", stand_in("\"topic\"")),
            ("callback", stand_in("\"http://localhost/\"")),
        ]);
        let others = deciding_fields(field).iter().filter_map(|name| Some((*name, *given.get(*name)?)));
        one.extend(others.chain([(field.as_str(), *value)]));
        let problem = topic(&serde_json::to_vec(&one).expect("an object of JSON values")).err()?;
        (problem.named_field() == Some(field)).then(|| wrong(problem))
    };
    let mut problems: Vec<WrongField> = given.iter().filter_map(alone).take(PROBLEMS_MAX).collect();
    match topic(json) {
        Ok(topic) => (problems, Some(topic)),
        Err(problem) => {
            let one = wrong(problem);
            let is_new = problems.iter().all(|known| known.field != one.field);
            if is_new && problems.len() < PROBLEMS_MAX {
                problems.push(one);
            }
            (problems, None)
        }
    }
}

/// Returns when the attempts of a job are made if all attempts fail, and when the job becomes a dead letter.
fn timetable(topic: &Topic) -> (Vec<PlannedAttempt>, u64) {
    let (mut after_ms, mut attempts) = (0_u64, Vec::new());
    for attempt in 1..=topic.max_attempts {
        if attempt > 1 {
            let delay = topic.delay_after(attempt - 1, 0.0);
            after_ms = after_ms.saturating_add(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        }
        if attempt <= TOLD || attempt == topic.max_attempts {
            attempts.push(PlannedAttempt { attempt, after_ms });
        }
    }
    (attempts, after_ms)
}

/// Checks a topic as if it were registered, and shows when the attempts of its jobs would be made.
#[utoipa::path(post, path = "/v1/check/topic", tag = "topics", operation_id = "check_topic",
    request_body = schema::TopicRequestSchema,
    responses((status = 200, body = TopicCheckResponse, description = "The problems of the topic, and the timetable of its attempts"), schema::ChangeErrorResponses))]
async fn check_topic(State(api): State<Api>, JsonBody(json): JsonBody) -> Result<ApiResponse, Problem> {
    let UniqueFields(given) = serde_json::from_slice(&json).map_err(Problem::bad_json)?;
    let (mut problems, topic) = problems(&given, &json);
    let is_of_file = |name: &TopicName| api.settings.topics.iter().any(|topic| topic.name == *name);
    if let Some(topic) = topic.as_ref().filter(|topic| is_of_file(&topic.name)) {
        let detail = format!("topic {} is as the configuration file has it: change it there", topic.name);
        problems.push(WrongField { field: Some("name".to_owned()), detail });
    }
    if let Some(Err(problem)) = topic.clone().map(|topic| api.can_give(topic)) {
        problems.push(wrong(problem));
    }
    // A host name is not looked up here, because the console calls this route while somebody types.
    let rules = GuardRules::new(&api.settings.callback);
    if let Some(why) = topic.as_ref().and_then(|topic| rules.denies_literal(&topic.callback)) {
        problems.push(WrongField { field: Some("callback".to_owned()), detail: format!("callback: {why}") });
    }
    let (timetable, gives_up) = topic.as_ref().map(timetable).unzip();
    let checked = TopicCheckResponse {
        problems,
        timetable: timetable.unwrap_or_default(),
        gives_up_after_ms: gives_up,
    };
    Ok(ApiResponse::new(StatusCode::OK, &checked))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(json: Value) -> (Vec<String>, Option<Topic>) {
        let text = json.to_string();
        let UniqueFields(given) = serde_json::from_str(&text).unwrap();
        let (problems, topic) = problems(&given, text.as_bytes());
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
        assert_eq!(of(json!({"name": "a"})).0, ["callback"]);
    }

    #[test]
    fn a_check_ends_after_32_problems() {
        let many: serde_json::Map<String, Value> = (0..1000).map(|n| (format!("x{n}"), json!(1))).collect();
        assert_eq!(of(Value::Object(many)).0.len(), PROBLEMS_MAX);
    }

    #[test]
    fn a_field_is_judged_with_those_that_it_depends_on() {
        let topic = |more: Value| {
            let mut topic = json!({"name": "a", "callback": "http://h/"});
            topic.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(topic).0
        };
        assert_eq!(topic(json!({"retry": "exponential", "retry_cap": "2h", "retry_base": "1s"})), [""; 0]);
        assert_eq!(topic(json!({"method": "GET", "payload": "form"})), [""; 0]);
        assert_eq!(topic(json!({"retry": ["1s"], "retry_cap": "2h"})), ["retry_cap"]);
        assert_eq!(topic(json!({"retry": "often", "retry_cap": "2h"})), ["retry"]);
    }

    #[test]
    fn the_default_timetable_matches_php_and_ends_after_81_minutes() {
        let (_, topic) = of(json!({"name": "a", "callback": "http://h/"}));
        let (attempts, gives_up_ms) = timetable(&topic.unwrap());
        let minutes: Vec<u64> = attempts.iter().map(|at| at.after_ms / 60_000).collect();
        assert_eq!(minutes, [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]);
        assert_eq!(gives_up_ms, 81 * 60_000);
        let (_, topic) = of(json!({"name": "a", "callback": "http://h/", "max_attempts": 1000}));
        assert_eq!(timetable(&topic.unwrap()).0.len(), 51);
    }
}
