//! Removes rows, so that their text soon disappears from the file and its log. Later backups do not have it either.
//!
//! SQLite only marks deleted rows as free. All connections use `secure_delete = fast`, which overwrites deleted text
//! only in a page that SQLite writes for another reason. A page that becomes free as a whole keeps its content. The log
//! keeps earlier versions of pages until this part of the log is overwritten. So an erasure has two parts:
//! 1. The transaction that deletes uses `secure_delete = on`, which overwrites pages that become free, too. It also
//!    counts the erasure in `shard.erasures`.
//! 2. The timer's maintenance gives all free pages back, because a free page may still have a text of the job from
//!    before the job ended. Then the maintenance copies the log into the file, and empties the log. At the end it notes
//!    in `shard.erased` which erasures are finished.
//!
//! A crash between any two steps leaves `erased` smaller than `erasures`, so the next maintenance continues.

use std::time::Duration;

use super::SqliteStore;
use super::carry_over::{CheckpointMode, carry_over};
use super::chunks::More;
use super::commit::CommitDurability;
use super::connect::refused;
use super::free_pages::{PAUSE, free_page_bytes, give_back};
use super::write::WriteTransaction;
use crate::Result;

/// The pause before the next try if a reader, for example a backup, still needs SQLite's log (WAL). The log can be
/// emptied only after the reader has ended.
const READER: Duration = Duration::from_secs(1);

impl SqliteStore {
    /// Repeats a step that deletes rows until the step says that there is no more to do. Ensures that the text of the
    /// rows is erased. Returns the sum of what the steps did.
    pub(super) fn erase(
        &mut self,
        mut step: impl FnMut(&mut WriteTransaction<'_>) -> rusqlite::Result<(usize, More)>,
    ) -> Result<usize> {
        self.set_secure_delete("on")?;
        let erased = self.until_done(|w| {
            w.db.execute("UPDATE shard SET erasures = erasures + 1", [])?;
            w.ring_timer();
            step(w)
        });
        self.set_secure_delete("fast")?;
        erased
    }

    fn set_secure_delete(&self, mode: &str) -> Result<()> {
        // The pragma answers with the new mode.
        self.db.pragma_update_and_check(None, "secure_delete", mode, |_| Ok(())).map_err(refused)
    }

    /// Does a short step of the erasures that are not finished. Returns the time until the next call. None: all
    /// erasures are finished.
    pub(super) fn finish_erasures(&mut self) -> Result<Option<Duration>> {
        let sql = "SELECT erasures, erased FROM shard";
        let (erasures, erased): (i64, i64) =
            self.db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).map_err(refused)?;
        if erased >= erasures {
            return Ok(None);
        }
        if self.gives_pages_back
            && free_page_bytes(&self.db).map_err(refused)? > 0
            && self.write(CommitDurability::Normal, |w| give_back(w.db, i64::from(i32::MAX)))? > 0
        {
            return Ok(Some(PAUSE));
        }
        if !carry_over(&self.db, &self.turn, &mut self.log, &self.path, 0, CheckpointMode::Emptied)? {
            return Ok(Some(READER));
        }
        // Erasures that began in the meantime are counted in the file, but not in `erasures` here. The next call
        // finishes them.
        self.write(CommitDurability::Normal, |w| w.db.execute("UPDATE shard SET erased = ?1", [erasures]))?;
        Ok(Some(Duration::ZERO))
    }
}
