//! The routes of records. The routes show the records of one id, list records with filters, and erase the records of an
//! id.

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{Api, CallerContext, JobInPath, TopicInPath};
use super::api_response::ApiResponse;
use super::audit::AuditNote;
use super::callback_fields;
use super::cursor;
use super::dead_filter::{MOMENT, STATUS, status, when};
use super::input::{self, short};
use super::list_format::ListFormat;
use super::problem::Problem;
use super::record_shown::{RecordList, RecordResponse, described};
use super::schema;
use super::store_client::AnswerSender;
use model::job::{JobId, TopicName};
use model::record::{Ending, RecordFilter};
use model::scope::RequiredAccess;
use role::submit::{FoundRecords, RecordCursor, RecordQuery, SearchedTopic, StoreRequest};

/// The parameters of a list of records.
const NAMES: [&str; 10] =
    ["outcome", "status", "text", "id_prefix", "tag", "since", "until", "format", "limit", "cursor"];

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(story, forget)).routes(routes!(list)).routes(routes!(list_all))
}

/// The records of the jobs with one id.
#[derive(Serialize, ToSchema)]
struct RecordsOfId<'a> {
    /// The records, the latest first.
    records: Vec<RecordResponse<'a>>,
}

/// How many records were erased.
#[derive(Serialize, ToSchema)]
struct Erased {
    erased: usize,
}

/// Which records are shown.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code)]
struct RecordsQuery {
    /// Only jobs that ended in this way.
    #[param(inline, required = false)]
    outcome: schema::EndingWord,
    /// Only jobs whose last attempt was answered with this status.
    #[param(required = false, minimum = 100, maximum = 999)]
    status: u16,
    /// Only jobs where the last answer, or the error of the last attempt, contains this text. Upper and lower case make
    /// no difference. Without the scope `read` for the topic, answers are not searched.
    #[param(required = false)]
    text: String,
    /// Only jobs whose id begins with this text.
    #[param(required = false)]
    id_prefix: String,
    /// Only jobs that have this tag.
    #[param(required = false, min_length = 1, max_length = 64)]
    tag: String,
    /// Only jobs that ended at this moment or later: RFC 3339, Unix milliseconds, or a span before now, such as `2h`.
    #[param(required = false)]
    since: String,
    /// Only jobs that ended before this moment.
    #[param(required = false)]
    until: String,
    /// The form of the answer. Without it, the header `Accept` decides.
    #[param(inline, required = false)]
    format: schema::FormatWord,
    /// The maximum number of records in the page, 50 by default. A page may be shorter or empty, even if there are more
    /// pages.
    #[param(minimum = 1, maximum = 1000, required = false)]
    limit: u32,
    /// The value of `next` in the page before.
    #[param(required = false)]
    cursor: String,
}

/// What a query asks for.
struct ParsedRecordsQuery {
    filter: RecordFilter,
    format: ListFormat,
    cursor: Option<RecordCursor>,
    limit: usize,
}

impl ParsedRecordsQuery {
    fn from_request(query: Option<&str>, headers: &HeaderMap) -> Result<ParsedRecordsQuery, Problem> {
        let (mut filter, mut format) = (RecordFilter::default(), None);
        let (cursor, limit) =
            input::page_with(query.unwrap_or_default(), &NAMES, input::LIMITS, |name, value| {
                let wrong =
                    |wanted| Problem::field(name, format!("{name} is {:?}, and not {wanted}", short(value)));
                let text = Some(value.to_owned()).filter(|text| !text.is_empty());
                match name {
                    "outcome" => {
                        let ending = Ending::from_word(value);
                        filter.ending = Some(ending.ok_or_else(|| wrong(OUTCOMES))?);
                    }
                    "status" => filter.status = Some(status(value).ok_or_else(|| wrong(STATUS))?),
                    "text" => filter.text = text,
                    "id_prefix" => filter.id_prefix = text,
                    "tag" => filter.tag = Some(callback_fields::tag(value)?),
                    "since" => filter.since_ms = Some(when(value).ok_or_else(|| wrong(MOMENT))?),
                    "until" => filter.until_ms = Some(when(value).ok_or_else(|| wrong(MOMENT))?),
                    _ => {
                        let known = ListFormat::from_word(value);
                        format = Some(known.ok_or_else(|| wrong("json, ndjson or csv"))?);
                    }
                }
                Ok(())
            })?;
        let no_cursor = || Problem::field("cursor", "cursor is not the next of another page");
        let cursor = cursor.map(|words| read_cursor(&words).ok_or_else(no_cursor)).transpose()?;
        let format = format.unwrap_or_else(|| ListFormat::from_headers(headers));
        Ok(ParsedRecordsQuery { filter, format, cursor, limit })
    }
}

const OUTCOMES: &str = "delivered, dead, deleted or replaced";

/// The parts of a cursor, with topics and ids as plain texts. A written cursor contains them as JSON.
type RecordCursorParts = (String, Option<String>, Option<(i64, String, String)>);

fn write_cursor(at: RecordCursor) -> String {
    let last = at.last.map(|(order_ms, topic, id)| (order_ms, topic.to_string(), id.to_string()));
    let parts: RecordCursorParts = (at.first.to_string(), at.behind.map(|topic| topic.to_string()), last);
    cursor::write(&serde_json::to_string(&parts).expect("a cursor is plain values"))
}

fn read_cursor(words: &str) -> Option<RecordCursor> {
    let (first, behind, last): RecordCursorParts = serde_json::from_str(words).ok()?;
    let last = match last {
        None => None,
        Some((order_ms, topic, id)) => Some((order_ms, TopicName::new(&topic).ok()?, JobId::new(id).ok()?)),
    };
    let behind = behind.map(|topic| TopicName::new(&topic)).transpose().ok()?;
    Some(RecordCursor { first: TopicName::new(&first).ok()?, behind, last })
}

impl Api {
    /// Returns the registered topics whose jobs the requester may see, in the order of their names.
    pub(super) fn searched_topics(&self, requester: &CallerContext) -> Vec<SearchedTopic> {
        let topics = self.topics.borrow().clone();
        let mut names: Vec<TopicName> = topics.iter().map(|topic| topic.name.clone()).collect();
        names.retain(|name| requester.permits(RequiredAccess::Jobs(name.as_str())));
        names.sort();
        names
            .into_iter()
            .map(|name| SearchedTopic { sees_answers: requester.sees_answers(&name), name })
            .collect()
    }

    /// Returns a page of records. `unknown` is the problem that the client gets instead of an empty list.
    async fn records(
        &self,
        requester: CallerContext,
        topics: Vec<SearchedTopic>,
        wanted: ParsedRecordsQuery,
        unknown: Option<Problem>,
    ) -> Result<ApiResponse, Problem> {
        let ParsedRecordsQuery { filter, format, cursor, limit } = wanted;
        let query = RecordQuery { topics, filter, cursor, limit };
        let respond = move |found: store::Result<FoundRecords>| {
            let FoundRecords { records, next, looked_at, away } = found?;
            if let Some(problem) = unknown.filter(|_| looked_at == 0 && next.is_none()) {
                return Err(problem);
            }
            let (complete, next) = (next.is_none(), next.map(write_cursor));
            Ok(RecordList { records: described(&records), next, complete, looked_at, away }.response(format))
        };
        let ask = |reply: AnswerSender<_>| {
            StoreRequest::find_records(query, move |found| reply.response(respond(found)))
        };
        self.store_client.read(requester.holder, ask).await?
    }
}

/// Shows how the jobs with one id ended, the latest first. If the id has no records, the list is empty.
#[utoipa::path(get, path = "/v1/topics/{topic}/jobs/{id}/records", tag = "records", operation_id = "get_job_records",
    params(schema::JobPathParameters),
    responses((status = 200, body = RecordsOfId, description = "The records of the id"), schema::LookupErrorResponses))]
async fn story(
    State(api): State<Api>,
    requester: CallerContext,
    JobInPath(key): JobInPath,
) -> Result<ApiResponse, Problem> {
    let sees_answers = requester.sees_answers(&key.topic);
    let topic = key.topic.clone();
    let ask =
        |reply: AnswerSender<_>| StoreRequest::records(key, sees_answers, move |_, found| reply.with(found));
    let mut records = api.store_client.ask(0, ask).await??;
    api.name_pauses(&topic, records.iter_mut().flat_map(|record| &mut record.attempts_log)).await;
    Ok(ApiResponse::new(StatusCode::OK, &RecordsOfId { records: described(&records) }))
}

/// Erases the records of an id. A job or a dead letter with this id stays.
#[utoipa::path(delete, path = "/v1/topics/{topic}/jobs/{id}/records", tag = "records", operation_id = "forget_job",
    params(schema::JobPathParameters),
    responses((status = 200, body = Erased, description = "How many records were erased"), schema::LookupErrorResponses))]
async fn forget(State(api): State<Api>, JobInPath(key): JobInPath) -> Result<ApiResponse, Problem> {
    let ask = |reply: AnswerSender<_>| StoreRequest::forget(key, |_, erased| reply.with(erased));
    let erased = api.store_client.ask(0, ask).await??;
    let noted = AuditNote { is_nothing: erased == 0, jobs: Some(erased), ..AuditNote::default() };
    Ok(ApiResponse::new(StatusCode::OK, &Erased { erased }).noting(noted))
}

/// Lists the latest record of each id of a topic. The records of the jobs that ended last come first.
#[utoipa::path(get, path = "/v1/topics/{topic}/records", tag = "records", operation_id = "list_topic_records",
    params(schema::TopicPath, RecordsQuery),
    responses((status = 200, description = "A page of records", content(
        (RecordList = "application/json"), (String = "application/x-ndjson"), (String = "text/csv"))), schema::LookupErrorResponses))]
async fn list(
    State(api): State<Api>,
    requester: CallerContext,
    TopicInPath(topic): TopicInPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<ApiResponse, Problem> {
    let wanted = ParsedRecordsQuery::from_request(query.as_deref(), &headers)?;
    // The records of a removed topic can still be listed.
    let is_registered = api.topics.borrow().get(topic.as_str()).is_some();
    let unknown = (!is_registered).then(|| Problem::unknown_topic(&topic));
    let topics = vec![SearchedTopic { sees_answers: requester.sees_answers(&topic), name: topic }];
    api.records(requester, topics, wanted, unknown).await
}

/// Lists the records of all registered topics whose jobs the caller may see. A request searches up to 100 topics. If
/// there are more topics, the next pages have their records.
#[utoipa::path(get, path = "/v1/records", tag = "records", operation_id = "list_records",
    params(RecordsQuery),
    responses((status = 200, description = "A page of records", content(
        (RecordList = "application/json"), (String = "application/x-ndjson"), (String = "text/csv"))), schema::LookupErrorResponses))]
async fn list_all(
    State(api): State<Api>,
    requester: CallerContext,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Result<ApiResponse, Problem> {
    let wanted = ParsedRecordsQuery::from_request(query.as_deref(), &headers)?;
    let topics = api.searched_topics(&requester);
    api.records(requester, topics, wanted, None).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_of_records_comes_back_as_it_was() {
        let (a, b) = (TopicName::new("a").unwrap(), TopicName::new("b").unwrap());
        let last = Some((1_796_140_250_000, b.clone(), JobId::new("x\"y 中").unwrap()));
        for (behind, last) in [(None, None), (None, last.clone()), (Some(b), last)] {
            let at = RecordCursor { first: a.clone(), behind, last };
            let words = cursor::read(&write_cursor(at.clone())).unwrap();
            assert_eq!(read_cursor(&words), Some(at));
        }
        for wrong in ["", "2", "[\"a b\",null,null]", "[\"a\",null,[1,\"b\",\"\"]]", "[\"a\",\"\",null]"] {
            assert_eq!(read_cursor(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_wrong_parameter_is_named_with_its_value() {
        let headers = HeaderMap::new();
        let problem = |query: &str| ParsedRecordsQuery::from_request(Some(query), &headers).err().unwrap();
        for (query, field, part) in [
            ("outcome=done", "outcome", "\"done\", and not delivered"),
            ("status=1", "status", "\"1\", and not an HTTP status"),
            ("since=yesterday", "since", "\"yesterday\", and not a moment"),
            ("until=1", "until", "\"1\", and not a moment"),
            ("tag=a%20b", "tag", "white space"),
            ("tag=", "tag", "1 to 64 bytes"),
            ("format=xml", "format", "\"xml\", and not json"),
            ("cursor=22", "cursor", "next of another page"),
            ("state=dead", "state", "outcome"),
        ] {
            let problem = problem(query);
            assert_eq!(problem.named_field(), Some(field), "{query}");
            assert!(problem.detail.contains(part), "{query}: {}", problem.detail);
        }
    }
}
