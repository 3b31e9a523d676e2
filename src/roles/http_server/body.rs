//! Reads the bodies of requests. All bodies share one limit of memory, and no client can take more than its share of
//! the memory.

use std::error::Error as _;
use std::time::Duration;

use axum::RequestExt as _;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError};

use super::api::Api;
use super::pool::{PoolAllocation, PoolHolder, ResourcePool};
use super::problem::Problem;

/// How long a client may take to send a body.
const PATIENCE: Duration = Duration::from_secs(30);

/// The memory that all bodies may take together, in bytes. If this is less than eight times the longest body, the limit
/// is eight times the longest body: see `memory`.
const BODIES_MAX: usize = 64 << 20;

/// Returns the memory for bodies of at most `max_body` bytes.
pub(super) fn memory(max_body: usize) -> ResourcePool {
    let most = BODIES_MAX.max(8 * max_body);
    ResourcePool::new(most, most / 2)
}

/// The body of a request, which may be JSON or empty.
pub(super) struct JsonBody(pub Bytes);

impl FromRequest<Api> for JsonBody {
    type Rejection = Problem;
    async fn from_request(request: Request, api: &Api) -> Result<JsonBody, Problem> {
        check_kind(request.headers())?;
        let holder = request.extensions().get::<PoolHolder>().cloned();
        read(request.into_limited_body(), api, holder).await.map(JsonBody)
    }
}

/// Reads a body. Until the returned bytes are dropped, the memory of the body counts as used by `holder`.
pub(super) async fn read(body: Body, api: &Api, holder: Option<PoolHolder>) -> Result<Bytes, Problem> {
    let memory = api.bodies.take(holder, 0).ok_or_else(no_memory)?;
    match tokio::time::timeout(PATIENCE, collect(body, memory, api.max_body)).await {
        Ok(collected) => collected,
        Err(_) => Err(Problem::slow_body(PATIENCE)),
    }
}

/// The bytes of a body, and the memory that they take.
struct CollectedBody {
    bytes: Vec<u8>,
    _memory: PoolAllocation,
}

impl AsRef<[u8]> for CollectedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn collect(mut body: Body, mut memory: PoolAllocation, max_body: usize) -> Result<Bytes, Problem> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| match error.source() {
            Some(source) if source.is::<LengthLimitError>() => Problem::too_large(max_body),
            _ => Problem::bad_body(error),
        })?;
        if let Ok(data) = frame.into_data() {
            if !memory.grow(data.len()) {
                return Err(no_memory());
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(Bytes::from_owner(CollectedBody { bytes, _memory: memory }))
}

fn no_memory() -> Problem {
    Problem::unavailable(
        "busy",
        "the bodies of other requests take all the memory for bodies, or half of it is taken by this client's",
    )
}

/// Checks that the declared type of a body is JSON. A body without a declared type is accepted, too.
fn check_kind(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(kind) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    let text = String::from_utf8_lossy(kind.as_bytes()).to_ascii_lowercase();
    let kind = text.split(';').next().unwrap_or_default().trim();
    if kind == "application/json" || kind.ends_with("+json") {
        return Ok(());
    }
    let detail = format!("content-type is {kind:?}, and not \"application/json\"");
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", detail))
}
