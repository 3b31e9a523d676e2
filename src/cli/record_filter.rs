//! The filter of a command that shows records of ended jobs, as people write it.

use serde_json::{Map, Value, json};

/// The conditions that select records. A record must meet all given conditions.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct RecordFilter {
    /// Only jobs that ended in this way
    #[arg(long, value_name = "OUTCOME", value_parser = ["delivered", "dead", "deleted", "replaced"])]
    outcome: Option<String>,

    /// Only jobs whose last attempt was answered with this status
    #[arg(long, value_name = "STATUS")]
    status: Option<u16>,

    /// Only jobs where the last answer, or the error of the last attempt, contains this text
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,

    /// Only jobs whose id begins with this text
    #[arg(long, value_name = "TEXT")]
    id_prefix: Option<String>,

    /// Only jobs that ended at this time or later: RFC 3339, Unix milliseconds, or a span before now (2h: two hours
    /// ago)
    #[arg(long, value_name = "WHEN")]
    since: Option<String>,

    /// Only jobs that ended before this time, written in the same ways
    #[arg(long, value_name = "WHEN")]
    until: Option<String>,
}

impl RecordFilter {
    /// Returns the conditions with the API's names.
    pub(super) fn fields(&self) -> Map<String, Value> {
        given([
            ("outcome", text(&self.outcome)),
            ("status", self.status.map(|status| json!(status))),
            ("text", text(&self.text)),
            ("id_prefix", text(&self.id_prefix)),
            ("since", text(&self.since)),
            ("until", text(&self.until)),
        ])
    }
}

/// Returns the fields that have a value.
pub(super) fn given(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Returns a text as the value of a field.
pub(super) fn text(value: &Option<String>) -> Option<Value> {
    value.as_ref().map(|value| json!(value))
}
