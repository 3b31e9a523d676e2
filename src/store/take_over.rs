//! A store takes over the jobs, dead letters and records of another store, as they are. `dq move` does this while no
//! daemon runs.
//!
//! A move removes nothing from the old store. So a move that is interrupted loses nothing, and may be run again. A mark
//! in each of the two stores keeps daemons away until the move has ended. The mark of the old store then stays, and
//! keeps daemons away for good:
//!
//! | the run dies | mark of the old store | mark of the new store | what a new run does |
//! |---|---|---|---|
//! | before the first mark | none | none | begins |
//! | between the first two marks | leaves | none, and it is empty | sets the second mark, and goes on |
//! | while it copies | leaves | takes | copies what is missing |
//! | after the counts were compared | left | takes | removes the second mark |
//! | after that | left | none | nothing: the new store is in use |
//! | while the move is given up, or after it | leaves, then none | given up | refuses: the new store must be emptied |
//!
//! So a daemon can never use both stores, and it can never use a store that has only a part of the jobs.

use std::fmt;

use super::{Result, Store, StoredJob};
use model::record::JobRecord;

/// What a store does in a move, and the name of the other store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreMoveMark {
    /// The jobs of this store are being copied to the other store.
    Leaves(String),
    /// The jobs of this store were moved to the other store. The jobs that this store still has are old.
    Left(String),
    /// This store gets the jobs of the other store.
    Takes(String),
    /// This store has some of the jobs of the other store, from a move that was given up.
    GivenUp(String),
}

impl StoreMoveMark {
    /// Returns the text of the mark, as a store keeps it.
    pub(crate) fn to_text(&self) -> String {
        let (word, other) = match self {
            StoreMoveMark::Leaves(other) => ("leaves", other),
            StoreMoveMark::Left(other) => ("left", other),
            StoreMoveMark::Takes(other) => ("takes", other),
            StoreMoveMark::GivenUp(other) => ("given-up", other),
        };
        format!("{word} {other}")
    }

    /// Reads the text. None: it is not the text of a mark.
    pub(crate) fn from_text(text: &str) -> Option<StoreMoveMark> {
        let (word, other) = text.trim_end().split_once(' ')?;
        let mark = match word {
            "leaves" => StoreMoveMark::Leaves,
            "left" => StoreMoveMark::Left,
            "takes" => StoreMoveMark::Takes,
            "given-up" => StoreMoveMark::GivenUp,
            _ => return None,
        };
        Some(mark(other.to_owned()))
    }
}

/// Why a daemon may not use the store.
impl fmt::Display for StoreMoveMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = "run the same dq move again, or give it up with --give-up";
        match self {
            StoreMoveMark::Leaves(other) => write!(f, "its jobs are being moved to {other}: {again}"),
            StoreMoveMark::Left(other) => write!(f, "its jobs were moved to {other}: use that store"),
            StoreMoveMark::Takes(other) => write!(f, "it does not have all jobs of {other} yet: {again}"),
            StoreMoveMark::GivenUp(other) => {
                write!(
                    f,
                    "it has some jobs of {other}, from a move that was given up: empty it (docs/MOVE.md)"
                )
            }
        }
    }
}

/// A store that can take over what another store had. [`open_to_move`](crate::open_to_move) opens such a store even if
/// it has a mark.
pub trait MovableStore: Store {
    /// Returns the mark of the store.
    fn move_mark(&mut self) -> Result<Option<StoreMoveMark>>;

    /// Sets the mark of the store. None: removes the mark. When this method returns, the change of the mark is as safe
    /// as an acknowledged job.
    fn set_move_mark(&mut self, mark: Option<&StoreMoveMark>) -> Result<()>;

    /// Takes over jobs in any state. A job that was leased waits until its lease would have ended, and the attempt does
    /// not count. Jobs that are in this store already are left out.
    fn take_over(&mut self, jobs: &[StoredJob]) -> Result<()>;

    /// Takes over records. Records that are in this store already are left out. Call [`MovableStore::end_take_over`]
    /// after the last records.
    fn take_over_records(&mut self, records: &[JobRecord]) -> Result<()>;

    /// Must be called after everything was taken over. When this method returns, all that was taken over is as safe as
    /// an acknowledged job.
    fn end_take_over(&mut self) -> Result<()>;
}

/// Returns a leased job in the form in which another store gets it: as a job that waits until its lease would have
/// ended.
pub(crate) fn without_lease(job: &StoredJob) -> StoredJob {
    let due_ms = job.until_ms.map_or(job.due_ms, |until_ms| until_ms.max(job.due_ms));
    let attempts = job.attempts.saturating_sub(1);
    StoredJob {
        state: model::job::State::Delayed,
        due_ms,
        until_ms: None,
        attempts,
        reserver: None,
        ..job.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let marks =
            [StoreMoveMark::Leaves, StoreMoveMark::Left, StoreMoveMark::Takes, StoreMoveMark::GivenUp];
        for mark in marks.map(|mark| mark("a b".to_owned())) {
            assert_eq!(StoreMoveMark::from_text(&format!("{}\n", mark.to_text())), Some(mark));
        }
        assert_eq!(StoreMoveMark::from_text("goes a"), None);
    }
}
