//! What the sender of the spool needs: the entries, the batches in which they are sent, and the results of the batches.

use rusqlite::{Row, params};

use super::clock::HostMoment;
use super::{COLUMNS, Entry, Spool, entry, unread};
use crate::Result;
use model::settings::NOTHING_WAITS;

/// Entries that are sent to a shard together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentBatch {
    /// The number of the batch. It is greater than the numbers of all earlier batches of this sender.
    pub number: i64,
    /// The process that sends it.
    pub sender: String,
    /// The node, by its name.
    pub node: String,
    /// The shard of that node.
    pub shard: usize,
    /// The set of nodes that was used to choose this node and this shard.
    pub set: String,
}

impl Spool {
    /// Returns whether no change waits. If no change waits, also notes this beside the file, so that other processes do
    /// not have to read the file.
    pub(crate) fn note_empty(&self) -> Result<bool> {
        if self.is_noted_empty() || !self.has_no_entry()? {
            return self.is_empty();
        }
        if let Ok(turn) = self.turn.take()
            && self.has_no_entry()?
        {
            // It is not an error if the note cannot be written: the other processes then read the file.
            let _ = turn.set_byte(NOTHING_WAITS);
        }
        self.is_empty()
    }

    /// Returns the first entries after `after` that are in no batch. The result ends at `limit` entries, or when its
    /// entries reach `bytes` bytes. If there is any such entry, the result has at least one.
    pub(crate) fn page(&self, after: i64, limit: usize, bytes: usize) -> Result<Vec<Entry>> {
        let sql = format!("SELECT {COLUMNS} FROM entry WHERE seq > ? AND batch IS NULL ORDER BY seq LIMIT ?");
        self.read(&sql, params![after, limit as i64], bytes)
    }

    /// Returns the entries of a batch that no later change has replaced.
    pub(crate) fn entries_of(&self, batch: i64) -> Result<Vec<Entry>> {
        let sql = format!("SELECT {COLUMNS} FROM entry WHERE batch = ? ORDER BY seq");
        self.read(&sql, [batch], usize::MAX)
    }

    fn read(&self, sql: &str, params: impl rusqlite::Params, bytes: usize) -> Result<Vec<Entry>> {
        let now = HostMoment::now(&self.boot);
        let mut query = self.db.prepare_cached(sql).map_err(unread)?;
        let mut rows = query.query(params).map_err(unread)?;
        let (mut entries, mut sum) = (Vec::new(), 0);
        while sum < bytes
            && let Some(row) = rows.next().map_err(unread)?
        {
            let entry = entry(row, &now).map_err(unread)?;
            sum += entry.job.as_ref().map_or(0, |job| job.body.as_str().len());
            entries.push(entry);
        }
        Ok(entries)
    }

    /// Returns the batches that have no known result, the earliest first.
    pub(crate) fn unanswered(&self) -> Result<Vec<SentBatch>> {
        let sql = "SELECT number, sender, node, shard, node_set FROM batch ORDER BY number";
        let mut query = self.db.prepare_cached(sql).map_err(unread)?;
        let batch = |r: &Row<'_>| {
            Ok(SentBatch {
                number: r.get(0)?,
                sender: r.get(1)?,
                node: r.get(2)?,
                shard: r.get(3)?,
                set: r.get(4)?,
            })
        };
        query.query_map([], batch).and_then(Iterator::collect).map_err(unread)
    }

    /// Notes which entries are in which batch, before they are sent. Gives each batch its number. Removes from each
    /// batch the entries that a later change has replaced since they were read.
    pub(crate) fn note_sent(&mut self, batches: &mut [(SentBatch, Vec<Entry>)]) -> Result<()> {
        self.write(|tx| {
            let mut insert =
                tx.prepare_cached("INSERT INTO batch (sender, node, shard, node_set) VALUES (?, ?, ?, ?)")?;
            let mut update = tx.prepare_cached("UPDATE entry SET batch = ? WHERE seq = ?")?;
            for (batch, entries) in batches.iter_mut() {
                insert.execute(params![batch.sender, batch.node, batch.shard, batch.set])?;
                batch.number = tx.last_insert_rowid();
                let mut is_there = Vec::new();
                for entry in entries.iter() {
                    is_there.push(update.execute([batch.number, entry.seq])? == 1);
                }
                let mut is_there = is_there.into_iter();
                entries.retain(|_| is_there.next() == Some(true));
            }
            Ok(())
        })
    }

    /// Notes the results of batches. The entries of batches that were taken are removed. The entries of batches that
    /// were not taken wait again.
    pub(crate) fn note_answered(&mut self, taken: &[i64], not_taken: &[i64]) -> Result<()> {
        if taken.is_empty() && not_taken.is_empty() {
            return Ok(());
        }
        self.write(|tx| {
            for number in taken {
                tx.prepare_cached("DELETE FROM entry WHERE batch = ?")?.execute([number])?;
            }
            for number in not_taken {
                tx.prepare_cached("UPDATE entry SET batch = NULL WHERE batch = ?")?.execute([number])?;
            }
            for number in taken.iter().chain(not_taken) {
                tx.prepare_cached("DELETE FROM batch WHERE number = ?")?.execute([number])?;
            }
            Ok(())
        })
    }
}
