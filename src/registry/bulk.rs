//! Operations on many jobs, as all registries store them.

use crate::{RegistryError, Result};
use model::bulk::{BulkEnd, BulkProgress, StoredBulkOperation};

/// A row of the table.
pub(crate) struct StoredBulk {
    pub number: u64,
    pub who: String,
    pub request: String,
    pub progress: String,
    pub started_ms: i64,
    pub stop: bool,
    pub ended: Option<String>,
    pub ended_ms: Option<i64>,
}

impl StoredBulk {
    /// Reads the row. None: another release has written the row, and this release cannot read it.
    pub(crate) fn read(self) -> Option<StoredBulkOperation> {
        let StoredBulk { number, who, request, progress, started_ms, stop, ended, ended_ms } = self;
        let ended = match ended {
            None => None,
            Some(word) => Some((BulkEnd::from_word(&word)?, ended_ms.unwrap_or(started_ms))),
        };
        Some(StoredBulkOperation {
            number,
            who,
            request: serde_json::from_str(&request).ok()?,
            progress: serde_json::from_str(&progress).ok()?,
            started_ms,
            is_stopping: stop,
            ended,
        })
    }
}

/// Writes a request or the progress as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|e| RegistryError::Away(format!("cannot write an operation: {e}")))
}

/// Returns the progress of an operation that has done nothing yet, as JSON.
pub(crate) fn begun() -> Result<String> {
    json(&BulkProgress::default())
}
