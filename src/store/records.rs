//! Records: what is kept of jobs that have ended.

use std::time::{Duration, Instant};

use crate::Result;
use model::job::{JobId, JobKey, TopicName};
use model::record::{JobRecord, RecordKeeping};

/// A page of records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records. Jobs that ended last come first. If jobs with the same id ended several times, the page has only
    /// the last record of this id.
    pub records: Vec<JobRecord>,
    /// The cursor of the next page. None: this was the last page.
    pub next: Option<String>,
    /// The nodes that could not be asked. Their records are missing from the page.
    pub away: Vec<String>,
}

/// What is kept of jobs that have ended. A record is written in the same step that ends its job. So a job that has
/// ended has one record for this end, even if a process dies.
pub trait Records {
    /// Sets what topics keep, and how many bytes the records of all topics may have together. A topic that was never
    /// named keeps what [`RecordKeeping::DEFAULT`] says. On Redis, a topic that is no longer named keeps what was said
    /// last, because another host may serve it. In the embedded store, it keeps the default again. Records that are
    /// stored already are adapted to the new limits step by step.
    fn keep_records(&mut self, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> Result<()>;

    /// Returns the records of an id, the last one first. The answer has at least the last
    /// [`RECORDS_OF_AN_ID`](model::record::RECORDS_OF_AN_ID) records that the store still has.
    fn records(&mut self, key: &JobKey) -> Result<Vec<JobRecord>>;

    /// Returns a page of a topic's records.
    fn list_records(&mut self, topic: &TopicName, cursor: Option<&str>, limit: usize) -> Result<RecordPage>;

    /// Returns the cursor of a listing that leaves out the newer records. Without an id, the listing begins with the
    /// first record that has an earlier `order_ms` than the given one. With an id, the listing begins after the record
    /// of this id that has exactly this `order_ms`. None: no record is left out, so the listing begins with its first
    /// page.
    fn records_after(
        &mut self,
        topic: &TopicName,
        order_ms: i64,
        id: Option<&JobId>,
    ) -> Result<Option<String>>;

    /// Erases the records of an id, durably. Returns how many there were.
    fn forget(&mut self, key: &JobKey) -> Result<usize>;

    /// Erases up to `limit` records of a topic, the oldest first. Returns how many.
    fn purge_records(&mut self, topic: &TopicName, limit: usize) -> Result<usize>;

    /// Removes some records that are too old. Returns how many, and the wait until the next call. The wait is short if
    /// there may be more.
    fn trim_records(&mut self) -> Result<(usize, Duration)>;
}

/// The shortest and the longest wait between two searches for old records.
const TRIM_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The wait after a step that has removed records, so that the other users of the store can work between two steps.
const TRIM_PAUSE: Duration = Duration::from_millis(5);

/// Returns the wait until the next search for old records. `gone`: how many records were removed now. `shortest`: the
/// shortest time for which a topic keeps its records, or None if there are no records.
pub(crate) fn trim_again(gone: usize, shortest: Option<Duration>) -> Duration {
    let (least, most) = TRIM_EVERY;
    match gone {
        0 => shortest.map_or(most, |age| (age / 100).clamp(least, most)),
        _ => TRIM_PAUSE,
    }
}

/// Removes records that are too old, if the next search is due. Returns the wait until the next search. `due` returns
/// the field in which the store keeps the moment of the next search.
pub(crate) fn trim_when_due<S: Records>(
    store: &mut S,
    due: fn(&mut S) -> &mut Option<Instant>,
) -> Result<Duration> {
    let now = Instant::now();
    if let Some(at) = due(store).filter(|at| *at > now) {
        return Ok(at - now);
    }
    let (_, again) = store.trim_records()?;
    *due(store) = Some(now + again);
    Ok(again)
}
