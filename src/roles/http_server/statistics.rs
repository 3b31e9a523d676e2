//! The statistics of days, put to the counts of `GET /v1/stats?days=`.

use axum::http::StatusCode;
use jiff::{Span, Timestamp};
use serde_json::{Value, json};

use super::api::Api;
use super::input::short;
use super::problem::Problem;
use crate::metrics::{Statistics, Subject};

/// The most days that are told.
const DAYS_MAX: i64 = 366;

/// How many days a query asks for; none: it does not.
pub(super) fn days(query: &str) -> Result<Option<i64>, Problem> {
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
    /// Puts `totals` and `days` to each topic of the counts, and `nodes` to them all.
    pub(super) async fn with_statistics(&self, counts: &[u8], days: i64) -> Result<Vec<u8>, Problem> {
        if !self.registrar.is_there() {
            let detail = "there is no registry, which would keep the statistics of days";
            return Err(Problem::new(StatusCode::NOT_FOUND, "no_registry", detail));
        }
        let today = Timestamp::now().to_zoned(self.zone.clone()).date();
        let since = today.saturating_sub(Span::new().days(days - 1)).to_string();
        let statistics = self.registrar.ask(move |registry| registry.statistics(&since)).await?;
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
