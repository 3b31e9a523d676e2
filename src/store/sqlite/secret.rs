//! The secret that signs tickets. The first process that needs the secret makes it. All processes use the same secret.

use rusqlite::params;

use super::SqliteStore;
use super::commit::CommitDurability;
use super::connect::refused;
use crate::{Result, StoreError};
use model::ticket::TicketSecret;

impl SqliteStore {
    pub(super) fn shared_secret(&mut self) -> Result<TicketSecret> {
        if let Some(secret) = self.known_secret()? {
            return Ok(secret);
        }
        let mut random = [0; 32];
        getrandom::fill(&mut random)
            .map_err(|e| StoreError::Unavailable(format!("no random numbers: {e}")))?;
        self.write(CommitDurability::Full, |w| {
            w.db.execute("UPDATE shard SET secret = ?1 WHERE secret IS NULL", params![random])
        })?;
        self.known_secret()?.ok_or_else(|| StoreError::Damaged("the ticket secret is invalid".to_owned()))
    }

    fn known_secret(&self) -> Result<Option<TicketSecret>> {
        let read = |row: &rusqlite::Row<'_>| row.get::<_, Option<Vec<u8>>>(0);
        let bytes = self.db.query_row("SELECT secret FROM shard", [], read).map_err(refused)?;
        Ok(bytes.as_deref().and_then(TicketSecret::from_bytes))
    }
}
