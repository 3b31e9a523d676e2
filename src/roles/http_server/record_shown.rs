//! Records as the API shows them: as JSON, as lines of JSON, or as CSV. Pure.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::api_response::ApiResponse;
use super::schema;
use model::job::{Attempt, TopicName};
use model::json_time::rfc3339;
use model::record::{Ending, JobRecord};
use model::tags::Tags;

/// What is kept of a job that has ended.
#[derive(Serialize, ToSchema)]
#[schema(as = JobRecord)]
pub(super) struct RecordResponse<'a> {
    #[schema(value_type = String)]
    topic: &'a TopicName,
    id: &'a str,
    /// How the job ended.
    #[schema(value_type = schema::EndingWord)]
    outcome: Ending,
    /// When the job was added, Unix milliseconds. If it is missing, this is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    added_ms: Option<i64>,
    /// When its last attempt was due, Unix milliseconds. Without an attempt: when its first one was due.
    due_ms: i64,
    /// When its first attempt began, Unix milliseconds. If it is missing, there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    first_attempt_ms: Option<i64>,
    /// When its last attempt began, Unix milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    last_attempt_ms: Option<i64>,
    /// When the job ended, Unix milliseconds.
    ended_ms: i64,
    /// By how many milliseconds its last attempt began after its due time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    late_ms: Option<u64>,
    /// How many attempts were begun. Attempts that do not count, such as those of a killed process, are left out.
    attempts: u32,
    /// The first two attempts and the last eight, the oldest first. What the receiver answered is only shown to callers
    /// with the scope `read` for the topic.
    #[schema(value_type = Vec<schema::AttemptMade>)]
    log: &'a [Attempt],
    /// The job's own headers, if its topic keeps bodies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(required = false)]
    headers: &'a BTreeMap<String, String>,
    /// The job's tags, sorted.
    #[serde(skip_serializing_if = "Tags::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    tags: &'a Tags,
    /// The job's body, if its topic keeps bodies.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Value, required = false)]
    body: Option<&'a RawValue>,
}

impl<'a> From<&'a JobRecord> for RecordResponse<'a> {
    fn from(record: &'a JobRecord) -> RecordResponse<'a> {
        RecordResponse {
            topic: &record.key.topic,
            id: record.key.id.as_str(),
            outcome: record.ending,
            added_ms: record.stamp_us.map(|stamp| stamp / 1000),
            due_ms: record.due_ms,
            first_attempt_ms: record.attempts_log.first().map(|attempt| attempt.at_ms),
            last_attempt_ms: record.attempts_log.last().map(|attempt| attempt.at_ms),
            ended_ms: record.ended_ms,
            late_ms: record.late().map(|late| late.as_millis() as u64),
            attempts: record.attempts,
            log: &record.attempts_log,
            headers: record.headers.by_name(),
            tags: record.headers.tags(),
            body: record.body.as_ref().and_then(|body| serde_json::from_str(body.as_str()).ok()),
        }
    }
}

/// Describes records.
pub(super) fn described(records: &[JobRecord]) -> Vec<RecordResponse<'_>> {
    records.iter().map(RecordResponse::from).collect()
}

/// The form of a page of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordFormat {
    Json,
    /// One JSON object a line.
    Ndjson,
    Csv,
}

impl RecordFormat {
    const ALL: [RecordFormat; 3] = [RecordFormat::Json, RecordFormat::Ndjson, RecordFormat::Csv];

    fn content_type(self) -> &'static str {
        match self {
            RecordFormat::Json => "application/json",
            RecordFormat::Ndjson => "application/x-ndjson",
            RecordFormat::Csv => "text/csv; charset=utf-8",
        }
    }

    /// Returns the format with this name.
    pub(super) fn from_word(word: &str) -> Option<RecordFormat> {
        match word {
            "json" => Some(RecordFormat::Json),
            "ndjson" => Some(RecordFormat::Ndjson),
            "csv" => Some(RecordFormat::Csv),
            _ => None,
        }
    }

    /// Returns the first format that an `Accept` header names. None: it names none of them.
    pub(super) fn from_accept(accept: &str) -> Option<RecordFormat> {
        let kind = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let format =
            |part: &str| RecordFormat::ALL.into_iter().find(|f| kind(f.content_type()) == kind(part));
        accept.split(',').find_map(format)
    }
}

/// A page of records.
#[derive(Serialize, ToSchema)]
#[schema(as = JobRecords)]
pub(super) struct RecordList<'a> {
    /// The records, those of the jobs that ended last first.
    pub records: Vec<RecordResponse<'a>>,
    /// The value of `cursor` for the next page. Null: this is the last page.
    #[schema(required = true)]
    pub next: Option<String>,
    /// Whether all records were looked at. If not, `next` leads to the others.
    pub complete: bool,
    /// How many records were looked at for this page. A filter may have left out most of them.
    pub looked_at: usize,
    /// The nodes of the store that did not answer. Their records are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub away: Vec<String>,
}

impl RecordList<'_> {
    /// Makes the answer. Where the form has no place for it, headers say how the search went.
    pub(super) fn response(&self, format: RecordFormat) -> ApiResponse {
        let text = match format {
            RecordFormat::Json => return ApiResponse::new(StatusCode::OK, self),
            RecordFormat::Ndjson => {
                let line = |record| serde_json::to_string(record).expect("answers are plain values") + "\n";
                self.records.iter().map(line).collect()
            }
            RecordFormat::Csv => csv(&self.records),
        };
        let mut headers =
            vec![("dq-count", self.records.len().to_string()), ("dq-looked-at", self.looked_at.to_string())];
        headers.extend(self.next.clone().map(|next| ("dq-next", next)));
        headers.extend((!self.away.is_empty()).then(|| ("dq-away", self.away.join(", "))));
        ApiResponse::text(format.content_type(), text, headers)
    }
}

/// The columns of the CSV.
const COLUMNS: [&str; 15] = [
    "topic",
    "id",
    "outcome",
    "added",
    "due",
    "first_attempt",
    "last_attempt",
    "ended",
    "late_ms",
    "attempts",
    "status",
    "error",
    "answer",
    "body",
    "tags",
];

/// Writes records as CSV (RFC 4180). Moments are RFC 3339 in UTC.
fn csv(records: &[RecordResponse<'_>]) -> String {
    let mut text = COLUMNS.join(",") + "\r\n";
    let moment = |ms: Option<i64>| ms.map(rfc3339).unwrap_or_default();
    for record in records {
        let last = record.log.last();
        let cells: [String; COLUMNS.len()] = [
            record.topic.to_string(),
            record.id.to_owned(),
            record.outcome.word().to_owned(),
            moment(record.added_ms),
            moment(Some(record.due_ms)),
            moment(record.first_attempt_ms),
            moment(record.last_attempt_ms),
            moment(Some(record.ended_ms)),
            record.late_ms.map_or(String::new(), |late| late.to_string()),
            record.attempts.to_string(),
            last.and_then(|last| last.status).map_or(String::new(), |status| status.to_string()),
            last.map_or(String::new(), |last| last.error.clone()),
            last.map_or(String::new(), |last| last.answer.clone()),
            record.body.map_or(String::new(), |body| body.get().to_owned()),
            record.tags.to_text(),
        ];
        text += &cells.map(|cell| csv_cell(&cell)).join(",");
        text += "\r\n";
    }
    text
}

/// Writes a cell. A spreadsheet would take a text that begins like a formula for one, and could run it. An apostrophe
/// before it prevents this.
fn csv_cell(text: &str) -> String {
    const FORMULA: [char; 10] = ['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠'];
    let is_formula = text.trim_start_matches([' ', '\n']).starts_with(FORMULA);
    match is_formula || text.contains([',', '"', '\r', '\n', ';', '\t', '\'']) {
        false => text.to_owned(),
        true => format!("\"{}{}\"", if is_formula { "'" } else { "" }, text.replace('"', "\"\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_that_looks_like_a_formula_is_text() {
        for (text, cell) in [
            ("a b", "a b"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"hi\"\n", "\"say \"\"hi\"\"\n\""),
            ("=HYPERLINK(\"http://x\")", "\"'=HYPERLINK(\"\"http://x\"\")\""),
            ("+1", "\"'+1\""),
            ("-1", "\"'-1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("\t=1", "\"'\t=1\""),
            (" =1", "\"' =1\""),
            ("＝1", "\"'＝1\""),
            ("1-1", "1-1"),
        ] {
            assert_eq!(csv_cell(text), cell, "{text:?}");
        }
    }

    #[test]
    fn the_first_known_type_of_an_accept_header_counts() {
        for (accept, format) in [
            ("text/csv", Some(RecordFormat::Csv)),
            ("text/html, Application/X-NDJSON;q=0.9, text/csv", Some(RecordFormat::Ndjson)),
            ("application/json", Some(RecordFormat::Json)),
            ("*/*", None),
            ("", None),
        ] {
            assert_eq!(RecordFormat::from_accept(accept), format, "{accept}");
        }
    }
}
