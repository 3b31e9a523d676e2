//! The statistics of days, put to the counts of `GET /v1/stats?days=`.

use axum::http::StatusCode;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use serde_json::{Value, json};

use super::problem::Problem;
use super::registrar::Registrar;
use crate::metrics::{Statistics, Subject};
use crate::registry::RegistryError;

/// The most days that are told.
const DAYS_MAX: i64 = 366;

/// Where statistics are.
#[derive(Clone)]
pub(super) struct Days {
    /// None: there is no registry.
    pub registrar: Option<Registrar>,
    /// Whose days they are.
    pub zone: TimeZone,
}

/// How many days a query asks for; none: it does not.
pub(super) fn days(query: &str) -> Result<Option<i64>, Problem> {
    let Some((_, text)) = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "days") else {
        return Ok(None);
    };
    match text.parse() {
        Ok(days @ 1..=DAYS_MAX) => Ok(Some(days)),
        _ => Err(Problem::field("days", format!("{text:?} is not a number of 1 to {DAYS_MAX}"))),
    }
}

impl Days {
    /// Puts `totals` and `days` to each topic of the counts, and `nodes` to them all.
    pub(super) async fn put_to(&self, counts: &[u8], days: i64) -> Result<Vec<u8>, Problem> {
        let Some(registrar) = &self.registrar else {
            let detail = "there is no registry, which would keep the statistics of days";
            return Err(Problem::new(StatusCode::NOT_FOUND, "no_registry", detail));
        };
        let today = Timestamp::now().to_zoned(self.zone.clone()).date();
        let since = today.saturating_sub(Span::new().days(days - 1)).to_string();
        let statistics = registrar.ask(move |registry| registry.statistics(&since)).await.map_err(away)?;
        let mut all: Value = serde_json::from_slice(counts).unwrap_or_default();
        for topic in all["topics"].as_array_mut().into_iter().flatten() {
            let name = topic["topic"].as_str().unwrap_or_default().to_owned();
            let shown = shown(&statistics, &Subject::Topic(name));
            topic["totals"] = shown["totals"].clone();
            topic["days"] = shown["days"].clone();
        }
        let nodes = statistics.0.keys().filter_map(|subject| match subject {
            Subject::Node(name) => {
                let mut node = shown(&statistics, subject);
                node["node"] = json!(name);
                Some(node)
            }
            Subject::Topic(_) => None,
        });
        all["nodes"] = nodes.collect();
        Ok(all.to_string().into_bytes())
    }
}

fn shown(statistics: &Statistics, subject: &Subject) -> Value {
    let (totals, days) = statistics.0.get(subject).cloned().unwrap_or_default();
    json!({ "totals": totals, "days": days })
}

fn away(e: RegistryError) -> Problem {
    Problem::unavailable("registry_away", format!("the registry does not answer: {e}"))
}
