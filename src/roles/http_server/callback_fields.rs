//! The fields of a job that shape its callbacks: `headers` and `path`. They are checked against the job's topic.

use serde_json::value::RawValue;

use super::problem::Problem;
use model::destination::Destination;
use model::headers::Headers;
use model::topic::Topic;

/// Returns the headers of a job of a topic.
pub(super) fn headers(raw: Option<&RawValue>, topic: &Topic) -> Result<Headers, Problem> {
    let wrong = |problem: String| Problem::field("headers", format!("headers: {problem}"));
    let headers = raw.map_or_else(|| Ok(Headers::default()), |raw| Headers::parse(raw.get()));
    let headers = headers.map_err(|e| wrong(e.to_string()))?;
    topic.refuse_job_headers(&headers).map_or(Ok(headers), |problem| Err(wrong(problem)))
}

/// Returns the destination of a job. None: the callback of its topic.
pub(super) fn destination(path: Option<&str>) -> Result<Option<Destination>, Problem> {
    let destination = path.map(Destination::from_path).transpose();
    destination.map_err(|e| Problem::field("path", format!("path: {e}")))
}
