//! How full the spool is, and whether its disk has room for what has to be written.

use super::{PAGE, SEND_BYTES, Spool, unread};
use crate::disk::free_bytes;
use crate::{Result, StoreError};
use model::settings::files::{LOG, beside};

/// The approximate limit of the bytes of entries that are read and sent together.
pub(crate) const BATCH_BYTES: usize = 4 << 20;

/// How full the spool is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolState {
    /// How many changes wait.
    pub entries: u64,
    /// How many bytes the waiting changes take on the disk.
    pub bytes: u64,
    /// When the oldest waiting change was stored, Unix milliseconds.
    pub oldest_ms: Option<i64>,
    /// Whether the disk has too little room for what the sender writes. In this case the sender sends nothing.
    pub has_full_disk: bool,
}

impl Spool {
    /// Returns how full the spool is.
    pub fn state(&self) -> Result<SpoolState> {
        let (entries, oldest_us): (u64, Option<i64>) = self
            .db
            .query_row(
                "SELECT count(*), (SELECT added_us FROM entry ORDER BY seq LIMIT 1) FROM entry",
                [],
                |r| Ok((r.get(0)?, r.get(1)?)),
            )
            .map_err(unread)?;
        let bytes = if entries == 0 { 0 } else { self.used_bytes()? };
        Ok(SpoolState {
            entries,
            bytes,
            oldest_ms: oldest_us.map(|us| us / 1000),
            has_full_disk: self.has_full_disk(),
        })
    }

    fn used_bytes(&self) -> Result<u64> {
        let pragma = |name| self.db.pragma_query_value(None, name, |r| r.get::<_, u64>(0)).map_err(unread);
        Ok(pragma("page_count")?.saturating_sub(pragma("freelist_count")?) * PAGE as u64)
    }

    /// Refuses changes of `bytes` bytes if the disk would then have too little free space to send the waiting changes.
    /// A batch that is sent is written three times: into the log when it gets its number, into the log again when it is
    /// removed, and into the file when the log is copied into the file. The present content of the log also needs space
    /// in the file.
    pub(super) fn check_disk(&self, bytes: usize) -> Result<()> {
        let Some(free) = free_bytes(&self.path) else { return Ok(()) };
        let log = std::fs::metadata(beside(&self.path, LOG)).map_or(0, |log| log.len());
        let batch = (self.used_bytes()? + bytes as u64).min(BATCH_BYTES as u64);
        let needed = log + 3 * batch + (2 * bytes + SEND_BYTES) as u64;
        if free >= needed {
            return Ok(());
        }
        Err(StoreError::SpoolFull(format!(
            "{}: its disk has {free} bytes left, and {needed} are needed to keep this and to send what waits",
            self.path.display()
        )))
    }

    /// Returns whether the disk has less room than the sender needs.
    pub(super) fn has_full_disk(&self) -> bool {
        free_bytes(&self.path).is_some_and(|free| free < SEND_BYTES as u64)
    }
}
