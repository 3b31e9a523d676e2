//! The route that tells how many jobs there are, and what was done with jobs by day.

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use jiff::{Span, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::Api;
use super::input::short;
use super::problem::Problem;
use super::schema;
use super::told::{Manner, Told};
use crate::job::TopicName;
use crate::metrics::{Day, Statistics, Subject, Sums};
use crate::store::Counts;
use crate::submit::Ask;

/// The most days that are told.
const DAYS_MAX: i64 = 366;

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(stats))
}

/// How many jobs there are; with `days` also what was done.
#[derive(Serialize, ToSchema)]
struct Stats {
    topics: Vec<TopicStats>,
    /// With `days`: the last of them, which is not over, such as `2027-01-31`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    today: Option<String>,
    /// The nodes that do not answer: what they have is not among these.
    away: Vec<String>,
    /// With `days`: what was done on each node.
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
    /// With `days`: of all time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Sums>, nullable = false)]
    totals: Option<Sums>,
    /// With `days`: those on which there was anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<schema::DaySums>>, nullable = false)]
    days: Option<Vec<Day>>,
}

/// What was done on a node of the store.
#[derive(Serialize, ToSchema)]
struct NodeStats {
    node: String,
    /// Of all time.
    #[schema(value_type = schema::Sums)]
    totals: Sums,
    /// The days on which there was anything.
    #[schema(value_type = Vec<schema::DaySums>)]
    days: Vec<Day>,
}

/// How many days a query asks for; none: it does not.
fn days(query: &str) -> Result<Option<i64>, Problem> {
    let mut days = None;
    for (name, text) in form_urlencoded::parse(query.as_bytes()) {
        if name != "days" {
            return Err(Problem::unknown_field(&short(&name), &["days"]));
        }
        days = match text.parse() {
            Ok(n @ 1..=DAYS_MAX) => Some(n),
            _ => {
                let detail = format!("days is {:?}, and not a number from 1 to {DAYS_MAX}", short(&text));
                return Err(Problem::field("days", detail));
            }
        };
    }
    Ok(days)
}

impl Api {
    /// What was done, of all time and in so many days up to today; and which day that is.
    async fn statistics(&self, days: i64) -> Result<(Statistics, String), Problem> {
        self.registrar.keeps("the statistics of days")?;
        let today = Timestamp::now().to_zoned(self.zone.clone()).date();
        let since = today.saturating_sub(Span::new().days(days - 1)).to_string();
        let told = self.registrar.ask(move |registry| registry.statistics(&since)).await?;
        Ok((told, today.to_string()))
    }
}

/// Counts the jobs of all topics; with `days` also tells what was done with them, in all and by day.
#[utoipa::path(get, path = "/v1/stats", tag = "daemon", operation_id = "get_stats",
    params(schema::StatsQuery),
    responses((status = 200, body = Stats, description = "By topic"), schema::FindProblems))]
async fn stats(State(api): State<Api>, RawQuery(query): RawQuery) -> Result<Told, Problem> {
    let days = days(query.as_deref().unwrap_or_default())?;
    let Some((mut counts, away)) = api.metrics.counts().await else {
        // Why that is, the store says itself.
        return api.desk.ask(Ask::Count, Manner::Plain, 0).await;
    };
    for name in api.topics.borrow().iter().map(|topic| &topic.name) {
        counts.entry(name.clone()).or_insert_with(|| Counts::none(name.clone()));
    }
    let (mut statistics, today) = match days {
        Some(days) => Some(api.statistics(days).await?),
        None => None,
    }
    .unzip();
    let topic = |counts: Counts| {
        let Counts { topic, delayed, ready, leased, dead, .. } = counts;
        let subject = Subject::Topic(topic.to_string());
        let done = statistics.as_mut().map(|all| all.0.remove(&subject).unwrap_or_default());
        let (totals, days) = done.unzip();
        TopicStats { topic, delayed, ready, leased, dead, totals, days }
    };
    let topics = counts.into_values().map(topic).collect();
    let node = |(subject, (totals, days)): (Subject, (Sums, Vec<Day>))| match subject {
        Subject::Node(node) => Some(NodeStats { node, totals, days }),
        Subject::Topic(_) => None,
    };
    let nodes = statistics.map(|statistics| statistics.0.into_iter().filter_map(node).collect());
    Ok(Told::new(StatusCode::OK, &Stats { topics, today, away, nodes }))
}
