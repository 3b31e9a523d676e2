//! Records: what is kept of jobs that have ended.

use std::time::Duration;

use crate::Result;
use model::job::{JobId, JobKey, TopicName};
use model::record::{JobRecord, RecordKeeping};

/// A page of records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records, those of the jobs that ended last first. Of an id whose jobs ended several times, the last record.
    pub records: Vec<JobRecord>,
    /// The cursor of the next page. None: this was the last page.
    pub next: Option<String>,
    /// The nodes that could not be asked. Their records are missing from the page.
    pub away: Vec<String>,
}

/// What is kept of jobs that have ended. A record is written in the very step that ends its job. So a job that has
/// ended has one record for this end, whatever dies.
pub trait Records {
    /// Says what topics keep, and how many bytes the records of all topics may have together. Topics that are not
    /// named keep what [`RecordKeeping::DEFAULT`] says. What is stored already is brought into the new limits step by
    /// step.
    fn keep_records(&mut self, topics: &[(TopicName, RecordKeeping)], bytes_max: u64) -> Result<()>;

    /// Returns the records of an id, the last one first: at least the last
    /// [`RECORDS_OF_AN_ID`](model::record::RECORDS_OF_AN_ID).
    fn records(&mut self, key: &JobKey) -> Result<Vec<JobRecord>>;

    /// Returns a page of a topic's records.
    fn list_records(&mut self, topic: &TopicName, cursor: Option<&str>, limit: usize) -> Result<RecordPage>;

    /// Returns the cursor of the records that ended before a moment (Unix milliseconds). With an id, the cursor of the
    /// records that a listing shows after the record of this id that ended at this moment. None: there are no newer
    /// records, so it is the cursor of the first page.
    fn records_after(
        &mut self,
        topic: &TopicName,
        ended_ms: i64,
        id: Option<&JobId>,
    ) -> Result<Option<String>>;

    /// Erases the records of an id, durably. Returns how many there were.
    fn forget(&mut self, key: &JobKey) -> Result<usize>;

    /// Erases up to `limit` records of a topic, the oldest first. Returns how many.
    fn purge_records(&mut self, topic: &TopicName, limit: usize) -> Result<usize>;

    /// Removes some records that are too old. Returns how many, and when to call it again: at once if there are more.
    fn trim_records(&mut self) -> Result<(usize, Duration)>;
}
