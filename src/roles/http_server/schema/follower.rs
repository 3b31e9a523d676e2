//! A job that follows another one, as `/openapi.json` describes it.

use serde::Serialize;
use utoipa::ToSchema;

/// A job that follows another one.
#[derive(ToSchema, Serialize)]
pub(in super::super) struct Follower {
    topic: String,
    id: String,
    /// Milliseconds from the acceptance of the other job to the due time. If missing, the delay of the topic applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    /// How long a client that reserves this job may work on the job, in milliseconds. If missing, the `ttr` of the
    /// topic applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    ttr_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, required = false)]
    headers: Option<serde_json::Value>,
    /// Any JSON value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    body: Option<serde_json::Value>,
    /// The jobs that follow this job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Value>, required = false)]
    then: Vec<serde_json::Value>,
}
