//! The route that forecasts how many jobs become due in the next minutes and hours.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::api_response::ApiResponse;
use super::input;
use super::metrics::{QuestionThread, by};
use super::problem::Problem;
use super::schema;
use host::now_ms;
use model::job::TopicName;
use role::Context;

/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// The spans that are counted: this many minutes from now, and then the hours up to this many hours from now.
const MINUTES: i64 = 10;
const HOURS: i64 = 24;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_forecast))
}

/// How many jobs become due in a span of time.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ForecastBucket)]
struct ForecastBucket {
    /// The beginning of the span, Unix milliseconds.
    from_ms: i64,
    to_ms: i64,
    jobs: u64,
}

/// The jobs that become due.
#[derive(Serialize, ToSchema)]
#[schema(as = Forecast)]
struct ForecastResponse {
    now_ms: i64,
    /// The next ten minutes, one bucket each. Then hours, up to a day from now. The first minute includes the overdue
    /// jobs.
    buckets: Vec<ForecastBucket>,
    /// How many jobs are due later. Null if not all jobs were counted.
    #[schema(required = true)]
    later: Option<u64>,
    /// True if not all jobs were counted. The embedded store counts at most a million jobs, in the order of their due
    /// times. So the last buckets are too low.
    capped: bool,
}

/// The thread that asks the store for forecasts. A question has the topics, and the moments between which jobs are
/// counted. The thread is separate, so that a long count does not delay requests.
pub(super) struct ForecastThread(QuestionThread<store::Result<store::Forecast>, (Vec<TopicName>, Vec<i64>)>);

impl ForecastThread {
    pub(super) fn start(context: &mut Context) -> anyhow::Result<ForecastThread> {
        let mut store = context.store()?;
        let work = move |(topics, edges_ms): (Vec<TopicName>, Vec<i64>)| store.forecast(&topics, &edges_ms);
        QuestionThread::start("forecast", work).map(ForecastThread)
    }

    async fn ask(&self, topics: Vec<TopicName>, edges_ms: Vec<i64>) -> Result<store::Forecast, Problem> {
        let answer = by(Instant::now() + PATIENCE, self.0.ask((topics, edges_ms))).await;
        let busy = || Problem::unavailable("store_busy", "the store has not answered in time");
        Ok(answer.ok_or_else(busy)??)
    }
}

/// Returns the moments between which jobs are counted: minutes from now on, then hours.
fn edges(now_ms: i64) -> Vec<i64> {
    let minutes = (0..=MINUTES).map(|n| now_ms + n * MINUTE_MS);
    let hours = (1..=HOURS).map(|n| now_ms + n * HOUR_MS);
    minutes.chain(hours).collect()
}

/// Counts how many jobs become due in the next minutes and hours, on the nodes that answer.
#[utoipa::path(get, path = "/v1/forecast", tag = "daemon", operation_id = "get_forecast",
    params(schema::OneTopicQuery),
    responses((status = 200, body = ForecastResponse, description = "The jobs that become due"), schema::LookupErrorResponses))]
async fn get_forecast(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<ApiResponse, Problem> {
    let only = input::only_topic(query.as_deref().unwrap_or_default())?;
    let Some((counts, _)) = api.metrics.counts().await else {
        return Err(Problem::unavailable(
            "store_unavailable",
            "no node of the store reports how many jobs it has",
        ));
    };
    let wanted = counts.into_values().filter(|c| only.as_ref().is_none_or(|topic| c.topic == *topic));
    let (delayed, topics) =
        wanted.filter(|counts| counts.delayed > 0).fold((0, Vec::new()), |(sum, mut topics), counts| {
            topics.push(counts.topic);
            (sum + counts.delayed, topics)
        });
    let now_ms = now_ms();
    let edges = edges(now_ms);
    // The first bucket includes overdue jobs, so it begins at 0.
    let asked = std::iter::once(0).chain(edges[1..].iter().copied()).collect();
    let answer = api.forecasts.ask(topics, asked).await?;
    let later = (!answer.is_capped).then(|| delayed.saturating_sub(answer.jobs.iter().sum()));
    let bucket = |(edges, jobs): (&[i64], u64)| ForecastBucket { from_ms: edges[0], to_ms: edges[1], jobs };
    let buckets = edges.windows(2).zip(answer.jobs).map(bucket).collect();
    Ok(ApiResponse::new(
        StatusCode::OK,
        &ForecastResponse { now_ms, buckets, later, capped: answer.is_capped },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_come_first_and_then_hours_up_to_a_day() {
        let edges = edges(1000);
        assert_eq!((edges.len(), edges[0], edges[10]), (35, 1000, 601_000));
        assert_eq!((edges[11], edges[34]), (3_601_000, 86_401_000));
        assert!(edges.is_sorted());
    }
}
