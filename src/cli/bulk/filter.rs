//! The filter of an operation on many jobs, as people write it.

use anyhow::Result;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use crate::due::moment;
use crate::record_filter::{given, text};

/// The conditions that select jobs. A job must meet all given conditions.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct BulkJobFilter {
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

impl BulkJobFilter {
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
