//! The route that tells what becomes due in the next minutes and hours.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::input;
use super::metrics::{Asked, by};
use super::problem::Problem;
use super::schema;
use super::told::Told;
use crate::job::TopicName;
use crate::process::now_ms;
use crate::role::Context;
use crate::store;

/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(10);

const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;

/// So many minutes are told each by itself, and then so many hours.
const MINUTES: i64 = 10;
const HOURS: i64 = 24;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_forecast))
}

/// How many jobs become due in a span of time.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ForecastBucket)]
struct Bucket {
    /// Unix milliseconds.
    from_ms: i64,
    to_ms: i64,
    jobs: u64,
}

/// What becomes due.
#[derive(Serialize, ToSchema)]
struct Forecast {
    now_ms: i64,
    /// The next ten minutes each by itself, then hours, up to a day from now.
    buckets: Vec<Bucket>,
    /// How many are due later; null: not all were counted.
    #[schema(required = true)]
    later: Option<u64>,
    /// There are more than are counted at once: of the embedded store a million. Buckets lack some, the last ones first.
    capped: bool,
}

/// Where forecasts are asked for, of topics and between moments: a thread of their own, so that a long look holds up nobody who
/// hands in jobs.
pub(super) struct Forecasts(Asked<store::Result<store::Forecast>, (Vec<TopicName>, Vec<i64>)>);

impl Forecasts {
    pub(super) fn start(context: &mut Context) -> anyhow::Result<Forecasts> {
        let mut store = context.store()?;
        let work = move |(topics, edges_ms): (Vec<TopicName>, Vec<i64>)| store.forecast(&topics, &edges_ms);
        Asked::start("forecast", work).map(Forecasts)
    }

    async fn ask(&self, topics: Vec<TopicName>, edges_ms: Vec<i64>) -> Result<store::Forecast, Problem> {
        let told = by(Instant::now() + PATIENCE, self.0.ask((topics, edges_ms))).await;
        let busy = || Problem::unavailable("store_busy", "the store has not answered in time");
        Ok(told.ok_or_else(busy)??)
    }
}

/// The moments between which jobs are counted: minutes from now on, then hours.
fn edges(now_ms: i64) -> Vec<i64> {
    let minutes = (0..=MINUTES).map(|n| now_ms + n * MINUTE_MS);
    let hours = (1..=HOURS).map(|n| now_ms + n * HOUR_MS);
    minutes.chain(hours).collect()
}

/// Tells how many jobs become due in the next minutes and hours, on the nodes that answer.
#[utoipa::path(get, path = "/v1/forecast", tag = "daemon", operation_id = "get_forecast",
    params(schema::OneTopicQuery),
    responses((status = 200, body = Forecast, description = "What becomes due"), schema::FindProblems))]
async fn get_forecast(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Told, Problem> {
    let only = input::only_topic(query.as_deref().unwrap_or_default())?;
    let Some((counts, _)) = api.metrics.counts().await else {
        return Err(Problem::unavailable(
            "store_unavailable",
            "the store does not tell how many jobs it has",
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
    // What is overdue by a moment is among the first.
    let asked = std::iter::once(0).chain(edges[1..].iter().copied()).collect();
    let told = api.forecasts.ask(topics, asked).await?;
    let later = (!told.is_capped).then(|| delayed.saturating_sub(told.jobs.iter().sum()));
    let bucket = |(edges, jobs): (&[i64], u64)| Bucket { from_ms: edges[0], to_ms: edges[1], jobs };
    let buckets = edges.windows(2).zip(told.jobs).map(bucket).collect();
    Ok(Told::new(StatusCode::OK, &Forecast { now_ms, buckets, later, capped: told.is_capped }))
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
