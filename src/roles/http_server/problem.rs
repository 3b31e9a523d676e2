//! Why a request was not done, as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::excerpt::Excerpt;
use crate::job::{Invalid, JobKey, TopicName};
use crate::registry::RegistryError;
use crate::store::StoreError;

/// Why a request was not done.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct Problem {
    /// It says no more than the status does; what tells problems apart is `code`.
    r#type: &'static str,
    title: &'static str,
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The reason, for people.
    pub detail: String,
    /// Such as `bad_field`, for programs.
    code: &'static str,
    /// The field that is wrong, of the body, the query or the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    field: Option<String>,
}

/// What the log is told of a problem, of bounded length; among an answer's extensions.
#[derive(Debug, Clone)]
pub(super) struct Reason(pub String);

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            r#type: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            detail: detail.into(),
            code,
            field: None,
        }
    }

    /// A field that is not what it should be.
    pub(super) fn field(field: &str, detail: impl Into<String>) -> Problem {
        Problem::of_field(field, "bad_field", detail)
    }

    /// The field that is wrong, if it is one.
    pub(super) fn named_field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// A field that is not there.
    pub(super) fn missing(field: &str, wanted: &str) -> Problem {
        Problem::of_field(field, "missing_field", format!("{field} is missing: {wanted}"))
    }

    /// A field that has no meaning here.
    pub(super) fn unknown_field(field: &str, known: &[&str]) -> Problem {
        let do_mean = if known.is_empty() { "nothing does".to_owned() } else { known.join(", ") + " do" };
        let detail = format!("{field:?} means nothing here; {do_mean}");
        Problem::of_field(field, "unknown_field", detail)
    }

    fn of_field(field: &str, code: &'static str, detail: impl Into<String>) -> Problem {
        let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail);
        Problem { field: Some(field.to_owned()), ..problem }
    }

    pub(super) fn invalid(field: &str, invalid: &Invalid) -> Problem {
        Problem::field(field, format!("{field}: {invalid}"))
    }

    pub(super) fn unknown_topic(topic: &TopicName) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, "unknown_topic", format!("topic {topic} is not registered"))
    }

    pub(super) fn not_found(key: &JobKey) -> Problem {
        let detail = format!("there is no job {:?} in topic {}", key.id.as_str(), key.topic);
        Problem::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub(super) fn conflict(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, code, detail)
    }

    /// It cannot be done now.
    pub(super) fn unavailable(code: &'static str, detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, code, detail)
    }

    /// The same, when some of what was to be done had been done before.
    pub(super) fn after(self, done: usize) -> Problem {
        match done {
            0 => self,
            _ => Problem { detail: format!("{}; {done} were done before", self.detail), ..self },
        }
    }

    /// The same, with what holds besides.
    pub(super) fn beside(self, what: &str) -> Problem {
        Problem { detail: format!("{}; {what}", self.detail), ..self }
    }

    pub(super) fn bad_json(detail: impl std::fmt::Display) -> Problem {
        let detail = format!("the body is not a JSON object: {detail}");
        Problem::new(StatusCode::BAD_REQUEST, "bad_json", detail)
    }

    /// A body that cannot be taken; `most` is how many bytes one may have.
    pub(super) fn body(rejection: &BytesRejection, most: usize) -> Problem {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(most),
            _ => Problem::bad_body(rejection.body_text()),
        }
    }

    pub(super) fn too_large(most: usize) -> Problem {
        let detail = format!("the body is longer than {most} bytes (server.max_frame)");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
    }

    /// A body that breaks off.
    pub(super) fn bad_body(why: impl std::fmt::Display) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, "bad_body", why.to_string())
    }

    /// A body that does not come.
    pub(super) fn slow_body(patience: std::time::Duration) -> Problem {
        let detail = format!("the body did not arrive within {patience:?}");
        Problem::new(StatusCode::REQUEST_TIMEOUT, "too_slow", detail)
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        Problem::unavailable(error.code(), error.to_string())
    }
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Problem {
        let detail = error.to_string();
        match error {
            RegistryError::Away(_) => {
                Problem::unavailable("registry_away", format!("the registry cannot be asked: {detail}"))
            }
            RegistryError::Unknown(_) => Problem::unavailable("unknown", detail),
            RegistryError::Changed(_) => Problem::new(StatusCode::PRECONDITION_FAILED, "changed", detail),
            RegistryError::NoToken(_) => Problem::new(StatusCode::NOT_FOUND, "not_found", detail),
            RegistryError::Exists(_) | RegistryError::TokenExists(_) => Problem::conflict("exists", detail),
            RegistryError::NotFound(topic) => Problem::unknown_topic(&topic),
            RegistryError::Unfit(unfit) => Problem::field(unfit.field, detail),
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
        let reason = Reason(format!("{}: {}", self.code, Excerpt(&self.detail)));
        // What may have been done is not to be repeated blindly.
        let again = status == StatusCode::SERVICE_UNAVAILABLE && self.code != "unknown";
        let mut response = (status, Json(self)).into_response();
        response.extensions_mut().insert(reason);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if again {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
