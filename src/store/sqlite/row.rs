//! Converts the columns of jobs to views.

use rusqlite::Row;
use rusqlite::types::Type;

use crate::{Reserver, StoredJob};
use model::headers::Headers;
use model::job::{Attempt, Body, JobId, JobKey, State, TopicName};
use model::job_priority::JobPriority;
use model::record::Ending;

/// The columns that [`view`] reads, in the order that it expects.
pub(super) const COLUMNS: &str = "id, state, at_ms, due_ms, stamp_us, priority, attempts, max_attempts, attempts_log, body, seq, headers, reserver";

pub(super) fn view(topic: &TopicName, row: &Row<'_>) -> rusqlite::Result<StoredJob> {
    let state = state(row, 1)?;
    let (at_ms, attempts): (i64, u32) = (row.get(2)?, row.get(6)?);
    let named: Option<String> = if state == State::Leased { row.get(12)? } else { None };
    let reserver = named.as_deref().and_then(|text| text.split_once(' '));
    Ok(StoredJob {
        reserver: reserver
            // The text begins with the number of the attempt for which the job was reserved. If the job was replaced
            // while it was leased, its attempts are counted from 0 again. So 0 matches any number.
            .filter(|(attempt, _)| attempts == 0 || *attempt == attempts.to_string())
            .and_then(|(_, text)| Reserver::parse(text)),
        is_spooled: false,
        key: JobKey { topic: topic.clone(), id: id(row, 0)? },
        state,
        until_ms: matches!(state, State::Leased | State::Dead).then_some(at_ms),
        due_ms: row.get(3)?,
        stamp_us: row.get(4)?,
        headers: headers(row, 11, row.get(4)?)?,
        priority: priority(row, 5)?,
        attempts,
        max_attempts: row.get(7)?,
        attempts_log: attempts_log(row.get(8)?),
        body: Body::trusted(row.get::<_, String>(9)?),
    })
}

pub(super) fn id(row: &Row<'_>, column: usize) -> rusqlite::Result<JobId> {
    JobId::new(row.get::<_, String>(column)?).map_err(|e| damaged(column, Type::Text, e))
}

pub(super) fn state(row: &Row<'_>, column: usize) -> rusqlite::Result<State> {
    let number: i64 = row.get(column)?;
    State::from_number(number).ok_or_else(|| damaged(column, Type::Integer, format!("{number} is no state")))
}

pub(super) fn ending(row: &Row<'_>, column: usize) -> rusqlite::Result<Ending> {
    let number: i64 = row.get(column)?;
    Ending::from_number(number)
        .ok_or_else(|| damaged(column, Type::Integer, format!("{number} is no ending")))
}

fn priority(row: &Row<'_>, column: usize) -> rusqlite::Result<JobPriority> {
    let number: i64 = row.get(column)?;
    JobPriority::from_stored(number)
        .ok_or_else(|| damaged(column, Type::Integer, format!("{number} is no priority")))
}

pub(super) fn topic_name(row: &Row<'_>, column: usize) -> rusqlite::Result<TopicName> {
    let name: String = row.get(column)?;
    TopicName::new(&name).map_err(|e| damaged(column, Type::Text, e))
}

/// Returns the headers of a job as the text of their column. The text begins with the stamp of the job to which the
/// headers belong. The stamp is needed because the previous release leaves the old headers in the row when it replaces
/// a job.
pub(super) fn headers_text(headers: &Headers, stamp_us: i64) -> Option<String> {
    (!headers.is_empty()).then(|| format!("{stamp_us} {}", headers.to_text()))
}

pub(super) fn headers(row: &Row<'_>, column: usize, stamp_us: i64) -> rusqlite::Result<Headers> {
    let Some(text) = row.get::<_, Option<String>>(column)? else { return Ok(Headers::default()) };
    let own = text.split_once(' ').filter(|(stamp, _)| *stamp == stamp_us.to_string());
    Ok(own.map_or_else(Headers::default, |(_, text)| Headers::trusted(text)))
}

/// Returns the kept attempts. If the text cannot be read, returns none, so that the text does not block a delivery.
pub(super) fn attempts_log(json: Option<String>) -> Vec<Attempt> {
    json.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Returns the attempts that a record keeps: the attempts of `log`, which is a JSON list, and `attempt`.
pub(super) fn attempts_log_with(log: Option<&str>, attempt: &Attempt) -> String {
    match log.and_then(|log| log.strip_suffix(']')) {
        Some(log) => format!("{log},{}]", attempt.to_array()),
        None => format!("[{}]", attempt.to_array()),
    }
}

fn damaged(
    column: usize,
    column_type: Type,
    why: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, column_type, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::late_start::{LateReason, LateStart};

    #[test]
    fn a_short_attempt_is_read_as_an_object_is() {
        let plain = Attempt {
            number: 1,
            at_ms: 1_764_250_000_000,
            took_ms: 3,
            status: Some(200),
            answer: String::new(),
            error: String::new(),
            late: None,
        };
        assert_eq!(attempts_log_with(None, &plain), "[[1,1764250000000,3,200]]");
        let answered = Attempt { answer: "o\"k".to_owned(), ..plain.clone() };
        let late = Some(LateStart { ms: 1_500, reason: LateReason::CircuitOpen });
        let late = Attempt { late, status: None, ..plain.clone() };
        let failed = Attempt { error: "no answer".to_owned(), ..plain.clone() };
        let before = serde_json::to_string(&[&failed]).unwrap();
        for attempt in [plain, answered, late, failed.clone()] {
            assert_eq!(attempts_log(Some(attempts_log_with(None, &attempt))), std::slice::from_ref(&attempt));
            assert_eq!(
                attempts_log(Some(attempts_log_with(Some(&before), &attempt))),
                [failed.clone(), attempt]
            );
        }
    }
}
