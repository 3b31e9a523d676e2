//! The route that counts jobs, and shows what happened to jobs by day.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use jiff::{Span, Timestamp};
use serde::Serialize;
use tokio::time::Instant;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, CallerContext};
use super::api_response::ApiResponse;
use super::input::{parameters, short};
use super::metrics::PATIENCE;
use super::problem::Problem;
use super::schema;
use super::store_client::AnswerSender;
use model::job::TopicName;
use model::metrics::{DaySums, MetricSubject, Statistics, Sums};
use model::scope::RequiredAccess;
use role::submit::StoreRequest;
use store::Counts;

/// The maximum number of days that are shown.
const DAYS_MAX: i64 = 366;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(stats))
}

/// How many jobs there are. With `days`, also what happened to jobs.
#[derive(Serialize, ToSchema)]
struct Stats {
    topics: Vec<TopicStats>,
    /// Only with `days`: the last of these days, such as `2027-01-31`. This day is not over yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    today: Option<String>,
    /// The nodes that did not answer. Their jobs are not counted.
    away: Vec<String>,
    /// Only with `days`: what happened on each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    nodes: Option<Vec<NodeStats>>,
}

/// How many jobs of a topic are in each state.
#[derive(Serialize, ToSchema)]
struct TopicStats {
    #[schema(value_type = String)]
    topic: TopicName,
    delayed: u64,
    ready: u64,
    leased: u64,
    dead: u64,
    /// The bytes of the topic's jobs, dead letters included. Null: they are not counted.
    bytes: Option<u64>,
    /// How many jobs clients add in a period of the topic's `add_rate`, counted by this host. Null: the topic has no
    /// `add_rate`, or the number is not known yet.
    add_rate_used: Option<u64>,
    /// Whether the topic is paused, so that its jobs wait. Null: the store does not answer.
    paused: Option<bool>,
    /// Only with `days`: the sums of all time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SumsSchema>, nullable = false)]
    totals: Option<Sums>,
    /// Only with `days`: the days on which something happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<schema::DaySums>>, nullable = false)]
    days: Option<Vec<DaySums>>,
    /// Only with `lateness`: how late attempts of this host began, since its counters were made.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lateness: Option<Vec<LatenessRange>>,
}

/// A range of lateness, and the number of attempts in this range. Ranges without attempts are left out.
#[derive(Serialize, ToSchema)]
struct LatenessRange {
    /// The end of the range, in microseconds. From 1 ms on, the width of a range is a sixteenth of its end or less.
    /// Null: the range has no end.
    #[schema(required = true)]
    up_to_us: Option<u64>,
    attempts: u64,
}

/// What a query asks for, besides the counts.
#[derive(Debug, Default, PartialEq)]
struct StatsOptions {
    days: Option<i64>,
    lateness: bool,
}

/// What happened on a node of the store.
#[derive(Serialize, ToSchema)]
struct NodeStats {
    node: String,
    /// The sums of all time.
    #[schema(value_type = schema::SumsSchema)]
    totals: Sums,
    /// The days on which something happened.
    #[schema(value_type = Vec<schema::DaySums>)]
    days: Vec<DaySums>,
}

impl StatsOptions {
    fn from_query(query: &str) -> Result<StatsOptions, Problem> {
        let mut wanted = StatsOptions::default();
        for (name, text) in parameters(query, &["days", "lateness"])? {
            match &*name {
                "days" => wanted.days = Some(days(&text)?),
                _ => wanted.lateness = is_true(&text)?,
            }
        }
        Ok(wanted)
    }
}

fn days(text: &str) -> Result<i64, Problem> {
    match text.parse() {
        Ok(n @ 1..=DAYS_MAX) => Ok(n),
        _ => {
            let detail = format!("days is {:?}, and not a number from 1 to {DAYS_MAX}", short(text));
            Err(Problem::field("days", detail))
        }
    }
}

fn is_true(text: &str) -> Result<bool, Problem> {
    text.parse().map_err(|_| {
        Problem::field("lateness", format!("lateness is {:?}, and not true or false", short(text)))
    })
}

impl Api {
    /// Returns the sums of all time and of some days up to today, and the date of today.
    async fn statistics(&self, days: i64) -> Result<(Statistics, String), Problem> {
        self.registrar.keeps("the statistics of days")?;
        let today = Timestamp::now().to_zoned(self.zone.clone()).date();
        let since = today.saturating_sub(Span::new().days(days - 1)).to_string();
        let sums = self.registrar.ask(move |registry| registry.statistics(&since)).await?;
        Ok((sums, today.to_string()))
    }
}

/// Counts the jobs of all topics. With `days`, also shows what happened to them: the sums of all time, and the sums of
/// each day. With `lateness`, also shows how late attempts of this host began.
#[utoipa::path(get, path = "/v1/stats", tag = "daemon", operation_id = "get_stats",
    params(schema::StatsQuery),
    responses((status = 200, body = Stats, description = "The jobs by topic"), schema::LookupErrorResponses))]
async fn stats(
    State(api): State<Api>,
    requester: CallerContext,
    RawQuery(query): RawQuery,
) -> Result<ApiResponse, Problem> {
    let StatsOptions { days, lateness } = StatsOptions::from_query(query.as_deref().unwrap_or_default())?;
    let Some((mut counts, away)) = api.metrics.counts().await else {
        // The store's own error says why there are no counts.
        let ask = |reply: AnswerSender<_>| StoreRequest::count(|counts| reply.with(counts));
        return api
            .store_client
            .read(requester.holder, ask)
            .await?
            .map(|_| ApiResponse::done())
            .map_err(Problem::from);
    };
    for name in api.topics.borrow().iter().map(|topic| &topic.name) {
        counts.entry(name.clone()).or_insert_with(|| Counts::none(name.clone()));
    }
    let (mut statistics, today) = match days {
        Some(days) => Some(api.statistics(days).await?),
        None => None,
    }
    .unzip();
    // If the counters cannot be read, the lateness is missing.
    let totals = if lateness { api.metrics.pages(Instant::now() + PATIENCE).await } else { None };
    let late = |topic: &str| {
        let range = |(up_to_us, attempts)| LatenessRange { up_to_us, attempts };
        totals.as_ref().map(|totals| totals.lateness_of(topic).ranges().map(range).collect())
    };
    let (add_rates, held_back) = tokio::join!(api.add_rates(), api.paused());
    let topic = |counts: Counts| {
        let Counts { topic, delayed, ready, leased, dead, bytes, .. } = counts;
        let subject = MetricSubject::Topic(topic.to_string());
        let done = statistics.as_mut().map(|all| all.0.remove(&subject).unwrap_or_default());
        let (totals, days) = done.unzip();
        let lateness = late(topic.as_str());
        let add_rate_used = add_rates.get(&topic).copied();
        let paused = held_back.state_of(topic.as_str()).map(|(is_paused, _)| is_paused);
        TopicStats {
            topic,
            delayed,
            ready,
            leased,
            dead,
            bytes,
            add_rate_used,
            paused,
            totals,
            days,
            lateness,
        }
    };
    let may_see = |counts: &Counts| requester.permits(RequiredAccess::Topic(counts.topic.as_str()));
    let topics = counts.into_values().filter(may_see).map(topic).collect();
    let node = |(subject, (totals, days)): (MetricSubject, (Sums, Vec<DaySums>))| match subject {
        MetricSubject::Node(node) => Some(NodeStats { node, totals, days }),
        MetricSubject::Topic(_) => None,
    };
    let statistics = statistics.filter(|_| requester.permits(RequiredAccess::Read));
    let nodes = statistics.map(|statistics| statistics.0.into_iter().filter_map(node).collect());
    Ok(ApiResponse::new(StatusCode::OK, &Stats { topics, today, away, nodes }))
}
