//! Gives free pages of the file back to the disk. The timer's maintenance does this in short steps, and only with pages
//! that no job has needed for a while. If a store is emptied and filled again and again, giving its pages back would
//! only cause more writes.
//!
//! A file can give pages back if it was made with `auto_vacuum = incremental`, as all new files are. In an older file,
//! free pages are only used again. To turn an older file into a new file, use `dq backup` and `dq restore`.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::SqliteStore;
use super::carry_over::{CheckpointMode, carry_over};
use super::commit::CommitDurability;
use super::connect::refused;
use crate::Result;

/// How many free pages (of 4 kB) always stay for the next jobs.
const KEPT: i64 = 1000;

/// How long pages must have been free before they are given back.
const SETTLED: Duration = Duration::from_secs(10);

/// How long a step may take. Writers wait during the step.
const STEP: Duration = Duration::from_millis(2);

/// The pause between two steps, so that writers can write.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Decides when pages are given back. It gets the number of free pages and the time, and is pure.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum FreePages {
    /// There are not many free pages.
    #[default]
    Few,
    /// There have been many free pages since this time. `least`: the smallest number of free pages since then.
    Many { since: Instant, least: i64 },
    /// Pages are being given back. `left`: how many pages are still to be given back.
    Giving { left: i64 },
}

/// What to do about free pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FreePagesAction {
    Nothing,
    /// Check again after this time.
    Wait(Duration),
    /// Give back up to this number of pages, and check again.
    Give(i64),
    /// All these pages are given back, but only in the log. The log must be copied into the file, so that the file gets
    /// shorter.
    Shrink,
}

impl FreePages {
    fn step(&mut self, free: i64, now: Instant) -> FreePagesAction {
        match *self {
            FreePages::Few if free <= KEPT => FreePagesAction::Nothing,
            FreePages::Few => {
                *self = FreePages::Many { since: now, least: free };
                FreePagesAction::Wait(SETTLED)
            }
            FreePages::Many { .. } if free <= KEPT => {
                *self = FreePages::Few;
                FreePagesAction::Nothing
            }
            FreePages::Many { since, least } => {
                let (least, past) = (least.min(free), now.saturating_duration_since(since));
                if past < SETTLED {
                    *self = FreePages::Many { since, least };
                    return FreePagesAction::Wait(SETTLED - past);
                }
                *self = FreePages::Giving { left: least - KEPT };
                FreePagesAction::Give(least - KEPT)
            }
            FreePages::Giving { left } if left <= 0 || free <= KEPT => {
                *self = FreePages::Few;
                FreePagesAction::Shrink
            }
            FreePages::Giving { left } => FreePagesAction::Give(left.min(free - KEPT)),
        }
    }

    /// Notes that pages were given back.
    fn note_given_back(&mut self, pages: i64) {
        if let FreePages::Giving { left } = self {
            // If a step gives no page back, the work ends.
            *left = if pages > 0 { *left - pages } else { 0 };
        }
    }
}

impl SqliteStore {
    /// Gives some free pages back if there are many. Returns the time until the next call. None: there is nothing to do
    /// before the next ring.
    pub(super) fn give_pages_back(&mut self) -> Result<Option<Duration>> {
        if !self.gives_pages_back {
            return Ok(None);
        }
        let free = number(&self.db, "freelist_count").map_err(refused)?;
        match self.free_pages.step(free, Instant::now()) {
            FreePagesAction::Nothing => Ok(None),
            FreePagesAction::Wait(span) => Ok(Some(span)),
            FreePagesAction::Give(pages) => {
                let given = self.write(CommitDurability::Normal, |w| give_back(w.db, pages))?;
                self.free_pages.note_given_back(given);
                Ok(Some(PAUSE))
            }
            FreePagesAction::Shrink => {
                carry_over(&self.db, &self.turn, &mut self.log, &self.path, 1, CheckpointMode::Reused)?;
                // In the meantime, more pages may have become free.
                Ok(Some(PAUSE))
            }
        }
    }
}

/// Returns how many bytes the free pages of the file have.
pub(super) fn free_page_bytes(db: &Connection) -> rusqlite::Result<i64> {
    Ok(number(db, "freelist_count")? * number(db, "page_size")?)
}

/// Returns whether a file can give pages back.
pub(super) fn can_give_back(db: &Connection) -> rusqlite::Result<bool> {
    const INCREMENTAL: i64 = 2;
    Ok(number(db, "auto_vacuum")? == INCREMENTAL)
}

fn number(db: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))
}

/// Gives up to `pages` free pages back, but stops after the time of one step. Returns how many were given back.
pub(super) fn give_back(db: &Connection, pages: i64) -> rusqlite::Result<i64> {
    let (begun, mut given) = (Instant::now(), 0);
    // Each row is one page.
    let mut vacuum = db.prepare(&format!("PRAGMA incremental_vacuum({pages})"))?;
    let mut rows = vacuum.query([])?;
    while begun.elapsed() < STEP && rows.next()?.is_some() {
        given += 1;
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_stay_free_for_a_while_are_given_back() {
        let (mut pages, begun) = (FreePages::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(pages.step(KEPT, at(0)), FreePagesAction::Nothing);
        assert_eq!(pages.step(KEPT + 900, at(0)), FreePagesAction::Wait(SETTLED));
        // A bell rings during the wait, and jobs need some of the pages.
        assert_eq!(pages.step(KEPT + 300, at(4)), FreePagesAction::Wait(Duration::from_secs(6)));
        assert_eq!(pages.step(KEPT + 800, at(10)), FreePagesAction::Give(300));
        pages.note_given_back(200);
        assert_eq!(pages.step(KEPT + 600, at(11)), FreePagesAction::Give(100));
        pages.note_given_back(100);
        assert_eq!(pages.step(KEPT + 500, at(12)), FreePagesAction::Shrink);
        assert_eq!(
            pages.step(KEPT + 500, at(12)),
            FreePagesAction::Wait(SETTLED),
            "the others have to stay free first"
        );
        assert_eq!(pages.step(10, at(13)), FreePagesAction::Nothing, "they were needed");
        assert_eq!(pages, FreePages::Few);
    }

    #[test]
    fn a_step_that_gives_nothing_back_is_the_last() {
        let mut pages = FreePages::Giving { left: 500 };
        assert_eq!(pages.step(KEPT + 500, Instant::now()), FreePagesAction::Give(500));
        pages.note_given_back(0);
        assert_eq!(pages.step(KEPT + 500, Instant::now()), FreePagesAction::Shrink);
    }
}
