//! What topics keep of their ended jobs: stores these settings, and removes records that are not kept any more.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{OptionalExtension, Row, params};

use super::CHUNK;
use super::record_rows::IN_TOPIC;
use super::write::WriteTransaction;
use model::job::TopicName;
use model::record::{RECORDS_MAX, RecordKeeping};

pub(super) fn keeping(row: &Row<'_>) -> rusqlite::Result<RecordKeeping> {
    let age = row.get::<_, Option<i64>>(0)?.map(|ms| Duration::from_millis(ms.max(0) as u64));
    Ok(RecordKeeping {
        age: age.unwrap_or(RecordKeeping::DEFAULT.age),
        jobs: row.get::<_, Option<u32>>(1)?.unwrap_or(RecordKeeping::DEFAULT.jobs),
        with_body: row.get(2)?,
        with_event: row.get(3)?,
    })
}

/// Stores what the topics keep. Topics that are not named keep the default.
pub(super) fn keep(
    w: &mut WriteTransaction<'_>,
    topics: &[(TopicName, RecordKeeping)],
    bytes_max: u64,
) -> rusqlite::Result<()> {
    let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
    w.db.execute(
        "UPDATE shard SET record_bytes_max = ?1 WHERE record_bytes_max IS NOT ?1",
        [(bytes_max != RECORDS_MAX as i64).then_some(bytes_max)],
    )?;
    let mut left: BTreeMap<i64, RecordKeeping> =
        w.db.prepare_cached(
            "SELECT keep_age_ms, keep_jobs, keep_body, with_event, tid FROM topic
             WHERE keep_age_ms IS NOT NULL OR keep_jobs IS NOT NULL OR keep_body OR with_event",
        )?
        .query_map([], |row| Ok((row.get(4)?, keeping(row)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let mut changed = Vec::new();
    for (topic, keeping) in topics {
        let known = w.topic(topic)?;
        let before = known.and_then(|tid| left.remove(&tid)).unwrap_or(RecordKeeping::DEFAULT);
        if before != *keeping {
            changed.push((w.topic_or_new(topic)?, *keeping));
        }
    }
    changed.extend(left.into_keys().map(|tid| (tid, RecordKeeping::DEFAULT)));
    for (tid, RecordKeeping { age, jobs, with_body, with_event }) in changed {
        let age_ms = (age != RecordKeeping::DEFAULT.age).then_some(age.as_millis() as i64);
        let jobs = (jobs != RecordKeeping::DEFAULT.jobs).then_some(jobs);
        w.db.prepare_cached(
            "UPDATE topic SET keep_age_ms = ?2, keep_jobs = ?3, keep_body = ?4, with_event = ?5 WHERE tid = ?1",
        )?
        .execute(params![tid, age_ms, jobs, with_body, with_event])?;
    }
    Ok(())
}

/// Removes up to [`CHUNK`] records that their topics do not keep any more. Returns how many it removed, and the
/// shortest time for which a topic that has records keeps them.
pub(super) fn trim(w: &mut WriteTransaction<'_>) -> rusqlite::Result<(usize, Option<Duration>)> {
    let topics: Vec<(i64, i64, RecordKeeping)> =
        w.db.prepare_cached(
            "SELECT keep_age_ms, keep_jobs, keep_body, with_event, tid, records FROM topic WHERE records > 0",
        )?
        .query_map([], |row| Ok((row.get(4)?, row.get(5)?, keeping(row)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let (mut left, shortest) = (CHUNK as i64, topics.iter().map(|(.., keeping)| keeping.age).min());
    for (tid, there, keeping) in &topics {
        let most = if keeping.is_on() { i64::from(keeping.jobs) } else { 0 };
        if *there > most {
            left -= w.remove_oldest(*tid, left.min(there - most))?.0 as i64;
        }
        // The first row is the record of the job that ended first. (This may be wrong if the clock was set back.)
        let before = w.now_ms().saturating_sub(keeping.age.as_millis() as i64);
        let oldest =
            "SELECT ended_ms FROM record WHERE rid > ?1 << 40 AND rid < (?1 + 1) << 40 ORDER BY rid LIMIT 1";
        let oldest: Option<i64> =
            w.db.prepare_cached(oldest)?.query_row([tid], |row| row.get(0)).optional()?;
        if left > 0 && oldest.is_some_and(|at| at <= before) {
            left -= w.remove_records(IN_TOPIC, "ended_ms <= ?3", params![tid, left, before])?.0 as i64;
        }
        if left <= 0 {
            break;
        }
    }
    if left > 0 {
        left -= w.keep_budget(left)? as i64;
    }
    // Only earlier releases read this sum.
    let sum = "SELECT coalesce(sum(record_bytes), 0) FROM topic";
    w.db.execute(&format!("UPDATE shard SET record_bytes = ({sum}) WHERE record_bytes <> ({sum})"), [])?;
    Ok(((CHUNK as i64 - left) as usize, shortest))
}
