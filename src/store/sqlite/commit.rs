//! Runs a transaction, from taking the turn to ringing the bells.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::TransactionBehavior;

use super::bell::PendingRings;
use super::connect::{at_commit, refused};
use super::write::WriteTransaction;
use super::{LOG_PAGES, SqliteStore};
use crate::{Result, StoreError};

/// When a transaction is on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitDurability {
    /// Before it is answered.
    Full,
    /// After the next transaction that is `Full`, or the next checkpoint.
    Normal,
}

/// Where a transaction failed.
enum TransactionError {
    /// The transaction failed before the commit: nothing was changed.
    Refused(rusqlite::Error),
    AtCommit(rusqlite::Error),
}

impl SqliteStore {
    /// Runs `work` in a write transaction. After the commit, rings the bells that `work` asks for.
    pub(super) fn write<T>(
        &mut self,
        durability: CommitDurability,
        work: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let turn = Arc::clone(&self.turn);
        let taken = turn.take().map_err(|e| StoreError::Unavailable(format!("the store's turn: {e}")))?;
        self.check_file()?;
        self.log.begin(&taken, &self.db)?;
        let committed = self.commit(durability, work);
        let error =
            committed.as_ref().err().map(|(TransactionError::Refused(e) | TransactionError::AtCommit(e))| e);
        self.log.end(&taken, error);
        drop(taken);
        match committed {
            Ok((out, rings)) => {
                self.ringer.ring(rings);
                Ok(out)
            }
            Err(TransactionError::Refused(e)) => Err(refused(e)),
            Err(TransactionError::AtCommit(e)) => {
                // Perhaps the disk is full, and the log cannot grow. The timer is rung to copy the log into the file.
                // After that, writers can use the space of the log again from its beginning.
                self.ringer.ring(PendingRings { push: false, timer: true });
                Err(at_commit(e))
            }
        }
    }

    /// Runs the transaction, in this handle's turn.
    fn commit<T>(
        &mut self,
        durability: CommitDurability,
        work: impl FnOnce(&mut WriteTransaction<'_>) -> rusqlite::Result<T>,
    ) -> std::result::Result<(T, PendingRings), TransactionError> {
        if self.durability != durability {
            let level = if durability == CommitDurability::Full { "full" } else { "normal" };
            self.db.pragma_update(None, "synchronous", level).map_err(TransactionError::Refused)?;
            self.durability = durability;
        }
        let immediate = TransactionBehavior::Immediate;
        let tx = self.db.transaction_with_behavior(immediate).map_err(TransactionError::Refused)?;
        let mut write = WriteTransaction::begin(&tx, &self.topics, self.record_budget);
        let out = work(&mut write).map_err(TransactionError::Refused)?;
        let mut rings = write.finish().map_err(TransactionError::Refused)?;
        let (met, mut buried, record_budget) = (write.met, write.dead_topics, write.record_budget);
        tx.commit().map_err(TransactionError::AtCommit)?;
        self.dead_topics.append(&mut buried);
        self.topics.extend(met);
        self.record_budget = record_budget;
        let grown = self.log_pages.load(Ordering::Relaxed) / LOG_PAGES;
        rings.timer |= grown > self.log_rung;
        self.log_rung = grown;
        Ok((out, rings))
    }
}
