//! The audit log: who changed what, and how many jobs were changed. Pure: this file defines an entry. The registry
//! stores the entries.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long an entry is stored.
pub const KEPT: Duration = Duration::from_secs(90 * 24 * 3600);

/// The maximum number of entries that a database keeps. (Redis keeps fewer, because they take its memory.)
pub const ENTRIES_MAX: u64 = 1_000_000;

/// The maximum number of old entries that one new entry removes. So a clock that is wrong for a moment does not empty
/// the log.
pub const REMOVED_MAX: u64 = 10;

/// The longest `who`, `target` and `detail`, in characters. Longer texts are cut.
pub const LONGEST: usize = 400;

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When the change was made, in Unix milliseconds.
    pub at_ms: i64,
    /// Who made the change: `root`, `account ann`, `token shop`. Empty: a client without a token, over a port that
    /// needs no token.
    pub who: String,
    /// What was done, such as `topic.pause`.
    pub action: String,
    /// What was changed: a topic, a job as `topic/id`, a token.
    pub target: String,
    /// Further details, for people.
    pub detail: String,
    /// How many jobs were changed. None: the number of jobs is not a part of this entry.
    pub jobs: Option<u64>,
}

impl AuditEntry {
    /// Returns the entry with its texts cut to [`LONGEST`].
    pub fn cut(self) -> AuditEntry {
        let cut = |text: String| match text.char_indices().nth(LONGEST - 1) {
            Some((at, _)) if text.chars().count() > LONGEST => text[..at].to_owned() + "…",
            _ => text,
        };
        AuditEntry { who: cut(self.who), target: cut(self.target), detail: cut(self.detail), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let entry = |text: String| AuditEntry {
            at_ms: 1,
            who: "root".into(),
            action: "job.delete".into(),
            target: text,
            detail: String::new(),
            jobs: None,
        };
        let fits = entry("é".repeat(LONGEST));
        assert_eq!(fits.clone().cut(), fits);
        let cut = entry("é".repeat(LONGEST + 1)).cut().target;
        assert!(cut.chars().count() == LONGEST && cut.ends_with("é…"), "{cut}");
    }
}
