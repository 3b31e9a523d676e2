//! `Idempotency-Key`: if a client sends a POST again because the answer was lost, the POST is not done again. Answers
//! are kept in memory for ten minutes. For an add without an id, the job's id is made from the key. So such an add is
//! recognized as long as its job exists.

use std::collections::hash_map::{DefaultHasher, Entry};
use std::collections::{HashMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::Limited;

use super::access::Caller;
use super::api::Api;
use super::body;
use super::pool::PoolHolder;
use super::presence::ClientPresence;
use super::problem::Problem;
use super::reserves::RequestShare;
use role::lock;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// The longest key, in bytes.
const KEY_MAX: usize = 255;

/// How long an answer is kept.
const KEPT: Duration = Duration::from_secs(600);

/// The maximum number of kept answers.
const ANSWERS_MAX: usize = 10_000;
/// The maximum size of all kept answers together, in bytes.
const BYTES_MAX: usize = 16 << 20;
/// The maximum length of the body of a kept answer, in bytes.
const ANSWER_MAX: usize = 256 << 10;

/// Returns the key of a request, if it has one.
pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    let Some(value) = headers.get(KEY) else { return Ok(None) };
    let good = (1..=KEY_MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic);
    match value.to_str() {
        Ok(key) if good => Ok(Some(key)),
        _ => {
            let detail = format!("Idempotency-Key is not 1 to {KEY_MAX} visible ASCII characters");
            Err(Problem::field("Idempotency-Key", detail))
        }
    }
}

/// The caller of a request, its path, and its key. A caller never sees the answer to another caller.
type RequestKey = (Option<Caller>, Box<str>, Box<str>);

/// A final answer, which is repeated for the same request.
#[derive(Clone)]
struct ReplayedResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

enum IdempotencyRecord {
    /// The request is being done.
    Running {
        of: u64,
    },
    Done {
        of: u64,
        answer: ReplayedResponse,
    },
}

#[derive(Default)]
struct IdempotencyTable {
    all: HashMap<RequestKey, IdempotencyRecord>,
    /// The finished requests, the oldest first, each with the number of bytes that it takes.
    order: VecDeque<(Instant, RequestKey, usize)>,
    bytes: usize,
}

/// The answers that are kept. A clone is cheap, because all clones share one table.
#[derive(Clone, Default)]
pub(super) struct Replays(Arc<Mutex<IdempotencyTable>>);

/// What is known about a key.
enum KeyState {
    New,
    Running,
    OtherBody,
    Answered(ReplayedResponse),
}

impl IdempotencyTable {
    /// Looks up the key, and registers it if it is new.
    fn begin(&mut self, place: &RequestKey, of: u64, now: Instant) -> KeyState {
        self.forget_old(now);
        match self.all.entry(place.clone()) {
            Entry::Vacant(free) => {
                free.insert(IdempotencyRecord::Running { of });
                KeyState::New
            }
            Entry::Occupied(taken) => match taken.get() {
                IdempotencyRecord::Running { of: other } | IdempotencyRecord::Done { of: other, .. }
                    if *other != of =>
                {
                    KeyState::OtherBody
                }
                IdempotencyRecord::Running { .. } => KeyState::Running,
                IdempotencyRecord::Done { answer, .. } => KeyState::Answered(answer.clone()),
            },
        }
    }

    fn keep(&mut self, place: &RequestKey, of: u64, answer: ReplayedResponse, now: Instant) {
        let bytes = answer.body.len() + place.1.len() + place.2.len() + 512;
        self.bytes += bytes;
        self.order.push_back((now, place.clone(), bytes));
        self.all.insert(place.clone(), IdempotencyRecord::Done { of, answer });
        self.forget_old(now);
    }

    fn forget_old(&mut self, now: Instant) {
        while let Some((at, ..)) = self.order.front()
            && (now.saturating_duration_since(*at) >= KEPT
                || self.order.len() > ANSWERS_MAX
                || self.bytes > BYTES_MAX)
        {
            if let Some((_, place, bytes)) = self.order.pop_front() {
                self.all.remove(&place);
                self.bytes -= bytes;
            }
        }
    }
}

/// A request that is being done. If it ends without an answer to keep, its key is removed.
struct RunningKey {
    replays: Replays,
    place: RequestKey,
    kept: bool,
}

impl Drop for RunningKey {
    fn drop(&mut self) {
        if !self.kept {
            lock(&self.replays.0).all.remove(&self.place);
        }
    }
}

/// Whether an answer is also valid for a repeated request. It is valid if something was done, or if the request
/// conflicts with existing data.
fn is_final(status: StatusCode) -> bool {
    status.is_success() || status == StatusCode::CONFLICT
}

/// An extension of an answer: a part of the request could not be done now. The request may be sent again.
#[derive(Debug, Clone, Copy)]
pub(super) struct PartialResultMark;

/// Returns whether the answer contains a secret that must not be kept. The secret is a new token or a session cookie. A
/// topic's new secret counts, too, if the caller cannot be distinguished from other callers.
fn holds_secret(path: &str, caller: Option<&Caller>) -> bool {
    let is_anybody = matches!(caller, None | Some(Caller::Anybody));
    matches!(path, "/v1/tokens" | "/console/session") || (is_anybody && path.ends_with("/rotate-secret"))
}

/// Answers a POST again with its earlier answer, if its key is known.
pub(super) async fn replay(replays: &Replays, api: &Api, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    let is_kept = !holds_secret(request.uri().path(), caller);
    if request.method() != Method::POST || !request.headers().contains_key(KEY) || !is_kept {
        return next.run(request).await;
    }
    match replayed(replays.clone(), api, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn replayed(replays: Replays, api: &Api, request: Request, next: Next) -> Result<Response, Problem> {
    let key = key_of(request.headers())?.unwrap_or_default();
    let caller = request.extensions().get::<Caller>().cloned();
    let place: RequestKey = (caller, request.uri().path().into(), key.into());
    let (mut head, body) = request.into_parts();
    // With this default value, the request continues even if its client is gone.
    head.extensions.insert(ClientPresence::default());
    let holder = head.extensions.get::<PoolHolder>().cloned();
    let share = head.extensions.get::<RequestShare>().cloned();
    let body = body::read(Body::new(Limited::new(body, api.max_body)), api, holder).await?;
    let mut hasher = DefaultHasher::new();
    (&body[..], head.uri.query()).hash(&mut hasher);
    let of = hasher.finish();
    match lock(&replays.0).begin(&place, of, Instant::now()) {
        KeyState::New => {}
        KeyState::Running => {
            let detail = "a request with this Idempotency-Key is being done: repeat it in a moment";
            return Err(Problem::conflict("in_progress", detail));
        }
        KeyState::OtherBody => {
            let detail =
                "this Idempotency-Key was used for a request with another body or query: use a new key";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "key_reused", detail));
        }
        KeyState::Answered(ReplayedResponse { status, headers, body }) => {
            let mut response = (status, headers, body).into_response();
            response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            return Ok(response);
        }
    }
    let begun = RunningKey { replays: replays.clone(), place, kept: false };
    let request = Request::from_parts(head, Body::from(body));
    // A client that gives up will send the request again. So the request continues without the client, and its answer
    // is kept. The request keeps its place among the running requests until it is done.
    let done = done(replays, begun, of, next.run(request));
    let done = tokio::spawn(async move {
        let _share = share;
        done.await
    });
    done.await.unwrap_or_else(|_| Err(Problem::unavailable("unknown", "the outcome is unknown")))
}

/// Waits for the answer, and keeps it if it is final.
async fn done(
    replays: Replays,
    mut begun: RunningKey,
    of: u64,
    answer: impl Future<Output = Response>,
) -> Result<Response, Problem> {
    let response = answer.await;
    let small = response.body().size_hint().exact().is_some_and(|n| n <= ANSWER_MAX as u64);
    let is_whole = response.extensions().get::<PartialResultMark>().is_none();
    if !is_final(response.status()) || !small || !is_whole {
        return Ok(response);
    }
    let (head, body) = response.into_parts();
    let body = to_bytes(body, ANSWER_MAX).await.map_err(Problem::bad_body)?;
    let answer = ReplayedResponse { status: head.status, headers: head.headers.clone(), body: body.clone() };
    begun.kept = true;
    lock(&replays.0).keep(&begun.place, of, answer, Instant::now());
    Ok(Response::from_parts(head, Body::from(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: usize) -> ReplayedResponse {
        ReplayedResponse {
            status: StatusCode::CREATED,
            headers: HeaderMap::new(),
            body: vec![0; bytes].into(),
        }
    }

    #[test]
    fn answers_are_kept_for_a_while_and_only_so_many() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let place = |n: usize| -> RequestKey { (None, "/v1/topics".into(), n.to_string().into()) };
        let mut records = IdempotencyTable::default();
        assert!(matches!(records.begin(&place(0), 7, at(0)), KeyState::New));
        assert!(matches!(records.begin(&place(0), 7, at(0)), KeyState::Running));
        assert!(matches!(records.begin(&place(0), 8, at(0)), KeyState::OtherBody));
        records.keep(&place(0), 7, answer(1), at(0));
        let other = (Some(Caller::Local(7)), "/v1/topics".into(), "0".into());
        assert!(matches!(records.begin(&other, 7, at(0)), KeyState::New), "of another caller");
        records.all.remove(&other);
        assert!(matches!(records.begin(&place(0), 7, at(599)), KeyState::Answered(_)));
        assert!(matches!(records.begin(&place(0), 8, at(599)), KeyState::OtherBody));
        assert!(matches!(records.begin(&place(0), 8, at(600)), KeyState::New));
        for n in 1..=100 {
            records.begin(&place(n), 7, at(600));
            records.keep(&place(n), 7, answer(ANSWER_MAX), at(600));
        }
        assert!(records.bytes <= BYTES_MAX && records.order.len() < 70, "{}", records.bytes);
        assert!(matches!(records.begin(&place(1), 7, at(600)), KeyState::New));
        assert!(matches!(records.begin(&place(100), 7, at(600)), KeyState::Answered(_)));
        for n in 1000..1000 + ANSWERS_MAX + 10 {
            records.begin(&place(n), 7, at(601));
            records.keep(&place(n), 7, answer(0), at(601));
        }
        assert_eq!(records.order.len(), ANSWERS_MAX);
        // `all` also has the requests that are being done. The maximum does not include them.
        assert!(records.all.len() <= ANSWERS_MAX + 3);
    }
}
