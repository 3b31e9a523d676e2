//! The statistics on Redis: of all time, and by day.

use super::{number, set};
use crate::{RegistryError, Result};
use model::metrics::{MetricSubject, PageSums, Statistics, Sums};
use store::{RedisTableChange, RedisTables};

/// The version of this table protects the statistics against two changes at once. Each field of the table is a day.
pub(super) const DAYS: &str = "registry:days";

/// The table that says which counts of each page of counters the sums already contain.
const CARRIED: &str = "registry:carried";

/// The sums of all time. The sums of a day are in a table with this name, a colon, and the day.
const SUMS: &str = "registry:sums";

/// The tables of the statistics. The tables with the sums of single days are not in this list (see `day_tables`).
pub(super) const TABLES: &[&str] = &[DAYS, CARRIED, SUMS];

/// The maximum number of days that are kept. (Redis has them in memory.)
const DAYS_MAX: usize = 800;

/// Returns the table of a day, or of all time if `day` is empty.
fn sums_table(day: &str) -> String {
    if day.is_empty() { SUMS.to_owned() } else { format!("{SUMS}:{day}") }
}

/// Returns the names of the tables of days.
pub(super) fn day_tables(tables: &RedisTables) -> store::Result<Vec<String>> {
    Ok(days(tables)?.iter().map(|day| sums_table(day)).collect())
}

fn days(tables: &RedisTables) -> store::Result<Vec<String>> {
    Ok(tables.table(DAYS)?.map(|(_, days)| days.into_keys().collect()).unwrap_or_default())
}

/// Reads seven numbers that are separated by spaces. None: all numbers are 0.
fn sums(text: Option<&str>) -> Result<Sums> {
    let mut numbers = [0; Sums::COUNT];
    for (place, word) in numbers.iter_mut().zip(text.unwrap_or_default().split_ascii_whitespace()) {
        *place = number(Some(word.to_owned()))?;
    }
    Ok(Sums::new(numbers))
}

fn text(sums: Sums) -> String {
    sums.numbers().map(|n| n.to_string()).join(" ")
}

/// Returns the changes that add the new counts in these pages, and how many subjects had new counts.
pub(super) fn carry(
    tables: &RedisTables,
    day: &str,
    pages: &[PageSums],
) -> Result<(Vec<RedisTableChange>, usize)> {
    let subject_field = |subject: &MetricSubject| {
        let (kind, name) = subject.parts();
        format!("{kind} {name}")
    };
    let now: Vec<(String, String, Sums)> = pages
        .iter()
        .flat_map(|PageSums { page, sums }| sums.iter().map(move |(subject, now)| (page, subject, *now)))
        .map(|(page, subject, now)| {
            let subject = subject_field(subject);
            (format!("{page:016x} {subject}"), subject, now)
        })
        .collect();
    let carried: Vec<String> = now.iter().map(|(field, _, _)| field.clone()).collect();
    let before = tables.fields(CARRIED, &carried)?;
    let (mut changes, mut gained) = (Vec::new(), Vec::<(String, Sums)>::new());
    for ((field, subject, now), before) in now.into_iter().zip(before) {
        let before = sums(before.as_deref())?;
        let new = now.since(before);
        if new != Sums::default() {
            changes.push(set(CARRIED, field, text(now.max(before))));
            gained.push((subject, new));
        }
    }
    let count = gained.len();
    // Two pages may have counts of the same subject.
    gained.sort_by(|a, b| a.0.cmp(&b.0));
    gained.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 = kept.1.plus(next.1);
        }
        is_same
    });
    if gained.is_empty() {
        return Ok((changes, 0));
    }
    let subjects: Vec<String> = gained.iter().map(|(subject, _)| subject.clone()).collect();
    for table in [sums_table(""), sums_table(day)] {
        let known = tables.fields(&table, &subjects)?;
        for ((subject, new), known) in gained.iter().zip(known) {
            changes.push(set(&table, subject.clone(), text(sums(known.as_deref())?.plus(*new))));
        }
    }
    changes.extend(keep_day(tables, day)?);
    Ok((changes, count))
}

/// Returns the changes that add a day to [`DAYS`], and that remove the oldest day if there are too many days.
fn keep_day(tables: &RedisTables, day: &str) -> Result<Vec<RedisTableChange>> {
    let known = days(tables)?;
    if known.iter().any(|known| known == day) {
        return Ok(Vec::new());
    }
    let mut changes = vec![set(DAYS, day, "1")];
    if let (true, Some(oldest)) = (known.len() >= DAYS_MAX, known.first()) {
        changes.push(RedisTableChange::Drop { table: sums_table(oldest) });
        changes.push(super::remove(DAYS, oldest));
    }
    Ok(changes)
}

/// Returns the statistics of all time, and of the days from `since` on.
pub(super) fn read(tables: &RedisTables, since: &str) -> Result<Statistics> {
    let mut statistics = Statistics::default();
    let days = days(tables)?.into_iter().filter(|day| day.as_str() >= since);
    for day in std::iter::once(String::new()).chain(days) {
        for (field, text) in tables.every_field(&sums_table(&day))? {
            let (kind, name) = field.split_once(' ').ok_or_else(|| {
                RegistryError::Away(format!("the registry has {field:?} in its statistics"))
            })?;
            if let Some(subject) = MetricSubject::new(kind, name.to_owned()) {
                statistics.take(subject, day.clone(), sums(Some(&text))?);
            }
        }
    }
    Ok(statistics)
}
