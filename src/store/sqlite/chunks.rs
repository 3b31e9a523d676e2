//! Work of any size, in transactions that stay short.

use super::commit::CommitDurability;
use super::write::WriteTransaction;
use super::{CHUNK, SqliteStore};
use crate::{Result, StoreError};

impl SqliteStore {
    pub(super) fn in_chunks<A, B>(
        &mut self,
        durability: CommitDurability,
        items: &[A],
        mut one: impl FnMut(&mut WriteTransaction<'_>, &A) -> rusqlite::Result<B>,
    ) -> Vec<Result<B>> {
        let mut out = Vec::with_capacity(items.len());
        for chunk in items.chunks(CHUNK) {
            match self
                .write(durability, |w| chunk.iter().map(|item| one(w, item)).collect::<Result<Vec<B>, _>>())
            {
                Ok(some) => out.extend(some.into_iter().map(Ok)),
                Err(e) => out.extend(chunk.iter().map(|_| Err(e.clone()))),
            }
        }
        out
    }

    /// Repeats a step until the step says that there is no more to do. Returns the sum of what the steps did.
    pub(super) fn until_done(
        &mut self,
        mut step: impl FnMut(&mut WriteTransaction<'_>) -> rusqlite::Result<(usize, More)>,
    ) -> Result<usize> {
        let mut sum = 0;
        loop {
            match self.write(CommitDurability::Full, &mut step) {
                Ok((some, More::Yes)) => sum += some,
                Ok((some, More::No)) => return Ok(sum + some),
                Err(e) if sum == 0 => return Err(e),
                Err(e) => return Err(StoreError::Unknown(format!("only the first {sum} are done: {e}"))),
            }
        }
    }
}

/// Whether a bounded step has left something to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum More {
    Yes,
    No,
}

impl More {
    /// Returns `Yes` if the step reached its limit: there may be more to do.
    pub(super) fn if_full(found: usize, limit: usize) -> More {
        if found == limit && limit > 0 { More::Yes } else { More::No }
    }
}
