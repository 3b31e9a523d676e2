//! Dead letters: how a caller names them, and what is done with many of them at once.

use crate::Result;
use model::job::{JobId, TopicName};
use model::letters::RedrivePace;
use std::time::Duration;

/// What is done with the dead letters of some ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetterOperation {
    /// The dead letters are only counted.
    Count,
    /// The dead letters are removed.
    Remove,
}

/// The dead letters that a redrive or purge handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeadLetterSelection {
    /// All dead letters of the topic.
    All,
    /// The dead letters of these ids.
    Ids(Vec<JobId>),
    /// Exactly these dead letters.
    Letters(Vec<DeadLetterKey>),
}

/// One dead letter. Dead letters of the same id died at different times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterKey {
    /// The job's id.
    pub id: JobId,
    /// When it died, Unix milliseconds.
    pub died_ms: i64,
}

/// Operations on many dead letters at once.
pub trait DeadLetters {
    /// Makes up to `limit` dead letters ready, or delayed if `pace` says so. Their attempts are counted from 0 again.
    /// Returns how many dead letters were redriven. A dead letter stays dead if a live job has its id. For each id,
    /// only one dead letter is redriven. [`DeadLetterSelection::Ids`] takes the latest dead letter of each id.
    fn redrive(
        &mut self,
        topic: &TopicName,
        which: &DeadLetterSelection,
        limit: usize,
        pace: RedrivePace,
    ) -> Result<usize>;

    /// Counts or removes all dead letters of some ids. If a live job has one of the ids, the job stays. Returns how
    /// many dead letters there were.
    fn letters(&mut self, topic: &TopicName, ids: &[JobId], what: DeadLetterOperation) -> Result<usize>;

    /// Removes these dead letters, and no other dead letters with the same ids. Returns how many there were.
    fn purge_letters(&mut self, topic: &TopicName, letters: &[DeadLetterKey]) -> Result<usize>;

    /// Removes dead letters that died at least `age` ago, up to about `limit` on each shard. Returns how many it
    /// removed. The caller repeats the call until it removes none.
    fn retire(&mut self, topic: &TopicName, age: Duration, limit: usize) -> Result<usize>;
}
