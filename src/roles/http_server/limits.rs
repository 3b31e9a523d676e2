//! The limits of every request: the size of its head, and the time that it may take.

use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::problem::Problem;
use role::pull::MAX_WAIT;

/// The longest path with its query, in bytes.
const URI_MAX: usize = 8 << 10;

/// The names and values of all headers together, in bytes.
const HEADERS_MAX: usize = 16 << 10;

/// How long a request may take. A slow body and a slow store have their own limits, which are shorter.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a request that waits for a job may take.
const PULL_PATIENCE: Duration = PATIENCE.saturating_add(MAX_WAIT);

/// Refuses a request that is too large, and ends a request that takes too long.
pub(super) async fn keep<F: Future<Output = Response>>(
    request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let uri = request.uri().path_and_query().map_or(0, |u| u.as_str().len());
    if uri > URI_MAX {
        let detail = format!("the path and its query are {uri} bytes long, which is more than {URI_MAX}");
        return Problem::new(StatusCode::URI_TOO_LONG, "uri_too_long", detail).into_response();
    }
    let headers: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    if headers > HEADERS_MAX {
        let detail = format!("the headers are {headers} bytes long, which is more than {HEADERS_MAX}");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Problem::new(status, "headers_too_large", detail).into_response();
    }
    let patience = if request.uri().path().ends_with("/reserve") { PULL_PATIENCE } else { PATIENCE };
    match tokio::time::timeout(patience, next(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!("the request was not done within {patience:?}: its outcome is unknown");
            Problem::new(StatusCode::GATEWAY_TIMEOUT, "timeout", detail).into_response()
        }
    }
}
