//! Why a request failed, as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;

use super::record_shown::RecordResponse;
use model::excerpt::Excerpt;
use model::job::{InvalidJobPart, JobKey, TopicName};
use registry::RegistryError;
use store::StoreError;

/// Why a request failed.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Problem {
    /// Always `about:blank`. The field `code` tells problems apart.
    r#type: &'static str,
    title: &'static str,
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The reason, for people.
    pub detail: String,
    /// The reason, for programs, such as `bad_field`.
    code: &'static str,
    /// The wrong field of the body, the query or the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    field: Option<Box<str>>,
    /// How the last job with this id ended, if there is no job with this id now and a record is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RecordResponse<'static>>, nullable = false)]
    ended: Option<Box<RawValue>>,
    /// The number of seconds after which the client may try again.
    #[serde(skip)]
    #[schema(ignore)]
    wait: Option<u32>,
}

/// A text of limited length that describes a problem in the log. The value is an extension of the answer.
#[derive(Debug, Clone)]
pub(super) struct RefusalReason(pub String);

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            code,
            field: None,
            ended: None,
            // A change that may have happened must not be repeated blindly, so its answer has no `Retry-After`.
            wait: (status == StatusCode::SERVICE_UNAVAILABLE && code != "unknown").then_some(1),
        }
    }

    /// A field has a wrong value.
    pub(super) fn field(field: &str, detail: impl Into<String>) -> Problem {
        Problem::of_field(field, "bad_field", detail)
    }

    /// The name of the field that is wrong, if the problem is about a field.
    pub(super) fn named_field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// A required field is missing.
    pub(super) fn missing(field: &str, wanted: &str) -> Problem {
        Problem::of_field(field, "missing_field", format!("{field} is missing: {wanted}"))
    }

    /// A field is not known here.
    pub(super) fn unknown_field(field: &str, known: &[&str]) -> Problem {
        let do_mean = if known.is_empty() { "no fields".to_owned() } else { known.join(", ") + " only" };
        let detail = format!("{field:?} is unknown here: give {do_mean}");
        Problem::of_field(field, "unknown_field", detail)
    }

    /// The caller may not change a field.
    pub(super) fn forbidden_field(field: &str, detail: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::FORBIDDEN, "forbidden", detail);
        Problem { field: Some(field.into()), ..problem }
    }

    fn of_field(field: &str, code: &'static str, detail: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail);
        Problem { field: Some(field.into()), ..problem }
    }

    pub(super) fn invalid(field: &str, invalid: &InvalidJobPart) -> Problem {
        Problem::field(field, format!("{field}: {invalid}"))
    }

    pub(super) fn unknown_topic(topic: &TopicName) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "unknown_topic", format!("topic {topic} is not registered"))
    }

    pub(super) fn not_found(key: &JobKey) -> Problem {
        let detail = format!("there is no job {:?} in topic {}", key.id.as_str(), key.topic);
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// Adds how the last job with this id ended.
    pub(super) fn with_end(self, ended: Option<&RecordResponse<'_>>) -> Problem {
        let ended = ended.map(|record| to_raw_value(record).expect("a record is plain values"));
        let detail = match &ended {
            None => self.detail,
            Some(_) => format!("{}: the last one has ended", self.detail),
        };
        Problem { detail, ended, ..self }
    }

    pub(super) fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    /// The request cannot be done now.
    pub(super) fn unavailable(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }

    /// Writes into the problem how many parts of the request were done before the problem occurred.
    pub(super) fn after(self, done: usize) -> Problem {
        match done {
            0 => self,
            _ => Problem { detail: format!("{}; {done} were done before", self.detail), ..self },
        }
    }

    /// Adds another fact to the detail.
    pub(super) fn beside(self, what: &str) -> Problem {
        Problem { detail: format!("{}; {what}", self.detail), ..self }
    }

    pub(super) fn bad_json(detail: impl std::fmt::Display) -> Problem {
        let detail = format!("the body is not a JSON object: {detail}");
        Problem::new(StatusCode::BAD_REQUEST, "bad_json", detail)
    }

    /// A body has more than `most` bytes.
    pub(super) fn too_large(most: usize) -> Problem {
        let detail = format!("the body is longer than {most} bytes (server.max_frame)");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    }

    /// A body ends too early.
    pub(super) fn bad_body(why: impl std::fmt::Display) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_body", why.to_string())
    }

    /// A body does not arrive in time.
    pub(super) fn slow_body(patience: std::time::Duration) -> Problem {
        let detail = format!("the body did not arrive within {patience:?}");
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match error {
            StoreError::OverQuota(over) => {
                let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, error.code(), error.to_string());
                Problem { wait: Some(over.wait.as_millis().div_ceil(1000) as u32), ..problem }
            }
            _ => Problem::unavailable(error.code(), error.to_string()),
        }
    }
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Problem {
        let detail = error.to_string();
        match error {
            RegistryError::Away(_) => {
                Problem::unavailable("registry_away", format!("the registry is unavailable: {detail}"))
            }
            RegistryError::Unknown(_) => Problem::unavailable("unknown", detail),
            RegistryError::Changed(_) => Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail),
            RegistryError::NoToken(_) => Problem::new(StatusCode::NOT_FOUND, "not_found", detail),
            RegistryError::Exists(_) | RegistryError::TokenExists(_) => Problem::conflict("exists", detail),
            RegistryError::NotFound(topic) => Problem::unknown_topic(&topic),
            RegistryError::InvalidTopic(unfit) => Problem::field(unfit.field, detail),
            RegistryError::Unusable(_) => Problem::conflict("unusable", detail),
        }
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_path", rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let reason = RefusalReason(format!("{}: {}", self.code, Excerpt(&self.detail)));
        let wait = self.wait;
        let mut response = (status, Json(self)).into_response();
        response.extensions_mut().insert(reason);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = wait {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
