//! The route of what was done in the last minutes and hours on this host: what charts begin with.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::input;
use super::nodes::on_thread;
use super::problem::Problem;
use super::schema;
use super::told::Told;
use crate::history;
use crate::metrics::Sums;
use crate::process::now_ms;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_history))
}

/// What was done in a span of time, by all topics on this host or by one of them.
#[derive(Serialize, ToSchema)]
#[schema(as = HistoryPoint)]
struct Point {
    /// When it ended, Unix milliseconds.
    at_ms: i64,
    span_ms: i64,
    written: u64,
    delivered: u64,
    /// Attempts that failed.
    failed: u64,
    dead: u64,
    attempts: u64,
    /// How late they began, on average; null: there were none.
    #[schema(required = true)]
    late_mean_us: Option<u64>,
    /// How late half of the attempts began, at most; null: there were none, or it is not known of a topic by itself.
    #[schema(required = true)]
    late_p50_us: Option<u64>,
    /// How late all but a hundredth of them began, at most.
    #[schema(required = true)]
    late_p99_us: Option<u64>,
}

/// What was done in the last minutes and hours, the oldest first.
#[derive(Serialize, ToSchema)]
struct History {
    /// The last ten minutes, each five seconds.
    seconds: Vec<Point>,
    /// The last day, each minute; of a topic by itself there are none.
    minutes: Vec<Point>,
}

impl Point {
    fn of(at_ms: i64, span_ms: i64, sums: Sums, late_us: Option<(u64, u64)>) -> Point {
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

/// Tells what was done in the last minutes and hours, on this host.
#[utoipa::path(get, path = "/v1/history", tag = "daemon", operation_id = "get_history",
    params(schema::OneTopicQuery),
    responses((status = 200, body = History, description = "For charts"), schema::FindProblems))]
async fn get_history(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Told, Problem> {
    let only = input::only_topic(query.as_deref().unwrap_or_default())?;
    let read = on_thread(&api, move |run_dir| match only {
        None => {
            let of = |p: history::Point| Point::of(p.at_ms, p.span_ms, p.sums, p.late_us);
            let points = |points: Vec<history::Point>| points.into_iter().map(of).collect();
            let read = history::read(run_dir, now_ms())?;
            Ok(History { seconds: points(read.short), minutes: points(read.long) })
        }
        Some(topic) => {
            let of = |p: history::TopicPoint| Point::of(p.at_ms, p.span_ms, p.sums, None);
            let read = history::read_topic(run_dir, now_ms(), &topic)?;
            Ok(History { seconds: read.into_iter().map(of).collect(), minutes: Vec::new() })
        }
    });
    let failed =
        |e: std::io::Error| Problem::unavailable("no_history", format!("cannot read the history: {e}"));
    Ok(Told::new(StatusCode::OK, &read.await?.map_err(failed)?))
}
