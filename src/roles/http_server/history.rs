//! The route of what was done in the last minutes and hours on this host: what charts begin with.

use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::nodes::on_thread;
use super::problem::Problem;
use super::schema;
use super::told::Told;
use crate::history;
use crate::process::now_ms;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_history))
}

/// What was done in a span of time, by all topics on this host.
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
    /// How late half of the attempts began, at most; null: there were none.
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
    /// The last day, each minute.
    minutes: Vec<Point>,
}

impl Point {
    fn of(point: history::Point) -> Point {
        let history::Point { at_ms, span_ms, sums, late_us } = point;
        Point {
            at_ms,
            span_ms,
            written: sums.written,
            delivered: sums.delivered,
            failed: sums.failed,
            dead: sums.dead,
            attempts: sums.attempts,
            late_p50_us: late_us.map(|(p50, _)| p50),
            late_p99_us: late_us.map(|(_, p99)| p99),
        }
    }
}

/// Tells what was done in the last minutes and hours, on this host.
#[utoipa::path(get, path = "/v1/history", tag = "daemon", operation_id = "get_history",
    responses((status = 200, body = History, description = "For charts"), schema::ShowProblems))]
async fn get_history(State(api): State<Api>) -> Result<Told, Problem> {
    let read = on_thread(&api, |run_dir| history::read(run_dir, now_ms())).await?;
    let read =
        read.map_err(|e| Problem::unavailable("no_history", format!("cannot read the history: {e}")))?;
    let points = |points: Vec<history::Point>| points.into_iter().map(Point::of).collect();
    Ok(Told::new(StatusCode::OK, &History { seconds: points(read.short), minutes: points(read.long) }))
}
