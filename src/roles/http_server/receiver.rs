//! The route that shows the health of a topic's receiver, as this host saw it.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, TopicInPath};
use super::api_response::ApiResponse;
use super::input;
use super::nodes::on_thread;
use super::problem::Problem;
use super::schema;
use host::now_ms;
use model::job::TopicName;
use model::metrics::ReceiverCounts;
use telemetry::counters;
use telemetry::history::{ReceiverPoint, ReceiverSpan, read_receiver};

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(get_topic_health))
}

/// The span of time before now.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only its schema is used")]
struct SpanQuery {
    /// `10m` (ten minutes, the default), `1d` (a day) or `7d` (a week).
    #[param(pattern = "^(10m|1d|7d)$", required = false)]
    over: String,
}

/// What a receiver did in a span of time, as this host saw it.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ReceiverHealth)]
struct ReceiverHealthResponse {
    topic: String,
    /// The requested span.
    over: &'static str,
    /// When the counting began, Unix milliseconds. It can be later than the beginning of the span `over`.
    since_ms: i64,
    now_ms: i64,
    attempts: u64,
    /// Attempts that the receiver accepted.
    accepted: u64,
    /// Attempts that the receiver did not accept.
    failed: u64,
    /// Attempts whose result the receiver reports later. `success_rate` does not count them.
    later: u64,
    /// `accepted` divided by `accepted` and `failed` together. Null if both are 0.
    #[schema(required = true)]
    success_rate: Option<f64>,
    /// Half of the attempts took this time or less. Null if there were no attempts, or if the time is more than a
    /// minute.
    #[schema(required = true)]
    p50_us: Option<u64>,
    /// 90 % of the attempts took this time or less.
    #[schema(required = true)]
    p90_us: Option<u64>,
    /// 99 % of the attempts took this time or less.
    #[schema(required = true)]
    p99_us: Option<u64>,
    /// How long the attempts took.
    durations: Vec<DurationBucket>,
    /// Why attempts failed, the most frequent failure first.
    errors: Vec<FailureCount>,
}

/// A range of durations, and how many attempts are in this range. These attempts took more than `up_to_us` of the range
/// before, and not more than `up_to_us` of this range.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct DurationBucket {
    /// Null in the last range, which has no end.
    #[schema(required = true)]
    up_to_us: Option<u64>,
    attempts: u64,
}

/// How many attempts failed in one way.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct FailureCount {
    /// `connect`, `timeout`, `broken`, `answer`, or a status such as `503`. `4xx` stands for the statuses of this class
    /// that are not counted separately.
    failure: String,
    attempts: u64,
}

impl ReceiverHealthResponse {
    fn new(
        topic: &TopicName,
        span: ReceiverSpan,
        now_ms: i64,
        point: &ReceiverPoint,
    ) -> ReceiverHealthResponse {
        let counts: &ReceiverCounts = &point.counts;
        let range = |(up_to_us, attempts)| DurationBucket { up_to_us, attempts };
        let failures = counts.failures().into_iter();
        ReceiverHealthResponse {
            topic: topic.to_string(),
            over: span.name(),
            since_ms: point.since_ms,
            now_ms,
            attempts: counts.attempts(),
            accepted: counts.accepted(),
            failed: counts.failed(),
            later: counts.later(),
            success_rate: counts.success_rate(),
            p50_us: counts.duration_us(0.5),
            p90_us: counts.duration_us(0.9),
            p99_us: counts.duration_us(0.99),
            durations: counts.durations().map(range).collect(),
            errors: failures
                .map(|(failure, attempts)| FailureCount { failure: failure.to_string(), attempts })
                .collect(),
        }
    }
}

/// Returns the span that a query asks for.
fn span(query: &str) -> Result<ReceiverSpan, Problem> {
    let parameters = input::parameters(query, &["over"])?;
    let Some((_, over)) = parameters.first() else { return Ok(ReceiverSpan::TenMinutes) };
    over.parse().map_err(|()| {
        Problem::field("over", format!("over is {:?}, and not 10m, 1d or 7d", input::short(over)))
    })
}

/// Shows the health of a topic's receiver in the last ten minutes, day or week, on this host.
#[utoipa::path(get, path = "/v1/topics/{topic}/health", tag = "topics", operation_id = "get_topic_health",
    params(schema::TopicPath, SpanQuery),
    responses((status = 200, body = ReceiverHealthResponse, description = "What the receiver did"), schema::LookupErrorResponses))]
async fn get_topic_health(
    State(api): State<Api>,
    TopicInPath(name): TopicInPath,
    RawQuery(query): RawQuery,
) -> Result<ApiResponse, Problem> {
    let span = span(query.as_deref().unwrap_or_default())?;
    api.topic(&name)?;
    let read = on_thread(&api, move |run_dir| {
        let now = counters::totals(run_dir)?.receiver_of(name.as_str());
        let now_ms = now_ms();
        let point = read_receiver(run_dir, now_ms, span, &name, &now)?;
        Ok(ReceiverHealthResponse::new(&name, span, now_ms, &point))
    });
    let failed =
        |e: std::io::Error| Problem::unavailable("no_history", format!("cannot read the history: {e}"));
    Ok(ApiResponse::new(StatusCode::OK, &read.await?.map_err(failed)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_one_of_three() {
        assert_eq!(span("").unwrap(), ReceiverSpan::TenMinutes);
        assert_eq!(span("over=7d").unwrap(), ReceiverSpan::Week);
        assert_eq!(span("over=2d").unwrap_err().named_field(), Some("over"));
        assert!(span("since=1d").is_err());
    }
}
