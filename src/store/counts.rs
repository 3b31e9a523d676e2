//! Counts and lists of jobs.

use crate::{Forecast, JobsPage, Result, StoredJob};
use model::job::{State, TopicName};

/// How many jobs of a topic are in each state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// The topic.
    pub topic: TopicName,
    /// Jobs that wait for their due time.
    pub delayed: u64,
    /// Jobs that may be leased.
    pub ready: u64,
    /// Jobs under a lease.
    pub leased: u64,
    /// Dead letters.
    pub dead: u64,
    /// The due time of the ready job that has waited longest, Unix milliseconds. None: no job is ready.
    pub oldest_ready_ms: Option<i64>,
    /// The bytes of all its jobs, dead letters included. None: the store does not count the bytes of this topic. (Redis
    /// counts them from the first add that has a limit.)
    pub bytes: Option<u64>,
}

impl Counts {
    /// Returns how many jobs are delayed, ready or leased.
    pub fn pending(&self) -> u64 {
        self.delayed + self.ready + self.leased
    }

    /// Returns the counts of a topic that has no jobs.
    pub fn none(topic: TopicName) -> Counts {
        Counts { topic, delayed: 0, ready: 0, leased: 0, dead: 0, oldest_ready_ms: None, bytes: None }
    }
}

/// Reads that cover many jobs: lists, counts, forecasts.
pub trait Views {
    /// Returns a page of a topic's jobs in one state. Delayed jobs are sorted by due time, ready jobs by priority and
    /// due time, leased jobs by deadline, dead letters by when they died. `cursor` is the [`JobsPage::next`] of the
    /// page before. A cursor that is not valid gives an empty last page.
    fn list(
        &mut self,
        topic: &TopicName,
        state: State,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<JobsPage>;

    /// Returns the cursor with which [`Views::list`] begins at the delayed jobs of a topic that are due at this moment
    /// (Unix milliseconds) or later.
    fn delayed_from(&mut self, topic: &TopicName, due_ms: i64) -> Result<String>;

    /// Returns the dead letters of a topic that died at `since_ms` or later, the latest first: up to `limit`, or fewer
    /// if their bodies are big.
    fn dead_since(&mut self, topic: &TopicName, since_ms: i64, limit: usize) -> Result<Vec<StoredJob>>;

    /// Returns the counts of all topics that ever had a job, sorted by name.
    fn counts(&mut self) -> Result<Vec<Counts>>;

    /// Returns how many delayed jobs of these topics become due in each span. A span lasts from one moment of
    /// `edges_ms` to the next moment. The moments are Unix milliseconds, in ascending order. The embedded store counts
    /// up to [`FORECAST_MAX`](crate::FORECAST_MAX) jobs in all. Jobs on nodes that do not answer are missing.
    fn forecast(&mut self, topics: &[TopicName], edges_ms: &[i64]) -> Result<Forecast>;
}
