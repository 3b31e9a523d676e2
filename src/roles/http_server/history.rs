//! The route that shows what this host did in the last minutes and hours. The charts of the console begin with this
//! data.

use std::collections::BTreeMap;
use std::path::Path;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::api_response::ApiResponse;
use super::input;
use super::nodes::on_thread;
use super::problem::Problem;
use super::schema;
use host::now_ms;
use model::job::TopicName;
use model::metrics::Sums;
use telemetry::history;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_history))
}

/// What happened in a span of time on this host, for all topics or for one topic.
#[derive(Serialize, ToSchema)]
#[schema(as = HistoryPoint)]
struct Point {
    /// The end of the span, Unix milliseconds.
    at_ms: i64,
    span_ms: i64,
    written: u64,
    delivered: u64,
    /// Attempts that failed.
    failed: u64,
    dead: u64,
    attempts: u64,
    /// How late attempts began, on average. Null if there were no attempts.
    #[schema(required = true)]
    late_mean_us: Option<u64>,
    /// Half of the attempts began with this lateness or less. Null if there were no attempts, and for a single topic.
    #[schema(required = true)]
    late_p50_us: Option<u64>,
    /// 99 % of the attempts began with this lateness or less. Null if there were no attempts, and for a single topic.
    #[schema(required = true)]
    late_p99_us: Option<u64>,
}

/// What happened in the last minutes and hours, the oldest first.
#[derive(Serialize, ToSchema)]
struct History {
    /// The last ten minutes, in spans of five seconds.
    seconds: Vec<Point>,
    /// The last day, in spans of a minute. Empty for a single topic.
    minutes: Vec<Point>,
}

impl Point {
    fn new(at_ms: i64, span_ms: i64, sums: Sums, late_us: Option<(u64, u64)>) -> Point {
        Point {
            at_ms,
            span_ms,
            written: sums.written,
            delivered: sums.delivered,
            failed: sums.failed,
            dead: sums.dead,
            attempts: sums.attempts,
            late_mean_us: sums.late_us.checked_div(sums.attempts),
            late_p50_us: late_us.map(|(p50, _)| p50),
            late_p99_us: late_us.map(|(_, p99)| p99),
        }
    }
}

impl Api {
    /// Returns how many jobs clients add in one period of each topic's `add_rate`, on this host. Topics whose number is
    /// not known are missing.
    pub(super) async fn add_rates(&self) -> BTreeMap<TopicName, u64> {
        let topics = self.topics.borrow().clone();
        if topics.iter().all(|topic| topic.add_rate.is_none()) {
            return BTreeMap::new();
        }
        let limited =
            move |run_dir: &Path| history::add_rates(run_dir, now_ms(), topics.iter().map(|topic| &**topic));
        on_thread(self, limited).await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// Shows what happened in the last minutes and hours, on this host.
#[utoipa::path(get, path = "/v1/history", tag = "daemon", operation_id = "get_history",
    params(schema::OneTopicQuery),
    responses((status = 200, body = History, description = "The points of charts"), schema::LookupErrorResponses))]
async fn get_history(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<ApiResponse, Problem> {
    let only = input::only_topic(query.as_deref().unwrap_or_default())?;
    let read = on_thread(&api, move |run_dir| match only {
        None => {
            let of = |p: history::Point| Point::new(p.at_ms, p.span_ms, p.sums, p.late_us);
            let points = |points: Vec<history::Point>| points.into_iter().map(of).collect();
            let read = history::read(run_dir, now_ms())?;
            Ok(History { seconds: points(read.short), minutes: points(read.long) })
        }
        Some(topic) => {
            let of = |p: history::TopicPoint| Point::new(p.at_ms, p.span_ms, p.sums, None);
            let read = history::read_topic(run_dir, now_ms(), &topic)?;
            Ok(History { seconds: read.into_iter().map(of).collect(), minutes: Vec::new() })
        }
    });
    let failed =
        |e: std::io::Error| Problem::unavailable("no_history", format!("cannot read the history: {e}"));
    Ok(ApiResponse::new(StatusCode::OK, &read.await?.map_err(failed)?))
}
