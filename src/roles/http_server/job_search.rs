//! The route that searches the jobs of all topics.

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, CallerContext};
use super::api_response::ApiResponse;
use super::callback_fields;
use super::cursor;
use super::dead_filter::moment_at;
use super::input::{self, short};
use super::job_shown::{COLUMNS, JobResponse};
use super::list_format::{CsvColumns, ListEnd, ListFormat};
use super::problem::Problem;
use super::schema;
use super::store_client::AnswerSender;
use model::job::{self, TopicName};
use model::job_filter::JobFilter;
use model::scope::RequiredAccess;
use role::submit::{FoundJobs, JobCursor, JobQuery, SearchedTopic, StoreRequest};

/// The parameters of the search.
const NAMES: [&str; 9] =
    ["state", "id_prefix", "tag", "due_since", "due_until", "topic", "format", "limit", "cursor"];

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(search))
}

/// Which jobs are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
struct JobSearchQuery {
    /// Only jobs in this state. Several states are separated by commas, such as `delayed,ready`. Without this
    /// parameter, pending jobs and dead letters are shown.
    #[param(required = false, pattern = "^(delayed|ready|leased|dead)(,(delayed|ready|leased|dead))*$")]
    state: String,
    /// Only jobs whose id begins with this text.
    #[param(required = false)]
    id_prefix: String,
    /// Only jobs that have this tag.
    #[param(required = false, min_length = 1, max_length = 64)]
    tag: String,
    /// Only jobs that are due at this moment or later: RFC 3339, or Unix milliseconds.
    #[param(required = false)]
    due_since: String,
    /// Only jobs that are due before this moment.
    #[param(required = false)]
    due_until: String,
    /// Only jobs of this topic.
    #[param(pattern = "^[A-Za-z0-9_.-]+$", min_length = 1, max_length = 128, required = false)]
    topic: String,
    /// The form of the answer. Without it, the header `Accept` decides.
    #[param(inline, required = false)]
    format: schema::FormatWord,
    /// The maximum number of jobs in the page, 50 by default. A page may be shorter or empty.
    #[param(minimum = 1, maximum = 1000, required = false)]
    limit: u32,
    /// The value of `next` in the page before.
    #[param(required = false)]
    cursor: String,
}

/// A page of jobs of several topics.
#[derive(Serialize, ToSchema)]
#[schema(as = FoundJobs)]
struct FoundJobList<'a> {
    /// The jobs, by topic, then by state. Delayed jobs are sorted by due time, ready jobs by priority and due time,
    /// leased jobs by deadline, dead letters by the time of their death.
    jobs: Vec<JobResponse<'a>>,
    /// The value of `cursor` for the next page. Null: this is the last page.
    #[schema(required = true)]
    next: Option<String>,
    /// Whether all jobs were looked at. If not, `next` leads to the remaining jobs.
    complete: bool,
    /// How many jobs were looked at for this page. A filter may have left out most of them.
    looked_at: usize,
    /// The nodes of the store that did not answer. Their jobs are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    away: Vec<String>,
}

/// What a query asks for.
#[derive(Default)]
struct ParsedJobSearchQuery {
    filter: JobFilter,
    topic: Option<TopicName>,
    format: Option<ListFormat>,
    cursor: Option<JobCursor>,
    limit: usize,
}

const STATES: &str = "delayed, ready, leased or dead, or several of these with commas between them";

const MOMENT: &str = "a moment such as \"2026-12-01T23:50:50+08:00\", or Unix milliseconds";

impl ParsedJobSearchQuery {
    fn from_query(query: &str) -> Result<ParsedJobSearchQuery, Problem> {
        let mut wanted = ParsedJobSearchQuery::default();
        let (cursor, limit) =
            input::page_with(query, &NAMES, input::LIMITS, |name, value| wanted.set(name, value))?;
        let no_cursor = || Problem::field("cursor", "cursor is not the next of another page");
        let cursor = cursor.map(|words| read_cursor(&words).ok_or_else(no_cursor)).transpose()?;
        Ok(ParsedJobSearchQuery { cursor, limit, ..wanted })
    }

    /// Sets one parameter. (`page_with` handles `limit` and `cursor`.)
    fn set(&mut self, name: &str, value: &str) -> Result<(), Problem> {
        let wrong = |wanted| Problem::field(name, format!("{name} is {:?}, and not {wanted}", short(value)));
        let filter = &mut self.filter;
        match name {
            "state" => {
                let known = |word: &str| job::State::ALL.into_iter().find(|state| state.to_string() == word);
                let states: Option<Vec<_>> = value.split(',').map(known).collect();
                filter.states = states.ok_or_else(|| wrong(STATES))?;
            }
            "id_prefix" => value.clone_into(&mut filter.id_prefix),
            "tag" => filter.tag = Some(callback_fields::tag(value)?),
            "due_since" => filter.due_since_ms = Some(moment_at(value).ok_or_else(|| wrong(MOMENT))?),
            "due_until" => filter.due_until_ms = Some(moment_at(value).ok_or_else(|| wrong(MOMENT))?),
            "topic" => self.topic = Some(input::topic(value)?),
            _ => {
                let known = ListFormat::from_word(value);
                self.format = Some(known.ok_or_else(|| wrong("json, ndjson or csv"))?);
            }
        }
        Ok(())
    }
}

/// The parts of a cursor, as they are written.
type JobCursorParts = (String, job::State, Option<String>);

fn write_cursor(at: JobCursor) -> String {
    let parts: JobCursorParts = (at.topic.to_string(), at.state, at.place);
    cursor::write(&serde_json::to_string(&parts).expect("a cursor is plain values"))
}

fn read_cursor(words: &str) -> Option<JobCursor> {
    let (topic, state, place): JobCursorParts = serde_json::from_str(words).ok()?;
    Some(JobCursor { topic: TopicName::new(&topic).ok()?, state, place })
}

/// Lists the jobs of all registered topics whose jobs the caller may see: pending jobs and dead letters, by topic and
/// state. A request looks at a limited number of jobs, and `next` leads to the remaining jobs. A job whose state
/// changes meanwhile may be listed twice or not at all. Jobs that wait in the spool of a host are not listed.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", operation_id = "search_jobs", params(JobSearchQuery),
    responses((status = 200, description = "A page of jobs", content(
        (FoundJobList = "application/json"), (String = "application/x-ndjson"), (String = "text/csv"))), schema::LookupErrorResponses))]
async fn search(
    State(api): State<Api>,
    requester: CallerContext,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<ApiResponse, Problem> {
    let wanted = ParsedJobSearchQuery::from_query(query.as_deref().unwrap_or_default())?;
    let ParsedJobSearchQuery { filter, topic, format, cursor, limit } = wanted;
    let format = format.unwrap_or_else(|| ListFormat::from_headers(&headers));
    let (topics, unknown) = match topic {
        None => (api.searched_topics(&requester), None),
        Some(topic) => {
            if !requester.permits(RequiredAccess::Jobs(topic.as_str())) {
                return Err(Problem::forbidden_field(
                    "topic",
                    format!("you may not see the jobs of topic {topic}"),
                ));
            }
            // After a topic was removed, the jobs that remain can still be found.
            let is_registered = api.topics.borrow().get(topic.as_str()).is_some();
            let unknown = (!is_registered).then(|| Problem::unknown_topic(&topic));
            (vec![SearchedTopic { sees_answers: requester.sees_answers(&topic), name: topic }], unknown)
        }
    };
    let respond = move |found: store::Result<FoundJobs>| {
        let FoundJobs { jobs, next, looked_at, away } = found?;
        if let Some(problem) = unknown.filter(|_| looked_at == 0 && next.is_none()) {
            return Err(problem);
        }
        // The search has already left out the answers that the caller may not see.
        let jobs = jobs.iter().map(|view| JobResponse::new(view, true)).collect();
        let page =
            FoundJobList { jobs, complete: next.is_none(), next: next.map(write_cursor), looked_at, away };
        let end = ListEnd { looked_at, next: page.next.as_deref(), away: &page.away };
        let table = CsvColumns { columns: COLUMNS, cells: JobResponse::cells };
        Ok(format.response(&page, &page.jobs, table, end))
    };
    let query = JobQuery { topics, filter, cursor, limit };
    let ask =
        |reply: AnswerSender<_>| StoreRequest::find_jobs(query, move |found| reply.response(respond(found)));
    api.store_client.read(requester.holder, ask).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_jobs_comes_back_as_it_was() {
        for place in [None, Some("{\"a b\":\"AtEnd\"}".to_owned())] {
            let at = JobCursor { topic: TopicName::new("a").unwrap(), state: job::State::Leased, place };
            let words = cursor::read(&write_cursor(at.clone())).unwrap();
            assert_eq!(read_cursor(&words), Some(at));
        }
        for wrong in ["", "2", "[\"a b\",\"ready\",null]", "[\"a\",\"gone\",null]", "[\"a\",\"ready\",7]"] {
            assert_eq!(read_cursor(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_wrong_parameter_is_named_with_its_value() {
        for (query, field, part) in [
            ("state=gone", "state", "\"gone\", and not delayed"),
            ("state=ready,", "state", "\"ready,\", and not delayed"),
            ("tag=a%20b", "tag", "white space"),
            ("due_since=soon", "due_since", "\"soon\", and not a moment"),
            ("due_until=2h", "due_until", "\"2h\", and not a moment"),
            ("due_until=1796140250", "due_until", "milliseconds"),
            ("topic=a%20b", "topic", "a b"),
            ("format=xml", "format", "\"xml\", and not json"),
            ("cursor=22", "cursor", "next of another page"),
            ("outcome=dead", "outcome", "state"),
        ] {
            let problem = ParsedJobSearchQuery::from_query(query).err().unwrap();
            assert_eq!(problem.named_field(), Some(field), "{query}");
            assert!(problem.detail.contains(part), "{query}: {}", problem.detail);
        }
        let wanted =
            ParsedJobSearchQuery::from_query("state=delayed,dead&tag=a&id_prefix=&limit=7").ok().unwrap();
        assert_eq!(wanted.filter.states, [job::State::Delayed, job::State::Dead]);
        assert_eq!((wanted.filter.id_prefix.as_str(), wanted.limit, wanted.cursor), ("", 7, None));
    }
}
