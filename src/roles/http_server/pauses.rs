//! The routes by which a topic is paused and resumed. That is known to the store alone: no lease is given once it is answered.

use std::time::Duration;

use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, InTopic, Sent};
use super::input;
use super::problem::Problem;
use super::schema;
use super::told::{Manner, Told};
use super::topic_shown::Paused;
use crate::job::TopicName;
use crate::submit::Ask;

/// How long the store may take, where it can be done without.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(pause)).routes(routes!(resume))
}

impl Api {
    /// Which topics' jobs are held back, if the store says it soon.
    pub(super) async fn paused(&self) -> Paused {
        let asked = tokio::time::timeout(PATIENCE, self.desk.ask(Ask::Paused, Manner::Plain, 0)).await;
        Paused(asked.ok().and_then(Result::ok).map(|told| told.held))
    }

    async fn say(&self, name: TopicName, paused: bool) -> Result<Told, Problem> {
        // What was said of a topic that was taken out can be taken back.
        let is_known = self.topic(&name).is_ok();
        if !is_known && (paused || self.paused().await.lets_through(&name)) {
            return Err(Problem::unknown_topic(&name));
        }
        self.desk.ask(Ask::Pause(name, paused), Manner::Plain, 0).await
    }
}

/// Pauses a topic: its jobs are taken and become due, and wait. What is being delivered is finished.
#[utoipa::path(post, path = "/v1/topics/{topic}/pause", tag = "topics", operation_id = "pause_topic",
    params(schema::TopicPath, schema::IdempotencyKey),
    responses((status = 204, description = "It is paused"), schema::ChangeProblems))]
async fn pause(State(api): State<Api>, InTopic(name): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    input::nothing(&json)?;
    api.say(name, true).await
}

/// Resumes a topic: its jobs are delivered again, also when its circuit is open.
#[utoipa::path(post, path = "/v1/topics/{topic}/resume", tag = "topics", operation_id = "resume_topic",
    params(schema::TopicPath, schema::IdempotencyKey),
    responses((status = 204, description = "It is not paused"), schema::ChangeProblems))]
async fn resume(State(api): State<Api>, InTopic(name): InTopic, Sent(json): Sent) -> Result<Told, Problem> {
    input::nothing(&json)?;
    api.say(name, false).await
}
