//! Bounds the memory of answers that clients do not read. A large answer counts until it is written.

use std::convert::Infallible;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};

use super::pool::{Holder, Pool, PoolPart};
use super::problem::Problem;

/// A smaller answer does not count, in bytes: each connection has at most one.
const SMALL: u64 = 64 << 10;

/// How many bytes all large answers have together at most, and those to one address.
const LIMITS: (usize, usize) = (64 << 20, 32 << 20);

/// The memory for large answers.
pub(super) fn pool() -> Pool {
    Pool::new(LIMITS.0, LIMITS.1)
}

/// The bytes of an answer, with their part of the memory. The part is free again when the last byte is written.
struct HeldBytes {
    bytes: Bytes,
    _part: PoolPart,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Returns the answer to a request with this method, counted in the pool until it is written. If there is no room for an
/// answer that only shows something, refuses instead. An answer about a change is never replaced: it says what was done.
/// Its length is bounded by that of the request.
pub(super) async fn bound(
    method: Method,
    answer: Response,
    pool: &Pool,
    holder: Option<Holder>,
) -> Result<Response, Infallible> {
    let Some(length) = answer.body().size_hint().exact().filter(|length| *length > SMALL) else {
        return Ok(answer);
    };
    let Some(part) = pool.take(holder, usize::try_from(length).unwrap_or(usize::MAX)) else {
        if method != Method::GET {
            return Ok(answer);
        }
        let detail = "too many large answers wait for their clients to read them: read the others first, or ask for less";
        return Ok(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail).into_response());
    };
    let (head, body) = answer.into_parts();
    let body = match to_bytes(body, usize::MAX).await {
        Ok(bytes) => Body::from(Bytes::from_owner(HeldBytes { bytes, _part: part })),
        Err(e) => return Ok(Problem::bad_body(e).into_response()),
    };
    Ok(Response::from_parts(head, body))
}
