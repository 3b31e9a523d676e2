//! Bounds the memory of answers that clients do not read. A large answer counts until it is written.

use std::convert::Infallible;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};

use super::pool::{PoolAllocation, PoolHolder, ResourcePool};
use super::problem::Problem;

/// The maximum size of an answer that does not count, in bytes. Small answers need no other limit: each connection has
/// at most one answer, so the number of connections limits them.
const SMALL: u64 = 64 << 10;

/// The maximum size of all large answers together, and of the large answers for one holder, in bytes.
const LIMITS: (usize, usize) = (64 << 20, 32 << 20);

/// The memory for large answers.
pub(super) fn pool() -> ResourcePool {
    ResourcePool::new(LIMITS.0, LIMITS.1)
}

/// An extension of a request: the memory for large answers to this client.
#[derive(Debug, Clone)]
pub(super) struct AnswerMemory {
    pub pool: ResourcePool,
    pub holder: Option<PoolHolder>,
}

impl AnswerMemory {
    /// Whether there is room for an answer of this length, in bytes.
    pub(super) fn has_room(&self, length: usize) -> bool {
        length as u64 <= SMALL || self.pool.take(self.holder.clone(), length).is_some()
    }
}

/// The bytes of an answer, with the part of the pool that they take. The part is free again when the last byte is
/// written.
struct AnswerBytes {
    bytes: Bytes,
    _part: PoolAllocation,
}

impl AsRef<[u8]> for AnswerBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What is known about the answer before the request is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestEffect {
    /// The answer only shows something, so it can be replaced by a refusal.
    Shows,
    /// The answer says what was changed, so it is never replaced.
    Changed,
    /// The answer has a part for each job of a batch, or each reserved job, so it can be large.
    ChangedBatch,
}

impl RequestEffect {
    pub(super) fn to_request<B>(request: &Request<B>) -> RequestEffect {
        match request.method() {
            &Method::GET => RequestEffect::Shows,
            _ => match request.uri().path().rsplit('/').next() {
                Some("batch" | "reserve") => RequestEffect::ChangedBatch,
                _ => RequestEffect::Changed,
            },
        }
    }

    /// Returns the refusal of a batch or reserve if the pool has no room for its answer. A refused request has changed
    /// nothing.
    pub(super) fn refusal(self, pool: &ResourcePool, holder: Option<&PoolHolder>) -> Option<Response> {
        let is_full =
            self == RequestEffect::ChangedBatch && pool.take(holder.cloned(), SMALL as usize + 1).is_none();
        is_full.then(|| busy("read the others first. Nothing was changed").into_response())
    }
}

pub(super) fn busy(advice: &str) -> Problem {
    let detail = format!("too many large answers wait for their clients to read them: {advice}");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "busy", detail)
}

/// Returns the answer to a request. The answer counts in the pool until it is written. An answer that only shows
/// something is replaced by a refusal if there is no room for it. An answer about a change is kept, and counts even
/// beyond the limit. Then the next batches are refused before they begin. So only batches that were already running can
/// exceed the limit. The limit of memory for bodies also limits the number of running batches. (A reserve whose answer
/// has no room hands its jobs back: `reserves`.)
pub(super) async fn bound(
    kind: RequestEffect,
    answer: Response,
    pool: &ResourcePool,
    holder: Option<PoolHolder>,
) -> Result<Response, Infallible> {
    let Some(length) = answer.body().size_hint().exact().filter(|length| *length > SMALL) else {
        return Ok(answer);
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let part = match kind {
        RequestEffect::Shows => match pool.take(holder, length) {
            Some(part) => part,
            None => return Ok(busy("read the others first, or ask for less").into_response()),
        },
        RequestEffect::Changed | RequestEffect::ChangedBatch => pool.take_beyond(holder, length),
    };
    let (head, body) = answer.into_parts();
    let body = match to_bytes(body, usize::MAX).await {
        Ok(bytes) => Body::from(Bytes::from_owner(AnswerBytes { bytes, _part: part })),
        Err(e) => return Ok(Problem::bad_body(e).into_response()),
    };
    Ok(Response::from_parts(head, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: Method, path: &str) -> RequestEffect {
        RequestEffect::to_request(&Request::builder().method(method).uri(path).body(()).unwrap())
    }

    async fn answer(kind: RequestEffect, bytes: usize, pool: &ResourcePool) -> Response {
        let Ok(answer) = bound(kind, Response::new(Body::from(vec![0; bytes])), pool, None).await;
        answer
    }

    #[tokio::test]
    async fn answers_about_changes_count_and_batches_then_wait() {
        let pool = ResourcePool::new(1 << 20, 1 << 20);
        let batch = request(Method::POST, "/v1/topics/t/jobs/batch");
        assert_eq!(
            (batch, request(Method::GET, "/v1/stats")),
            (RequestEffect::ChangedBatch, RequestEffect::Shows)
        );
        assert!(batch.refusal(&pool, None).is_none());
        let first = answer(batch, 1 << 20, &pool).await;
        // This batch was already running when the pool became full.
        let second = answer(batch, 1 << 20, &pool).await;
        assert_eq!((first.status(), second.status()), (StatusCode::OK, StatusCode::OK));
        assert_eq!(batch.refusal(&pool, None).map(|r| r.status()), Some(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(
            answer(RequestEffect::Shows, 1 << 20, &pool).await.status(),
            StatusCode::SERVICE_UNAVAILABLE
        );
        let reserve = request(Method::POST, "/v1/topics/t/reserve");
        assert_eq!(reserve.refusal(&pool, None).map(|r| r.status()), Some(StatusCode::SERVICE_UNAVAILABLE));
        let memory = AnswerMemory { pool: pool.clone(), holder: None };
        assert!(memory.has_room(SMALL as usize) && !memory.has_room(SMALL as usize + 1));
        // A single job has a small answer.
        assert!(request(Method::POST, "/v1/topics/t/jobs").refusal(&pool, None).is_none());
        drop(first);
        assert!(batch.refusal(&pool, None).is_some());
        drop(second);
        assert!(batch.refusal(&pool, None).is_none());
    }
}
