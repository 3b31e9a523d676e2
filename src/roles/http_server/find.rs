//! The route that finds an id in all topics.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, CallerContext};
use super::api_response::ApiResponse;
use super::cursor;
use super::input;
use super::job_shown::JobResponse;
use super::problem::Problem;
use super::record_shown::{RecordResponse, described};
use super::schema;
use super::store_client::AnswerSender;
use model::job::TopicName;
use role::submit::{FoundIds, StoreRequest};

/// How many topics one request may ask.
const TOPICS: usize = 1_000;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(find))
}

/// Which id is looked for.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
struct IdQuery {
    /// The whole id.
    #[param(min_length = 1, max_length = 256, example = "42")]
    id: String,
    /// The value of `next` in the answer before.
    #[param(required = false)]
    cursor: String,
}

/// The job and the records that one topic has for an id.
#[derive(Serialize, ToSchema)]
struct FoundInTopic<'a> {
    #[schema(value_type = String)]
    topic: &'a TopicName,
    /// The job, or its latest dead letter if there is no job. Null: there is no job and no dead letter.
    #[schema(required = true)]
    job: Option<JobResponse<'a>>,
    /// The records of jobs that ended, the latest first.
    records: Vec<RecordResponse<'a>>,
}

/// The jobs and records that the topics have for an id.
#[derive(Serialize, ToSchema)]
struct FoundEverywhere<'a> {
    /// The topics that have a job or a record with this id, in the order of their names.
    found: Vec<FoundInTopic<'a>>,
    /// How many topics were asked.
    looked_at: usize,
    /// The value of `cursor` to ask the remaining topics. Null: all topics were asked.
    #[schema(required = true)]
    next: Option<String>,
    /// The topics that could not be asked, because the node where they would store this id does not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    away: Vec<TopicName>,
}

/// Finds an id in all registered topics whose jobs the caller may see: the job (or its latest dead letter, if there is
/// no job), and the records of jobs that ended. Each topic is asked once. A request asks up to 1,000 topics.
#[utoipa::path(get, path = "/v1/find", tag = "jobs", operation_id = "find_id", params(IdQuery),
    responses((status = 200, body = FoundEverywhere, description = "What the topics have of the id"), schema::LookupErrorResponses))]
async fn find(
    State(api): State<Api>,
    requester: CallerContext,
    RawQuery(query): RawQuery,
) -> Result<ApiResponse, Problem> {
    let (mut id, mut first) = (None, None);
    for (name, value) in input::parameters(query.as_deref().unwrap_or_default(), &["id", "cursor"])? {
        match &*name {
            "id" => id = Some(input::id(value.into_owned())?),
            _ => {
                let topic = cursor::read(&value).and_then(|topic| TopicName::new(&topic).ok());
                let wrong = || Problem::field("cursor", "cursor is not the next of another answer");
                first = Some(topic.ok_or_else(wrong)?);
            }
        }
    }
    let id = id.ok_or_else(|| Problem::missing("id", "the whole id of a job"))?;
    let mut topics = api.searched_topics(&requester);
    topics.retain(|topic| first.as_ref().is_none_or(|first| topic.name >= *first));
    let names: Vec<TopicName> = topics.iter().map(|topic| topic.name.clone()).collect();
    topics.truncate(TOPICS);
    let respond = move |all: store::Result<FoundIds>| {
        let FoundIds { found, looked_at, away } = all?;
        let shown = found.iter().map(|one| FoundInTopic {
            topic: &one.topic.name,
            job: one.job.as_ref().map(|view| JobResponse::new(view, one.topic.sees_answers)),
            records: described(&one.records),
        });
        let next = names.get(looked_at).map(|topic| cursor::write(topic.as_str()));
        let answer = FoundEverywhere { found: shown.collect(), looked_at, next, away };
        Ok(ApiResponse::new(StatusCode::OK, &answer))
    };
    let ask = |reply: AnswerSender<_>| {
        StoreRequest::find_id(topics, id, move |found| reply.response(respond(found)))
    };
    api.store_client.read(requester.holder, ask).await?
}
