//! The routes that pause and resume a topic. The pause is kept only in the store. After a request to pause a topic is
//! answered, the store gives no lease for a job of this topic.

use std::time::Duration;

use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, TopicInPath};
use super::api_response::ApiResponse;
use super::body::JsonBody;
use super::input;
use super::problem::Problem;
use super::schema;
use super::store_client::AnswerSender;
use super::topic_shown::PausesAndCircuits;
use model::job::TopicName;
use role::submit::StoreRequest;

/// How long a request waits for the store if the request can also be answered without the store.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(pause)).routes(routes!(resume))
}

impl Api {
    /// Returns the paused topics and the circuits that are not closed, if the store answers in time.
    pub(super) async fn paused(&self) -> PausesAndCircuits {
        let ask = |reply: AnswerSender<_>| StoreRequest::held_back(|held| reply.with(held));
        let asked = tokio::time::timeout(PATIENCE, self.store_client.ask(0, ask)).await;
        PausesAndCircuits(asked.ok().and_then(Result::ok).and_then(Result::ok))
    }

    async fn set_pause(&self, name: TopicName, paused: bool) -> Result<ApiResponse, Problem> {
        // The pause of a removed topic can still be ended.
        let is_known = self.topic(&name).is_ok();
        if !is_known && (paused || self.paused().await.lets_through(&name)) {
            return Err(Problem::unknown_topic(&name));
        }
        self.pause_jobs(name, paused).await.map(|()| ApiResponse::done())
    }

    /// Pauses the jobs of a topic, or resumes them.
    pub(super) async fn pause_jobs(&self, name: TopicName, paused: bool) -> Result<(), Problem> {
        let ask = |reply: AnswerSender<_>| match paused {
            true => StoreRequest::pause(name, |done| reply.with(done)),
            false => StoreRequest::resume(name, |done| reply.with(done)),
        };
        Ok(self.store_client.ask(0, ask).await??)
    }
}

/// Pauses a topic. Its jobs are still added and become due, but they wait. Callbacks in progress are finished.
#[utoipa::path(post, path = "/v1/topics/{topic}/pause", tag = "topics", operation_id = "pause_topic",
    params(schema::TopicPath, schema::IdempotencyKey),
    responses((status = 204, description = "The topic is paused"), schema::ChangeErrorResponses))]
async fn pause(
    State(api): State<Api>,
    TopicInPath(name): TopicInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    input::nothing(&json)?;
    api.set_pause(name, true).await
}

/// Resumes a topic. Its jobs are delivered again. If its circuit is open, the circuit closes.
#[utoipa::path(post, path = "/v1/topics/{topic}/resume", tag = "topics", operation_id = "resume_topic",
    params(schema::TopicPath, schema::IdempotencyKey),
    responses((status = 204, description = "The topic is not paused"), schema::ChangeErrorResponses))]
async fn resume(
    State(api): State<Api>,
    TopicInPath(name): TopicInPath,
    JsonBody(json): JsonBody,
) -> Result<ApiResponse, Problem> {
    input::nothing(&json)?;
    api.set_pause(name, false).await
}
