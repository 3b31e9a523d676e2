//! Which jobs an operation means, as people write it.

use anyhow::Result;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};

use crate::due::moment;

/// The conditions that select jobs. A job must meet all that are given.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct JobFilter {
    /// Only jobs in this state; default: all that the operation can change
    #[arg(long, value_name = "STATE", value_parser = ["delayed", "ready", "leased", "dead"])]
    state: Option<String>,

    /// Only jobs whose id begins with this text
    #[arg(long, value_name = "TEXT")]
    id_prefix: Option<String>,

    /// Only jobs with this tag
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,

    /// Only jobs that are due at this time or later: RFC 3339, Unix milliseconds, or a time of this host's zone
    #[arg(long, value_name = "MOMENT")]
    due_since: Option<String>,

    /// Only jobs that are due before this time
    #[arg(long, value_name = "MOMENT")]
    due_until: Option<String>,
}

/// Returns the fields that are given.
fn given(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn text(value: &Option<String>) -> Option<Value> {
    value.as_ref().map(|value| json!(value))
}

impl JobFilter {
    /// Returns the conditions with the API's names.
    pub(super) fn fields(&self) -> Result<Map<String, Value>> {
        let at =
            |text: &Option<String>| text.as_deref().map(|text| moment(text, TimeZone::system())).transpose();
        Ok(given([
            ("state", text(&self.state)),
            ("id_prefix", text(&self.id_prefix)),
            ("tag", text(&self.tag)),
            ("due_since", at(&self.due_since)?),
            ("due_until", at(&self.due_until)?),
        ]))
    }
}

/// The conditions that select records. A record must meet all that are given.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct RecordFilter {
    /// Only jobs that ended like this
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

    /// Only jobs that ended at this time or later: RFC 3339, Unix milliseconds, or a span before now (2h: two hours ago)
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
