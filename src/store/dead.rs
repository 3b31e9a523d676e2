//! How dead letters are named, and what is done with those of some ids.

use crate::job::JobId;

/// What becomes of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Letters {
    /// They are counted.
    Count,
    /// They are removed.
    Remove,
}

/// Which dead letters a redrive or purge takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// All of the topic.
    All,
    /// Those of these ids.
    Ids(Vec<JobId>),
    /// These.
    Letters(Vec<Letter>),
}

/// One dead letter. Those of one id died at different times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// The job's id.
    pub id: JobId,
    /// When it died, Unix milliseconds.
    pub died_ms: i64,
}
