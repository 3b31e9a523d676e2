//! Operations on many jobs, on Redis.

use serde::{Deserialize, Serialize};

use super::audit::{self, LOG};
use super::{json, number, one_field, remove, set};
use crate::bulk::{StoredBulk, begun, json as bulk_json};
use crate::{BulkClaim, BulkSave, Result};
use model::bulk::{BulkRequest, KEPT, RUNNING_MAX, StoredBulkOperation};
use store::{RedisTableChange, RedisTables};

/// The operations, by number.
const ROWS: &str = "registry:bulk";

/// The table of the operations.
pub(super) const TABLES: &[&str] = &[ROWS];

/// The field of [`LOG`] with the number of the last operation.
const LAST: &str = "bulk_last";

/// The field of [`LOG`] with the numbers of the operations that have not ended. The oldest operation comes first.
const RUNNING: &str = "bulk_running";

/// An operation, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct StoredOperation {
    who: String,
    /// What is done to which jobs: JSON.
    request: String,
    /// How far the operation has come: JSON.
    progress: String,
    started_ms: i64,
    /// Whether somebody has asked to stop the operation.
    #[serde(default)]
    stop: bool,
    /// How the operation ended, and when. None: it has not ended.
    #[serde(default)]
    ended: Option<(String, i64)>,
    /// The runner that has the right to run the operation.
    #[serde(default)]
    runner: Option<String>,
    /// If there is a runner: the moment when the right of the runner ends. If there is no runner: the moment from which
    /// any process may run the operation.
    #[serde(default)]
    until_ms: i64,
}

impl StoredOperation {
    fn into_row(self, number: u64) -> Option<StoredBulkOperation> {
        let StoredOperation { who, request, progress, started_ms, stop, ended, .. } = self;
        let (ended, ended_ms) = ended.unzip();
        StoredBulk { number, who, request, progress, started_ms, stop, ended, ended_ms }.read()
    }
}

/// The changes of tables that a call makes, and the result that it returns.
type TableChangesAndResult<T> = (Vec<RedisTableChange>, T);

fn running(tables: &RedisTables) -> Result<Vec<u64>> {
    let text = one_field(tables, LOG, RUNNING)?.unwrap_or_default();
    text.split_ascii_whitespace().map(|word| number(Some(word.to_owned()))).collect()
}

fn set_running(numbers: &[u64]) -> RedisTableChange {
    let words: Vec<String> = numbers.iter().map(u64::to_string).collect();
    set(LOG, RUNNING, words.join(" "))
}

/// Returns the operations with these numbers. An operation that this release cannot read is left out.
fn fields(tables: &RedisTables, numbers: &[u64]) -> Result<Vec<(u64, StoredOperation)>> {
    let names: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let texts = tables.fields(ROWS, &names)?.into_iter();
    let field = |(number, text): (&u64, Option<String>)| Some((*number, serde_json::from_str(&text?).ok()?));
    Ok(numbers.iter().zip(texts).filter_map(field).collect())
}

fn set_field(number: u64, field: &StoredOperation) -> Result<RedisTableChange> {
    Ok(set(ROWS, number.to_string(), json(field)?))
}

/// Begins an operation.
pub(super) fn begin(
    tables: &RedisTables,
    request: &BulkRequest,
    who: &str,
    now_ms: i64,
) -> Result<TableChangesAndResult<Option<u64>>> {
    let mut running = running(tables)?;
    if running.len() >= RUNNING_MAX {
        return Ok((Vec::new(), None));
    }
    let number = number(one_field(tables, LOG, LAST)?)? + 1;
    let field = StoredOperation {
        who: who.to_owned(),
        request: bulk_json(request)?,
        progress: begun()?,
        started_ms: now_ms,
        stop: false,
        ended: None,
        runner: None,
        until_ms: 0,
    };
    running.push(number);
    let mut changes =
        vec![set_field(number, &field)?, set(LOG, LAST, number.to_string()), set_running(&running)];
    // Only the last `KEPT` operations are kept, so a new operation removes an old operation. If the old operation still
    // runs, it is removed when it ends.
    if let Some(old) = number.checked_sub(KEPT as u64).filter(|old| !running.contains(old)) {
        changes.push(remove(ROWS, old.to_string()));
    }
    Ok((changes, Some(number)))
}

/// Returns the latest operations that have a number less than `before`.
pub(super) fn read(
    tables: &RedisTables,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<StoredBulkOperation>> {
    let last = number(one_field(tables, LOG, LAST)?)?;
    let is_before = |number: &u64| before.is_none_or(|before| *number < before);
    let kept = (last.saturating_sub(KEPT as u64) + 1..=last).rev();
    let mut numbers: Vec<u64> = kept.filter(is_before).take(limit).collect();
    let older = running(tables)?.into_iter().rev().filter(is_before);
    numbers.extend(older.filter(|number| number + KEPT as u64 <= last));
    numbers.truncate(limit);
    let found = fields(tables, &numbers)?.into_iter();
    Ok(found.filter_map(|(number, field)| field.into_row(number)).collect())
}

/// Claims the first operation that is free.
pub(super) fn claim(
    tables: &RedisTables,
    claim: &BulkClaim<'_>,
) -> Result<TableChangesAndResult<Option<StoredBulkOperation>>> {
    let all = fields(tables, &running(tables)?)?;
    for (number, mut field) in all.into_iter().filter(|(_, field)| field.until_ms <= claim.now_ms) {
        field.runner = Some(claim.runner.to_owned());
        field.until_ms = claim.until_ms;
        let change = set_field(number, &field)?;
        if let Some(row) = field.into_row(number) {
            return Ok((vec![change], Some(row)));
        }
    }
    Ok((Vec::new(), None))
}

/// Writes how far an operation has come.
pub(super) fn save(tables: &RedisTables, save: &BulkSave<'_>) -> Result<TableChangesAndResult<Option<bool>>> {
    let found = fields(tables, &[save.number])?.pop();
    let is_own =
        |field: &StoredOperation| field.runner.as_deref() == Some(save.runner) && field.ended.is_none();
    let Some((number, mut field)) = found.filter(|(_, field)| is_own(field)) else {
        return Ok((Vec::new(), None));
    };
    field.progress = bulk_json(save.progress)?;
    field.until_ms = save.until_ms;
    field.runner = (!save.gives_up).then(|| save.runner.to_owned());
    let mut changes = Vec::new();
    if let Some((end, entry)) = save.ended {
        field.ended = Some((end.word().to_owned(), entry.at_ms));
        let left: Vec<u64> = running(tables)?.into_iter().filter(|other| *other != number).collect();
        changes.push(set_running(&left));
        changes.extend(audit::note(tables, entry)?);
    }
    changes.push(match field.ended.is_some() && is_too_old(tables, number)? {
        true => remove(ROWS, number.to_string()),
        false => set_field(number, &field)?,
    });
    Ok((changes, Some(field.stop)))
}

/// Returns whether an operation that has ended is not kept any more.
fn is_too_old(tables: &RedisTables, number: u64) -> Result<bool> {
    Ok(number + KEPT as u64 <= self::number(one_field(tables, LOG, LAST)?)?)
}

/// Asks to stop an operation. The result is false if the operation has already ended.
pub(super) fn stop(tables: &RedisTables, number: u64) -> Result<TableChangesAndResult<bool>> {
    let found = fields(tables, &[number])?.pop();
    let Some((number, mut field)) = found.filter(|(_, field)| field.ended.is_none()) else {
        return Ok((Vec::new(), false));
    };
    field.stop = true;
    Ok((vec![set_field(number, &field)?], true))
}
