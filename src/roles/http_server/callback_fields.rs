//! The fields of a job that are stored with its headers: `headers`, `path`, `url`, `tags` and `then`. `headers`, `path`
//! and `url` change the callbacks of the job, and are checked against the job's topic.

use serde_json::value::RawValue;

use super::problem::Problem;
use model::destination::{Destination, InvalidDestination};
use model::follow::{Then, ThenRefusal};
use model::headers::Headers;
use model::job::NewJob;
use model::scope::RequiredAccess;
use model::tags::{InvalidTag, Tag, Tags};
use model::topic::{Topic, Topics};

/// Returns the headers of a job of a topic.
pub(super) fn headers(raw: Option<&RawValue>, topic: &Topic) -> Result<Headers, Problem> {
    let wrong = |problem: String| Problem::field("headers", format!("headers: {problem}"));
    let headers = raw.map_or_else(|| Ok(Headers::default()), |raw| Headers::parse(raw.get()));
    let headers = headers.map_err(|e| wrong(e.to_string()))?;
    topic.refuse_job_headers(&headers).map_or(Ok(headers), |problem| Err(wrong(problem)))
}

/// Returns the tags of a job.
pub(super) fn tags(texts: Option<Vec<String>>) -> Result<Tags, Problem> {
    let wrong = |e: InvalidTag| Problem::field("tags", format!("tags: {e}"));
    Tags::new(texts.unwrap_or_default()).map_err(wrong)
}

/// Returns the jobs that follow a job. ([`may_follow`] checks whether the caller may add them.)
pub(super) fn then(raw: Option<&RawValue>) -> Result<Then, Problem> {
    let Some(raw) = raw else { return Ok(Then::default()) };
    Then::parse(raw.get()).map_err(|e| Problem::field(&e.field, e.to_string()))
}

/// Checks that a caller may add the jobs that follow its job. Returns the job with these jobs.
pub(super) fn may_follow(
    job: NewJob,
    topics: &Topics,
    permits: impl Fn(RequiredAccess<'_>) -> bool,
) -> Result<NewJob, Problem> {
    let refused = match job.headers.then().clone().checked(topics, permits) {
        Ok(then) => return Ok(NewJob { headers: job.headers.with_then(then), ..job }),
        Err(refused) => refused,
    };
    Err(match refused {
        ThenRefusal::UnknownTopic(field, why) | ThenRefusal::Field(field, why) => {
            Problem::field(&field, format!("{field}: {why}"))
        }
        ThenRefusal::Offline(field, why) => Problem::conflict("topic_offline", format!("{field}: {why}")),
        ThenRefusal::Forbidden(field, scope) => {
            Problem::forbidden_field(&field, format!("{field}: you have no scope {scope}, which this needs"))
        }
    })
}

/// Returns the tag that a query names.
pub(super) fn tag(text: &str) -> Result<Tag, Problem> {
    Tag::new(text).map_err(|e| Problem::field("tag", format!("tag: {e}")))
}

/// Returns the destination of a job of a topic. None: the job goes to the callback URL of the topic.
pub(super) fn destination(
    path: Option<&str>,
    url: Option<&str>,
    topic: &Topic,
) -> Result<Option<Destination>, Problem> {
    let field = if url.is_some() { "url" } else { "path" };
    let wrong = |problem: InvalidDestination| Problem::field(field, format!("{field}: {problem}"));
    let destination = Destination::from_fields(path, url).map_err(wrong)?;
    match destination.as_ref().and_then(|destination| topic.refuse_destination(destination)) {
        Some(problem) => Err(wrong(problem)),
        None => Ok(destination),
    }
}

/// Returns the destination after a change of a job. None: the destination stays as it is. A field that is null is
/// `Some(None)`.
pub(super) fn changed_destination(
    path: Option<Option<String>>,
    url: Option<Option<String>>,
    topic: &Topic,
) -> Result<Option<Option<Destination>>, Problem> {
    if path.is_none() && url.is_none() {
        return Ok(None);
    }
    destination(path.flatten().as_deref(), url.flatten().as_deref(), topic).map(Some)
}
