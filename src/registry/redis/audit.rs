//! The audit log on Redis. Its entries have consecutive numbers, without a gap.

use super::{json, number, remove, set};
use crate::Result;
use model::audit::{AuditEntry, KEPT, REMOVED_MAX};
use store::{RedisTableChange, RedisTables};

/// The version of this table protects the audit log and the operations on many jobs. A change of the log or of an
/// operation is written only if the version has not changed since it was read. The log and the operations use the same
/// version, because the end of an operation and its entry in the log are written in one step.
pub(super) const LOG: &str = "registry:log";

/// The entries, by number.
const ENTRIES: &str = "registry:audit";

/// The tables of the audit log.
pub(super) const TABLES: &[&str] = &[LOG, ENTRIES];

/// The field of [`LOG`] with the number of the first entry that is kept.
const FIRST: &str = "audit_first";

/// The field of [`LOG`] with the number of the last entry.
const LAST: &str = "audit_last";

/// The maximum number of entries that are kept. (Redis has them in memory: an entry may have 3 KB, and most have 200
/// bytes.)
const ENTRIES_MAX: u64 = 50_000;

/// Returns the changes that add an entry and remove entries that are too old.
pub(super) fn note(tables: &RedisTables, entry: &AuditEntry) -> Result<Vec<RedisTableChange>> {
    let entry = entry.clone().cut();
    let (first, last) = range(tables)?;
    let number = last + 1;
    let oldest: Vec<String> = (first..number.min(first + REMOVED_MAX)).map(|n| n.to_string()).collect();
    let limit_ms = entry.at_ms - KEPT.as_millis() as i64;
    let is_old = |text: &Option<String>| {
        let at_ms =
            text.as_deref().and_then(|text| serde_json::from_str::<AuditEntry>(text).ok()).map(|e| e.at_ms);
        at_ms.is_none_or(|at_ms| at_ms < limit_ms)
    };
    let texts = tables.fields(ENTRIES, &oldest)?;
    let too_many = (number - first + 1).saturating_sub(ENTRIES_MAX) as usize;
    let aged = texts.iter().take_while(|text| is_old(text)).count();
    let gone = aged.max(too_many).min(oldest.len());
    let mut changes: Vec<RedisTableChange> = oldest.iter().take(gone).map(|n| remove(ENTRIES, n)).collect();
    changes.push(set(ENTRIES, number.to_string(), json(&entry)?));
    changes.push(set(LOG, LAST, number.to_string()));
    changes.push(set(LOG, FIRST, (first + gone as u64).to_string()));
    Ok(changes)
}

/// Returns the numbers of the first and the last entry.
fn range(tables: &RedisTables) -> Result<(u64, u64)> {
    let mut fields = tables.fields(LOG, &[FIRST.to_owned(), LAST.to_owned()])?.into_iter();
    let mut next = || number(fields.next().flatten());
    Ok((next()?.max(1), next()?))
}

/// Returns the latest entries that have a number less than `before`.
pub(super) fn read(
    tables: &RedisTables,
    before: Option<u64>,
    limit: usize,
) -> Result<Vec<(u64, AuditEntry)>> {
    let (first, last) = range(tables)?;
    let end = before.map_or(last, |before| last.min(before.saturating_sub(1)));
    let numbers: Vec<u64> = (first..=end).rev().take(limit).collect();
    let fields: Vec<String> = numbers.iter().map(u64::to_string).collect();
    let texts = tables.fields(ENTRIES, &fields)?.into_iter();
    let entry = |(number, text): (u64, Option<String>)| Some((number, serde_json::from_str(&text?).ok()?));
    Ok(numbers.into_iter().zip(texts).filter_map(entry).collect())
}
